//! `cp`: both directions, directories, links, and names that would lead out.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::world::Server;

#[test]
fn files_and_directories_go_both_ways() {
    let server = Server::start();
    let id = server.create();
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    let there = |path: &str| format!("{id}:{path}");

    fs::create_dir_all(here.path().join("tree/deep/empty")).unwrap();
    let big: Vec<u8> = (0..5_000_000u32).map(|i| (i % 249) as u8).collect();
    fs::write(here.path().join("tree/big"), &big).unwrap();
    fs::write(here.path().join("tree/deep/run me.sh"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(here.path().join("tree/deep/run me.sh"), fs::Permissions::from_mode(0o755)).unwrap();

    assert_eq!(server.run(&["cp", &at("tree"), &there("/workspace/new")]).code, 0);
    assert_eq!(server.run(&["exec", &id, "-c", "'/workspace/new/deep/run me.sh'"]).line(), "ran");
    assert_eq!(server.run(&["exec", &id, "--", "stat", "-c", "%U %a", "/workspace/new/big"]).line(), "user 644");
    // Into a directory that is there, under its own name.
    assert_eq!(server.run(&["cp", &at("tree/big"), &there("/workspace/new/deep")]).code, 0);
    assert_eq!(server.run(&["exec", &id, "--", "cmp", "/workspace/new/big", "/workspace/new/deep/big"]).code, 0);

    server.run(&["exec", &id, "-c", "ln -s big /workspace/new/link"]).line();
    assert_eq!(server.run(&["cp", &there("/workspace/new"), &at("back")]).code, 0);
    assert!(fs::read(here.path().join("back/big")).unwrap() == big);
    assert!(fs::read(here.path().join("back/deep/big")).unwrap() == big);
    assert!(here.path().join("back/deep/empty").is_dir());
    assert_eq!(fs::read_link(here.path().join("back/link")).unwrap().to_str(), Some("big"));
    assert_eq!(fs::metadata(here.path().join("back/deep/run me.sh")).unwrap().mode() & 0o777, 0o755);
    let one = server.run(&["cp", "--json", &there("/workspace/new/big"), here.path().to_str().unwrap()]).json();
    assert_eq!((one["files"].as_u64(), one["bytes"].as_u64()), (Some(1), Some(5_000_000)));

    server.run(&["cp", &at("absent"), &there("/workspace/x")]).failed(2, "failed to copy");
    server.run(&["cp", &there("/absent"), &at("x")]).failed(1, "file_not_found");
    server.run(&["cp", &at("tree/big"), &there("/etc/passwd")]).failed(1, "permission_denied");
    symlink("big", here.path().join("tree/link")).unwrap();
    let tree = server.run(&["cp", "-r", "--json", &at("tree"), &there("/workspace/linked")]).json();
    assert_eq!(
        (tree["files"].as_u64(), tree["links"].as_u64(), tree["directories"].as_u64()),
        (Some(2), Some(1), Some(3))
    );
    assert_eq!(server.run(&["exec", &id, "--", "readlink", "/workspace/linked/link"]).line(), "big");
    // What is in a directory, and not the directory: as cp has it.
    server.run(&["cp", "-r", &at("tree/deep/."), &there("/workspace/linked")]).line();
    server.run(&["exec", &id, "--", "ls", "/workspace/linked/run me.sh"]).line();
    server.run(&["cp", "-r", &at("tree"), &there("/workspace/linked/")]).line();
    server.run(&["exec", &id, "--", "ls", "/workspace/linked/tree/big"]).line();
    server.run(&["cp", "-r", &there("/workspace/linked/."), &at("contents")]).line();
    server.run(&["cp", "-r", &there("/workspace/linked/."), &at("contents")]).line();
    assert!(!here.path().join("contents/linked").exists() && here.path().join("contents/tree/deep").is_dir());
    server.run(&["cp", &at("tree/big"), &there("/workspace/no/")]).failed(1, "no directory");
    // What can't be copied is told, and is no success.
    let listener = std::os::unix::net::UnixListener::bind(here.path().join("tree/socket")).unwrap();
    server.run(&["cp", "-r", &at("tree"), &there("/workspace/s")]).failed(1, "socket: it is a socket");
    drop(listener);
}

#[test]
fn a_link_in_the_way_is_not_followed_out_of_the_destination() {
    let server = Server::start();
    let id = server.create();
    let here = tempfile::tempdir().unwrap();
    let outside = here.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    let destination = here.path().join("copy");
    fs::create_dir_all(destination.join("tree")).unwrap();
    // As a guest could have planted them by an earlier copy.
    symlink(&outside, destination.join("tree/directory")).unwrap();
    symlink(outside.join("file"), destination.join("tree/file")).unwrap();
    server
        .run(&["exec", &id, "-c", "mkdir -p tree/directory && echo x > tree/directory/x && echo y > tree/file"])
        .line();
    let source = format!("{id}:/workspace/tree");
    let answer = server.run(&["cp", &source, destination.to_str().unwrap()]);
    answer.failed(1, "in the way");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was written outside");
}
