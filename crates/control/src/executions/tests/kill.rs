//! Processes of their own: one that is killed while it writes, and one whose memory is looked at.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use super::*;

/// Tells this binary, started by itself, where to write.
const PLACE: &str = "REMUDA_TEST_PLACE";

/// What the writer says at an offset: lines of different lengths, so that no two places look alike.
fn said(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64)
        .map(|n| if n % 61 == 60 { b'\n' } else { b'!' + (n / 61 * 7 + n) as u8 % 90 })
        .collect()
}

fn start(test: &str, place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("executions::tests::kill::{test}"), "--nocapture", "--include-ignored"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Writes without end and tells what was acknowledged; does nothing in an ordinary run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_is_killed() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let place = Path::new(&place);
    let executions = again(place);
    let cell = executions.running().pop().unwrap_or_else(|| admitted(&executions, 1));
    let mut agent = Agent::of(&cell);
    println!("\nbegin {}", agent.sent);
    for n in 0.. {
        let length = [1, 61, 5_000, 64 << 10, 256 << 10][n % 5];
        agent.send(&said(agent.sent, length)).await;
        println!("have {}", *agent.credited.borrow());
        if n % 7 == 6 {
            let into = place.join(format!("carried-{}", agent.sent));
            let carried = executions.carry(&into, 0).unwrap();
            std::fs::write(into.with_extension("json"), serde_json::to_vec(&carried).unwrap()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_killed_writer_leaves_all_that_was_acknowledged() {
    let place = place();
    for round in 0..8 {
        let mut writer = start("the_process_that_is_killed", place.path());
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
        let begun: u64 = lines.find_map(|line| line.strip_prefix("begin ")?.parse().ok()).unwrap();
        let have = |line: &String| line.strip_prefix("have ").and_then(|n| n.parse::<u64>().ok());
        // Somewhere in the middle of something.
        let mut acknowledged = lines.by_ref().filter_map(|line| have(&line)).nth(3 + round * 9).unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        acknowledged = lines.filter_map(|line| have(&line)).last().unwrap_or(acknowledged);

        let executions = again(place.path());
        let cell = executions.running().remove(0);
        assert!(cell.have() >= acknowledged.max(begun), "{} of {acknowledged} acknowledged bytes", cell.have());
        is_all_said(&cell).await;
    }
    // What snapshots own was changed by none of it.
    let (branches, mut carried) = (at(&place.path().join("branches")), 0);
    for entry in std::fs::read_dir(place.path()).unwrap().map(Result::unwrap) {
        // The last may be cut off.
        let Ok(all) = std::fs::read(entry.path().with_extension("json")) else { continue };
        let Ok(all) = serde_json::from_slice::<Vec<CarriedExecution>>(&all) else { continue };
        if entry.path().is_dir() {
            let id = ExecutionId::from_entropy(id_entropy().unwrap());
            let branch = branches.branched(id, sandbox(), &all[0], &entry.path()).unwrap();
            assert_eq!(branch.have(), all[0].have());
            is_all_said(&branch).await;
            carried += 1;
        }
    }
    assert!(carried > 0);
}

/// All that is kept is what was said there, up to the end.
async fn is_all_said(cell: &ExecutionCell) {
    let mut offset = 0;
    loop {
        let slice = cell.read(OutputQuery { offset, ..everything(1 << 20) }).await.unwrap();
        for (offset, _, bytes) in &slice.records {
            assert!(*bytes == said(*offset, bytes.len()), "from {offset} on");
        }
        if slice.next_offset == offset {
            break;
        }
        offset = slice.next_offset;
    }
    assert_eq!(offset, cell.have());
}

/// What a process takes in memory at most, in KiB; does nothing in an ordinary run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_is_measured() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let executions = at(Path::new(&place));
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = peak();
    // A million short lines, each by itself.
    let lines = admitted(&executions, 1);
    let mut agent = Agent::of(&lines);
    for n in 0..1_000_000 {
        agent.send(format!("{n}\n").as_bytes()).await;
    }
    end(&lines);
    assert_eq!(lines.show().output_bytes, 6_888_890);
    // One line of 100 MB.
    let line = admitted(&executions, 2);
    let mut agent = Agent::of(&line);
    let chunk = vec![b'x'; 250_000];
    for _ in 0..400 {
        agent.send(&chunk).await;
    }
    end(&line);
    tokio::time::timeout(PATIENCE, async { tokio::join!(lines.settled(), line.settled()) }).await.unwrap();
    println!("\npeak {}", peak() - before);
    std::io::stdout().flush().unwrap();
}

#[test]
fn a_million_lines_and_one_line_of_100_mb_take_little_memory() {
    let place = place();
    let process = start("the_process_that_is_measured", place.path());
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    let peak: u64 = text.lines().find_map(|line| line.strip_prefix("peak ")?.parse().ok()).unwrap();
    assert!(peak < 24 << 10, "{peak} KiB");
    let left: u64 =
        std::fs::read_dir(place.path().join("uid")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(left < 48 << 20, "{left} bytes on disk");
}
