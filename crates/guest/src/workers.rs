//! Threads for calls that take time. A few idle ones are kept, since making a thread costs as much as a small call;
//! none ever wakes up without work. How many calls run at once is limited by whoever hands them in.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::limits::{IDLE_THREADS_MAX, THREAD_STACK_BYTES};
use crate::sync::{lock, wait};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
}

/// The threads.
#[derive(Default)]
pub struct Workers {
    state: Mutex<State>,
    work: Condvar,
}

impl Workers {
    /// Runs a job on a thread of its own, soon. An error means that there can't be another thread and the job was not
    /// and will not be run.
    pub fn run(self: &Arc<Workers>, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = lock(&self.state);
        if state.jobs.len() < state.idle {
            state.jobs.push_back(Box::new(job));
            self.work.notify_one();
            return Ok(());
        }
        drop(state);
        let workers = self.clone();
        start_thread("worker", move || {
            job();
            workers.live();
        })
    }

    fn live(&self) {
        loop {
            let mut state = lock(&self.state);
            if state.idle >= IDLE_THREADS_MAX {
                return;
            }
            state.idle += 1;
            let job = loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None => state = wait(&self.work, state),
                }
            };
            state.idle -= 1;
            drop(state);
            job();
        }
    }
}

/// Starts a thread with the stack of all threads here.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(THREAD_STACK_BYTES).spawn(body).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn every_job_runs_and_none_waits_for_another() {
        let workers = Arc::new(Workers::default());
        for _ in 0..3 {
            // Each waits for the one after it: with fewer threads than jobs this would hang.
            let (done, all_done) = mpsc::channel();
            let mut next: Option<mpsc::Sender<()>> = None;
            for _ in 0..12 {
                let (go, wait) = mpsc::channel();
                let (wakes, done) = (next.replace(go), done.clone());
                workers
                    .run(move || {
                        let _ = wait.recv();
                        drop(wakes);
                        done.send(()).unwrap();
                    })
                    .unwrap();
            }
            drop((next, done));
            assert_eq!(all_done.iter().count(), 12);
        }
    }
}
