//! `key`, `account`, `usage`, `whoami`. A secret is printed once, to standard output, and must go nowhere else.

use remuda_types::wire::{
    AccessKey, AccessKeyList, AccountInfo, AccountList, CreateAccessKey, Reserved, SetAccount, Usage,
};
use remuda_types::{ACCESS_KEY_PREFIXES, AccessKeyId, AccessScope, Account, IdError, Label, Narrowing};

use super::DONE;
use crate::args::{AccountCommand, Dialect, Global, Key, KeyCreate, NarrowingArgs};
use crate::connection::connect;
use crate::failure::{Failure, USAGE};
use crate::{failure, print};

pub async fn key(global: &Global, command: Key) -> anyhow::Result<u8> {
    match command {
        Key::Create(args) => create(global, args).await,
        Key::Ls { all, of } => {
            let access_keys = connect(global)?.access_keys(of.account.as_ref(), all).await?;
            if global.json {
                print::json(&AccessKeyList { access_keys })?;
            } else {
                table(&access_keys)?;
            }
            Ok(DONE)
        }
        Key::Revoke { keys, of } => {
            let keys = keys.iter().map(|key| access_key_id(key)).collect::<Result<Vec<_>, _>>()?;
            let client = connect(global)?;
            let (mut revoked, mut code) = (Vec::new(), DONE);
            for id in &keys {
                match client.revoke_access_key(of.account.as_ref(), id).await {
                    Ok(key) => {
                        if !global.json {
                            print::line(format!("{id} opens nothing any more"))?;
                        }
                        revoked.push(key);
                    }
                    Err(error) => code = failure::report(&error.into()),
                }
            }
            if global.json {
                print::json(&revoked)?;
            }
            Ok(code)
        }
    }
}

async fn create(global: &Global, args: KeyCreate) -> anyhow::Result<u8> {
    let scopes = match args.dialect {
        // All that the dialect has: it makes no keys.
        Some(Dialect::Mainbrella) if args.scopes.is_empty() => {
            AccessScope::ALL.iter().copied().filter(|scope| *scope != AccessScope::Admin).collect()
        }
        _ => args.scopes,
    };
    let request = CreateAccessKey {
        scopes,
        narrowing: narrowing(args.narrowing),
        label: args.name,
        expires_in_ms: args.expires.map(|life| u64::try_from(life.as_millis()).unwrap_or(u64::MAX)),
        account: args.of.account,
    };
    let mut made = connect(global)?.create_access_key(&request).await?;
    if let (Some(Dialect::Mainbrella), [own, foreign]) = (args.dialect, ACCESS_KEY_PREFIXES) {
        // The same secret in other clothes.
        made.secret = made.secret.replacen(own, foreign, 1);
    }
    if global.json {
        print::json(&made)?;
    } else {
        // The secret alone, so that scripts can take it; who it is, is told by `key ls` and `whoami`.
        print::line(&made.secret)?;
    }
    Ok(DONE)
}

/// Whoever gives the secret instead of the id must not find it in the error, and so in a log.
fn access_key_id(text: &str) -> Result<AccessKeyId, Failure> {
    text.parse().map_err(|e: IdError| {
        let secret = ["rmd_", "mb_"].iter().any(|prefix| text.starts_with(prefix));
        let message = if secret { "that is an access key's secret, not its id".to_owned() } else { e.to_string() };
        Failure::new(USAGE, message).remedy("list the ids with: remuda key ls")
    })
}

fn narrowing(args: NarrowingArgs) -> Option<Narrowing> {
    let label = args.label.map(|(name, value)| Narrowing::Label(Label { name, value }));
    args.slot.map(Narrowing::Slot).or(args.sandbox.map(Narrowing::Sandbox)).or(label)
}

fn table(keys: &[AccessKey]) -> std::io::Result<()> {
    print::table(
        ["ID", "NAME", "SEES", "ENDS", "SCOPES"],
        keys.iter().map(|key| {
            let ends = match (key.revoked_at_ms, key.expires_at_ms) {
                (Some(at), _) => format!("revoked {}", print::moment(at)),
                (None, Some(at)) => print::moment(at),
                (None, None) => "-".to_owned(),
            };
            let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
            let sees = key.narrowing.as_ref().map_or_else(|| "the account".to_owned(), ToString::to_string);
            let name = key.label.clone().unwrap_or_else(|| "-".to_owned());
            [key.id.to_string(), print::plain(&name), print::plain(&sees), ends, scopes.join(",")]
        }),
    )
}

