//! Calls about the server's own health: a comparison now, and a look at what the server stands on.

use remuda_engine::install::{check_machine, check_parts};
use remuda_types::wire::{Checked, Doctor};
use remuda_types::{Error, ErrorCode};

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;

impl Platform {
    /// Compares records, memory and machine now, and repairs what is certain where that is asked for. A caller is told
    /// what is its account's, and in the operator's account what is nobody's and what the server stands on, too; only
    /// the operator, on the server's own machine, is told all.
    ///
    /// # Errors
    /// `forbidden`, also to a key that is narrowed; and to any key where a repair is asked for. A look fails.
    pub async fn doctor(&self, caller: &Caller, repair: bool) -> Result<Doctor, Error> {
        caller.may(Action::Doctor)?;
        if let Some(narrowing) = caller.narrowing() {
            return Err(Error::new(ErrorCode::Forbidden, "an access key that is narrowed can't look at the server")
                .cause(format!("it is narrowed to {narrowing}"))
                .remedy("use a key that is not narrowed"));
        }
        if repair && !caller.is_operator() {
            return Err(Error::new(ErrorCode::Forbidden, "only whoever runs the server may have it repaired now")
                .cause("it came with an access key, and a repair may be of any account's things")
                .remedy("run on the server's own machine as root, without --url: remuda doctor --repair"));
        }
        let operators = caller.account == Caller::operator().account;
        let sees = |account: Option<&remuda_types::Account>| match account {
            Some(account) => caller.is_operator() || *account == caller.account,
            None => operators,
        };
        let compared = self.reconcile(repair).await?;
        let findings: Vec<_> = compared.findings.iter().map(|finding| finding.shown()).collect();
        let findings: Vec<_> = findings.into_iter().filter(|finding| sees(finding.account.as_ref())).collect();
        let (mut repairs, mut repaired) = self.reconciler().repairs();
        if !caller.is_operator() {
            repairs.retain(|repair| sees(repair.account.as_ref()));
            repaired = repairs.len() as u64;
        }
        let environment = if operators { self.environment().await? } else { Vec::new() };
        Ok(Doctor {
            well: findings.is_empty() && environment.iter().all(|checked| checked.ok),
            looked_at_ms: compared.at_ms,
            since_ms: self.reconciler().since_ms,
            findings,
            repairs,
            repaired,
            environment,
        })
    }

    /// What the server stands on: machine, data directory, engine, journal.
    async fn environment(&self) -> Result<Vec<Checked>, Error> {
        let (data, parts) = (self.engine().dirs().data().to_owned(), self.engine().parts().clone());
        let looking = tokio::task::spawn_blocking(move || {
            let checks = check_machine(&parts.cache(), &data, false);
            checks.into_iter().chain(check_parts(&parts)).collect::<Vec<_>>()
        });
        let checks = looking.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
        let mut checks: Vec<Checked> = checks
            .into_iter()
            .map(|check| Checked { name: check.name, ok: check.ok, detail: check.detail, remedy: check.remedy })
            .collect();
        checks.push(self.journal_checked().await);
        Ok(checks)
    }

    async fn journal_checked(&self) -> Checked {
        let journal = self.journal();
        let place = journal.path().display();
        let wrong = match (journal.stopped(), journal.check().await) {
            (Some(cause), _) => Some((format!("nothing is written any more: {cause}"), "restart the server")),
            (None, Ok(None)) => None,
            (None, Ok(Some(damage))) => Some((
                format!("it is damaged: {damage}"),
                "look at the disk, stop the server, and restore the journal with its -wal file from one backup",
            )),
            (None, Err(e)) => Some((format!("it can't be read: {e}"), "look at the disk, and restart the server")),
        };
        let name = "journal".to_owned();
        match wrong {
            None => Checked { name, ok: true, detail: format!("{place} is sound"), remedy: None },
            Some((what, remedy)) => {
                Checked { name, ok: false, detail: format!("{place}: {what}"), remedy: Some(remedy.to_owned()) }
            }
        }
    }
}
