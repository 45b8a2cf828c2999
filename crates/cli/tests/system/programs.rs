//! Real programs in the middle of their work, forked: threads, a server under load, a pipeline, a database in a transaction.
//! Each goes on in the source and in every branch, and none notices the others.

use remuda_client::OutputQuery;
use remuda_client::wire::{Branch, CreateSnapshot, RestoreSnapshot, StartExecution};
use remuda_types::{ExecutionId, SandboxId, SnapshotMode};

use crate::api::{Api, PATIENCE, detached, exited, fork_of, python};

/// The source and its branches, each with its own record of an execution of the source.
async fn forked(api: &Api, source: &SandboxId, execution: &ExecutionId, count: u32) -> Vec<(SandboxId, ExecutionId)> {
    let fork = api.client.fork(source, &fork_of(count)).await.unwrap();
    let mut all = vec![(source.clone(), execution.clone())];
    for branch in fork.branches {
        let Branch::Sandbox(branch) = branch else { panic!("{branch:?}") };
        let carried = api.client.executions(&branch.id).await.unwrap();
        let carried = carried.into_iter().find(|e| e.origin.as_ref() == Some(execution)).unwrap();
        all.push((branch.id, carried.id));
    }
    all
}

async fn said(api: &Api, (id, execution): &(SandboxId, ExecutionId)) -> String {
    let page = api.client.output(id, execution, &OutputQuery::default()).await.unwrap();
    page.records.iter().map(|record| record.text.as_str()).collect()
}

#[tokio::test]
async fn threads_go_on_with_their_locks_and_queues_in_every_branch() {
    const PROGRAM: &str = "import os, queue, threading, time\n\
        jobs, done, lock = queue.Queue(), [], threading.Lock()\n\
        def work():\n    \
            while True:\n        \
                n = jobs.get()\n        \
                if n is None: return\n        \
                time.sleep(0.001)\n        \
                with lock: done.append(n)\n\
        workers = [threading.Thread(target=work) for _ in range(8)]\n\
        for w in workers: w.start()\n\
        for n in range(3000): jobs.put(n)\n\
        print('begun', flush=True)\n\
        while not os.path.exists('/tmp/go'): time.sleep(0.01)\n\
        for _ in workers: jobs.put(None)\n\
        for w in workers: w.join()\n\
        print(len(done), sorted(done) == list(range(3000)), flush=True)\n";
    let api = Api::shared();
    let source = api.create().await.id;
    let (execution, _) = api.background(&source, python(PROGRAM)).await;
    let all = forked(&api, &source, &execution, 2).await;
    for one in &all {
        api.sh(&one.0, "touch /tmp/go").await;
        exited(&api.ended(&one.0, &one.1).await, 0);
        assert_eq!(said(&api, one).await, "begun\n3000 True\n");
    }
    for (id, _) in all {
        api.remove(&id).await;
    }
}

#[tokio::test]
async fn a_pipeline_goes_on_in_every_branch_and_loses_no_line() {
    let api = Api::shared();
    let source = api.create().await.id;
    let script = "echo begun; i=0; while [ $i -lt 60000 ]; do echo $i; i=$((i+1)); done | sed s/^/n/ | grep -v 7 | \
                  (while read -r line; do n=$((n+1)); done; echo $n $line $n)";
    let (execution, _) = api.background(&source, detached(script)).await;
    let all = forked(&api, &source, &execution, 2).await;
    for one in &all {
        exited(&api.ended(&one.0, &one.1).await, 0);
        // Of the numbers below 60,000 those without a 7: five first digits, and nine for each of the other four places; all
        // shorter ones among them.
        let expected = (0..60_000).filter(|n: &u32| !n.to_string().contains('7')).count();
        let text = said(&api, one).await;
        assert!(text.starts_with(&format!("begun\n{expected} ")), "{text}");
    }
    for (id, _) in all {
        api.remove(&id).await;
    }
}

