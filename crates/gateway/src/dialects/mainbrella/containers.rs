//! `/containers`: what there is, and the end of one.

use remuda_types::{ErrorCode, SandboxId};

use super::answer::{CONTAINERS, Refusal, Told, told};
use super::enter::Asked;
use super::status;

pub(super) async fn list(asked: Asked) -> Told {
    let document = status::document(&asked.platform, &asked.caller, asked.slot.as_ref()).await;
    Ok(told(200, &document.map_err(|e| CONTAINERS.of(&e))?))
}

/// Ends a generation, waits until it is gone, and tells what is left.
pub(super) async fn remove(asked: Asked) -> Told {
    let id = named(&asked).await?;
    let (platform, call) = (&asked.platform, asked.call());
    match platform.show(&asked.caller, &id).await {
        Ok(_) => platform.remove(&call, &id).await.result.map(drop).map_err(|e| CONTAINERS.of(&e))?,
        Err(e) if matches!(e.code, ErrorCode::SandboxNotFound | ErrorCode::GenerationGone) => {
            return Err(Refusal::new(409, "container_not_running"));
        }
        Err(e) => return Err(CONTAINERS.of(&e)),
    }
    let document = status::document(platform, &asked.caller, None).await;
    Ok(told(200, &document.map_err(|e| CONTAINERS.of(&e))?))
}

/// Which generation is meant: the one that is named; else the one that holds the slot, or is the only one.
async fn named(asked: &Asked) -> Result<SandboxId, Refusal> {
    if asked.generation.is_some() {
        return asked.sandbox();
    }
    let gone = || Refusal::new(409, "container_not_running");
    if let Some(slot) = &asked.slot {
        let holder = status::holder(&asked.platform, &asked.caller, slot).await.map_err(|e| CONTAINERS.of(&e))?;
        return holder.ok_or_else(gone);
    }
    let all = status::containers(&asked.platform, &asked.caller).await.map_err(|e| CONTAINERS.of(&e))?;
    match all.as_slice() {
        [] => Err(gone()),
        [one] => Ok(one.id.clone()),
        _ => Err(Refusal::new(400, "container_id_required")),
    }
}
