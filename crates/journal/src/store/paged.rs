//! Builds the statements of listings: filters, the place where the last page ended, and an order that never changes.

use rusqlite::types::Value;
use rusqlite::{Row, ToSql, params_from_iter};

use crate::error::JournalError;
use crate::model::{Cursor, PageOf, Paging, Whose};
use crate::store::Db;

/// A listing to be made.
pub(crate) struct Listing {
    head: String,
    /// The columns of time and id, by which it is ordered.
    order: (&'static str, &'static str),
    conditions: Vec<&'static str>,
    values: Vec<Value>,
}

impl Listing {
    pub(crate) fn of(table: &str, columns: &str, order: (&'static str, &'static str)) -> Listing {
        Listing { head: format!("SELECT {columns} FROM {table}"), order, conditions: Vec::new(), values: Vec::new() }
    }

    /// Only rows for which this holds; it has one `?` for each value.
    pub(crate) fn only<const N: usize>(mut self, condition: &'static str, values: [Value; N]) -> Self {
        self.conditions.push(condition);
        self.values.extend(values);
        self
    }

    /// The same, if there is something to compare with.
    pub(crate) fn only_if<const N: usize>(self, condition: &'static str, values: Option<[Value; N]>) -> Self {
        match values {
            Some(values) => self.only(condition, values),
            None => self,
        }
    }

    /// Only rows of this account, or all.
    pub(crate) fn whose(self, whose: Whose<'_>) -> Self {
        match whose {
            Whose::Of(account) => self.only("account = ?", [account.to_string().into()]),
            Whose::Everyones => self,
        }
    }

    /// Only rows whose column `labels` has this label.
    pub(crate) fn labelled(self, label: Option<&(String, String)>) -> Self {
        let values = label.map(|(key, value)| [key.clone().into(), value.clone().into()]);
        self.only_if("EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = ? AND l.value = ?)", values)
    }

    /// The page.
    pub(crate) fn page<T>(
        mut self,
        db: &Db<'_>,
        paging: &Paging,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
        cursor: impl FnOnce(&T) -> Cursor,
    ) -> Result<PageOf<T>, JournalError> {
        let (at, id) = self.order;
        let mut sql = self.head;
        let place = paging.after.as_ref().map(|after| {
            self.values.extend([Value::from(after.at_ms), Value::from(after.id.clone())]);
            format!("({at}, {id}) > (?, ?)")
        });
        let conditions = self.conditions.into_iter().chain(place.as_deref());
        for (n, condition) in conditions.enumerate() {
            sql.push_str(if n == 0 { " WHERE " } else { " AND " });
            sql.push_str(condition);
        }
        let limit = paging.limit();
        sql.push_str(&format!(" ORDER BY {at}, {id} LIMIT ?"));
        // One more than is shown, to tell whether there is another page.
        self.values.push(Value::from(limit as i64 + 1));
        let mut items = db.many(&sql, params_from_iter(self.values.iter().map(|v| v as &dyn ToSql)), read)?;
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(cursor) } else { None };
        Ok(PageOf { items, next })
    }
}
