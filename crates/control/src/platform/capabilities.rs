//! What the platform can do, and every limit of it.

use std::collections::BTreeMap;

use remuda_types::limits;
use remuda_types::wire::{Capabilities, EngineInfo};

use super::Platform;

impl Platform {
    /// What can be done here, and every limit.
    pub fn capabilities(&self) -> Capabilities {
        let parts = self.engine().parts();
        let features = [
            ("memory_snapshots", true),
            ("filesystem_snapshots", true),
            ("forks", true),
            ("launch_recipes", true),
            ("port_route", true),
            ("idempotency_keys", true),
            ("receipts", true),
            ("events", true),
            ("execution_events", true),
            ("deadlines", true),
            ("webhooks", true),
            ("file_search", true),
            ("file_batches", true),
            ("file_watches", true),
            ("stdin_in_pieces", true),
            ("terminals", true),
            ("previews", true),
            ("internet", self.engine().no_way_out().is_none()),
        ];
        let limits = [
            ("access_key_life_ms_max", limits::ACCESS_KEY_LIFE_MS_MAX),
            ("access_keys_max", limits::ACCESS_KEYS_MAX as u64),
            ("accounts_max", limits::ACCOUNTS_MAX as u64),
            ("batch_bytes_max", limits::BATCH_BYTES_MAX as u64),
            ("batch_changes_max", limits::BATCH_CHANGES_MAX as u64),
            ("command_bytes_max", limits::COMMAND_BYTES_MAX as u64),
            ("cpus_default", u64::from(limits::CPUS_DEFAULT)),
            ("deadline_soon_ms", limits::DEADLINE_SOON_MS),
            ("diff_changes_max", limits::DIFF_CHANGES_MAX as u64),
            ("diff_file_bytes_max", limits::DIFF_FILE_BYTES_MAX),
            ("diff_texts_bytes_max", limits::DIFF_TEXTS_BYTES_MAX),
            ("directory_entries_max", limits::DIRECTORY_ENTRIES_MAX as u64),
            ("disk_bytes_default", limits::DISK_BYTES_DEFAULT),
            ("disk_low_water_bytes", limits::DISK_LOW_WATER_BYTES),
            ("disk_mib_max", u64::from(limits::DISK_MIB_MAX)),
            ("disk_mib_min", u64::from(limits::DISK_MIB_MIN)),
            ("env_vars_max", limits::ENV_VARS_MAX as u64),
            ("events_heartbeat_ms", limits::EVENTS_HEARTBEAT_MS),
            ("execution_retention_ms", limits::EXECUTION_RETENTION_MS.unsigned_abs()),
            ("execution_timeout_ms_max", limits::EXECUTION_TIMEOUT_MS_MAX),
            ("execution_tombstones_max", limits::EXECUTION_TOMBSTONES_MAX as u64),
            ("executions_concurrent_max", limits::EXECUTIONS_CONCURRENT_MAX as u64),
            ("executions_retained_max", limits::EXECUTIONS_RETAINED_MAX as u64),
            ("file_digest_bytes_max", limits::FILE_DIGEST_BYTES_MAX),
            ("follow_ahead_bytes_max", limits::FOLLOW_AHEAD_BYTES_MAX),
            ("follow_piece_bytes_max", limits::FOLLOW_PIECE_BYTES_MAX as u64),
            ("follow_stall_ms_max", limits::FOLLOW_STALL_MS_MAX),
            ("fork_count_max", u64::from(limits::FORK_COUNT_MAX)),
            ("freeze_copy_bytes_max", limits::FREEZE_COPY_BYTES_MAX),
            ("freeze_file_bytes_max", limits::FREEZE_FILE_BYTES_MAX),
            ("import_bytes_max", limits::IMPORT_BYTES_MAX),
            ("import_kept_ms", limits::IMPORT_KEPT_MS),
            ("imports_max", limits::IMPORTS_MAX as u64),
            ("input_answer_ms_max", limits::INPUT_ANSWER_MS_MAX),
            ("input_wait_ms_default", limits::INPUT_WAIT_MS_DEFAULT),
            ("keys_live_ms", self.journal().settings().retention.key_ms.unsigned_abs()),
            ("kill_confirm_ms_max", limits::KILL_CONFIRM_MS_MAX),
            ("label_bytes_max", limits::LABEL_BYTES_MAX as u64),
            ("labels_max", limits::LABELS_MAX as u64),
            ("layers_max", limits::LAYERS_MAX as u64),
            ("memory_mib_default", u64::from(limits::MEMORY_MIB_DEFAULT)),
            ("memory_mib_max", u64::from(limits::MEMORY_MIB_MAX)),
            ("memory_mib_min", u64::from(limits::MEMORY_MIB_MIN)),
            ("name_bytes_max", limits::NAME_BYTES_MAX as u64),
            ("output_head_bytes", limits::OUTPUT_HEAD_BYTES as u64),
            ("output_page_bytes_max", limits::OUTPUT_PAGE_BYTES_MAX as u64),
            ("output_sandbox_bytes_max", limits::EXECUTION_OUTPUT_SANDBOX_BYTES_MAX),
            ("output_tail_bytes", limits::OUTPUT_TAIL_BYTES as u64),
            ("path_bytes_max", limits::PATH_BYTES_MAX as u64),
            ("preview_connections_all_max", limits::PREVIEW_CONNECTIONS_ALL_MAX as u64),
            ("preview_connections_max", limits::PREVIEW_CONNECTIONS_MAX as u64),
            ("preview_rotations_max", u64::from(limits::PREVIEW_ROTATIONS_MAX)),
            ("preview_ttl_ms_default", limits::PREVIEW_TTL_MS_DEFAULT),
            ("preview_ttl_ms_max", limits::PREVIEW_TTL_MS_MAX),
            ("preview_ttl_ms_min", limits::PREVIEW_TTL_MS_MIN),
            ("previews_active_max", limits::PREVIEWS_ACTIVE_MAX as u64),
            ("previews_max", limits::PREVIEWS_MAX as u64),
            ("processes_default", u64::from(limits::PROCESSES_DEFAULT)),
            ("receipt_captures_max", limits::RECEIPT_CAPTURES_MAX as u64),
            ("reconcile_every_ms_default", limits::RECONCILE_EVERY_MS_DEFAULT),
            ("records_page_max", limits::RECORDS_PAGE_MAX as u64),
            ("request_body_bytes_max", limits::REQUEST_BODY_BYTES_MAX as u64),
            ("sandboxes_max", limits::SANDBOXES_MAX as u64),
            ("scrub_bytes_per_second_max", limits::SCRUB_BYTES_PER_SECOND_MAX),
            ("scrub_every_ms_default", limits::SCRUB_EVERY_MS_DEFAULT),
            ("search_finds_default", u64::from(limits::SEARCH_FINDS_DEFAULT)),
            ("search_finds_max", u64::from(limits::SEARCH_FINDS_MAX)),
            ("search_pattern_bytes_max", limits::SEARCH_PATTERN_BYTES_MAX as u64),
            ("search_text_bytes_max", limits::SEARCH_TEXT_BYTES_MAX as u64),
            ("stdin_bytes_max", limits::STDIN_BYTES_MAX as u64),
            ("terminal_message_bytes_max", limits::TERMINAL_MESSAGE_BYTES_MAX as u64),
            ("timeout_ms_default", limits::TIMEOUT_MS_DEFAULT.min(self.timeout_ms_max())),
            ("timeout_ms_max", self.timeout_ms_max()),
            ("timeout_ms_min", limits::TIMEOUT_MS_MIN),
            ("wait_ms_max", limits::WAIT_MS_MAX),
            ("watch_events_max", limits::WATCH_EVENTS_MAX as u64),
            ("watch_linger_ms", limits::WATCH_LINGER_MS),
            ("watches_max", limits::WATCHES_MAX as u64),
            ("webhook_attempts_max", u64::from(limits::WEBHOOK_ATTEMPTS_MAX)),
            ("webhook_concurrent_max", limits::WEBHOOK_CONCURRENT_MAX as u64),
            ("webhook_deliveries_max", limits::WEBHOOK_DELIVERIES_MAX as u64),
            ("webhook_events_max", limits::WEBHOOK_EVENTS_MAX as u64),
            ("webhook_retry_ms_first", limits::WEBHOOK_RETRY_MS_FIRST),
            ("webhook_retry_ms_max", limits::WEBHOOK_RETRY_MS_MAX),
            ("webhook_timeout_ms", limits::WEBHOOK_TIMEOUT_MS),
            ("webhook_url_bytes_max", limits::WEBHOOK_URL_BYTES_MAX as u64),
            ("webhooks_max", limits::WEBHOOKS_MAX as u64),
        ];
        Capabilities {
            version: env!("CARGO_PKG_VERSION").into(),
            engine: EngineInfo {
                name: "gvisor".into(),
                version: parts.runsc_version.clone(),
                digest: parts.fingerprint.runsc.clone(),
                platform: "systrap".into(),
            },
            features: features.map(|(name, on)| (name.to_owned(), on)).into(),
            limits: limits.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        }
    }
}

#[cfg(test)]
mod tests {
    /// Limits that are told as what they are set to, or by another name.
    const OTHERWISE: [(&str, &str); 3] = [
        ("execution_output_sandbox_bytes_max", "output_sandbox_bytes_max"),
        ("keys_live_ms_default", "keys_live_ms"),
        ("timeout_ms_max_default", "timeout_ms_max"),
    ];

    #[test]
    fn every_limit_by_name_is_told() {
        let limits = include_str!("../../../types/src/limits.rs");
        let told = include_str!("capabilities.rs");
        let names = limits.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'));
        let names: Vec<String> = names.map(|(name, _)| name.to_lowercase()).collect();
        assert!(names.len() > 60, "{}", names.len());
        for name in names {
            let other = OTHERWISE.iter().find(|(limit, _)| *limit == name).map_or(name.as_str(), |(_, other)| other);
            let told = told.lines().any(|line| line.trim_start().starts_with(&format!("(\"{other}\", ")));
            assert!(told, "{name} is a limit, and `GET /v1/capabilities` does not tell it");
        }
    }
}
