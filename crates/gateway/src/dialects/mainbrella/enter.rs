//! The way in: what is looked at in every request before its call, in the order that clients of this dialect know: path,
//! method, Origin, query and id, generation, credential. Then the body, and then the platform, see to the rest.

use axum::Extension;
use axum::body::Body;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, AUTHORIZATION, ORIGIN};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use remuda_control::{Call, Caller, Platform};
use remuda_types::{Generation, Key, SandboxId, Slot};
use tokio_util::sync::CancellationToken;

use super::answer::{Refusal, Told};
use super::query::Query;
use super::routes::{Name, Names, ROUTES, Route};
use super::{
    capabilities, containers, creation, events, exec, executions, export, files, filesystem, ids, off, previews,
    workspaces,
};
use crate::auth::secret_of;
use crate::calling::IDEMPOTENCY_KEY;
use crate::front::Front;
use crate::serve::Connection;

/// What a call comes with, after the checks that are the same for all.
pub(super) struct Asked {
    pub(super) platform: Platform,
    pub(super) front: Front,
    pub(super) caller: Caller,
    /// The slot that is named, where one is.
    pub(super) slot: Option<Slot>,
    /// Which generation of it.
    pub(super) generation: Option<Generation>,
    pub(super) query: Query,
    /// What stands in the path in the place of an id.
    pub(super) in_path: Option<String>,
    pub(super) headers: http::HeaderMap,
    /// Cancelled when the server ends.
    pub(super) shutdown: CancellationToken,
}

impl Asked {
    /// The generation that is named.
    pub(super) fn sandbox(&self) -> Result<SandboxId, Refusal> {
        let named = self.slot.clone().zip(self.generation);
        let named = named.map(|(slot, generation)| SandboxId { slot, generation });
        named.ok_or_else(|| Refusal::new(400, "invalid_generation"))
    }

