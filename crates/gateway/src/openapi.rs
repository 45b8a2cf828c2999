//! The OpenAPI document, made from the very handlers that the router serves. `openapi/remuda.json` is its checked-in
//! copy; a test compares them.

use remuda_control::access::{Action, Needs};
use remuda_types::ErrorCode;
use remuda_types::wire::{FileEvent, FollowedGap, FollowedOutput, TerminalSaid, TerminalTold};
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{OpenApi as Document, PathItem};
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
    components(schemas(ErrorCode, FileEvent, FollowedOutput, FollowedGap, TerminalSaid, TerminalTold)),
    tags(
        (name = "server", description = "The server itself"),
        (name = "access", description = "Access keys, accounts, and what a caller may do"),
        (name = "sandboxes", description = "Machines, each one generation of a slot"),
        (name = "executions", description = "Commands and their retained output"),
        (name = "files", description = "Files of a guest"),
        (name = "previews", description = "Access to one port of one generation, with a credential of its own"),
        (name = "ports", description = "A guest's applications over HTTP"),
        (name = "snapshots", description = "Captures, forks and restores"),
        (name = "operations", description = "What became of calls, by their keys"),
        (name = "webhooks", description = "Events delivered to URLs"),
        (name = "history", description = "Receipts and events: what has been, also of what is gone")
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
            for (method, operation) in operations(item) {
                operation.operation_id = Some(format!("port_{method}"));
            }
        }
    }
}

/// The operations of a path, by method.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let all = [
        ("get", &mut item.get),
        ("head", &mut item.head),
        ("post", &mut item.post),
        ("put", &mut item.put),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
        ("options", &mut item.options),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Writes to each operation what it needs of its caller, from the table that is enforced: as the extension
