//! Reads lists of the journal to their end, page after page.

use remuda_journal::{JournalError, PageOf, Paging};
use remuda_types::Error;

/// All of a list, in its order.
///
/// # Errors
/// `journal_failed` where a page can't be read.
pub(crate) async fn all<T, F>(page: impl Fn(Paging) -> F) -> Result<Vec<T>, Error>
where
    F: Future<Output = Result<PageOf<T>, JournalError>>,
{
    let (mut all, mut paging) = (Vec::new(), Paging::first());
    loop {
        let read = page(paging).await.map_err(|e| crate::errors::journal(&e))?;
        all.extend(read.items);
        match read.next {
            Some(next) => paging = Paging::after(next),
            None => return Ok(all),
        }
    }
}
