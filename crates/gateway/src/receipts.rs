//! Routes of receipts: what was done to a generation, also after its end. Each is one call of the platform.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use http::request::Parts;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{Receipt, ReceiptList};
use remuda_types::{ReceiptId, SandboxId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::{Answer, Failure};
use crate::extract::{QueryOf, path_parameter};

/// A receipt in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfReceipt {
    /// The receipt's id.
    receipt: ReceiptId,
}

impl<S: Sync> FromRequestParts<S> for OfReceipt {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(OfReceipt { receipt: path_parameter(parts, "receipt").await?.parse()? })
    }
}

/// Shows one receipt. It is kept after its sandbox is gone.
#[utoipa::path(get, path = "/v1/receipts/{receipt}", operation_id = "show_receipt", tag = "history", params(OfReceipt), responses(
    (status = 200, description = "What it states.", body = Receipt),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(State(platform): State<Platform>, By(caller): By, of: OfReceipt) -> Answer<Json<Receipt>> {
    Ok(Json(platform.receipt(&caller, &of.receipt).await?))
}

/// Which receipts to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only those of this generation, as `slot@generation`.
    sandbox: Option<SandboxId>,
    /// Where the last page ended: its `next`.
    after: Option<String>,
    /// How many at most; 1,000 when absent.
    #[serde(default)]
    #[param(required = false)]
    limit: usize,
}

/// Lists receipts, also those of sandboxes that have ended.
#[utoipa::path(get, path = "/v1/receipts", operation_id = "list_receipts", tag = "history", params(Filter), responses(
    (status = 200, description = "Oldest first.", body = ReceiptList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(filter): QueryOf<Filter>,
) -> Answer<Json<ReceiptList>> {
    let Filter { sandbox, after, limit } = filter;
    Ok(Json(platform.receipts(&caller, sandbox.as_ref(), after.as_deref(), limit).await?))
}
