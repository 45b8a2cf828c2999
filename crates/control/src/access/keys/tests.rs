//! Keys against a real journal: what they let in, what they may make, and what a restart makes of them.

use std::path::Path;

use remuda_journal::Settings;
use remuda_types::{Label, QuotaLimits};

use super::*;

/// A moment in 2026, in Unix milliseconds.
const NOW: i64 = 1_790_000_000_000;

async fn open(directory: &Path) -> AccessKeys {
    let journal = Journal::open(directory, Settings { reserve_bytes: 0, ..Settings::default() }).unwrap();
    let accounts = Accounts::open(journal.clone(), QuotaLimits::default()).await.unwrap();
    AccessKeys::open(journal, accounts).await.unwrap()
}

fn request(scopes: &[AccessScope]) -> CreateAccessKey {
    CreateAccessKey { scopes: scopes.to_vec(), narrowing: None, label: None, expires_in_ms: None, account: None }
}

fn secret(made: &MadeAccessKey) -> AccessSecret {
    made.secret.parse().unwrap()
}

fn narrowed(text: &str) -> Option<Narrowing> {
    Some(Narrowing::Slot(text.parse().unwrap()))
}

#[tokio::test]
async fn a_key_lets_in_with_exactly_what_it_was_made_with_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let keys = open(directory.path()).await;
    let label = Narrowing::Label(Label { name: "team".into(), value: "a".into() });
    let wanted = CreateAccessKey {
        narrowing: Some(label.clone()),
        label: Some("CI".into()),
        expires_in_ms: Some(1_000),
        account: Some("other".parse().unwrap()),
        ..request(&[AccessScope::Files, AccessScope::Executions, AccessScope::Files])
    };
    let made = keys.make(&Caller::operator(), wanted, NOW).await.unwrap();
    let before = keys.caller(&secret(&made), NOW).unwrap();
    drop(keys);

    let keys = open(directory.path()).await;
    let caller = keys.caller(&secret(&made), NOW + 999).unwrap();
    assert_eq!(caller, before);
    assert_eq!((caller.account.as_str(), caller.access_key.as_ref()), ("other", Some(&made.access_key.id)));
    assert_eq!(caller.scopes().iter().copied().collect::<Vec<_>>(), [AccessScope::Executions, AccessScope::Files]);
    assert_eq!((caller.narrowing(), caller.expires_at_ms()), (Some(&label), Some(NOW + 1_000)));
    assert_eq!(keys.list(&Caller::operator(), &caller.account, false, NOW), std::slice::from_ref(&made.access_key));
    assert!(!format!("{made:?} {keys:?}").contains(&made.secret[4..]), "a secret is in no debug output");
    let database = std::fs::read(directory.path().join("journal.db")).unwrap();
    let contains = |needle: &[u8]| database.windows(needle.len()).any(|window| window == needle);
    assert!(contains(made.access_key.id.as_str().as_bytes()) && !contains(&made.secret.as_bytes()[4..]));
}

