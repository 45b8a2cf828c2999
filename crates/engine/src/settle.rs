//! What became of a capture whose server was killed in the middle.
//!
//! A checkpoint goes on without its server: the sentry writes the image to its end, with its guest standing still. So
//! nothing is decided before nobody can write into the capture's temporary places any more. What commits a capture is
//! the last of its renames, that of the layer.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use remuda_types::{SnapshotId, Uid};

use crate::control_socket::ControlSocket;
use crate::error::{EngineError, Result, Tried};
use crate::gvisor::{Gvisor, disk_usage};
use crate::image::MemoryImage;
use crate::machine::{CapturePlaces, discard};

/// Longest wait for a sentry that still writes. A checkpoint of some GiB to a slow disk takes minutes.
const WRITING_WAIT_MAX: Duration = Duration::from_secs(600);
/// Between two looks at the descriptors of a sentry. It closes them before it answers the call that brought them, so
/// that there is hardly ever anything to wait for here, and the kernel tells nobody of a stranger's close.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What became of a capture.
#[derive(Debug)]
pub enum Settled {
    /// It is whole, in its final places, as [`crate::Captured`] would have told; its digests may not be made yet.
    Published {
        /// The memory image, where memory was captured.
        memory: Option<MemoryImage>,
        /// The layer's size as stored, in bytes.
        layer_bytes: u64,
    },
    /// It was not, and what there was of it is removed.
    Removed,
}

impl Gvisor {
    /// Finds out what became of a capture of the machine `source` that an earlier server had begun, and removes what is
    /// half-made. Waits, within a limit, until nobody writes into it any more. May be repeated. It leaves a source that
    /// still lives as it is; [`crate::Engine::adopt`] says whether that stands still.
    ///
    /// # Errors
    /// `Busy` when the sentry still writes at the limit; then nothing was touched.
    pub(crate) async fn settle_capture(&self, snapshot: &SnapshotId, source: &Uid) -> Result<Settled> {
        let places = self.shared.dirs.capture(snapshot, true);
        let cgroup = self.shared.cgroups.leftover(source.as_str());
        // The descriptors of a checkpoint may still be on their way to a sentry that has not read the call yet.
        let control = ControlSocket::new(&self.shared.dirs.sandbox(source).control_socket());
        control.idle(|| cgroup.processes().is_empty()).await?;
        let patience = Instant::now() + WRITING_WAIT_MAX;
        let temporary = temporary(&places);
        while cgroup.processes().into_iter().any(|pid| has_open_below(pid, &temporary)) {
            if Instant::now() >= patience {
                let what = format!("the writing of snapshot {snapshot}");
                return Err(EngineError::Busy { what, waited: WRITING_WAIT_MAX });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let settling = tokio::task::spawn_blocking(move || settle(&places));
        settling.await.map_err(std::io::Error::other).tried(|| format!("settle snapshot {snapshot}"))?
    }
}

/// Removes what is half-made of a capture that nobody works on any more. What is whole stays.
pub(crate) fn settle(places: &CapturePlaces) -> Result<Settled> {
    let memory = places.memory.as_ref().map(|(memory, _)| memory.as_path()).filter(|memory| memory.exists());
    if places.layer.exists() {
        let memory = memory.map(MemoryImage::load).transpose()?;
        return Ok(Settled::Published { memory, layer_bytes: disk_usage(&places.layer) });
    }
    discard(places)?;
    Ok(Settled::Removed)
}

fn temporary(places: &CapturePlaces) -> Vec<PathBuf> {
    std::iter::once(&places.layer_tmp).chain(places.memory.iter().map(|(_, tmp)| tmp)).cloned().collect()
}

/// Whether a process has anything open in one of these directories. One that has ended has not.
fn has_open_below(pid: i32, directories: &[PathBuf]) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let target = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
    descriptors.flatten().filter_map(target).any(|open| directories.iter().any(|dir| Path::new(&open).starts_with(dir)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageFiles;
    use std::os::unix::fs::FileExt;

    /// The places of a capture that stopped before this step: 0 nothing, 1 the image's files are made, 2 the layer is
    /// copied too, 3 the image is in its place, 4 the layer is as well.
    fn stopped_before(step: u32) -> (tempfile::TempDir, CapturePlaces) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let places = CapturePlaces {
            layer: at("layer"),
            layer_tmp: at("layer.tmp"),
            memory: Some((at("memory"), at("memory.tmp"))),
        };
        if step >= 1 {
            let files = ImageFiles::create(&at("memory.tmp")).unwrap();
            for file in files.descriptors() {
                fs::File::from(file.try_clone_to_owned().unwrap()).write_at(b"image", 0).unwrap();
            }
            if step >= 2 {
                fs::create_dir(at("layer.tmp")).unwrap();
                fs::write(at("layer.tmp/file"), "text").unwrap();
            }
            if step >= 3 {
                MemoryImage::publish(&at("memory.tmp"), &files, &at("memory")).unwrap();
            }
            if step >= 4 {
                fs::rename(at("layer.tmp"), at("layer")).unwrap();
            }
        }
        (dir, places)
    }

    #[test]
    fn a_capture_is_whole_or_nothing_of_it_is_left() {
        for step in 0..4 {
            let (dir, places) = stopped_before(step);
            assert!(matches!(settle(&places).unwrap(), Settled::Removed), "{step}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{step}");
        }
        let (_dir, places) = stopped_before(4);
        for _ in 0..2 {
            let Settled::Published { memory: Some(mut image), layer_bytes } = settle(&places).unwrap() else {
                panic!("it was whole")
            };
            assert_eq!((image.bytes(), layer_bytes > 0), (15, true));
            image.open().unwrap();
            image.seal().unwrap();
        }
    }

    #[test]
    fn a_capture_of_files_alone_needs_no_image() {
        let (dir, places) = stopped_before(0);
        fs::create_dir(&places.layer).unwrap();
        assert!(matches!(settle(&places).unwrap(), Settled::Published { memory: None, .. }));
        fs::rename(&places.layer, &places.layer_tmp).unwrap();
        assert!(matches!(settle(&places).unwrap(), Settled::Removed));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_published_image_that_was_changed_is_noticed() {
        let (_dir, places) = stopped_before(4);
        fs::write(places.memory.as_ref().unwrap().0.join("pages.img"), "other").unwrap();
        let Settled::Published { memory: Some(mut image), .. } = settle(&places).unwrap() else {
            panic!("it was whole")
        };
        assert!(matches!(image.seal(), Err(EngineError::Damaged { .. })));
    }

    #[test]
    fn an_open_file_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let place = [dir.path().join("memory.tmp")];
        fs::create_dir(&place[0]).unwrap();
        let own = std::process::id() as i32;
        let file = fs::File::create(place[0].join("pages.img")).unwrap();
        assert!(has_open_below(own, &place));
        drop(file);
        let _beside = fs::File::create(dir.path().join("memory.tmp2")).unwrap();
        assert!(!has_open_below(own, &place));
        assert!(!has_open_below(i32::MAX, &place));
    }
}
