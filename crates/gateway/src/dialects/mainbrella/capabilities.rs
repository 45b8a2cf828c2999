//! `GET /capabilities`: what of this dialect there is here, with the limits that hold. Must tell nothing that is not so.

use axum::response::Response;
use remuda_control::Platform;
use remuda_types::limits;
use serde_json::{Value, json};

use super::answer::told;
use super::events;
use super::exec::{COMMAND_BYTES_MAX, FOREGROUND_MS_MAX};
use super::executions::{MANAGED_MS_MAX, STDIN_BYTES_MAX};
use super::files::{FILE_BYTES_MAX, PATH_BYTES_MAX};
use super::filesystem;
use super::sizes::{SIZES, Size};

/// The version of the contract that is spoken here.
const API_VERSION: &str = "2026-10-05";

pub(super) fn capabilities(platform: &Platform) -> Response {
    let native = platform.capabilities();
    let outbound = native.features.get("internet").copied().unwrap_or(false);
    let keys_live_ms = native.limits.get("keys_live_ms").copied().unwrap_or(0);
    let events_ms = platform.journal().settings().retention.events_ms;
    told(
        200,
        &json!({
            "apiVersion": API_VERSION,
            "authentication": { "apiKeys": true, "browserSessions": false, "browserTerminalCookieOnly": false },
            "containers": {
                "idempotentCreate": true,
                "creationRetentionMs": keys_live_ms,
                "generationRequired": true,
                "accountLimitsPath": "/containers",
                "configurableDeadline": false,
            },
            "execution": execution(),
            "files": files(),
            "persistence": {
                "filesystemAfterStop": false,
                "snapshots": true,
                "workspaces": true,
                "exports": true,
                "memory": true,
                "volumes": false,
            },
            "observability": {
                "lifecycleEvents": true,
                "activityWebSocket": false,
                "metrics": false,
                "webhooks": false,
                "otlp": false,
                "eventRetentionMs": events_ms,
                "maxLifecycleEvents": events::KINDS_MAX,
                "maxMetricRangeMs": 0,
                "metricBucketMs": 0,
            },
            "previews": { "supported": true, "signedUrls": false },
            "images": {
                "catalog": true,
                "availableCatalogPath": "/containers",
                "customBuilds": false,
                "limits": {
                    "maxBuildsPerMonth": 0,
                    "maxSavedImages": 0,
                    "maxContextBytes": 0,
                    "maxDockerfileBytes": 0,
                    "maxBuildSeconds": 0,
                },
            },
            "resources": SIZES.iter().map(Size::show).collect::<Vec<_>>(),
            "networking": {
                "outboundInternet": outbound,
                "internetControl": true,
                "privateServices": false,
                "egressPolicies": false,
                "regionSelection": false,
            },
            "access": { "maxTerminalConnections": 0, "maxSSHAccessTokens": 0, "sshTokenLifetimeMs": 0 },
        }),
    )
}

fn execution() -> Value {
    json!({
        "foreground": true,
        "streaming": true,
        "background": true,
        "cancellation": true,
        "reconnect": true,
        "pty": true,
        "programmaticPty": true,
        "ptyResize": true,
        "stdin": true,
        "signals": true,
        "argv": true,
        "managedProcessListing": true,
        "processListing": false,
        "maxCommandBytes": COMMAND_BYTES_MAX,
        "maxTimeoutMs": FOREGROUND_MS_MAX,
        "maxOutputBytes": limits::OUTPUT_HEAD_BYTES + limits::OUTPUT_TAIL_BYTES,
        "maxConcurrentOperations": limits::EXECUTIONS_CONCURRENT_MAX,
        "maxManagedTimeoutMs": MANAGED_MS_MAX,
        "retentionMs": limits::EXECUTION_RETENTION_MS,
        "maxRetainedExecutions": limits::EXECUTIONS_RETAINED_MAX,
        "maxStdinChunkBytes": STDIN_BYTES_MAX,
    })
}

fn files() -> Value {
    json!({
        "read": true,
        "write": true,
        "binary": true,
        "atomicReplacement": true,
        "list": true,
        "stat": true,
        "mkdir": true,
        "delete": true,
        "move": true,
        "chmod": true,
        "sharedExecutionPool": false,
        "watch": false,
        "maxFileBytes": FILE_BYTES_MAX,
        "maxPathBytes": PATH_BYTES_MAX,
        "maxDirectoryEntries": filesystem::ENTRIES_MAX,
        "maxDirectoryOffset": filesystem::OFFSET_MAX,
    })
}
