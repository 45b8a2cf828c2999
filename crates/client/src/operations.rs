//! Operations: what became of calls, by their ids and keys. Nothing here is sent with a key: asking changes nothing, and
//! cancelling twice is cancelling once.

use http::Method;
use remuda_types::wire::{CancelOperation, Cancellation, Operation, OperationList};
use remuda_types::{Key, OperationId};

use crate::address::segment;
use crate::{Client, ClientError};

impl Client {
    /// `GET /v1/operations/{id}`
    ///
    /// # Errors
    /// `operation_not_found`; otherwise as for every call.
    pub async fn operation(&self, id: &OperationId) -> Result<Operation, ClientError> {
        self.call(Method::GET, format!("/v1/operations/{}", segment(id.as_str())?)).read().await
    }

    /// `GET /v1/operations?key=…`: one for each kind of call and sandbox that the key was used with.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`]. A key that never came has an empty list.
    pub async fn operations(&self, key: &Key) -> Result<Vec<Operation>, ClientError> {
        let list: OperationList =
            self.call(Method::GET, "/v1/operations").query(&[("key", key.as_str())]).read().await?;
        Ok(list.operations)
    }

    /// `POST /v1/operations/cancel`: whichever call comes with this key from now on is refused, unless it has come.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn cancel_operation(&self, request: &CancelOperation) -> Result<Cancellation, ClientError> {
        self.call(Method::POST, "/v1/operations/cancel").json(request).read().await
    }
}
