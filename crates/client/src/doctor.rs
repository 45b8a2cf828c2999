//! The server's own health.

use http::Method;
use remuda_types::wire::Doctor;

use crate::{Client, ClientError};

impl Client {
    /// `GET /v1/doctor`: what differs between records, memory and machine, and what the server stands on. With
    /// `repair`, what is certain is put right first.
    ///
    /// # Errors
    /// `forbidden` without the scope `admin`, and with `repair` to all but the operator; otherwise as for every call:
    /// see [`ClientError`].
    pub async fn doctor(&self, repair: bool) -> Result<Doctor, ClientError> {
        self.call(Method::GET, "/v1/doctor").query(&[("repair", repair)]).read().await
    }
}
