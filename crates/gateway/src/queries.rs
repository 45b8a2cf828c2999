//! Refuses what a call does not take in its query. Each call's names are those that the document tells of it, so that no
//! route can pass over a misspelt one in silence. Must not know what a name means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{MatchedPath, Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;

use crate::errors::{Failure, invalid};

/// Which names each call takes, by its path's pattern and its method.
#[derive(Clone)]
pub(crate) struct Queries(Arc<BTreeMap<(String, String), BTreeSet<String>>>);

impl Queries {
    /// Reads them from the document.
    pub(crate) fn of(document: &utoipa::openapi::OpenApi) -> Queries {
        let document = serde_json::to_value(document).unwrap_or_default();
        let mut calls = BTreeMap::new();
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                let parameters = operation["parameters"].as_array().into_iter().flatten();
                let names = parameters.filter(|it| it["in"] == "query").filter_map(|it| it["name"].as_str());
                calls.insert((path.clone(), method.to_uppercase()), names.map(str::to_owned).collect());
            }
        }
        Queries(Arc::new(calls))
    }

    /// An error unless the call takes all that is in its query.
    fn check(&self, request: &Request) -> Result<(), Failure> {
        if request.uri().query().is_none_or(str::is_empty) {
            return Ok(());
        }
        let Some(path) = request.extensions().get::<MatchedPath>() else { return Ok(()) };
        // What answers to GET answers to HEAD.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        let Some(known) = self.0.get(&(path.as_str().to_owned(), method.as_str().to_owned())) else { return Ok(()) };
        let wrong = || invalid("the query string is not understood");
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(request.uri());
        let Query(pairs) = pairs.map_err(|e| wrong().cause(e.body_text()))?;
        let Some((unknown, _)) = pairs.iter().find(|(name, _)| !known.contains(name)) else { return Ok(()) };
        let unknown: String = unknown.chars().take(80).collect();
        let error = wrong().cause(format!("unknown field `{unknown}`"));
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        Err(Failure(error.remedy(match names.as_slice() {
            [] => "this call takes nothing in its query".to_owned(),
            names => format!("this call takes {} in its query", names.join(", ")),
        })))
    }
}

/// Goes before every call of ours.
pub(crate) async fn refuse_unknown(State(queries): State<Queries>, request: Request, next: Next) -> Response {
    match queries.check(&request) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(queries: &Queries, path: &str, method: &str) -> Vec<String> {
        let found = queries.0.get(&(path.to_owned(), method.to_owned()));
        found.map(|names| names.iter().cloned().collect()).unwrap_or_default()
    }

    #[test]
    fn the_document_tells_what_each_call_takes() {
        let queries = Queries::of(&crate::router::described());
        assert_eq!(names(&queries, "/v1/sandboxes/{id}/files/stat", "GET"), ["digest", "path", "user"]);
        assert!(names(&queries, "/v1/sandboxes/{id}/pause", "POST").is_empty());
        assert!(queries.0.len() > 50, "{}", queries.0.len());
    }
}
