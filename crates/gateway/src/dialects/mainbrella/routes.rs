//! Every route of the dialect with what it takes in its query, in one table. Must hold nothing that depends on a request.

use http::Method;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Capabilities,
    ListContainers,
    CreateContainer,
    RemoveContainer,
    Exec,
    ListExecutions,
    StartExecution,
    ShowExecution,
    CancelExecution,
    FollowExecution,
    WriteInput,
    CloseInput,
    Signal,
    Resize,
    ReadFile,
    WriteFile,
    ListFiles,
    StatFile,
    MakeDirectory,
    RemoveFile,
    MoveFile,
    SetMode,
    CreatePreview,
    ListPreviews,
    RevokePreview,
    Events,
    Metrics,
    Webhook,
    SetWebhook,
    RemoveWebhook,
    Deliveries,
    Retry,
    Export,
    ListWorkspaces,
    SaveWorkspace,
    ShowWorkspace,
    UpdateWorkspace,
    DeleteWorkspace,
    ListImages,
}

/// Whether a call names a generation in its query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// It names none.
    Nothing,
    /// It may name a slot.
    Slot,
    /// It may name a slot, and which generation of it.
    MayBeGeneration,
    /// It must name both.
    Generation,
}

/// One method of one path.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: Name,
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) names: Names,
    /// What else it takes in its query.
    pub(super) query: &'static [&'static str],
    /// The word for a query that is wrong.
    pub(super) wrong_query: &'static str,
}

const CONTAINER: &str = "invalid_container_id";
const REQUEST: &str = "invalid_request";
const EXECUTIONS: &str = "/containers/executions";
const EXECUTION: &str = "/containers/executions/{execution}";
const EVENTS: &str = "/containers/executions/{execution}/events";
const STDIN: &str = "/containers/executions/{execution}/stdin";
const SIGNAL: &str = "/containers/executions/{execution}/signal";
const RESIZE: &str = "/containers/executions/{execution}/resize";
const FILES_LIST: &str = "/containers/files/list";
const FILES_STAT: &str = "/containers/files/stat";
const FILES_REMOVE: &str = "/containers/files/remove";
const PREVIEWS: &str = "/containers/previews";
const WEBHOOK: &str = "/containers/webhook";
const WORKSPACES: &str = "/workspaces";
const WORKSPACE: &str = "/workspaces/{workspace}";

const fn route(
    name: Name,
    method: Method,
    path: &'static str,
    names: Names,
    query: &'static [&'static str],
    wrong_query: &'static str,
) -> Route {
    Route { name, method, path, names, query, wrong_query }
}

