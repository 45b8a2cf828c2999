//! `POST /containers`: a container from the catalog, once for each key. A creation that is under way is told as such, and one
//! whose container is gone is never made again.

use std::time::Duration;

use axum::body::Body;
use remuda_control::{Answered, Call};
use remuda_types::wire::{CreateSandbox, Labels, Operation, RestoreSnapshot, Sandbox};
use remuda_types::{Error, ErrorCode, Key, OperationState, SandboxId, SandboxState, SnapshotId};
use serde_json::{Map, Value, json};

use super::answer::{CONTAINERS, Refusal, Told, told};
use super::enter::Asked;
use super::sizes::{SIZES, Size};
use super::status::{self, CATALOG, IDLE_MS, IMAGES, NAME, SIZE};
use super::{body, workspaces};

/// Longest name, in characters.
const NAME_CHARS_MAX: usize = 80;
/// Longest body, in bytes.
const BODY_BYTES_MAX: usize = 32 << 10;
const MEMBERS: [&str; 6] = ["name", "catalogId", "imageId", "workspaceId", "size", "internet"];

pub(super) async fn create(asked: Asked, body: Body) -> Told {
    let key = asked.key()?;
    let object = body::object(body, BODY_BYTES_MAX, &MEMBERS).await?;
    let call = Call { caller: asked.caller.clone(), key: key.clone() };
    let session_ms = asked.platform.timeout_ms_max();
    let wanted = wanted(&object, session_ms)?;
    let (kind, other) = match &wanted {
        Wanted::Fresh(_) => (CREATE, RESTORE),
        Wanted::Restored(_) => (RESTORE, CREATE),
    };
    // A key is for one creation, from whatever. Ours is for one of each kind.
    if let Some(key) = &key
        && operation(&asked, other, key).await?.is_some()
    {
        return Err(Refusal::new(409, "idempotency_key_conflict"));
    }
    let made = match wanted {
        Wanted::Fresh(request) => asked.platform.create(&call, *request).await,
        Wanted::Restored(restore) => {
            let known = match &key {
                Some(key) => operation(&asked, RESTORE, key).await?.is_some(),
                None => false,
            };
            // What was done already is told, whatever has become of the workspace.
            if !known {
                restore.preflight(&asked).await?;
            }
            asked.platform.restore(&call, restore.snapshot.as_str(), restore.request).await
        }
    };
    finish(&asked, kind, key.as_ref(), made).await
}

/// What our operations are called that make a container.
const CREATE: &str = "create";
const RESTORE: &str = "restore";

/// What is asked for, in our words.
enum Wanted {
    Fresh(Box<CreateSandbox>),
    Restored(Box<Restore>),
}

/// A container from a workspace.
struct Restore {
    snapshot: SnapshotId,
    request: RestoreSnapshot,
    size: Option<&'static Size>,
    internet: Option<bool>,
}

impl Restore {
    /// Whether the workspace can become what is asked for.
    async fn preflight(&self, asked: &Asked) -> Result<(), Refusal> {
        let found = asked.platform.snapshot(&asked.caller, self.snapshot.as_str(), Duration::ZERO).await;
        let snapshot = found.map_err(|e| match e.code {
            ErrorCode::SnapshotNotFound => workspaces::not_found(),
            _ => CONTAINERS.of(&e),
        })?;
        workspaces::preflight(&snapshot, self.size, self.internet)
    }
}

