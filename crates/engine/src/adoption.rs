//! Machines that outlived their server, taken over by the next one.
//!
//! They are no children of it: all that is known of their processes comes from what was recorded, is held against the
//! host before anything is believed, and goes through pidfds from then on. Must never signal what it did not recognise.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use remuda_types::Uid;

use crate::cgroup::Cgroup;
use crate::control_socket::ControlSocket;
use crate::engine::Machine;
use crate::error::{EngineError, Result, Tried};
use crate::gvisor::{Gvisor, end_processes};
use crate::halt::Halt;
use crate::host_facts::{HostFacts, boot_id};
use crate::machine::{Death, GvisorMachine};
use crate::process::HostProcess;
use crate::site::ChannelEnds;

/// What became of a machine that an earlier server had raised.
#[derive(Debug)]
pub enum Adopted {
    /// It lives.
    Alive(Box<Survivor>),
    /// It has ended in this boot, or was ended now, since a part of it was gone. Nothing of it runs.
    Ended(Death),
    /// The host has been started anew since: nothing of it can be left but its files.
    Gone,
}

/// A machine that goes on under a new server.
#[derive(Debug)]
pub struct Survivor {
    /// The machine.
    pub machine: Machine,
    /// Its channel, in whatever state the earlier server left it: either side's last frame may be a half one.
    pub channel: ChannelEnds,
    /// Whether it stands still, since its server was killed between a pause and the resume.
    pub paused: bool,
}

impl Gvisor {
    /// Takes over the machine `uid` of an earlier server, by what that recorded of it. Waits until no call of that
    /// server to the sandbox is under way any more; a checkpoint that it had begun is carried out to its end. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// When it cannot be told what became of it. Nothing was signalled then, and the call may be repeated.
    pub(crate) async fn adopt(&self, uid: &Uid, facts: &HostFacts) -> Result<Adopted> {
        if facts.boot_id != boot_id()? {
            return Ok(Adopted::Gone);
        }
        let cgroup = self.shared.cgroups.leftover(uid.as_str());
        let found = (HostProcess::find(facts.sentry)?, HostProcess::find(facts.gofer)?);
        // Held first and looked up second: what is in the group by now is what is held.
        let members = cgroup.processes();
        let (Some(sentry), Some(gofer)) = found else { return end(&cgroup).await };
        if ![&sentry, &gofer].iter().all(|process| members.contains(&process.pid())) {
            return end(&cgroup).await;
        }
        // Watched first and counted second, so that no kill falls between.
        let oom = cgroup.oom_alarm()?;
        if cgroup.oom_kills() > 0 {
            return end(&cgroup).await;
        }
        let dirs = self.shared.dirs.sandbox(uid);
        let control = ControlSocket::new(&dirs.control_socket());
        control.idle(|| sentry.has_ended()).await?;
        let mark = dirs.halt_mark();
        let halt = match control.with(move |control| Halt::found(mark, control)).await {
            Err(EngineError::Ended) => return end(&cgroup).await,
            // Nobody serves the socket of a sentry that has just ended.
            Err(_) if sentry.has_ended() => return end(&cgroup).await,
            found => found?,
        };
        let paused = halt.is_halted();
        let channel = ChannelEnds::open(uid, &dirs, oom.clone())?;
        let pin = dirs.net_outer();
        let outer: OwnedFd = std::fs::File::open(&pin).tried(|| format!("open {}", pin.display()))?.into();
        let (dialer, networks) = (self.shared.dialer.clone(), self.shared.networks.clone());
        let machine =
            GvisorMachine::new(uid.clone(), dirs, control, halt, sentry, gofer, cgroup, oom, outer, dialer, networks);
        Ok(Adopted::Alive(Box::new(Survivor { machine: Machine::new(Arc::new(machine)), channel, paused })))
    }
}

/// Ends what is left of a machine, and tells what it had died of.
async fn end(cgroup: &Cgroup) -> Result<Adopted> {
    end_processes(cgroup).await?;
    Ok(Adopted::Ended(if cgroup.oom_kills() > 0 { Death::OutOfMemory } else { Death::Ended }))
}