/// All of them.
pub(super) const ROUTES: &[Route] = &[
    route(Name::Capabilities, Method::GET, "/capabilities", Names::Nothing, &[], REQUEST),
    route(Name::ListContainers, Method::GET, "/containers", Names::Slot, &[], CONTAINER),
    route(Name::CreateContainer, Method::POST, "/containers", Names::Nothing, &[], CONTAINER),
    route(Name::RemoveContainer, Method::DELETE, "/containers", Names::MayBeGeneration, &[], CONTAINER),
    route(Name::Exec, Method::POST, "/containers/exec", Names::Generation, &[], CONTAINER),
    route(Name::ListExecutions, Method::GET, EXECUTIONS, Names::Generation, &[], CONTAINER),
    route(Name::StartExecution, Method::POST, EXECUTIONS, Names::Generation, &[], CONTAINER),
    route(Name::ShowExecution, Method::GET, EXECUTION, Names::Generation, &[], CONTAINER),
    route(Name::CancelExecution, Method::DELETE, EXECUTION, Names::Generation, &[], CONTAINER),
    route(Name::FollowExecution, Method::GET, EVENTS, Names::Generation, &["cursor"], CONTAINER),
    route(Name::WriteInput, Method::POST, STDIN, Names::Generation, &[], CONTAINER),
    route(Name::CloseInput, Method::DELETE, STDIN, Names::Generation, &[], CONTAINER),
    route(Name::Signal, Method::POST, SIGNAL, Names::Generation, &[], CONTAINER),
    route(Name::Resize, Method::POST, RESIZE, Names::Generation, &[], CONTAINER),
    route(Name::ReadFile, Method::GET, "/containers/files", Names::Generation, &["path"], REQUEST),
    route(Name::WriteFile, Method::PUT, "/containers/files", Names::Generation, &["path"], REQUEST),
    route(Name::ListFiles, Method::GET, FILES_LIST, Names::Generation, &["path", "limit", "offset"], REQUEST),
    route(Name::StatFile, Method::GET, FILES_STAT, Names::Generation, &["path", "followSymlinks"], REQUEST),
    route(Name::MakeDirectory, Method::POST, "/containers/files/mkdir", Names::Generation, &[], REQUEST),
    route(Name::RemoveFile, Method::DELETE, FILES_REMOVE, Names::Generation, &["path", "recursive"], REQUEST),
    route(Name::MoveFile, Method::POST, "/containers/files/move", Names::Generation, &[], REQUEST),
    route(Name::SetMode, Method::PATCH, "/containers/files/chmod", Names::Generation, &["path"], REQUEST),
    route(Name::CreatePreview, Method::POST, PREVIEWS, Names::Generation, &[], REQUEST),
    route(Name::ListPreviews, Method::GET, PREVIEWS, Names::Generation, &[], REQUEST),
    route(Name::RevokePreview, Method::DELETE, PREVIEWS, Names::Generation, &["previewId"], REQUEST),
    route(Name::Events, Method::GET, "/containers/events", Names::Generation, &["cursor", "limit"], REQUEST),
    route(Name::Metrics, Method::GET, "/containers/metrics", Names::Generation, &["from", "to"], REQUEST),
    route(Name::Webhook, Method::GET, WEBHOOK, Names::Generation, &[], REQUEST),
    route(Name::SetWebhook, Method::PUT, WEBHOOK, Names::Generation, &[], REQUEST),
    route(Name::RemoveWebhook, Method::DELETE, WEBHOOK, Names::Generation, &[], REQUEST),
    route(Name::Deliveries, Method::GET, "/containers/webhook/deliveries", Names::Generation, &[], REQUEST),
    route(Name::Retry, Method::POST, "/containers/webhook/retry", Names::Generation, &[], REQUEST),
    route(Name::Export, Method::GET, "/containers/export", Names::Generation, &[], REQUEST),
    route(Name::ListWorkspaces, Method::GET, WORKSPACES, Names::Nothing, &[], REQUEST),
    route(Name::SaveWorkspace, Method::POST, WORKSPACES, Names::Nothing, &[], REQUEST),
    route(Name::ShowWorkspace, Method::GET, WORKSPACE, Names::Nothing, &[], REQUEST),
    route(Name::UpdateWorkspace, Method::PATCH, WORKSPACE, Names::Nothing, &[], REQUEST),
    route(Name::DeleteWorkspace, Method::DELETE, WORKSPACE, Names::Nothing, &[], REQUEST),
    route(Name::ListImages, Method::GET, "/images", Names::Nothing, &[], REQUEST),
];

/// Below which paths everything is this dialect's.
pub(super) const FAMILIES: &[&str] = &["/containers/{*rest}", "/workspaces/{workspace}/{*rest}", "/images/{*rest}"];

/// Each path once.
pub(super) fn paths() -> Vec<&'static str> {
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_stands_together_and_each_method_of_it_once() {
        let paths = paths();
        let unique: std::collections::BTreeSet<_> = paths.iter().collect();
        assert_eq!(unique.len(), paths.len());
        let calls: std::collections::BTreeSet<_> =
            ROUTES.iter().map(|route| (route.path, route.method.as_str())).collect();
        assert_eq!(calls.len(), ROUTES.len());
    }
}
