//! What a request takes of its account's quotas. It is reserved in the transaction that admits the request, before any
//! effect, and given back with the record of a confirmed end: what failed or is not known to have ended still holds.
//!
//! Sandboxes hold under their uid, snapshots under their id. Must never hold anything for a caller's text.

use remuda_journal::{Change, Count, Hold, Holder, Refusal};
use remuda_types::{Account, Error, Quota, QuotaLimits, SnapshotId, Uid};

use crate::access::Accounts;
use crate::caller::Caller;

/// The quotas of every account.
#[derive(Debug, Clone, Copy)]
pub struct Quotas<'a>(pub &'a Accounts);

/// What an admission sets aside: the members of a [`remuda_journal::Reservation`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Share {
    /// Amounts that are held until they are given back.
    pub holds: Vec<Hold>,
    /// Amounts that only add up.
    pub counts: Vec<Count>,
}

/// How large a sandbox may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// Private files, in bytes.
    pub disk_bytes: u64,
}

impl Quotas<'_> {
    /// What a new machine takes: a place, its memory, its disk, and one start of this month. Released by [`ended`].
    pub fn of_start(&self, account: &Account, uid: &Uid, size: Size, now_ms: i64) -> Share {
        let limits = self.0.limits(account);
        let amounts = [
            (Quota::Sandboxes, 1),
            (Quota::MemoryMib, u64::from(size.memory_mib)),
            (Quota::DiskBytes, size.disk_bytes),
        ];
        let holds = amounts.into_iter().map(|(quota, amount)| hold(&limits, uid.into(), quota, amount)).collect();
        let count = Count {
            name: Quota::StartsPerMonth.to_string(),
            period: month(now_ms),
            amount: 1,
            limit: limits.of(Quota::StartsPerMonth),
        };
        Share { holds, counts: vec![count] }
    }

    /// What a capture takes: a place among the snapshots, and the bytes it is expected to have. A fork's own takes no
    /// place: it goes by itself. Corrected by [`Quotas::captured`], released by [`ended`].
    pub fn of_capture(&self, account: &Account, snapshot: &SnapshotId, bytes: u64, of_fork: bool) -> Share {
        let limits = self.0.limits(account);
        let mut holds = vec![hold(&limits, snapshot.into(), Quota::SnapshotBytes, bytes)];
        if !of_fork {
            holds.push(hold(&limits, snapshot.into(), Quota::Snapshots, 1));
        }
        Share { holds, counts: Vec::new() }
    }

    /// What a capture has turned out to take. It is there already, so that it counts whatever the limit is; the next
    /// capture meets the limit.
    pub fn captured(account: &Account, snapshot: &SnapshotId, bytes: u64) -> Change {
        let hold = Hold { holder: snapshot.into(), name: Quota::SnapshotBytes.to_string(), amount: bytes, limit: None };
        Change::Hold(account.clone(), hold)
    }

    /// What a sandbox without a machine gives back: its place and memory. Its files stay, and so does their share.
    pub fn at_rest(account: &Account, uid: &Uid) -> Vec<Change> {
        let back = [Quota::Sandboxes, Quota::MemoryMib].into_iter();
        let none = |quota: Quota| Hold { holder: uid.into(), name: quota.to_string(), amount: 0, limit: None };
        back.map(|quota| Change::Hold(account.clone(), none(quota))).collect()
    }
}

/// Everything that is held for a sandbox or snapshot is given back: to be written with the record of its confirmed end.
pub fn ended(holder: impl Into<Holder>) -> Change {
    Change::Release(holder.into())
}

fn hold(limits: &QuotaLimits, holder: Holder, quota: Quota, amount: u64) -> Hold {
    Hold { holder, name: quota.to_string(), amount, limit: limits.of(quota) }
}

/// The month of UTC that a moment lies in, as `2026-10`.
pub fn month(unix_ms: i64) -> String {
    let text = jiff::Timestamp::from_millisecond(unix_ms).map_or_else(|_| String::new(), |at| at.to_string());
    // Years of four digits sort and cut; a clock outside of them is refused where generations are made.
    text.get(..7).unwrap_or("0000-00").to_owned()
}

