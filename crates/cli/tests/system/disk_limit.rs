//! What a sandbox may hold on the disk: at its limit it is paused with a reason and an event, keeps everything, and has
//! a while to make room when it is resumed.

use remuda_client::wire::{CreateSandbox, RestoreSnapshot};
use remuda_types::{ErrorCode, SandboxState};

use crate::api::{Api, detached, refused, script_of};

fn small_disk() -> CreateSandbox {
    CreateSandbox { memory_mib: Some(512), disk_mib: Some(64), ..CreateSandbox::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_paused_at_its_disk_limit_and_goes_on_when_it_has_made_room() {
    let api = Api::own();
    let sandbox = api.create_with(&small_disk()).await;
    let (id, beside) = (&sandbox.id, api.create_with(&small_disk()).await);
    assert_eq!(sandbox.disk_mib, 64);
    api.start_counter(id).await;
    let before = api.count(id).await;
    api.client
        .execute(id, &detached("dd if=/dev/urandom of=/workspace/big bs=1M count=200; sync; sleep 600"))
        .await
        .unwrap();
    let paused = api.until(id, "paused", |seen| seen.state == SandboxState::Paused && seen.reason.is_some()).await;
    assert!(paused.reason.as_ref().unwrap().contains("it may hold 67108864"), "{paused:?}");
    refused(api.client.execute(id, &script_of("true")).await, ErrorCode::WrongState);
    let events = api.client.events(0).await.unwrap().events;
    assert!(
        events.iter().any(|e| e.kind == "sandbox.disk_limit" && e.about.sandbox.as_ref() == Some(id)),
        "{events:?}"
    );
    assert_eq!(api.client.sandbox(&beside.id).await.unwrap().state, SandboxState::Running, "nobody else is halted");

    let resumed = api.client.resume(id).await.unwrap();
    assert_eq!(resumed.reason, None);
    api.sh(id, "pkill dd; rm /workspace/big; sync; echo done").await;
    assert_eq!(api.count(id).await, before.after(1), "it is the same machine");
    // Filled further than before, it is paused at once, and not only when its time to make room is over.
    api.client
        .execute(id, &detached("dd if=/dev/urandom of=/workspace/more bs=1M count=300; sync; sleep 600"))
        .await
        .unwrap();
    api.until(id, "paused", |seen| seen.state == SandboxState::Paused && seen.reason.is_some()).await;
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_mapped_and_sparse_and_linked_counts_by_what_it_takes() {
    let api = Api::own();
    let id = api.create_with(&small_disk()).await.id;
    // A sparse file of 8 GiB takes next to nothing, and a file with many names takes what one takes.
    api.sh(
        &id,
        "truncate -s 8G /workspace/sparse; dd if=/dev/zero of=/workspace/a bs=1M count=30 2>/dev/null; \
                 for n in 1 2 3 4; do ln /workspace/a /workspace/a$n; done; sync",
    )
    .await;
    let mapped = "import mmap,os\nf = os.open('/workspace/mapped', os.O_CREAT|os.O_RDWR)\nos.truncate(f, 200 << 20)\n\
                  m = mmap.mmap(f, 200 << 20)\nprint('ready', flush=True)\nfor at in range(0, 200 << 20, 4096):\n m[at] = 1\n\
                  m.flush()\nimport time\ntime.sleep(600)";
    api.background(&id, crate::api::python(mapped)).await;
    api.until(&id, "paused", |seen| seen.state == SandboxState::Paused && seen.reason.is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_has_the_limit_of_its_source_and_nonsense_is_refused() {
    let api = Api::own();
    let id = api.create_with(&small_disk()).await.id;
    let snapshot = api.client.snapshot(&id, &Default::default()).await.unwrap();
    let copy = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(copy.disk_mib, 64);
    let fork = api.client.fork(&id, &crate::api::fork_of(1)).await.unwrap();
    let remuda_client::wire::Branch::Sandbox(branch) = &fork.branches[0] else { panic!("{fork:?}") };
    assert_eq!(branch.disk_mib, 64);
    for wrong in [0, 15, (1 << 20) + 1] {
        let request = CreateSandbox { disk_mib: Some(wrong), ..CreateSandbox::default() };
        refused(api.client.create_sandbox(&request).await, ErrorCode::InvalidRequest);
    }
}
