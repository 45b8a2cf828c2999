//! A machine that gVisor can't checkpoint as it stands: the refusal names who is in the way, and nothing comes of it.

use remuda_client::wire::{CreateSnapshot, RestoreSnapshot};
use remuda_types::{ErrorCode, SnapshotMode, SnapshotState};

use crate::api::{Api, fork_of, python, refused};

#[tokio::test]
async fn a_deleted_open_file_refuses_a_checkpoint_and_is_named() {
    let api = Api::own();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.start_counter(id).await;
    let before = api.count(id).await;
    let holder = "import os,time\nf = open('/workspace/held', 'w')\nf.write('x' * 5000)\nf.flush()\n\
                  os.unlink('/workspace/held')\nprint(os.getpid(), flush=True)\ntime.sleep(600)";
    let (execution, pid) = api.background(id, python(holder)).await;
    let pid = pid.trim();

    for _ in 0..2 {
        let error = refused(api.client.snapshot(id, &CreateSnapshot::default()).await, ErrorCode::CheckpointRefused);
        let cause = error.cause.clone().unwrap_or_default();
        assert!(cause.contains(&format!("process {pid} ")) && cause.contains("/workspace/held"), "{error:?}");
        assert!(error.remedy.is_some(), "{error:?}");
        let snapshot = error.details["snapshot"].as_str().unwrap();
        assert_eq!(api.client.snapshot_info(snapshot).await.unwrap().state, SnapshotState::Failed);
        refused(api.client.restore(snapshot, &RestoreSnapshot::default()).await, ErrorCode::SnapshotNotActive);
    }
    refused(api.client.fork(id, &fork_of(2)).await, ErrorCode::CheckpointRefused);
    assert_eq!(api.captured(), Vec::<String>::new());
    assert_eq!(api.count(id).await, before.after(1), "the source goes on");
    // Its files alone can be had meanwhile, as the remedy says.
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    assert_eq!(api.client.snapshot(id, &files).await.unwrap().state, SnapshotState::Active);

    api.client.cancel(id, &execution).await.unwrap();
    let snapshot = api.client.snapshot(id, &CreateSnapshot::default()).await.unwrap();
    let copy = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.count(&copy.id).await, before.after(2));
    assert_eq!(api.count(id).await, before.after(2));
}

#[tokio::test]
async fn a_deleted_file_in_the_guests_memory_is_in_nobodys_way() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let holder = "import os,time\nf = open('/tmp/held', 'w+')\nf.write('kept')\nf.flush()\nos.unlink('/tmp/held')\n\
                  print('ready', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)\n\
                  f.seek(0)\nprint(f.read(), flush=True)";
    let (execution, _) = api.background(&sandbox.id, python(holder)).await;
    let snapshot = api.client.snapshot(&sandbox.id, &CreateSnapshot::default()).await.unwrap();
    let copy = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    let branch = api.client.executions(&copy.id).await.unwrap();
    assert_eq!(branch[0].origin, Some(execution));
    api.sh(&copy.id, "touch /tmp/go").await;
    let ended = api.ended(&copy.id, &branch[0].id).await;
    assert_eq!(ended.exit_code, Some(0));
    let output = api.client.output(&copy.id, &branch[0].id, &Default::default()).await.unwrap();
    let text: String = output.records.iter().map(|record| record.text.as_str()).collect();
    assert_eq!(text, "ready\nkept\n", "the file is there although it has no name");
    api.remove(&copy.id).await;
    api.remove(&sandbox.id).await;
}
