//! Many calls at once, and removals in the middle of everything: every call is answered, and nothing is left.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use remuda_client::wire::{Branch, CreateSandbox, RemovalResult, Sandbox};
use remuda_client::{ClientError, SandboxFilter};
use remuda_types::{ErrorCode, ExecutionState, SandboxId};

use crate::api::{Api, PATIENCE, fork_of, script_of, traces};

/// An answer that must come.
async fn answered<T>(what: &str, call: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, call).await.unwrap_or_else(|_| panic!("{what} was not answered"))
}

/// Removes what lives, and looks for whatever ever was there.
async fn empty(api: &Api) {
    let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
    join_all(living.iter().map(|sandbox| api.remove(&sandbox.id))).await;
    let all = SandboxFilter { include_ended: true, ..SandboxFilter::default() };
    for ended in api.client.list_sandboxes(&all).await.unwrap() {
        assert_eq!(traces(ended.uid.as_str()), Vec::<String>::new(), "{ended:?}");
        assert!(!api.server.data_dir.join("sandboxes").join(ended.uid.as_str()).exists(), "{ended:?}");
    }
    // A fork looks its layer through after its answer; then it goes too.
    let collected = async {
        while !api.captured().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, collected).await.unwrap_or_else(|_| panic!("left: {:?}", api.captured()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_sandboxes_at_once_and_four_forks_at_once() {
    let api = Api::own();
    let ten = join_all((0..10).map(|_| api.create())).await;
    assert_eq!(ten.iter().map(|sandbox| sandbox.id.slot.clone()).collect::<HashSet<_>>().len(), 10);
    let names = join_all(ten.iter().map(|sandbox| api.sh(&sandbox.id, "hostname"))).await;
    for (sandbox, name) in ten.iter().zip(names) {
        assert_eq!(name, sandbox.id.slot.as_str());
    }
    let (sources, others) = ten.split_at(4);
    join_all(others.iter().map(|sandbox| api.remove(&sandbox.id))).await;
    join_all(sources.iter().map(|source| api.start_counter(&source.id))).await;
    let before = join_all(sources.iter().map(|source| api.count(&source.id))).await;
    let request = fork_of(2);
    let forks = join_all(sources.iter().map(|source| api.client.fork(&source.id, &request))).await;
    for (fork, before) in forks.into_iter().zip(before) {
        for branch in fork.unwrap().branches {
            let Branch::Sandbox(branch) = branch else { panic!("{branch:?}") };
            assert_eq!(api.count(&branch.id).await, before.after(1), "each branch is its own source's process");
        }
    }
    empty(&api).await;
}

/// Waits until a sandbox in this slot is known, in whatever state.
async fn appears(api: &Api, slot: &str) -> SandboxId {
    let filter = SandboxFilter { slot: Some(slot.parse().unwrap()), include_ended: true, ..SandboxFilter::default() };
    answered("a listing", async {
        loop {
            if let Some(sandbox) = api.client.list_sandboxes(&filter).await.unwrap().pop() {
                return sandbox.id;
            }
        }
    })
    .await
}

fn created_or_gone(outcome: Result<Sandbox, ClientError>) {
    match outcome {
        Ok(_) => {}
        Err(error) => {
            let told =
                [ErrorCode::GenerationGone, ErrorCode::WrongState, ErrorCode::Unreachable, ErrorCode::EngineFailed];
            assert!(error.code().is_some_and(|code| told.contains(&code)), "{error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_during_a_creation_leaves_nothing() {
    let api = Api::own();
    for (n, delay_ms) in [0, 20, 60, 100, 150].into_iter().enumerate() {
        let slot = format!("racing-{n}");
        let request =
            CreateSandbox { slot: Some(slot.parse().unwrap()), memory_mib: Some(256), ..CreateSandbox::default() };
        let removing = async {
            let id = appears(&api, &slot).await;
            // Not waited for anything: the removal is to fall into another moment each time.
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            api.client.remove_sandbox(&id).await
        };
        let (created, removed) =
            answered("both", async { tokio::join!(api.client.create_sandbox(&request), removing) }).await;
        created_or_gone(created);
        assert!(removed.as_ref().is_ok_and(|r| r.processes_gone && r.files_gone), "{removed:?}");
        let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
        assert_eq!(living, [], "what was removed does not come up");
    }
    empty(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_during_a_fork_is_answered_and_so_is_the_fork() {
    let api = Api::own();
    for (n, delay_ms) in [0, 15, 40, 90].into_iter().enumerate() {
        let source = api.create().await;
        let mut request = fork_of(2);
        let slots = [format!("a{n}"), format!("b{n}")];
        request.slots = Some(slots.iter().map(|slot| slot.parse().unwrap()).collect());
        let removing_source = async {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            api.client.remove_sandbox(&source.id).await
        };
        let fork = api.client.fork(&source.id, &request);
        let (fork, removed) = answered("both", async { tokio::join!(fork, removing_source) }).await;
        assert!(removed.as_ref().is_ok_and(|r| r.processes_gone && r.files_gone), "{removed:?}");
        match fork {
            Ok(fork) => {
                for branch in fork.branches {
                    let Branch::Sandbox(branch) = branch else {
                        panic!("it was captured, and its source not needed: {branch:?}")
                    };
                    assert_eq!(api.sh(&branch.id, "echo alive").await, "alive");
                    api.remove(&branch.id).await;
                }
            }
            Err(error) => {
                let told = [ErrorCode::GenerationGone, ErrorCode::WrongState, ErrorCode::Unreachable];
                assert!(error.code().is_some_and(|code| told.contains(&code)), "after {delay_ms} ms: {error:?}");
            }
        }
    }
    // And of a branch that is only coming up: the other one is untouched.
    let source = api.create().await;
    let mut request = fork_of(2);
    request.slots = Some(vec!["kept".parse().unwrap(), "taken-away".parse().unwrap()]);
    let removing = async { api.client.remove_sandbox(&appears(&api, "taken-away").await).await };
    let (fork, removed) =
        answered("both", async { tokio::join!(api.client.fork(&source.id, &request), removing) }).await;
    removed.unwrap();
    let fork = fork.unwrap();
    let Branch::Sandbox(kept) = &fork.branches[0] else { panic!("{fork:?}") };
    assert_eq!(api.sh(&kept.id, "echo alive").await, "alive");
    empty(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_during_executions_answers_all_of_them() {
    let api = Api::own();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let script = |n: u32| script_of(&format!("touch /tmp/n{n}; sleep 600"));
    let requests: Vec<_> = (0..8).map(script).collect();
    let calls = join_all(requests.iter().map(|request| api.client.execute(id, request)));
    let removing = async {
        api.sh(id, "while [ $(ls /tmp | grep -c ^n) -lt 8 ]; do sleep 0.05; done").await;
        // Whoever comes in between is answered too.
        let late = join_all(requests.iter().map(|request| api.client.execute(id, request)));
        tokio::join!(late, join_all((0..3).map(|_| api.client.remove_sandbox(id))))
    };
    let (calls, (late, removals)) = answered("all of them", async { tokio::join!(calls, removing) }).await;
    for call in calls {
        let ended = call.unwrap();
        assert_eq!((ended.state, ended.exit_code), (ExecutionState::SandboxGone, None));
    }
    for call in late {
        match call {
            Ok(ended) => assert_eq!(ended.state, ExecutionState::SandboxGone),
            Err(error) => {
                let told = [ErrorCode::GenerationGone, ErrorCode::WrongState, ErrorCode::Unreachable];
                assert!(error.code().is_some_and(|code| told.contains(&code)), "{error:?}");
            }
        }
    }
    let results: Vec<_> = removals.into_iter().map(|removal| removal.unwrap().result).collect();
    assert_eq!(results.iter().filter(|result| **result == RemovalResult::Removed).count(), 1, "{results:?}");
    empty(&api).await;
}