/// `x-remuda-scopes`, and in words.
pub(crate) fn tell_needs(document: &mut Document) {
    for item in document.paths.paths.values_mut() {
        for (_, operation) in operations(item) {
            let call = operation.operation_id.as_deref().and_then(Action::of_operation);
            let (scopes, words): (&[_], _) = match call.map(Action::needs) {
                // A test refuses an operation that the table does not know.
                None | Some(Needs::Nothing) => continue,
                Some(Needs::AnyKey) => (&[], "Needs an access key, with whatever scopes.".to_owned()),
                Some(Needs::Operator) => (&[], "Needs the server's own socket: no access key is enough.".to_owned()),
                Some(Needs::Scopes(scopes)) => {
                    let names: Vec<_> = scopes.iter().map(|scope| format!("`{scope}`")).collect();
                    let plural = if names.len() == 1 { "scope" } else { "scopes" };
                    (scopes, format!("Needs the {plural} {}.", names.join(" and ")))
                }
            };
            let scopes: Vec<_> = scopes.iter().map(|scope| scope.as_str()).collect();
            operation
                .extensions
                .get_or_insert_default()
                .merge(ExtensionsBuilder::new().add("x-remuda-scopes", scopes).build());
            let description = operation.description.take().unwrap_or_default();
            operation.description = Some(format!("{description}\n\n{words}").trim_start().to_owned());
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
            "DELETE /v1/keys/{access_key}",
            "GET /v1/accounts",
            "GET /v1/keys",
            "GET /v1/usage",
            "DELETE /v1/webhooks/{webhook}",
            "GET /v1/webhooks",
            "GET /v1/webhooks/{webhook}",
            "GET /v1/webhooks/{webhook}/deliveries",
            "POST /v1/webhooks",
            "POST /v1/webhooks/{webhook}/redeliver",
            "POST /v1/webhooks/{webhook}/rotate",
            "GET /v1/whoami",
            "POST /v1/keys",
            "PUT /v1/accounts/{account}",
            "GET /v1/capabilities",
            "GET /v1/doctor",
            "GET /v1/events",
            "GET /v1/health",
            "GET /v1/openapi.json",
            "GET /v1/operations",
            "GET /v1/operations/{operation}",
            "GET /v1/receipts",
            "GET /v1/receipts/{receipt}",
            "GET /v1/sandboxes",
            "GET /v1/sandboxes/{id}",
            "GET /v1/sandboxes/{id}/executions",
            "GET /v1/sandboxes/{id}/executions/{execution}",
            "GET /v1/sandboxes/{id}/executions/{execution}/events",
            "GET /v1/sandboxes/{id}/executions/{execution}/output",
            "GET /v1/sandboxes/{id}/executions/{execution}/terminal",
            "GET /v1/sandboxes/{id}/previews",
            "GET /v1/sandboxes/{id}/previews/{preview}",
            "GET /v1/sandboxes/{id}/previews/{preview}/probe",
            "DELETE /v1/sandboxes/{id}/previews/{preview}",
            "POST /v1/sandboxes/{id}/previews",
            "POST /v1/sandboxes/{id}/previews/{preview}/renew",
            "POST /v1/sandboxes/{id}/previews/{preview}/rotate",
            "GET /v1/sandboxes/{id}/files",
            "GET /v1/sandboxes/{id}/files/glob",
            "GET /v1/sandboxes/{id}/files/grep",
            "GET /v1/sandboxes/{id}/files/list",
            "GET /v1/sandboxes/{id}/files/stat",
            "GET /v1/sandboxes/{id}/files/tar",
            "GET /v1/sandboxes/{id}/files/watch",
            "PUT /v1/sandboxes/{id}/files/tar",
            "GET /v1/snapshots",
            "GET /v1/snapshots/{snapshot}",
            "PATCH /v1/snapshots/{snapshot}",
            "POST /v1/operations/cancel",
            "POST /v1/sandboxes",
            "POST /v1/sandboxes/{id}/deadline",
            "POST /v1/sandboxes/{id}/executions",
            "POST /v1/sandboxes/{id}/executions/{execution}/resize",
            "POST /v1/sandboxes/{id}/executions/{execution}/signal",
            "POST /v1/sandboxes/{id}/executions/{execution}/stdin",
            "POST /v1/sandboxes/{id}/files/attributes",
            "POST /v1/sandboxes/{id}/files/batch",
            "POST /v1/sandboxes/{id}/files/mkdir",
            "POST /v1/sandboxes/{id}/files/move",
            "POST /v1/sandboxes/{id}/forks",
            "POST /v1/sandboxes/{id}/pause",
            "POST /v1/sandboxes/{id}/resume",
            "POST /v1/sandboxes/{id}/snapshots",
            "POST /v1/sandboxes/{id}/start",
            "POST /v1/sandboxes/{id}/stop",
            "POST /v1/snapshots/{snapshot}/restore",
            "POST /v1/snapshots/{snapshot}/verify",
            "GET /v1/snapshots/{snapshot}/diff",
            "GET /v1/snapshots/{snapshot}/export",
            "GET /v1/imports/{digest}",
            "PUT /v1/imports/{digest}",
            "DELETE /v1/imports/{digest}",
            "POST /v1/imports/{digest}/snapshot",
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

    /// The table and the routes say the same operations, and each tells what the table enforces.
    #[test]
    fn no_operation_is_without_a_line_in_the_table_of_needs() {
        let mut document = document();
        let mut named = Vec::new();
        for item in document.paths.paths.values_mut() {
            for (method, operation) in operations(item) {
                let name = operation.operation_id.clone().unwrap();
                let call = Action::of_operation(&name).unwrap_or_else(|| panic!("{method} {name} is not in the table"));
                let told = serde_json::to_value(&*operation).unwrap()["x-remuda-scopes"].clone();
                match call.needs() {
                    Needs::Nothing => assert_eq!(told, Value::Null, "{name}"),
                    Needs::AnyKey | Needs::Operator => assert_eq!(told, serde_json::json!([]), "{name}"),
                    Needs::Scopes(scopes) => assert_eq!(told, serde_json::json!(scopes), "{name}"),
                }
                named.push(call);
            }
        }
        for call in Action::ALL {
            assert!(named.contains(call), "{call:?} has no route");
        }
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
