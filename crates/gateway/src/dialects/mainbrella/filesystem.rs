//! `/containers/files/…`: directories and what is in them. Each is a call of the platform, or a look at what is there and
//! then one.

use axum::body::Body;
use remuda_control::{Attributes, FileAt, MoveFile};
use remuda_types::wire::{FileKind, FileStat};
use remuda_types::{Error, ErrorCode};
use serde_json::{Value, json};

use super::answer::{FILES, Refusal, Told, told};
use super::body;
use super::enter::Asked;
use super::files::checked;

/// Entries of a page, unless it says otherwise, and at most.
const ENTRIES_DEFAULT: u64 = 100;
pub(super) const ENTRIES_MAX: u64 = 1_000;
/// How far a page may begin behind the first entry.
pub(super) const OFFSET_MAX: u64 = 1_000_000;
const MODE_DEFAULT: &str = "0700";
const BODY_BYTES_MAX: usize = 32 << 10;

fn wrong() -> Refusal {
    Refusal::new(400, FILES.invalid)
}

fn refused(e: Error) -> Refusal {
    FILES.of(&e)
}

fn in_query(asked: &Asked, root: bool) -> Result<FileAt, Refusal> {
    checked(asked.query.get("path").unwrap_or_default(), root)
}

/// Four octal digits, without set-id bits.
fn mode(text: &str) -> Result<u32, Refusal> {
    let good = text.len() == 4 && text.starts_with('0') && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    u32::from_str_radix(text, 8).ok().filter(|_| good).ok_or_else(wrong)
}

fn entry(stat: &FileStat, path: &str) -> Value {
    let kind = match stat.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Other => "other",
    };
    let mut shown = json!({
        "name": path.rsplit('/').next().unwrap_or_default(),
        "path": path,
        "type": kind,
        "size": stat.size,
        "mode": format!("{:04o}", stat.mode & 0o7777),
        "uid": stat.uid,
        "gid": stat.gid,
        "modifiedAt": stat.modified_at_ms.div_euclid(1_000),
    });
    if let Some(target) = &stat.target {
        shown["linkTarget"] = target.as_str().into();
    }
    shown
}

pub(super) async fn list(asked: Asked) -> Told {
    let (id, at) = (asked.sandbox()?, in_query(&asked, true)?);
    let number = |name, from, to, default| match asked.query.number(name) {
        Ok(None) => Ok(default),
        Ok(Some(number)) if (from..=to).contains(&number) => Ok(number),
        _ => Err(wrong()),
    };
    let limit = number("limit", 1, ENTRIES_MAX, ENTRIES_DEFAULT)?;
    let offset = number("offset", 0, OFFSET_MAX, 0)?;
    let found = asked.platform.list_files(&asked.caller, &id, &at).await.map_err(refused)?;
    let (from, to) = (offset as usize, (offset + limit) as usize);
    // What lies beyond the platform's own limit can't be told.
    if found.truncated && to > found.entries.len() {
        return Err(Refusal::new(413, "directory_too_large"));
    }
    let page = found.entries.get(from..to.min(found.entries.len())).unwrap_or_default();
    let more = to < found.entries.len();
    Ok(told(
        200,
        &json!({
            "path": at.path,
            "entries": page.iter().map(|stat| entry(stat, &stat.path)).collect::<Vec<_>>(),
            "nextOffset": more.then_some(to),
        }),
    ))
}

pub(super) async fn stat(asked: Asked) -> Told {
    let (id, at) = (asked.sandbox()?, in_query(&asked, true)?);
    let follow = asked.query.flag("followSymlinks").map_err(|_| wrong())?;
    let found = match follow {
        true => asked.platform.stat_behind_links(&asked.caller, &id, &at).await,
        false => asked.platform.stat_file(&asked.caller, &id, &at, false).await,
    };
    Ok(told(200, &entry(&found.map_err(refused)?, &at.path)))
}