/// The answer where a quota or a limit of the journal is reached; none for another refusal. How much is taken is told
/// to those who see all that takes it.
pub fn refused(refusal: &Refusal, caller: &Caller) -> Option<Error> {
    let Refusal::Limit { name, limit, current, wanted } = refusal else { return None };
    let mut error = Error::limit(name, *limit, *current).detail("wanted", *wanted);
    if *wanted > 1 {
        error.message =
            format!("the limit {name} is reached: {current} of {limit} are taken, {wanted} more are needed");
    }
    if caller.narrowing().is_some() {
        error.message = format!("the limit {name} of the account is reached: {limit}");
        error.details.remove("current");
    }
    Some(match name.parse() {
        Ok(Quota::Sandboxes | Quota::MemoryMib) => error.remedy("remove a sandbox with: remuda rm ID"),
        Ok(Quota::DiskBytes) => error.remedy("remove a sandbox with: remuda rm ID, or ask for less disk"),
        Ok(Quota::Snapshots | Quota::SnapshotBytes) => error.remedy("remove a snapshot with: remuda snapshot rm ID"),
        Ok(Quota::StartsPerMonth) => error.remedy("wait for the next month (UTC), or have the quota raised"),
        Err(_) => error.remedy("remove or wait for something, and try again"),
    })
}

#[cfg(test)]
mod tests {
    use remuda_journal::{Admission, Admitted, Journal, JournalError, Outcome, Reservation, Scope, Settings};
    use remuda_types::{ErrorCode, OperationId, QuotaChanges, QuotaSetting};
    use serde_json::json;

    use super::*;
    use crate::clock::id_entropy;

    /// 2026-10-31T23:59:59.999Z
    const NOW: i64 = 1_793_491_199_999;
    const SIZE: Size = Size { memory_mib: 512, disk_bytes: 1 << 30 };

    struct World {
        journal: Journal,
        accounts: Accounts,
        account: Account,
        _directory: tempfile::TempDir,
    }

    impl World {
        async fn with(settings: &[&str]) -> World {
            let directory = tempfile::tempdir().unwrap();
            let settings_of = Settings { reserve_bytes: 0, ..Settings::default() };
            let journal = Journal::open(directory.path(), settings_of).unwrap();
            let changes: QuotaChanges = settings.iter().map(|s| s.parse::<QuotaSetting>().unwrap()).collect();
            let accounts = Accounts::open(journal.clone(), QuotaLimits::default().with(&changes)).await.unwrap();
            World { journal, accounts, account: "main".parse().unwrap(), _directory: directory }
        }

        async fn admit(&self, share: Share, now_ms: i64) -> Result<OperationId, Error> {
            let admission = Admission {
                id: OperationId::from_entropy(id_entropy().unwrap()),
                account: self.account.clone(),
                scope: Scope::new("create").unwrap(),
                key: None,
                parent: None,
                request: json!({}),
                now_ms,
                reservation: Reservation { holds: share.holds, counts: share.counts, ..Reservation::default() },
            };
            match self.journal.admit(admission).await {
                Ok(Admitted::New(operation)) => Ok(operation.id),
                Err(JournalError::Refused(refusal)) => Err(refused(&refusal, &Caller::operator()).unwrap()),
                other => panic!("{other:?}"),
            }
        }

        async fn start(&self, now_ms: i64) -> Result<Uid, Error> {
            let uid = Uid::from_entropy(id_entropy().unwrap());
            let share = Quotas(&self.accounts).of_start(&self.account, &uid, SIZE, now_ms);
            self.admit(share, now_ms).await.map(|_| uid)
        }

        async fn used(&self, quota: Quota) -> Vec<(Option<String>, u64)> {
            let used = self.journal.used(&self.account).await.unwrap();
            used.into_iter().filter(|u| u.name == quota.as_str()).map(|u| (u.period, u.amount)).collect()
        }
    }

