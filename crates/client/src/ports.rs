//! Requests to an application in a sandbox, through the server's port route. An application's answer is never taken for
//! an error of the API, whatever its status is.

use http::{HeaderMap, Method, header};
use remuda_types::SandboxId;

use crate::address::application_path;
use crate::request::api_error;
use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, Incoming};

/// The header by which the server marks an answer of its own on the port route.
const OWN_ERROR: &str = "x-remuda-error";

impl Client {
    /// `ANY /v1/sandboxes/{id}/ports/{port}{path}`: one HTTP request to what listens on `port` in the guest. `path`
    /// begins with a slash and may have a query.
    ///
    /// # Errors
    /// [`ClientError::Api`] only where the *server* could not do it, as with `port_unreachable`. An `Authorization`
    /// header is refused: that header is the server's, and would not reach the application.
    pub async fn port_request(
        &self,
        id: &SandboxId,
        port: u16,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: impl Into<reqwest::Body>,
    ) -> Result<Incoming, ClientError> {
        if headers.contains_key(header::AUTHORIZATION) {
            return Err(ClientError::Input(
                "an Authorization header can't travel through the port route: it is the server's own; use another header".into(),
            ));
        }
        let route = format!("{}/ports/{port}{}", sandbox_path(id)?, application_path(path)?);
        let request = self.call(method, route).headers(headers).body(body);
        let call = request.name();
        let incoming = request.send_raw().await?;
        if incoming.headers().contains_key(OWN_ERROR) { Err(api_error(&call, incoming).await) } else { Ok(incoming) }
    }
}
