//! `pause`, `resume`, `snapshot`, `fork`, `restore`, `rm`: copies of a machine by the command line.

use crate::world::Server;

#[test]
fn a_fork_carries_memory_and_a_restore_too() {
    let server = Server::start();
    let source = server.create();
    // A number that lives in a process alone.
    let script = "python3 -u -c 'import os,random,time\nn=random.random()\nwhile True:\n open(\"m\",\"w\").write(str(n)); os.rename(\"m\",\"n\"); time.sleep(0.05)'";
    server.run(&["exec", "-d", &source, "-c", script]).line();
    let number =
        |id: &str| server.run(&["exec", id, "-c", "rm -f n; while [ ! -s n ]; do sleep 0.05; done; cat n"]).line();
    let known = number(&source);

    let branches = server.run(&["fork", &source, "--count", "2", "--slots", "left,right"]).line();
    let branches: Vec<&str> = branches.lines().collect();
    assert_eq!(branches.len(), 2);
    assert!(branches[0].starts_with("left@") && branches[1].starts_with("right@"), "{branches:?}");
    for branch in &branches {
        assert_eq!(number(branch), known, "the same process, with its memory");
    }
    let snapshot = server.run(&["snapshot", "create", &source, "--name", "ready"]).line();
    let restored = server.run(&["restore", "ready"]).line();
    assert_eq!(number(&restored), known);
    assert!(server.run(&["snapshot", "ls"]).line().contains(&snapshot));
    assert_eq!(server.run(&["snapshot", "show", "ready", "--json"]).json()["state"], "active");
    assert!(server.run(&["snapshot", "rm", "ready"]).line().contains("deleted"));
    server.run(&["restore", "ready"]).failed(1, "snapshot_not_found");
    assert_eq!(number(&source), known, "the source goes on");

    server.run(&["rm", branches[0], branches[1], &restored]).line();
    server.run(&["show", branches[0]]).failed(1, "generation_gone");
    assert!(server.run(&["rm", branches[0]]).line().contains("had ended before"));
    server.run(&["fork", branches[0], "--count", "1"]).failed(1, "generation_gone");
    let living = server.run(&["ls", "--json"]).json();
    assert_eq!(living["sandboxes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_paused_sandbox_stands_still_and_goes_on() {
    let server = Server::start();
    let id = server.run(&["create", "c7", "--memory", "512", "-l", "team=a"]).line();
    assert!(id.starts_with("c7@"));
    assert_eq!(server.run(&["pause", &id, "--json"]).json()["state"], "paused");
    server.run(&["exec", &id, "--", "true"]).failed(1, "wrong_state");
    assert_eq!(server.run(&["resume", &id, "--json"]).json()["state"], "running");
    assert_eq!(server.run(&["exec", &id, "--", "true"]).code, 0);
    assert!(server.run(&["ls", "-l", "team=a"]).line().contains(&id));
    assert!(!server.run(&["ls", "-l", "team=b"]).line().contains(&id));
    server.run(&["create", "c7"]).failed(1, "slot_in_use");
}