#[tokio::test]
async fn a_node_server_under_load_goes_on_in_every_branch() {
    const SERVER: &str = "let asked = 0; const kept = new Map();\n\
        require('http').createServer((q, r) => { asked++; kept.set(q.url, asked); setTimeout(() => r.end(String(asked)), 2); })\n\
        .listen(3000, '0.0.0.0', () => console.log('up'));";
    // Connections of its own guest, which a capture takes along.
    const LOAD: &str = "const http = require('http'), fs = require('fs'); let ok = 0, failed = 0, running = 16;\n\
        const agent = new http.Agent({ keepAlive: true, maxSockets: 16 });\n\
        const one = () => {\n\
            if (fs.existsSync('/tmp/stop')) { if (--running === 0) { console.log(ok > 100, failed); process.exit(0); } return; }\n\
            http.get({ port: 3000, path: '/' + ok, agent }, r => { r.resume(); r.on('end', () => { ok++; one(); }); })\n\
                .on('error', () => { failed++; one(); });\n\
        };\n\
        for (let n = 0; n < 16; n++) one();\n\
        setTimeout(() => console.log('loading'), 200);";
    let node = |program: &str| StartExecution {
        argv: Some(["node", "-e", program].map(String::from).to_vec()),
        ..StartExecution::default()
    };
    let api = Api::shared();
    let source = api.create().await.id;
    api.background(&source, node(SERVER)).await;
    let (load, _) = api.background(&source, node(LOAD)).await;
    let all = forked(&api, &source, &load, 2).await;
    for (n, one) in all.iter().enumerate() {
        // It answers from outside too, and by another count in each.
        let get = remuda_client::Method::GET;
        let answer = api.client.port_request(&one.0, 3000, get, "/", Default::default(), "").await.unwrap();
        assert!(!answer.collect(100).await.unwrap().is_empty());
        api.sh(&one.0, "sleep 0.5; touch /tmp/stop").await;
        exited(&api.ended(&one.0, &one.1).await, 0);
        assert_eq!(said(&api, one).await, "loading\ntrue 0\n", "branch {n}: no request of the load failed");
    }
    for (id, _) in all {
        api.remove(&id).await;
    }
}

#[tokio::test]
async fn servers_that_hold_connections_to_the_outside_answer_in_every_branch_and_know_that_those_ended() {
    const NODE: &str = "let open = 0; require('http').createServer((q, r) => {\n\
        if (q.url !== '/stream') return void r.end(String(open));\n\
        open++; q.socket.on('error', () => {}).on('close', () => open--); r.write('begun');\n\
        }).listen(3000, '0.0.0.0', () => console.log('up'));";
    // The same by epoll itself, level-triggered.
    const PYTHON: &str = "import select, socket\n\
        listener = socket.create_server(('0.0.0.0', 3001)); epoll = select.epoll(); epoll.register(listener, select.EPOLLIN)\n\
        held, streams = {}, set()\n\
        print('up', flush=True)\n\
        while True:\n    \
            for number, _ in epoll.poll():\n        \
                if number == listener.fileno():\n            \
                    c, _ = listener.accept(); held[c.fileno()] = c; epoll.register(c, select.EPOLLIN); continue\n        \
                try: asked = held[number].recv(4096)\n        \
                except OSError: asked = b''\n        \
                head = b'HTTP/1.1 200 OK\\r\\nconnection: close\\r\\n'\n        \
                if b'/stream' in asked:\n            \
                    streams.add(number); held[number].send(head + b'\\r\\nbegun'); continue\n        \
                streams.discard(number)\n        \
                if asked: held[number].send(head + b'content-length: 1\\r\\n\\r\\n' + str(len(streams)).encode())\n        \
                epoll.unregister(number); held.pop(number).close()\n";
    let api = Api::shared();
    let source = api.create().await.id;
    let node =
        StartExecution { argv: Some(["node", "-e", NODE].map(String::from).to_vec()), ..StartExecution::default() };
    api.background(&source, node).await;
    let (python, _) = api.background(&source, python(PYTHON)).await;
    let get = async |id: &SandboxId, port, path| {
        let method = remuda_client::Method::GET;
        api.client.port_request(id, port, method, path, Default::default(), "").await.unwrap()
    };
    let mut streams = Vec::new();
    for port in [3000, 3001, 3000, 3001, 3000, 3001] {
        streams.push(get(&source, port, "/stream").await);
    }
    for port in [3000, 3001] {
        assert_eq!(get(&source, port, "/").await.collect(100).await.unwrap(), "3");
    }
    let all = forked(&api, &source, &python, 2).await;
    drop(streams);
    for (n, (id, _)) in all.iter().enumerate() {
        for port in [3000, 3001] {
            let told = async { while get(id, port, "/").await.collect(100).await.unwrap() != "0" {} };
            let in_time = tokio::time::timeout(PATIENCE, told).await;
            assert!(
                in_time.is_ok(),
                "machine {n}: the server on port {port} answers, and holds no connection any more"
            );
        }
    }
    for (id, _) in all {
        api.remove(&id).await;
    }
}