fn wanted(object: &Map<String, Value>, session_ms: u64) -> Result<Wanted, Refusal> {
    let [catalog, image, workspace] = ["catalogId", "imageId", "workspaceId"].map(|name| body::text(object, name));
    let (catalog, image, workspace) = (catalog?, image?, workspace?);
    if [&catalog, &image, &workspace].into_iter().flatten().count() > 1 {
        return Err(Refusal::new(400, CONTAINERS.invalid));
    }
    let mut labels = Labels::new();
    if let Some(name) = name(object)? {
        labels.insert(NAME.to_owned(), name);
    }
    let (size, internet) = (size(object)?, internet(object)?);
    let (timeout_ms, idle_timeout_ms) = (Some(session_ms), Some(IDLE_MS.min(session_ms)));
    if image.is_some() {
        return Err(Refusal::new(404, "image_not_found"));
    }
    if let Some(workspace) = workspace {
        let snapshot = workspaces::id_of(&workspace).ok_or_else(workspaces::not_found)?;
        if let Some(size) = size {
            labels.insert(SIZE.to_owned(), size.id.to_owned());
        }
        let request = RestoreSnapshot { labels, timeout_ms, idle_timeout_ms, ..RestoreSnapshot::default() };
        return Ok(Wanted::Restored(Box::new(Restore { snapshot, request, size, internet })));
    }
    let catalog = catalog.unwrap_or_else(|| IMAGES[0].0.to_owned());
    if !IMAGES.iter().any(|(id, _)| *id == catalog) {
        return Err(Refusal::new(404, "image_not_found"));
    }
    let size = size.unwrap_or(&SIZES[0]);
    labels.insert(CATALOG.to_owned(), catalog);
    labels.insert(SIZE.to_owned(), size.id.to_owned());
    let (memory_mib, disk_mib) = (Some(size.memory_mib), Some(size.disk_mib()));
    Ok(Wanted::Fresh(Box::new(CreateSandbox {
        labels,
        memory_mib,
        disk_mib,
        timeout_ms,
        idle_timeout_ms,
        internet,
        ..CreateSandbox::default()
    })))
}

/// The member `name`: a text without control characters and without space around it.
pub(super) fn name(object: &Map<String, Value>) -> Result<Option<String>, Refusal> {
    let Some(name) = body::text(object, "name")? else { return Ok(None) };
    let good = (1..=NAME_CHARS_MAX).contains(&name.chars().count())
        && name.trim() == name
        && !name.chars().any(char::is_control);
    if good { Ok(Some(name)) } else { Err(Refusal::new(400, CONTAINERS.invalid)) }
}

/// The member `size`.
fn size(object: &Map<String, Value>) -> Result<Option<&'static Size>, Refusal> {
    let wrong = || Refusal::new(400, "invalid_size");
    match object.get("size") {
        None => Ok(None),
        Some(Value::String(id)) => Size::named(id).map(Some).ok_or_else(wrong),
        Some(_) => Err(wrong()),
    }
}

/// The member `internet`.
fn internet(object: &Map<String, Value>) -> Result<Option<bool>, Refusal> {
    match object.get("internet") {
        None => Ok(None),
        Some(Value::Bool(internet)) => Ok(Some(*internet)),
        Some(_) => Err(Refusal::new(400, "invalid_internet_policy")),
    }
}

/// Tells what became of a creation: with its container, under way, or over.
async fn finish(asked: &Asked, kind: &str, key: Option<&Key>, made: Answered<Sandbox>) -> Told {
    let operation = match key {
        Some(key) => operation(asked, kind, key).await?,
        None => None,
    };
    match made.result {
        Ok(sandbox) => {
            // What an earlier call made may have ended since.
            let state = match asked.platform.show(&asked.caller, &sandbox.id).await {
                Ok(sandbox) if status::is_listed(&sandbox) => sandbox.state,
                Ok(_) => return Err(over(operation.as_ref(), &sandbox.id)),
                Err(e) if e.code == ErrorCode::GenerationGone => return Err(over(operation.as_ref(), &sandbox.id)),
                Err(e) => return Err(CONTAINERS.of(&e)),
            };
            let word = if state == SandboxState::Starting { "starting" } else { "running" };
            document(asked, operation.as_ref(), Some(&sandbox.id), word).await
        }
        Err(e) if e.code == ErrorCode::OperationInProgress => {
            let made = operation.as_ref().and_then(|operation| operation.made.sandbox.clone());
            document(asked, operation.as_ref(), made.as_ref(), "starting").await
        }
        Err(e) => Err(refused(&e, operation.as_ref())),
    }
}

/// The operation of a creation under a key.
async fn operation(asked: &Asked, kind: &str, key: &Key) -> Result<Option<Operation>, Refusal> {
    let operations = asked.platform.operations(&asked.caller, key).await.map_err(|e| CONTAINERS.of(&e))?;
    Ok(operations.into_iter().find(|operation| operation.kind == kind))
}

