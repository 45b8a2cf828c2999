//! The OpenAPI document, made from the very handlers that the router serves. `openapi/remuda.json` is its checked-in
//! copy; a test compares them.

use remuda_types::ErrorCode;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// What the document says beside the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Remuda",
        description = "Prepared Linux sandboxes for coding agents: made, captured with their memory, forked.\n\n\
            A sandbox is addressed as `slot@generation`. Every error has the body `{error: {code, message, …}}` and \
            the header `X-Remuda-Error`. A call that changes something takes an \
            `Idempotency-Key` header, and then has one outcome however often it is sent.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "http://127.0.0.1:8787", description = "`remuda serve` as it comes")),
    paths(crate::ports::proxy),
    components(schemas(ErrorCode)),
    tags(
        (name = "server", description = "The server itself"),
        (name = "sandboxes", description = "Machines, each one generation of a slot"),
        (name = "executions", description = "Commands and their retained output"),
        (name = "files", description = "Files of a guest"),
        (name = "ports", description = "A guest's applications over HTTP"),
        (name = "snapshots", description = "Captures, forks and restores"),
        (name = "operations", description = "What became of calls, by their keys")
    ),
    security(("key" = [])),
    modifiers(&Key, &PortOperations)
)]
pub(crate) struct Base;

struct Key;

impl Modify for Key {
    fn modify(&self, document: &mut Document) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("rmd_ and 64 hex digits")
            .description(Some("Needed on TCP; the local socket needs none."))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(scheme));
    }
}

struct PortOperations;

impl Modify for PortOperations {
    /// One handler answers to every method of the ports route, but an operation's id must be its own.
    fn modify(&self, document: &mut Document) {
        for item in document.paths.paths.values_mut() {
            let operations = [
                ("get", &mut item.get),
                ("head", &mut item.head),
                ("post", &mut item.post),
                ("put", &mut item.put),
                ("patch", &mut item.patch),
                ("delete", &mut item.delete),
                ("options", &mut item.options),
            ];
            for (method, operation) in operations {
                if let Some(operation) = operation {
                    operation.operation_id = Some(format!("port_{method}"));
                }
            }
        }
    }
}

/// The document of every route that [`crate::router`] serves.
pub fn document() -> Document {
    crate::router::described()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    /// Run with `UPDATE=1` to write the file after a change of the API, and review the difference.
    #[test]
    fn the_checked_in_document_is_the_one_that_is_served() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/remuda.json");
        let served = document().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &served).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(checked_in == served, "openapi/remuda.json is out of date: run this test with UPDATE=1 and review");
    }

    #[test]
    fn every_route_is_described() {
        let document = serde_json::to_value(document()).unwrap();
        let mut described: Vec<String> = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            described.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
        }
        described.sort();
        let ports = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]
            .map(|method| format!("{method} /v1/sandboxes/{{id}}/ports/{{port}}/{{path}}"));
        let mut expected: Vec<String> = [
            "DELETE /v1/sandboxes/{id}",
            "DELETE /v1/sandboxes/{id}/executions/{execution}",
            "DELETE /v1/sandboxes/{id}/files",
            "DELETE /v1/snapshots/{snapshot}",
            "GET /v1/capabilities",
            "GET /v1/health",
            "GET /v1/openapi.json",
            "GET /v1/operations",
            "GET /v1/operations/{operation}",
            "GET /v1/sandboxes",
            "GET /v1/sandboxes/{id}",
            "GET /v1/sandboxes/{id}/executions",
            "GET /v1/sandboxes/{id}/executions/{execution}",
            "GET /v1/sandboxes/{id}/executions/{execution}/output",
            "GET /v1/sandboxes/{id}/files",
            "GET /v1/sandboxes/{id}/files/list",
            "GET /v1/sandboxes/{id}/files/stat",
            "GET /v1/snapshots",
            "GET /v1/snapshots/{snapshot}",
            "POST /v1/operations/cancel",
            "POST /v1/sandboxes",
            "POST /v1/sandboxes/{id}/executions",
            "POST /v1/sandboxes/{id}/executions/{execution}/signal",
            "POST /v1/sandboxes/{id}/files/mkdir",
            "POST /v1/sandboxes/{id}/forks",
            "POST /v1/sandboxes/{id}/pause",
            "POST /v1/sandboxes/{id}/resume",
            "POST /v1/sandboxes/{id}/snapshots",
            "POST /v1/snapshots/{snapshot}/restore",
            "PUT /v1/sandboxes/{id}/files",
        ]
        .map(str::to_owned)
        .into_iter()
        .chain(ports)
        .collect();
        expected.sort();
        assert_eq!(described, expected);
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_operation_has_a_name_of_its_own() {
        let document = serde_json::to_value(document()).unwrap();
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > 40, "found only {}", references.len());
        for reference in references {
            let target = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
            assert!(target.is_some(), "{reference}");
        }
        let operations = document["paths"].as_object().unwrap().values();
        let operations = operations.flat_map(|item| item.as_object().unwrap().values());
        let mut names: Vec<&str> = operations.filter_map(|operation| operation["operationId"].as_str()).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "two operations share an operationId: {names:?}");
    }

    #[test]
    fn every_error_code_is_listed() {
        let document = serde_json::to_value(document()).unwrap();
        let listed = document["components"]["schemas"]["ErrorCode"]["enum"].as_array().unwrap();
        for code in ErrorCode::ALL {
            assert!(listed.contains(&Value::from(code.as_str())), "{code}");
        }
    }

    fn collect(value: &Value, references: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|member| collect(member, references));
            }
            Value::Array(elements) => elements.iter().for_each(|element| collect(element, references)),
            _ => {}
        }
    }
}
