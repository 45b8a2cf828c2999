//! One server's life on the host, and where it is to go wrong. Every effect passes a point before and one after; a
//! plan says at which of them what happens. A server that died passes nothing any more: whoever works for it waits for
//! ever, as a killed process does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_engine::{EngineError, Result};
use tokio::sync::watch;

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    GoOn,
    /// The effect fails there: before it nothing was done, after it all was.
    Fail,
    /// It never comes back.
    Hang,
    /// The server is killed there.
    Die,
}

/// What happens where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The number of the point, from 0, counted from when the plan was made.
    pub at: usize,
    /// What happens there, once.
    pub verdict: Verdict,
}

/// One server's life.
#[derive(Debug)]
pub struct Session {
    points: Mutex<Points>,
    dead: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Points {
    /// Whether they are written down.
    counted: bool,
    passed: Vec<&'static str>,
    plan: Option<Plan>,
}

impl Session {
    /// A new server; nothing goes wrong with it.
    pub fn begin() -> Arc<Session> {
        Arc::new(Session { points: Mutex::default(), dead: watch::Sender::new(false) })
    }

    /// From now on points are counted, and this happens at one of them.
    pub fn plan(&self, plan: Option<Plan>) {
        *self.points() = Points { counted: true, passed: Vec::new(), plan };
    }

    /// Nothing goes wrong from now on; tells the points since the plan was made.
    pub fn rest(&self) -> Vec<&'static str> {
        let mut points = self.points();
        points.counted = false;
        points.plan = None;
        std::mem::take(&mut points.passed)
    }

    /// Kills the server here and now.
    pub fn die(&self) {
        self.dead.send_replace(true);
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    /// Waits until it is killed.
    pub async fn died(&self) {
        // The sender is here.
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// What happens at this point. Of a dead server, nothing more is done.
    pub fn decide(&self, point: &'static str) -> Verdict {
        if self.is_dead() {
            return Verdict::Die;
        }
        let verdict = {
            let mut points = self.points();
            if !points.counted {
                return Verdict::GoOn;
            }
            let number = points.passed.len();
            points.passed.push(point);
            points.plan.filter(|plan| plan.at == number).map_or(Verdict::GoOn, |plan| plan.verdict)
        };
        if verdict == Verdict::Die {
            self.die();
        }
        verdict
    }

    /// Passes a point, or fails there, or never comes back.
    pub(crate) async fn pass(&self, point: &'static str) -> Result<()> {
        match self.decide(point) {
            Verdict::GoOn => Ok(()),
            Verdict::Fail => {
                Err(EngineError::Io { what: point.to_owned(), source: std::io::Error::other("it was to fail here") })
            }
            Verdict::Hang | Verdict::Die => std::future::pending().await,
        }
    }

    fn points(&self) -> MutexGuard<'_, Points> {
        self.points.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