async fn document(asked: &Asked, operation: Option<&Operation>, made: Option<&SandboxId>, word: &str) -> Told {
    let document = status::document(&asked.platform, &asked.caller, None).await;
    let mut document = document.map_err(|e| CONTAINERS.of(&e))?;
    if let Some(operation) = operation {
        document["creation"] = creation(operation, made, word);
    }
    Ok(told(200, &document))
}

fn creation(operation: &Operation, made: Option<&SandboxId>, word: &str) -> Value {
    let mut creation = json!({ "id": operation.id, "status": word });
    if let Some(id) = made {
        creation["containerId"] = id.slot.as_str().into();
        creation["createdAt"] = id.generation.to_string().into();
    }
    creation
}

/// What the key made is no more.
fn over(operation: Option<&Operation>, id: &SandboxId) -> Refusal {
    let refusal = Refusal::new(409, "creation_no_longer_running");
    match operation {
        Some(operation) => refusal.with("creation", creation(operation, Some(id), "stopped")),
        None => refusal,
    }
}

/// Why nothing was made. Only what a repeated call may yet bring is told as unavailable: clients go on asking then.
fn refused(e: &Error, operation: Option<&Operation>) -> Refusal {
    let limit = e.details.get("limit").and_then(Value::as_str);
    match (e.code, limit) {
        (ErrorCode::LimitReached, Some("starts_per_month")) => Refusal::new(429, "container_quota_exceeded"),
        (ErrorCode::LimitReached, Some("memory_mib" | "disk_bytes")) => Refusal::new(409, "compute_capacity_exceeded"),
        (ErrorCode::LimitReached, _) => Refusal::new(409, "container_limit_exceeded"),
        (ErrorCode::InvalidRequest, _) if e.message.starts_with("internet:") => {
            Refusal::new(503, "network_policy_unavailable")
        }
        (ErrorCode::SnapshotNotFound, _) => workspaces::not_found(),
        (ErrorCode::SnapshotNotActive | ErrorCode::SnapshotDamaged, _) => Refusal::new(409, "workspace_not_ready"),
        (ErrorCode::EngineMismatch, _) => Refusal::new(409, "workspace_image_incompatible"),
        _ => match operation.filter(|operation| operation.state != OperationState::Pending) {
            // The key has its outcome, and it is this one.
            Some(operation) if e.code != ErrorCode::IdempotencyKeyConflict => {
                let restoring = operation.kind == RESTORE;
                let word = if restoring { "workspace_restore_failed" } else { "creation_no_longer_running" };
                let refusal = Refusal::new(409, word);
                refusal.with("creation", creation(operation, operation.made.sandbox.as_ref(), "stopped"))
            }
            _ => CONTAINERS.of(e),
        },
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    fn read(text: &str) -> Result<CreateSandbox, u16> {
        let object = serde_json::from_str(text).unwrap();
        match wanted(&object, 3_600_000) {
            Ok(Wanted::Fresh(request)) => Ok(*request),
            Ok(Wanted::Restored(_)) => panic!("{text} makes nothing fresh"),
            Err(refusal) => Err(refusal.into_response().status().as_u16()),
        }
    }

    #[test]
    fn a_request_says_the_same_in_our_words() {
        let request = read(r#"{"catalogId":"python","size":"small","name":"Work","internet":false}"#).unwrap();
        assert_eq!((request.memory_mib, request.internet), (Some(4_096), Some(false)));
        let labels = [(CATALOG, "python"), (NAME, "Work"), (SIZE, "small")];
        assert_eq!(request.labels, labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(read("{}").unwrap().labels[SIZE], "lite");
    }

    #[test]
    fn what_there_is_not_is_refused() {
        for (wrong, status) in [
            (r#"{"catalogId":"rust"}"#, 404),
            (r#"{"imageId":"x"}"#, 404),
            (r#"{"workspaceId":"x"}"#, 404),
            (r#"{"catalogId":"node","imageId":"x"}"#, 400),
            (r#"{"size":"huge"}"#, 400),
            (r#"{"size":1}"#, 400),
            (r#"{"internet":"no"}"#, 400),
            (r#"{"name":" a"}"#, 400),
            (r#"{"name":"a\n"}"#, 400),
            (r#"{"name":""}"#, 400),
        ] {
            assert_eq!(read(wrong).err(), Some(status), "{wrong}");
        }
    }
}