#[tokio::test]
async fn only_the_right_secret_learns_that_its_key_is_dead() {
    let directory = tempfile::tempdir().unwrap();
    let keys = open(directory.path()).await;
    let operator = Caller::operator();
    let short = CreateAccessKey { expires_in_ms: Some(1_000), ..request(&[AccessScope::Files]) };
    let short = keys.make(&operator, short, NOW).await.unwrap();
    let long = keys.make(&operator, request(&[AccessScope::Files]), NOW).await.unwrap();
    assert_eq!(keys.caller(&secret(&short), NOW + 1_000).unwrap_err(), NotLetIn::Expired(NOW + 1_000));
    assert!(keys.caller(&secret(&long), NOW + 1_000_000_000).is_ok());
    assert_eq!(keys.caller(&AccessSecret::generate().unwrap(), NOW).unwrap_err(), NotLetIn::Unknown);

    let id = &long.access_key.id;
    let revoked = keys.revoke(&operator, &operator.account, id, NOW + 5).await.unwrap();
    assert_eq!(revoked.revoked_at_ms, Some(NOW + 5));
    assert_eq!(keys.caller(&secret(&long), NOW + 6).unwrap_err(), NotLetIn::Revoked(NOW + 5));
    assert_eq!(keys.revoke(&operator, &operator.account, id, NOW + 9).await.unwrap(), revoked, "again is fine");
    assert_eq!(keys.list(&operator, &operator.account, false, NOW + 1_001), []);
    assert_eq!(keys.list(&operator, &operator.account, true, NOW + 1_001).len(), 2);
    drop(keys);
    let keys = open(directory.path()).await;
    assert_eq!(keys.caller(&secret(&long), NOW + 6).unwrap_err(), NotLetIn::Revoked(NOW + 5));
    // The record goes after a while, and the answer is then the one to any wrong secret.
    let later = NOW + keys.inner.journal.settings().retention.ended_ms + 2_000;
    keys.make(&operator, request(&[AccessScope::Files]), later).await.unwrap();
    assert_eq!(keys.caller(&secret(&long), later).unwrap_err(), NotLetIn::Unknown);
}

#[tokio::test]
async fn a_key_never_grants_more_than_its_maker_has() {
    use AccessScope::{Admin, Files, SandboxesRead, Usage};
    let directory = tempfile::tempdir().unwrap();
    let keys = open(directory.path()).await;
    let maker = CreateAccessKey { narrowing: narrowed("c1"), expires_in_ms: Some(1_000), ..request(&[Admin, Files]) };
    let maker = keys.make(&Caller::operator(), maker, NOW).await.unwrap();
    let maker = keys.caller(&secret(&maker), NOW).unwrap();
    let good = CreateAccessKey { narrowing: narrowed("c1"), ..request(&[Files]) };
    let with = |change: &dyn Fn(&mut CreateAccessKey)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };

    let made = keys.make(&maker, good.clone(), NOW + 1).await.unwrap().access_key;
    assert_eq!(made.expires_at_ms, maker.expires_at_ms(), "it lives no longer than its maker");
    assert_eq!(made.made_by, maker.access_key);
    let one = Narrowing::Sandbox("c1@2026-10-08T12:00:00.000Z".parse().unwrap());
    keys.make(&maker, with(&|r| r.narrowing = Some(one.clone())), NOW + 1).await.unwrap();
    keys.make(&maker, with(&|r| r.expires_in_ms = Some(999)), NOW + 1).await.unwrap();
    for (what, request) in [
        ("another scope", with(&|r| r.scopes.push(SandboxesRead))),
        ("everything", with(&|r| r.narrowing = None)),
        ("another slot", with(&|r| r.narrowing = narrowed("c2"))),
        ("a longer life", with(&|r| r.expires_in_ms = Some(1_000))),
        ("another account", with(&|r| r.account = Some("other".parse().unwrap()))),
    ] {
        let error = keys.make(&maker, request, NOW + 1).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Forbidden, "{what}: {error:?}");
        assert!(error.remedy.is_some(), "{what}");
    }
    for (what, request) in [
        ("no scopes", with(&|r| r.scopes.clear())),
        ("usage of more than it sees", with(&|r| r.scopes = vec![Usage])),
        ("no life", with(&|r| r.expires_in_ms = Some(0))),
        ("an endless life", with(&|r| r.expires_in_ms = Some(u64::MAX))),
        ("a label that steers terminals", with(&|r| r.label = Some("\x1b[2J".into()))),
        ("an empty label", with(&|r| r.label = Some(String::new()))),
    ] {
        let error = keys.make(&maker, request, NOW + 1).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest, "{what}: {error:?}");
    }
    assert_eq!(keys.list(&Caller::operator(), &maker.account, true, NOW).len(), 4, "what is refused leaves nothing");
}

