//! What each call of the platform needs. One table, held against the OpenAPI document by a test of the gateway: no
//! route can be without a line here. Must hold nothing that depends on a request.

use remuda_types::AccessScope;
use remuda_types::AccessScope::*;

/// What a caller must have for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Not even a credential.
    Nothing,
    /// A credential, whatever it grants.
    AnyKey,
    /// All of these.
    Scopes(&'static [AccessScope]),
    /// To be whoever runs the server: no key is enough.
    Operator,
}

macro_rules! actions {
    ($($name:ident $operation:literal $needs:expr;)*) => {
        /// One kind of call.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is the operation of the API that has its name")]
        pub enum Action {
            $($name,)*
        }

        impl Action {
            /// Every kind.
            pub const ALL: &'static [Action] = &[$(Action::$name),*];

            /// Its name in the native API's document.
            pub fn operation(self) -> &'static str {
                match self { $(Action::$name => $operation),* }
            }

            /// What it needs.
            pub fn needs(self) -> Needs {
                match self { $(Action::$name => $needs),* }
            }
        }
    };
}

actions! {
    Health "health" Needs::Nothing;
    OpenApi "openapi" Needs::Nothing;
    Capabilities "capabilities" Needs::AnyKey;
    WhoAmI "whoami" Needs::AnyKey;
    CreateSandbox "create_sandbox" Needs::Scopes(&[SandboxesWrite]);
    ListSandboxes "list_sandboxes" Needs::Scopes(&[SandboxesRead]);
    ShowSandbox "show_sandbox" Needs::Scopes(&[SandboxesRead]);
    RemoveSandbox "remove_sandbox" Needs::Scopes(&[SandboxesDelete]);
    PauseSandbox "pause_sandbox" Needs::Scopes(&[SandboxesWrite]);
    ResumeSandbox "resume_sandbox" Needs::Scopes(&[SandboxesWrite]);
    StopSandbox "stop_sandbox" Needs::Scopes(&[SandboxesWrite]);
    StartSandbox "start_sandbox" Needs::Scopes(&[SandboxesWrite]);
    // A deadline ends a sandbox.
    SetDeadline "set_deadline" Needs::Scopes(&[SandboxesWrite, SandboxesDelete]);
    ForkSandbox "fork_sandbox" Needs::Scopes(&[SandboxesWrite]);
    StartExecution "start_execution" Needs::Scopes(&[Executions]);
    ListExecutions "list_executions" Needs::Scopes(&[Executions]);
    ShowExecution "show_execution" Needs::Scopes(&[Executions]);
    ReadOutput "read_output" Needs::Scopes(&[Executions]);
    FollowExecution "follow_execution" Needs::Scopes(&[Executions]);
    SignalExecution "signal_execution" Needs::Scopes(&[Executions]);
    WriteInput "write_input" Needs::Scopes(&[Executions]);
    JoinTerminal "join_terminal" Needs::Scopes(&[Executions]);
    ResizeTerminal "resize_terminal" Needs::Scopes(&[Executions]);
    CancelExecution "cancel_execution" Needs::Scopes(&[Executions]);
    ReadFile "read_file" Needs::Scopes(&[Files]);
    WriteFile "write_file" Needs::Scopes(&[Files]);
    RemoveFile "remove_file" Needs::Scopes(&[Files]);
    ListFiles "list_files" Needs::Scopes(&[Files]);
    StatFile "stat_file" Needs::Scopes(&[Files]);
    MakeDirectory "make_directory" Needs::Scopes(&[Files]);
    ReadTree "read_tree" Needs::Scopes(&[Files]);
    WriteTree "write_tree" Needs::Scopes(&[Files]);
    MoveFile "move_file" Needs::Scopes(&[Files]);
    SetAttributes "set_attributes" Needs::Scopes(&[Files]);
    FindFiles "find_files" Needs::Scopes(&[Files]);
    FindText "find_text" Needs::Scopes(&[Files]);
    WatchFiles "watch_files" Needs::Scopes(&[Files]);
    ChangeFiles "change_files" Needs::Scopes(&[Files]);
    Port "port" Needs::Scopes(&[Previews]);
    CreatePreview "create_preview" Needs::Scopes(&[Previews]);
    ListPreviews "list_previews" Needs::Scopes(&[Previews]);
    ShowPreview "show_preview" Needs::Scopes(&[Previews]);
    RotatePreview "rotate_preview" Needs::Scopes(&[Previews]);
    RenewPreview "renew_preview" Needs::Scopes(&[Previews]);
    RevokePreview "revoke_preview" Needs::Scopes(&[Previews]);
    ProbePreview "probe_preview" Needs::Scopes(&[Previews]);
    CreateSnapshot "create_snapshot" Needs::Scopes(&[SnapshotsWrite]);
    ListSnapshots "list_snapshots" Needs::Scopes(&[SnapshotsRead]);
    ShowSnapshot "show_snapshot" Needs::Scopes(&[SnapshotsRead]);
    UpdateSnapshot "update_snapshot" Needs::Scopes(&[SnapshotsRead, SnapshotsWrite]);
    RemoveSnapshot "remove_snapshot" Needs::Scopes(&[SnapshotsDelete]);
    // Whoever restores a snapshot reads all that is in it.
    RestoreSnapshot "restore_snapshot" Needs::Scopes(&[SandboxesWrite, SnapshotsRead]);
    // A trial makes a sandbox of it, and takes that away again.
    VerifySnapshot "verify_snapshot" Needs::Scopes(&[SandboxesWrite, SnapshotsRead]);
    // It tells what is in files.
    DiffSnapshot "diff_snapshot" Needs::Scopes(&[SnapshotsRead, Files]);
    // All that is in it.
    ExportSnapshot "export_snapshot" Needs::Scopes(&[SnapshotsRead, Files]);
    ShowImport "show_import" Needs::Scopes(&[SnapshotsWrite]);
    WriteImport "write_import" Needs::Scopes(&[SnapshotsWrite]);
    RemoveImport "remove_import" Needs::Scopes(&[SnapshotsWrite]);
    // Of memory it needs more: see `operations::import`.
    ImportSnapshot "import_snapshot" Needs::Scopes(&[SnapshotsWrite]);
    CreateKey "create_access_key" Needs::Scopes(&[Admin]);
    ListKeys "list_access_keys" Needs::Scopes(&[Admin]);
    RevokeKey "revoke_access_key" Needs::Scopes(&[Admin]);
    // What became of a call is told to whoever could have made it: see `sight`.
    ShowOperation "show_operation" Needs::AnyKey;
    ListOperations "list_operations" Needs::AnyKey;
    CancelOperation "cancel_operation" Needs::AnyKey;
    ShowReceipt "show_receipt" Needs::Scopes(&[SandboxesRead]);
    ListReceipts "list_receipts" Needs::Scopes(&[SandboxesRead]);
    ReadEvents "read_events" Needs::Scopes(&[SandboxesRead]);
    // Whoever has events delivered reads them.
    CreateWebhook "create_webhook" Needs::Scopes(&[Admin, SandboxesRead]);
    ListWebhooks "list_webhooks" Needs::Scopes(&[Admin]);
    ShowWebhook "show_webhook" Needs::Scopes(&[Admin]);
    RemoveWebhook "remove_webhook" Needs::Scopes(&[Admin]);
    RotateWebhook "rotate_webhook" Needs::Scopes(&[Admin, SandboxesRead]);
    ListWebhookDeliveries "list_webhook_deliveries" Needs::Scopes(&[Admin]);
    RedeliverWebhook "redeliver_webhook" Needs::Scopes(&[Admin, SandboxesRead]);
    ShowUsage "show_usage" Needs::Scopes(&[Usage]);
    Doctor "doctor" Needs::Scopes(&[Admin]);
    ListAccounts "list_accounts" Needs::Operator;
    SetAccount "set_account" Needs::Operator;
}

impl Action {
    /// The call of an operation in the native API's document.
    pub fn of_operation(operation: &str) -> Option<Action> {
        // One handler answers to every method of a port.
        let operation = if operation.starts_with("port_") { "port" } else { operation };
        Action::ALL.iter().copied().find(|call| call.operation() == operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_one_line_and_each_scope_opens_something() {
        for call in Action::ALL {
            assert_eq!(Action::of_operation(call.operation()), Some(*call));
        }
        for scope in AccessScope::ALL {
            let opens = |call: &Action| matches!(call.needs(), Needs::Scopes(scopes) if scopes.contains(scope));
            assert!(Action::ALL.iter().any(opens), "{scope} opens nothing");
        }
    }
}
