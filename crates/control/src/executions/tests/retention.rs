//! What goes first, and what stays.

use remuda_types::ErrorCode;

use super::*;

fn limited(place: &Path, retention: Retention) -> Executions {
    Executions::new(place.join("uid"), retention)
}

fn files(place: &Path) -> usize {
    std::fs::read_dir(place.join("uid")).unwrap().count()
}

/// Runs a test, and what it gave to other threads: there is one of them, which works in order. A runtime that ends drops
/// what has not begun.
fn run<T>(test: impl Future<Output = T>) -> T {
    /// Work may have given work away in its turn.
    const DEPTH: usize = 4;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let value = test.await;
        for _ in 0..DEPTH {
            tokio::task::spawn_blocking(|| ()).await.unwrap();
        }
        value
    })
}

#[test]
fn at_the_limit_the_oldest_ended_one_loses_its_output_and_its_record_stays() {
    let place = place();
    let (first, kept) = run(async {
        let executions = limited(place.path(), Retention { retained_max: 3, ..Retention::default() });
        let running = admitted(&executions, 0);
        let first = admitted(&executions, 1);
        say(&first, b"first").unwrap();
        end(&first);
        let second = admitted(&executions, 2);
        end(&second);
        let third = admitted(&executions, 3);
        let listed: Vec<_> = executions.list().into_iter().map(|shown| shown.id).collect();
        assert_eq!(listed, [running.id.clone(), second.id.clone(), third.id.clone()]);
        let found = executions.get(&first.id, &sandbox()).unwrap();
        let shown = found.show();
        assert_eq!((shown.state, shown.exit_code), (ExecutionState::Exited, Some(0)));
        assert_eq!((shown.output_bytes, shown.output_truncated), (5, true));
        let slice = found.read(everything(100)).await.unwrap();
        assert_eq!((slice.skipped_bytes, slice.complete, slice.records.len()), (5, true, 0));
        (shown, listed)
    });
    run(async {
        let executions = again(place.path());
        assert_eq!(executions.list().into_iter().map(|shown| shown.id).collect::<Vec<_>>(), kept);
        assert_eq!(executions.get(&first.id, &sandbox()).unwrap().show(), first);
    });
}

#[test]
fn only_if_all_on_record_run_is_one_more_refused() {
    let place = place();
    run(async {
        let executions = limited(place.path(), Retention { retained_max: 2, ..Retention::default() });
        let cells = [admitted(&executions, 0), admitted(&executions, 1)];
        let error = executions.admit(executions.prepare(head(2))).unwrap_err();
        assert_eq!(error.code, ErrorCode::ExecutionHistoryLimit);
        assert_eq!((&error.details["maximum"], &error.details["current"]), (&2.into(), &2.into()));
        assert_eq!(files(place.path()), 2, "what was refused left nothing");
        end(&cells[1]);
        admitted(&executions, 2);
    });
}

#[test]
fn too_many_at_once_are_refused_and_ends_make_room() {
    let place = place();
    run(async {
        let executions = limited(place.path(), Retention { concurrent_max: 2, ..Retention::default() });
        let cells = [admitted(&executions, 0), admitted(&executions, 1)];
        let error = executions.admit(executions.prepare(head(2))).unwrap_err();
        assert_eq!(
            (error.code, &error.details["limit"]),
            (ErrorCode::LimitReached, &"executions_concurrent_max".into())
        );
        end(&cells[0]);
        end(&cells[0]);
        admitted(&executions, 2);
        assert!(executions.admit(executions.prepare(head(3))).is_err(), "an end counts once");
        let found = again(place.path());
        assert_eq!(found.running().len(), 2);
    });
}

#[test]
fn beyond_its_bytes_a_sandbox_keeps_the_newest() {
    let place = place();
    run(async {
        let executions = limited(place.path(), Retention { output_bytes_max: 10_000, ..Retention::default() });
        let cells: Vec<_> = (0..5)
            .map(|n| {
                let cell = admitted(&executions, n);
                say(&cell, &[b'x'; 4_000]).unwrap();
                if n != 1 {
                    end(&cell);
                }
                cell
            })
            .collect();
        let last = admitted(&executions, 9);
        let truncated: Vec<_> = cells.iter().map(|cell| cell.show().output_truncated).collect();
        assert_eq!(truncated, [true, false, true, true, false], "what runs keeps what it has");
        assert_eq!(executions.list().len(), 3);
        end(&last);
    });
    assert_eq!(files(place.path()), 6);
    let left: u64 =
        std::fs::read_dir(place.path().join("uid")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(left < 8_000 + 6 * 500, "{left} bytes");
}

#[test]
fn with_age_first_the_output_goes_and_then_the_record() {
    let place = place();
    run(async {
        let executions = limited(place.path(), Retention { age_ms: 1_000, ..Retention::default() });
        let cell = admitted(&executions, 0);
        let running = admitted(&executions, 1);
        say(&cell, b"x").unwrap();
        end(&cell);
        let ended = cell.show().ended_at_ms.unwrap();
        executions.expire(ended + 1_000);
        assert_eq!(executions.list().len(), 2);
        executions.expire(ended + 1_001);
        assert_eq!(executions.list().len(), 1);
        assert!(executions.get(&cell.id, &sandbox()).unwrap().show().output_truncated);
        executions.expire(ended + 2_001);
        assert_eq!(executions.get(&cell.id, &sandbox()).unwrap_err().code, ErrorCode::ExecutionNotFound);
        assert_eq!(executions.running()[0].id, running.id);
    });
    assert_eq!(files(place.path()), 1);
}

#[test]
fn records_without_output_are_counted_too() {
    let place = place();
    run(async {
        let retention = Retention { retained_max: 1, tombstones_max: 2, ..Retention::default() };
        let executions = limited(place.path(), retention);
        for n in 0..6 {
            end(&admitted(&executions, n));
        }
    });
    assert_eq!(files(place.path()), 3);
    assert_eq!(again(place.path()).inner().buried.len(), 2);
}