    #[tokio::test]
    async fn a_place_is_reserved_and_comes_back_with_a_confirmed_end_alone() {
        let world = World::with(&["sandboxes=2"]).await;
        let first = world.start(NOW).await.unwrap();
        world.start(NOW).await.unwrap();
        let error = world.start(NOW).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::LimitReached);
        let figures = ["limit", "maximum", "current", "wanted"].map(|name| error.details[name].clone());
        assert_eq!(json!(figures), json!(["sandboxes", 2, 2, 1]));
        assert_eq!(world.used(Quota::MemoryMib).await, [(None, 1024)], "what is refused takes nothing of the rest");
        assert_eq!(world.used(Quota::StartsPerMonth).await, [(Some("2026-10".into()), 2)]);
        world.journal.apply(vec![ended(&first), ended(&first)]).await.unwrap();
        assert_eq!(world.used(Quota::DiskBytes).await, [(None, 1 << 30)]);
        world.start(NOW).await.unwrap();
        assert!(world.start(NOW).await.is_err());
    }

    #[tokio::test]
    async fn an_operation_that_failed_holds_until_its_end_is_written() {
        let world = World::with(&["memory_mib=512"]).await;
        let uid = Uid::from_entropy(id_entropy().unwrap());
        let share = Quotas(&world.accounts).of_start(&world.account, &uid, SIZE, NOW);
        let operation = world.admit(share, NOW).await.unwrap();
        world.journal.finish(&operation, Outcome::Indeterminate(json!({})), vec![], NOW).await.unwrap();
        let error = world.start(NOW).await.unwrap_err();
        assert_eq!(error.details["limit"], "memory_mib");
        assert_eq!(error.details["wanted"], 512);
        let held = world.journal.held(&world.account, &Holder::from(&uid)).await.unwrap();
        assert_eq!(held.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["disk_bytes", "memory_mib", "sandboxes"]);
        // Without a machine it gives back what the machine took.
        world.journal.apply(Quotas::at_rest(&world.account, &uid)).await.unwrap();
        world.start(NOW).await.unwrap();
        assert_eq!(world.used(Quota::DiskBytes).await, [(None, 2 << 30)]);
    }

    #[tokio::test]
    async fn starts_are_counted_by_the_month() {
        let world = World::with(&["starts_per_month=1"]).await;
        let uid = world.start(NOW).await.unwrap();
        world.journal.apply(vec![ended(&uid)]).await.unwrap();
        let error = world.start(NOW).await.unwrap_err();
        assert_eq!(error.details["limit"], "starts_per_month");
        world.start(NOW + 1).await.unwrap();
        let months = [(Some("2026-10".into()), 1), (Some("2026-11".into()), 1)];
        assert_eq!(world.used(Quota::StartsPerMonth).await, months);
    }

    #[tokio::test]
    async fn a_capture_holds_what_was_expected_and_then_what_it_has() {
        let world = World::with(&["snapshot_bytes=1000", "snapshots=2"]).await;
        let snapshot = || SnapshotId::from_entropy(id_entropy().unwrap());
        let (first, second, own) = (snapshot(), snapshot(), snapshot());
        let capture =
            |id: &SnapshotId, bytes, of_fork| Quotas(&world.accounts).of_capture(&world.account, id, bytes, of_fork);
        world.admit(capture(&first, 900, false), NOW).await.unwrap();
        assert_eq!(
            world.admit(capture(&second, 200, false), NOW).await.unwrap_err().details["limit"],
            "snapshot_bytes"
        );
        world.journal.apply(vec![Quotas::captured(&world.account, &first, 100)]).await.unwrap();
        world.admit(capture(&second, 200, false), NOW).await.unwrap();
        world.admit(capture(&own, 200, true), NOW).await.unwrap();
        // More than was expected is there all the same.
        world.journal.apply(vec![Quotas::captured(&world.account, &second, 5_000)]).await.unwrap();
        assert_eq!(world.used(Quota::SnapshotBytes).await, [(None, 5_300)]);
        assert_eq!(world.used(Quota::Snapshots).await, [(None, 2)], "a fork's own takes no place");
        world.journal.apply([&first, &second, &own].map(ended).to_vec()).await.unwrap();
        assert_eq!(world.used(Quota::SnapshotBytes).await, [(None, 0)]);
    }

    #[tokio::test]
    async fn a_narrowed_key_learns_no_figures_of_what_it_does_not_see() {
        let refusal = Refusal::Limit { name: "memory_mib".into(), limit: 10, current: 7, wanted: 4 };
        let rights = crate::caller::Rights {
            scopes: Default::default(),
            narrowing: Some(remuda_types::Narrowing::Slot("c1".parse().unwrap())),
            expires_at_ms: None,
        };
        let key = remuda_types::AccessKeyId::from_entropy([7; 20]);
        let narrowed = Caller::with_key("main".parse().unwrap(), key, rights);
        let told = |caller: &Caller| serde_json::to_string(&refused(&refusal, caller).unwrap()).unwrap();
        assert!(told(&Caller::operator()).contains("7 of 10 are taken, 4 more"));
        assert!(!told(&narrowed).contains('7'), "{}", told(&narrowed));
        assert!(refused(&Refusal::Clock, &narrowed).is_none());
    }
}