pub async fn account(global: &Global, command: AccountCommand) -> anyhow::Result<u8> {
    let client = connect(global)?;
    match command {
        AccountCommand::Ls => {
            let accounts = client.accounts().await?;
            if global.json {
                print::json(&AccountList { accounts })?;
            } else {
                table_of_accounts(&accounts)?;
            }
        }
        AccountCommand::Set { account, quotas } => {
            let request = SetAccount { quotas: quotas.into_iter().collect() };
            let account = client.set_account(&account, &request).await?;
            if global.json {
                print::json(&account)?;
            } else {
                account_limits(&account)?;
            }
        }
    }
    Ok(DONE)
}

fn table_of_accounts(accounts: &[AccountInfo]) -> std::io::Result<()> {
    let limits = |account: &AccountInfo| {
        let limits = account.limits.iter().map(|(quota, limit)| format!("{quota}={}", amount(*limit)));
        limits.collect::<Vec<_>>().join(" ")
    };
    print::table(["ACCOUNT", "LIMITS"], accounts.iter().map(|one| [one.account.to_string(), limits(one)]))
}

fn account_limits(account: &AccountInfo) -> std::io::Result<()> {
    let limits: Vec<_> = account.limits.iter().map(|(quota, limit)| format!("{quota}={}", amount(*limit))).collect();
    print::line(format!("{}  {}", account.account, limits.join(" ")))
}

fn amount(limit: Option<u64>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}

pub async fn usage(global: &Global, account: Option<&Account>) -> anyhow::Result<u8> {
    let usage = connect(global)?.usage(account).await?;
    if global.json {
        print::json(&usage)?;
    } else {
        four_figures(&usage)?;
    }
    Ok(DONE)
}

fn four_figures(usage: &Usage) -> std::io::Result<()> {
    let (captured, held) = (&usage.captured, &usage.held);
    print::line(format!("account {}", usage.account))?;
    print::line(format!("captured   {} in {} snapshots", print::bytes(captured.bytes), captured.snapshots))?;
    let parts = [("layers", held.layers), ("memory images", held.memory_images), ("sandboxes", held.sandboxes)];
    let parts: Vec<_> = parts.iter().map(|(name, count)| format!("{name} {}", print::bytes(*count))).collect();
    print::line(format!("on disk    {} ({})", print::bytes(held.total()), parts.join(", ")))?;
    print::line("reserved")?;
    usage.reserved.iter().try_for_each(figure)?;
    for month in &usage.months {
        print::line(&month.month)?;
        month.counters.iter().try_for_each(figure)?;
    }
    Ok(())
}

fn figure(figure: &Reserved) -> std::io::Result<()> {
    let Reserved { quota, amount: used, limit } = figure;
    match limit {
        Some(limit) => print::line(format!("  {quota:<18} {used} of {limit}")),
        None => print::line(format!("  {quota:<18} {used}")),
    }
}

pub async fn whoami(global: &Global) -> anyhow::Result<u8> {
    let me = connect(global)?.whoami().await?;
    if global.json {
        print::json(&me)?;
        return Ok(DONE);
    }
    let scopes: Vec<_> = me.scopes.iter().map(|scope| scope.as_str()).collect();
    let key = me.access_key.map_or_else(|| "none: the server's own socket".to_owned(), |key| key.to_string());
    let mut rows = vec![("account", me.account.to_string()), ("access key", key), ("scopes", scopes.join(", "))];
    rows.extend(me.narrowing.map(|narrowing| ("narrowed to", print::plain(&narrowing.to_string()))));
    rows.extend(me.expires_at_ms.map(|at| ("expires", print::moment(at))));
    rows.extend(me.limits.iter().map(|(quota, limit)| (quota.as_str(), amount(*limit))));
    print::pairs(&rows)?;
    Ok(DONE)
}
