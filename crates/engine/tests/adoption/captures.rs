//! Captures whose server is killed in the middle.

use std::time::{Duration, Instant};

use remuda_engine::{Engine, HostFacts, Settled};

use crate::server::*;

async fn settle(world: &World, engine: &Engine) -> Settled {
    let snapshot = snapshot();
    let settling = engine.settle_capture(&snapshot, &world.uid);
    tokio::time::timeout(PATIENCE, settling).await.expect("it never settled").unwrap()
}

/// Takes the machine over as recovery does, and sees that it goes on counting.
async fn go_on(world: &World, engine: &Engine, facts: &HostFacts, count: u32) -> bool {
    let mut survivor = world.adopt(engine, facts).await;
    if survivor.paused {
        survivor.machine.resume().await.unwrap();
    }
    expect(&mut survivor.channel, "hello", count).await;
    survivor.paused
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_cut_at_any_moment_is_whole_or_gone_and_its_source_goes_on() {
    let (mut found_paused, mut removed) = (0, 0);
    for delay_ms in [0, 1, 5, 20, 60, 120, 250, 500] {
        let world = World::new();
        let (mut server, facts) = Server::raised(&world);
        server.order("fill");
        server.answer("done fill");
        server.order("capture");
        server.answer("capturing ");
        // No event says how far a checkpoint is: moments are tried.
        std::thread::sleep(Duration::from_millis(delay_ms));
        server.kill();
        let engine = world.engine();
        let first = settle(&world, &engine).await;
        found_paused += u32::from(go_on(&world, &engine, &facts, 3).await);
        match (first, settle(&world, &engine).await) {
            (Settled::Removed, Settled::Removed) => {
                removed += 1;
                assert!(engine.leftovers().unwrap().snapshots.is_empty());
            }
            (Settled::Published { memory, .. }, Settled::Published { .. }) => {
                let mut image = memory.expect("it was a capture of memory");
                assert!(image.bytes() > 150 << 20);
                image.seal().unwrap();
            }
            changed => panic!("{changed:?}"),
        }
        engine.remove_capture(&snapshot()).await.unwrap();
        world.clear(&engine).await;
    }
    assert!(found_paused > 0 && removed > 0, "no kill hit a capture: {found_paused} {removed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentry_that_still_writes_is_waited_for() {
    // On a busy machine a checkpoint may pass between two looks, or be over before the kill arrives: then once more.
    for _ in 0..5 {
        let world = World::new();
        let (mut server, facts) = Server::raised(&world);
        server.order("fill");
        server.answer("done fill");
        let engine = world.engine();
        let published = engine.dirs().memory(&snapshot());
        let pages = published.with_extension("tmp").join("pages.img");
        server.order("capture");
        let until = Instant::now() + PATIENCE;
        while !std::fs::metadata(&pages).is_ok_and(|meta| meta.len() > 0) && !published.exists() {
            assert!(Instant::now() < until, "the checkpoint never began");
            std::hint::spin_loop();
        }
        server.kill();
        let before = std::fs::metadata(&pages).map_or(0, |meta| meta.len());
        let settled = settle(&world, &engine).await;
        let in_the_middle = matches!(settled, Settled::Removed) && (1..150 << 20).contains(&before);
        if in_the_middle {
            assert!(go_on(&world, &engine, &facts, 3).await, "it stood still when its server was killed");
            world.clear(&engine).await;
            return;
        }
        go_on(&world, &engine, &facts, 3).await;
        engine.remove_capture(&snapshot()).await.unwrap();
        world.clear(&engine).await;
    }
    panic!("no checkpoint was met in the middle in five tries");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_capture_is_found_whole() {
    for (order, with_memory) in [("capture", true), ("capture files", false)] {
        let world = World::new();
        let (mut server, facts) = Server::raised(&world);
        server.order(order);
        server.answer(&format!("done {order}"));
        server.kill();
        let engine = world.engine();
        let Settled::Published { memory, .. } = settle(&world, &engine).await else { panic!("it was whole") };
        assert_eq!(memory.is_some(), with_memory);
        assert!(!go_on(&world, &engine, &facts, 2).await);
        assert_eq!(engine.leftovers().unwrap().snapshots.into_iter().collect::<Vec<_>>(), [snapshot()]);
        engine.remove_capture(&snapshot()).await.unwrap();
        world.clear(&engine).await;
    }
}
