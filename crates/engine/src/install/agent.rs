//! Places the guest agent in the cache as an overlay layer of its own, under its digest.
//! Must never replace a placed agent: sandboxes and snapshots refer to the exact one they were started with.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::cache::{Cache, Kind, Lock};
use super::digest::Digest;
use super::error::{RUN_SETUP, SetupError};
use crate::parts::AGENT_PATH;

/// Files that tell who a sandbox is, and where its agent keeps them: in memory, since an identity must not come along
/// with a sandbox's files.
const IDENTITY_LINKS: [(&str, &str); 3] = [
    ("etc/hostname", "/run/remuda/hostname"),
    ("etc/hosts", "/run/remuda/hosts"),
    ("etc/machine-id", "/run/remuda/machine-id"),
];

/// A placed agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentLayer {
    /// Digest of the layer: of the agent's binary and of what lies beside it.
    pub digest: Digest,
    /// A directory to use as an overlay's lower directory; holds `usr/lib/remuda/agent` and [`IDENTITY_LINKS`].
    pub dir: PathBuf,
}

/// Places an agent, once; a second call with the same bytes finds the first one's work. Blocks for a few milliseconds.
///
/// # Errors
/// When the cache cannot be written, or the entry of that digest is damaged.
pub fn place_agent(cache: &Cache, bytes: &[u8]) -> Result<AgentLayer, SetupError> {
    let digest = layer_digest(bytes);
    let dir = cache.entry(Kind::Agent, &digest);
    if !dir.exists() {
        let held = cache.lock(Lock::Agents)?;
        let staging = cache.stage(&held)?;
        let layer = staging.path().join("layer");
        let place = inside(&layer);
        let parent = layer.join("usr/lib/remuda");
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&parent).map_err(SetupError::io("make", &parent))?;
        fs::write(&place, bytes).map_err(SetupError::io("write", &place))?;
        let etc = layer.join("etc");
        fs::create_dir(&etc).map_err(SetupError::io("make", &etc))?;
        for (link, target) in IDENTITY_LINKS {
            let link = layer.join(link);
            std::os::unix::fs::symlink(target, &link).map_err(SetupError::io("make", &link))?;
        }
        // Said outright for each: the caller's umask must not decide what a sandbox sees.
        for path in [layer.clone(), layer.join("usr"), layer.join("usr/lib"), parent, place, etc] {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .map_err(SetupError::io("set the mode of", &path))?;
        }
        cache.publish(&layer, Kind::Agent, &digest)?;
    }
    let path = inside(&dir);
    let found = Digest::of_file(&path).map_err(SetupError::io("read", &path))?;
    if found != Digest::of_bytes(bytes) {
        return Err(SetupError::Wrong {
            what: format!("the agent {}", path.display()),
            cause: format!("its digest is {found}"),
            remedy: format!("stop all sandboxes, remove {}, and {RUN_SETUP}", dir.display()),
        });
    }
    Ok(AgentLayer { digest, dir })
}

/// A layer that is made otherwise is another one, also of the same binary.
fn layer_digest(bytes: &[u8]) -> Digest {
    let links: String = IDENTITY_LINKS.iter().map(|(link, target)| format!("{link} -> {target}\n")).collect();
    Digest::of_bytes(format!("{}\n{links}", Digest::of_bytes(bytes)).as_bytes())
}

/// The agent's file within a layer.
fn inside(layer: &Path) -> PathBuf {
    layer.join(AGENT_PATH.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_placed_once_and_executable_for_all() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path());
        let first = place_agent(&cache, b"agent one").unwrap();
        let file = first.dir.join("usr/lib/remuda/agent");
        let made = fs::metadata(&file).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::read(&file).unwrap(), b"agent one");
        assert_eq!(fs::read_link(first.dir.join("etc/hosts")).unwrap(), Path::new("/run/remuda/hosts"));
        assert_eq!(place_agent(&cache, b"agent one").unwrap(), first);
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), made.modified().unwrap());
        assert_ne!(place_agent(&cache, b"agent two").unwrap().dir, first.dir);
        assert_eq!(cache.list(Kind::Agent).unwrap().len(), 2);
    }

    #[test]
    fn a_damaged_agent_is_refused_and_never_mended_in_place() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path());
        let layer = place_agent(&cache, b"agent").unwrap();
        fs::write(layer.dir.join("usr/lib/remuda/agent"), b"other").unwrap();
        let text = place_agent(&cache, b"agent").unwrap_err().to_string();
        assert!(text.contains("its digest is") && text.contains("remove"), "{text}");
    }

    #[test]
    fn many_at_once_agree() {
        let root = tempfile::tempdir().unwrap();
        let placed: Vec<AgentLayer> = std::thread::scope(|scope| {
            let one = || place_agent(&Cache::new(root.path()), b"agent").unwrap();
            let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|each| each.join().unwrap()).collect()
        });
        assert!(placed.iter().all(|layer| *layer == placed[0]));
        let left: Vec<_> = fs::read_dir(root.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".staging"))
            .collect();
        assert!(left.is_empty());
    }
}