#[tokio::test]
async fn a_database_in_the_middle_of_a_transaction_is_whole_in_every_copy() {
    const PROGRAM: &str = "import os, sqlite3, time\n\
        db = sqlite3.connect('/workspace/db', isolation_level=None)\n\
        db.execute('PRAGMA journal_mode=WAL')\n\
        db.execute('CREATE TABLE t (n INTEGER)')\n\
        db.execute('INSERT INTO t VALUES (1)')\n\
        db.execute('BEGIN IMMEDIATE')\n\
        db.executemany('INSERT INTO t VALUES (?)', [(n,) for n in range(2, 2001)])\n\
        print('begun', flush=True)\n\
        while not os.path.exists('/tmp/go'): time.sleep(0.01)\n\
        db.execute(open('/tmp/go').read())\n\
        print(db.execute('SELECT count(*) FROM t').fetchone()[0], flush=True)\n";
    const LOOK: &str = "python3 -c \"import sqlite3; d = sqlite3.connect('/workspace/db'); \
        print(d.execute('PRAGMA integrity_check').fetchone()[0], d.execute('SELECT count(*) FROM t').fetchone()[0])\"";
    let api = Api::shared();
    let source = api.create().await.id;
    let (execution, _) = api.background(&source, python(PROGRAM)).await;
    let all = forked(&api, &source, &execution, 2).await;
    // Files alone: as after a loss of power. What was committed is there, and nothing else.
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    let files = api.client.snapshot(&source, &files).await.unwrap();
    let restored = api.client.restore(files.id.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    assert_eq!(api.sh(&restored, LOOK).await, "ok 1");
    for (one, (word, count)) in all.iter().zip([("ROLLBACK", 1), ("COMMIT", 2000), ("ROLLBACK", 1)]) {
        assert_eq!(api.sh(&one.0, LOOK).await, "ok 1", "nobody else sees what is not committed");
        api.sh(&one.0, &format!("echo {word} > /tmp/word; mv /tmp/word /tmp/go")).await;
        exited(&api.ended(&one.0, &one.1).await, 0);
        assert_eq!(said(&api, one).await, format!("begun\n{count}\n"), "{word}");
        assert_eq!(api.sh(&one.0, LOOK).await, format!("ok {count}"));
    }
    api.client.remove_snapshot(files.id.as_str()).await.unwrap();
    for id in all.iter().map(|(id, _)| id).chain([&restored]) {
        api.remove(id).await;
    }
}

#[tokio::test]
async fn copies_share_no_file_no_memory_no_network_and_no_limit() {
    let api = Api::own();
    let source = api.create().await.id;
    api.sh(&source, "mkdir /tmp/d; echo s > /tmp/d/f; echo s > /workspace/f; echo s > /dev/shm/f").await;
    let (server, _) = api.background(&source, detached("echo up; exec python3 -m http.server 8080 -d /tmp/d")).await;
    let all = forked(&api, &source, &server, 2).await;
    for (n, (id, _)) in all.iter().enumerate() {
        api.sh(
            id,
            &format!("for f in /tmp/d/f /workspace/f /dev/shm/f; do echo {n} > $f; done; hostname > /tmp/d/name"),
        )
        .await;
    }
    let mut pids = std::collections::BTreeSet::new();
    for (n, (id, _)) in all.iter().enumerate() {
        assert_eq!(api.sh(id, "cat /tmp/d/f /workspace/f /dev/shm/f").await, format!("{n}\n{n}\n{n}"));
        // The same port of each is its own.
        let get = remuda_client::Method::GET;
        let answer = api.client.port_request(id, 8080, get, "/f", Default::default(), "").await.unwrap();
        assert_eq!(answer.collect(100).await.unwrap(), format!("{n}\n"));
        let uid = api.client.sandbox(id).await.unwrap().uid;
        pids.extend(crate::api::host_processes(uid.as_str(), "runsc-sandbox"));
    }
    assert_eq!(pids.len(), 3, "a kernel for each");
    // One that uses up its memory ends alone.
    let hog = python("x = []\nprint('up', flush=True)\nwhile True: x.append(bytearray(b'1' * (8 << 20)))");
    api.background(&all[1].0, hog).await;
    let dead = api.until(&all[1].0, "out of memory", |s| s.state == remuda_types::SandboxState::Stopped);
    tokio::time::timeout(PATIENCE, dead).await.unwrap();
    for (n, (id, _)) in all.iter().enumerate().filter(|(n, _)| *n != 1) {
        assert_eq!(api.sh(id, "cat /workspace/f").await, n.to_string());
    }
}