#[tokio::test]
async fn keys_of_others_are_neither_seen_nor_revoked() {
    let directory = tempfile::tempdir().unwrap();
    let keys = open(directory.path()).await;
    let operator = Caller::operator();
    let made = |request: CreateAccessKey| keys.make(&operator, request, NOW);
    let admin = request(&[AccessScope::Admin]);
    let whole = made(admin.clone()).await.unwrap();
    let slot = made(CreateAccessKey { narrowing: narrowed("c1"), ..admin.clone() }).await.unwrap();
    let foreign = made(CreateAccessKey { account: Some("b".parse().unwrap()), ..admin.clone() }).await.unwrap();

    let own = &operator.account;
    let ids = |caller: &Caller| {
        keys.list(caller, &caller.account, true, NOW).into_iter().map(|key| key.id).collect::<Vec<_>>()
    };
    let caller = |made: &MadeAccessKey| keys.caller(&secret(made), NOW).unwrap();
    assert_eq!(ids(&caller(&foreign)), std::slice::from_ref(&foreign.access_key.id));
    assert_eq!(
        ids(&caller(&slot)),
        std::slice::from_ref(&slot.access_key.id),
        "a narrowed one sees those within its narrowing"
    );
    let mut both = [whole.access_key.id.clone(), slot.access_key.id.clone()];
    both.sort();
    assert_eq!(ids(&caller(&whole)), both);
    for (caller, id) in [(caller(&foreign), &whole), (caller(&slot), &whole), (caller(&whole), &foreign)] {
        let error = keys.revoke(&caller, &caller.account, &id.access_key.id, NOW).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::AccessKeyNotFound);
    }
    assert!([&whole, &slot, &foreign].iter().all(|made| keys.caller(&secret(made), NOW).is_ok()));
    let theirs = foreign.access_key.account.clone();
    keys.revoke(&operator, &theirs, &foreign.access_key.id, NOW).await.unwrap();
    assert_eq!(keys.caller(&secret(&foreign), NOW).unwrap_err(), NotLetIn::Revoked(NOW));
    assert_eq!(keys.list(&operator, own, false, NOW).len(), 2);
}

#[tokio::test]
async fn the_first_key_is_made_once_and_one_of_before_the_journal_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let keys = open(directory.path()).await;
    let first = keys.first(None, NOW).await.unwrap().expect("a fresh server makes one");
    let caller = keys.caller(&first, NOW).unwrap();
    assert_eq!((caller.account.as_str(), caller.scopes().len()), ("default", AccessScope::ALL.len()));
    assert!(keys.first(None, NOW).await.unwrap().is_none());
    // Also when it was revoked: nobody asked for a new one.
    keys.revoke(&Caller::operator(), &caller.account, caller.access_key.as_ref().unwrap(), NOW).await.unwrap();
    drop(keys);
    assert!(open(directory.path()).await.first(None, NOW).await.unwrap().is_none());

    let directory = tempfile::tempdir().unwrap();
    let keys = open(directory.path()).await;
    assert!(keys.first(Some("blake3:00"), NOW).await.is_err(), "a damaged one is no reason to make another");
    let digits: String = first.digest().iter().map(|b| format!("{b:02x}")).collect();
    assert!(keys.first(Some(&format!("blake3:{digits}\n")), NOW).await.unwrap().is_none());
    assert!(keys.caller(&first, NOW).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_opens_nothing_from_the_answer_on() {
    let directory = tempfile::tempdir().unwrap();
    let keys = open(directory.path()).await;
    let operator = Caller::operator();
    for _ in 0..20 {
        let made = keys.make(&operator, request(&[AccessScope::Files]), NOW).await.unwrap();
        // Many use it while it is revoked, and none of them brings it back.
        let (users, shown) = (keys.clone(), made.secret.clone());
        let using = std::thread::spawn(move || {
            let secret = shown.parse().unwrap();
            while users.caller(&secret, NOW).is_ok() {}
        });
        keys.revoke(&operator, &operator.account, &made.access_key.id, NOW).await.unwrap();
        assert_eq!(keys.caller(&secret(&made), NOW).unwrap_err(), NotLetIn::Revoked(NOW));
        using.join().unwrap();
    }
}
