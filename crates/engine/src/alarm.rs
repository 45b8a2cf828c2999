//! Tells that a sandbox has run out of memory before anything that comes of it can be seen. Must never be reset: what
//! rang once has rung for good.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::unix::AsyncFd;

use crate::error::{Result, Tried};

/// A bell that the kernel rings. Clones are one bell; the default one never rings.
#[derive(Debug, Clone, Default)]
pub struct OomAlarm {
    bell: Option<Arc<AsyncFd<OwnedFd>>>,
}

impl OomAlarm {
    /// Must be called within a tokio runtime. `bell` becomes readable when it rings.
    pub(crate) fn new(bell: OwnedFd) -> Result<OomAlarm> {
        // SAFETY: the descriptor is owned by what registers it and is never replaced while registered.
        let registered = unsafe { AsyncFd::register_with_interest(bell, tokio::io::Interest::READABLE) };
        let bell = registered.map_err(std::io::Error::from).tried(|| "watch for want of memory".into())?;
        Ok(OomAlarm { bell: Some(Arc::new(bell)) })
    }

    /// Whether it has rung. The kernel rings before it kills, so whoever sees a process of the guest end can tell by
    /// this what it died of.
    pub fn has_rung(&self) -> bool {
        let Some(bell) = &self.bell else { return false };
        let mut fds = [PollFd::new(bell.get_ref(), PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(n) if n > 0)
    }

    /// Waits until it rings; for ever if it never does.
    pub(crate) async fn rings(&self) {
        if let Some(bell) = &self.bell
            && let Ok(mut guard) = bell.readable().await
        {
            // It is never read, and so stays readable.
            guard.retain_ready();
            return;
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[tokio::test]
    async fn it_rings_once_and_for_all() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let rope = bell.try_clone().unwrap();
        let alarm = OomAlarm::new(bell).unwrap();
        assert!(!alarm.has_rung());
        rustix::io::write(&rope, &1u64.to_ne_bytes()).unwrap();
        alarm.rings().await;
        alarm.clone().rings().await;
        assert!(alarm.has_rung());
    }

    #[test]
    fn the_default_one_never_rings() {
        assert!(!OomAlarm::default().has_rung());
    }
}
