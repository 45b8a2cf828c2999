//! Routes of sandboxes: make, list, show, pause, resume, stop, start, remove, and their deadlines. Each is one call of the
//! platform.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use remuda_control::Platform;
use remuda_types::Slot;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{CreateSandbox, Labels, Removal, Sandbox, SandboxList, SetDeadline, StartSandbox, Stop};
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, Failure, invalid};
use crate::extract::{JsonBody, OfSandbox, QueryOf};

/// Makes a sandbox from the base image and answers when it runs.
#[utoipa::path(post, path = "/v1/sandboxes", operation_id = "create_sandbox", tag = "sandboxes", params(WithKey), request_body = CreateSandbox, responses(
    (status = 201, description = "It runs.", body = Sandbox),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn create(
    State(platform): State<Platform>,
    Calling(call): Calling,
    JsonBody(request): JsonBody<CreateSandbox>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.create(&call, request).await))
}

/// Which sandboxes to list. `label` may be given more than once, so serde's one value a name is not enough.
#[derive(Debug, Default, PartialEq, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Whether ended ones are listed too.
    #[param(required = false)]
    all: bool,
    /// Only those of this slot.
    slot: Option<Slot>,
    /// Only those with this label, as `name=value`; all of them where given more than once.
    #[param(value_type = Option<Vec<String>>)]
    label: Labels,
}

impl Filter {
    fn read(query: Vec<(String, String)>) -> Result<Self, Failure> {
        let mut filter = Filter::default();
        for (name, value) in query {
            match name.as_str() {
                "all" => {
                    filter.all = value
                        .parse()
                        .map_err(|_| invalid(format!("the query's all is {value:?}, not `true` or `false`")))?;
                }
                "slot" => filter.slot = Some(value.parse()?),
                "label" => {
                    let (key, wanted) = value
                        .split_once('=')
                        .ok_or_else(|| invalid(format!("the query's label is {value:?}, not `name=value`")))?;
                    filter.label.insert(key.to_owned(), wanted.to_owned());
                }
                other => {
                    let error = invalid(format!("the query's {other:?} is not known"));
                    return Err(error.remedy("use all, slot and label").into());
                }
            }
        }
        Ok(filter)
    }

    fn keeps(&self, sandbox: &Sandbox) -> bool {
        self.slot.as_ref().is_none_or(|slot| sandbox.id.slot == *slot)
            && self.label.iter().all(|(name, value)| sandbox.labels.get(name) == Some(value))
    }
}

/// Lists sandboxes: the living ones, or all that are on record.
#[utoipa::path(get, path = "/v1/sandboxes", operation_id = "list_sandboxes", tag = "sandboxes", params(Filter), responses(
    (status = 200, description = "Sorted by creation.", body = SandboxList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(query): QueryOf<Vec<(String, String)>>,
) -> Answer<Json<SandboxList>> {
    let filter = Filter::read(query)?;
    let mut sandboxes = platform.list(&caller, filter.all).await?;
    sandboxes.retain(|sandbox| filter.keeps(sandbox));
    Ok(Json(SandboxList { sandboxes }))
}

/// Shows one living sandbox. 410 when that generation has ended, 404 when it was never here.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", operation_id = "show_sandbox", tag = "sandboxes", params(OfSandbox), responses(
    (status = 200, description = "It lives.", body = Sandbox),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(State(platform): State<Platform>, By(caller): By, of: OfSandbox) -> Answer<Json<Sandbox>> {
    Ok(Json(platform.show(&caller, &of.id).await?))
}

/// Ends and removes a sandbox. Also 200 when it had ended before; the result says which.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", operation_id = "remove_sandbox", tag = "sandboxes", params(OfSandbox, WithKey), responses(
    (status = 200, description = "It is gone.", body = Removal),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn remove(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.remove(&call, &of.id).await))
}

/// Ends a sandbox's processes and keeps its files; also good when it had none. The generation holds its slot, and can be
/// started as the next one, or removed.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/stop", operation_id = "stop_sandbox", tag = "sandboxes", params(OfSandbox, WithKey), responses(
    (status = 200, description = "It is stopped.", body = Stop),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn stop(State(platform): State<Platform>, Calling(call): Calling, of: OfSandbox) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.stop(&call, &of.id).await))
}

/// Goes on with the files of a stopped sandbox, as the next generation of its slot: its memory is lost, and so the new one
/// has an id of its own. The stopped one ends, and its id is answered with 410 and `continued_as`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/start", operation_id = "start_sandbox", tag = "sandboxes", params(OfSandbox, WithKey), request_body = StartSandbox, responses(
    (status = 201, description = "The next generation runs.", body = Sandbox),
    (status = "default", description = "An error. The files are kept.", body = ErrorBody)))]
pub(crate) async fn start(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(request): JsonBody<StartSandbox>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.start(&call, &of.id, request).await))
}

/// Halts a sandbox's processes; they keep their memory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/pause", operation_id = "pause_sandbox", tag = "sandboxes", params(OfSandbox, WithKey), responses(
    (status = 200, description = "It is paused.", body = Sandbox),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn pause(State(platform): State<Platform>, Calling(call): Calling, of: OfSandbox) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.pause(&call, &of.id).await))
}

/// Lets a paused sandbox go on.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", operation_id = "resume_sandbox", tag = "sandboxes", params(OfSandbox, WithKey), responses(
    (status = 200, description = "It runs.", body = Sandbox),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn resume(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.resume(&call, &of.id).await))
}

/// Gives a sandbox another deadline, counted from now. Nothing else ever moves it.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/deadline", operation_id = "set_deadline", tag = "sandboxes", params(OfSandbox, WithKey), request_body = SetDeadline, responses(
    (status = 200, description = "It has the new deadline.", body = Sandbox),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn set_deadline(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(request): JsonBody<SetDeadline>,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.set_deadline(&call, &of.id, request).await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_takes_several_labels_and_refuses_what_it_does_not_know() {
        let pairs = |text: &[(&str, &str)]| text.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
        let filter = Filter::read(pairs(&[("all", "true"), ("label", "a=1"), ("label", "b=x=y")])).unwrap();
        assert!(filter.all);
        assert_eq!(filter.label, Labels::from([("a".into(), "1".into()), ("b".into(), "x=y".into())]));
        for wrong in [("all", "yes"), ("label", "a"), ("slot", "A B"), ("state", "running")] {
            assert!(Filter::read(pairs(&[wrong])).is_err(), "{wrong:?}");
        }
    }
}
