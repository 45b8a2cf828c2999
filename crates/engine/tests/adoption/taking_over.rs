//! Machines that live when the next server comes.

use remuda_engine::{Adopted, Death, HostFacts};

use crate::server::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_outlives_its_server_and_goes_on_under_the_next() {
    let world = World::new();
    let (mut server, facts) = Server::raised(&world);
    server.order("hello");
    server.answer("done hello");
    server.kill();
    // Several servers in a row, each of which lets it live.
    let mut count = 2;
    for _ in 0..3 {
        let engine = world.engine();
        let mut survivor = world.adopt(&engine, &facts).await;
        assert!(!survivor.paused);
        assert_eq!(survivor.machine.host_facts().unwrap(), facts);
        count += 1;
        expect(&mut survivor.channel, "hello", count).await;
    }
    let engine = world.engine();
    let mut survivor = world.adopt(&engine, &facts).await;
    // All that can be done with one's own machine can be done with this one.
    let captured = survivor.machine.capture(engine.capture_places(&snapshot(), true), false).await.unwrap();
    assert!(captured.memory.unwrap().bytes() > 100_000);
    expect(&mut survivor.channel, "hello", count + 1).await;
    survivor.machine.kill().unwrap();
    assert_eq!(survivor.machine.ended().await, Death::Ended);
    assert!(matches!(engine.adopt(&world.uid, &facts).await.unwrap(), Adopted::Ended(Death::Ended)));
    engine.remove_capture(&snapshot()).await.unwrap();
    world.clear(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_paused_is_found_paused_and_can_be_resumed() {
    let world = World::new();
    let (mut server, facts) = Server::raised(&world);
    server.order("pause");
    server.answer("done pause");
    server.kill();
    let engine = world.engine();
    // Found so by each until one resumes it.
    assert!(world.adopt(&engine, &facts).await.paused);
    let mut survivor = world.adopt(&engine, &facts).await;
    assert!(survivor.paused);
    // Pauses are counted by the sentry, which dies of a resume too many.
    survivor.machine.pause().await.unwrap();
    for _ in 0..3 {
        survivor.machine.resume().await.unwrap();
    }
    expect(&mut survivor.channel, "hello", 2).await;
    let mut again = world.adopt(&engine, &facts).await;
    assert!(!again.paused);
    expect(&mut again.channel, "hello", 3).await;
    world.clear(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_without_a_pause_is_no_pause() {
    let world = World::new();
    let (server, facts) = Server::raised(&world);
    server.kill();
    let engine = world.engine();
    // As a server leaves it that is killed just before its call, or just after the resume.
    let mark = engine.dirs().sandbox(&world.uid).state.join("halted");
    std::fs::write(&mark, "").unwrap();
    let mut survivor = world.adopt(&engine, &facts).await;
    assert!(!survivor.paused && !mark.exists());
    survivor.machine.resume().await.unwrap();
    expect(&mut survivor.channel, "hello", 2).await;
    world.clear(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_of_another_boot_touch_nothing() {
    let world = World::new();
    let (server, facts) = Server::raised(&world);
    server.kill();
    let engine = world.engine();
    let other = HostFacts { boot_id: "00000000-0000-0000-0000-000000000000".into(), ..facts.clone() };
    assert!(matches!(engine.adopt(&world.uid, &other).await.unwrap(), Adopted::Gone));
    let mut survivor = world.adopt(&engine, &facts).await;
    expect(&mut survivor.channel, "hello", 2).await;
    world.clear(&engine).await;
}