pub(super) async fn mkdir(asked: Asked, body: Body) -> Told {
    let (id, call) = (asked.sandbox()?, asked.call());
    let members = ["path", "recursive", "mode"];
    let object = body::object(body, BODY_BYTES_MAX, &members).await?;
    let at = checked(&body::text(&object, "path")?.unwrap_or_default(), false)?;
    let recursive = body::flag(&object, "recursive")?.unwrap_or(false);
    let mode = mode(&body::text(&object, "mode")?.unwrap_or_else(|| MODE_DEFAULT.to_owned()))?;
    let platform = &asked.platform;
    let done = || Ok(told(200, &json!({ "path": at.path, "ok": true })));
    match platform.stat_file(&asked.caller, &id, &at, false).await {
        Ok(stat) if stat.kind == FileKind::Directory && recursive => return done(),
        Ok(_) => return Err(Refusal::new(409, "file_exists")),
        Err(e) if e.code == ErrorCode::FileNotFound => {}
        Err(e) => return Err(refused(e)),
    }
    platform.make_directory(&call, &id, at.clone(), recursive).await.result.map_err(refused)?;
    let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
    platform.set_attributes(&call, &id, at.clone(), attributes).await.result.map_err(refused)?;
    done()
}

pub(super) async fn remove(asked: Asked) -> Told {
    let (id, at, call) = (asked.sandbox()?, in_query(&asked, false)?, asked.call());
    let recursive = asked.query.flag("recursive").map_err(|_| wrong())?;
    let removed = asked.platform.remove_file(&call, &id, at.clone(), recursive).await.result;
    match removed {
        Ok(()) => Ok(told(200, &json!({ "path": at.path, "ok": true }))),
        Err(e) if e.code == ErrorCode::InvalidRequest && !recursive => {
            // The agent refuses a directory that holds something.
            let stat = asked.platform.stat_file(&asked.caller, &id, &at, false).await;
            match stat {
                Ok(stat) if stat.kind == FileKind::Directory => Err(Refusal::new(409, "directory_not_empty")),
                _ => Err(refused(e)),
            }
        }
        Err(e) => Err(refused(e)),
    }
}

pub(super) async fn rename(asked: Asked, body: Body) -> Told {
    let (id, call) = (asked.sandbox()?, asked.call());
    let object = body::object(body, BODY_BYTES_MAX, &["path", "destination"]).await?;
    let from = checked(&body::text(&object, "path")?.unwrap_or_default(), false)?.path;
    let to = checked(&body::text(&object, "destination")?.unwrap_or_default(), false)?.path;
    let moving = MoveFile { from: from.clone(), to: to.clone(), user: None, overwrite: false };
    asked.platform.move_file(&call, &id, moving).await.result.map_err(refused)?;
    Ok(told(200, &json!({ "path": from, "destination": to, "ok": true })))
}

pub(super) async fn chmod(asked: Asked, body: Body) -> Told {
    let (id, at, call) = (asked.sandbox()?, in_query(&asked, false)?, asked.call());
    let object = body::object(body, BODY_BYTES_MAX, &["mode"]).await?;
    let text = body::text(&object, "mode")?.unwrap_or_default();
    let mode = mode(&text)?;
    let stat = asked.platform.stat_file(&asked.caller, &id, &at, false).await.map_err(refused)?;
    if stat.kind == FileKind::Symlink {
        return Err(Refusal::new(409, "symlink_not_allowed"));
    }
    let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
    asked.platform.set_attributes(&call, &id, at.clone(), attributes).await.result.map_err(refused)?;
    Ok(told(200, &json!({ "path": at.path, "mode": text, "ok": true })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_four_digits_without_set_id_bits() {
        assert_eq!((mode("0700").ok(), mode("0000").ok(), mode("0777").ok()), (Some(0o700), Some(0), Some(0o777)));
        for wrong in ["", "700", "00700", "1777", "0778", "rwx", "+700"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }
}