    /// The key of the call, where it has one: 1 to 128 of `A-Z a-z 0-9 _ -`.
    pub(super) fn key(&self) -> Result<Option<Key>, Refusal> {
        const KEY_BYTES_MAX: usize = 128;
        let wrong = || Refusal::new(400, "invalid_idempotency_key");
        let mut values = self.headers.get_all(IDEMPOTENCY_KEY).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => {
                let text = value.to_str().ok().filter(|text| text.len() <= KEY_BYTES_MAX).ok_or_else(wrong)?;
                text.parse().map(Some).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }

    /// The call without a key.
    pub(super) fn call(&self) -> Call {
        Call::of(self.caller.clone())
    }
}

/// Nothing is at this path.
pub(super) async fn nothing_here() -> Response {
    Refusal::new(404, "not_found").into_response()
}

/// Takes a request of this dialect through.
pub(super) async fn enter(
    State(platform): State<Platform>,
    Extension(front): Extension<Front>,
    connection: Option<Extension<Connection>>,
    path: MatchedPath,
    parameters: RawPathParams,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    if parts.method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let methods = || ROUTES.iter().filter(|route| route.path == path.as_str());
    let Some(route) = methods().find(|route| route.method == parts.method) else {
        let allowed: Vec<&str> = methods().map(|route| route.method.as_str()).collect();
        return method_not_allowed(&allowed);
    };
    let looked_at = looked_at(route, &parts).and_then(|named| match route.name {
        Name::Capabilities => Ok((named, None)),
        _ => Ok((named, Some(caller(&platform, &parts)?))),
    });
    let (Named { query, slot, generation }, caller) = match looked_at {
        Ok((named, Some(caller))) => (named, caller),
        Ok((_, None)) => return capabilities::capabilities(&platform),
        Err(refusal) => return refusal.into_response(),
    };
    let in_path = parameters.iter().next().map(|(_, value)| value.to_owned());
    let shutdown = connection.map_or_else(CancellationToken::new, |Extension(connection)| connection.shutdown);
    let headers = parts.headers;
    let asked = Asked { platform, front, caller, slot, generation, query, in_path, headers, shutdown };
    call(route, asked, body).await
}

fn method_not_allowed(allowed: &[&str]) -> Response {
    let mut response = Refusal::new(405, "method_not_allowed").into_response();
    if let Ok(allowed) = HeaderValue::try_from(allowed.join(", ")) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// What a query says.
struct Named {
    query: Query,
    slot: Option<Slot>,
    generation: Option<Generation>,
}

/// What can be said of a request before it is known whose it is.
fn looked_at(route: &Route, parts: &Parts) -> Result<Named, Refusal> {
    // No page of another origin may use this API by a browser that is let in.
    if parts.headers.contains_key(ORIGIN) {
        return Err(Refusal::new(403, "origin_not_allowed"));
    }
    if !parts.method.is_safe() && !parts.headers.contains_key(AUTHORIZATION) {
        return Err(Refusal::new(403, "origin_required"));
    }
    let query = Query::read(parts.uri.query()).map_err(|_| Refusal::new(400, route.wrong_query))?;
    named(route, query)
}

/// Whoever shows the key.
fn caller(platform: &Platform, parts: &Parts) -> Result<Caller, Refusal> {
    let secret = secret_of(&parts.headers).ok();
    let caller = secret.and_then(|secret| platform.authenticate(&secret).ok());
    caller.ok_or_else(|| Refusal::new(401, "unauthorized"))
}

/// What a query names, if all that is in it is taken by this route.
fn named(route: &Route, query: Query) -> Result<Named, Refusal> {
    let wrong_query = || Refusal::new(400, route.wrong_query);
    let names: &[&str] = match route.names {
        Names::Nothing => &[],
        Names::Slot => &["id"],
        Names::MayBeGeneration | Names::Generation => &["id", "createdAt"],
    };
    if !query.has_only(names, route.query) {
        return Err(wrong_query());
    }
    let slot = query.get("id").map(|id| ids::slot(id).ok_or_else(wrong_query)).transpose()?;
    let needed = route.names == Names::Generation;
    if needed && slot.is_none() {
        return Err(wrong_query());
    }
    let wrong_generation = || Refusal::new(400, "invalid_generation");
    let generation = query.get("createdAt").map(|text| text.parse().map_err(|_| wrong_generation())).transpose()?;
    if (needed && generation.is_none()) || (generation.is_some() && slot.is_none()) {
        return Err(wrong_generation());
    }
    Ok(Named { query, slot, generation })
}

async fn call(route: &Route, asked: Asked, body: Body) -> Response {
    let name = route.name;
    // What changes something runs to its end also when the caller hangs up. A command in the foreground ends with it.
    let answered = match name {
        Name::Exec => exec::exec(asked, body).await,
        _ if route.method == Method::GET => answer(name, asked, body).await,
        _ => match tokio::spawn(answer(name, asked, body)).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(answered) => answered,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => Err(Refusal::new(503, "containers_unavailable")),
        },
    };
    answered.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(name: Name, asked: Asked, body: Body) -> Told {
    match name {
        Name::Capabilities => Ok(capabilities::capabilities(&asked.platform)),
        Name::ListContainers => containers::list(asked).await,
        Name::CreateContainer => creation::create(asked, body).await,
        Name::RemoveContainer => containers::remove(asked).await,
        Name::Exec => exec::exec(asked, body).await,
        Name::ListExecutions => executions::list(asked).await,
        Name::StartExecution => executions::start(asked, body).await,
        Name::ShowExecution => executions::get(asked).await,
        Name::CancelExecution => executions::cancel(asked).await,
        Name::FollowExecution => executions::follow(asked).await,
        Name::WriteInput => executions::write_input(asked, body).await,
        Name::CloseInput => executions::close_input(asked).await,
        Name::Signal => executions::signal(asked, body).await,
        Name::Resize => executions::resize(asked, body).await,
        Name::ListFiles => filesystem::list(asked).await,
        Name::StatFile => filesystem::stat(asked).await,
        Name::MakeDirectory => filesystem::mkdir(asked, body).await,
        Name::RemoveFile => filesystem::remove(asked).await,
        Name::MoveFile => filesystem::rename(asked, body).await,
        Name::SetMode => filesystem::chmod(asked, body).await,
        Name::CreatePreview => previews::create(asked, body).await,
        Name::ListPreviews => previews::list(asked).await,
        Name::RevokePreview => previews::revoke(asked).await,
        Name::Events => events::read(asked).await,
        Name::Metrics => off::metrics(asked).await,
        Name::Webhook => off::webhook(asked).await,
        Name::SetWebhook => off::no_webhooks(asked).await,
        Name::RemoveWebhook => off::remove_webhook(asked).await,
        Name::Deliveries => off::deliveries(asked).await,
        Name::Retry => off::retry(asked).await,
        Name::Export => export::export(asked).await,
        Name::ListWorkspaces => workspaces::list(asked).await,
        Name::SaveWorkspace => workspaces::save(asked, body).await,
        Name::ShowWorkspace => workspaces::get(asked).await,
        Name::UpdateWorkspace => workspaces::update(asked, body).await,
        Name::DeleteWorkspace => workspaces::delete(asked).await,
        Name::ListImages => off::images(asked).await,
        Name::ReadFile => files::read(asked).await,
        Name::WriteFile => files::write(asked, body).await,
    }
}
