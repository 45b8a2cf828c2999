//! The one door to the platform: every call of every API ends in one of these methods.

use std::path::PathBuf;
use std::time::Duration;

use remuda_types::wire::*;
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId};

use crate::stream::{ByteStream, OutputQuery, OutputSlice, WriteOptions};

/// What a platform is opened with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where sandboxes, layers and memory images live; made with mode 0700 when absent.
    pub data_dir: PathBuf,
    /// The engine's parts, by digest.
    pub parts: remuda_engine::Parts,
}

/// The platform. Clones share one state.
#[derive(Clone)]
pub struct Platform {}

fn not_yet<T>() -> Result<T, Error> {
    Err(Error::new(ErrorCode::Internal, "being written"))
}

#[allow(missing_docs, unused_variables)]
impl Platform {
    pub async fn open(config: Config) -> Result<Platform, Error> {
        not_yet()
    }
    pub async fn shut_down(&self) {}
    pub fn capabilities(&self) -> Capabilities {
        unimplemented!()
    }
    pub async fn create(&self, request: CreateSandbox) -> Result<Sandbox, Error> {
        not_yet()
    }
    pub fn list(&self, include_ended: bool) -> Vec<Sandbox> {
        Vec::new()
    }
    pub fn show(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        not_yet()
    }
    pub async fn remove(&self, id: &SandboxId) -> Result<Removal, Error> {
        not_yet()
    }
    pub async fn pause(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        not_yet()
    }
    pub async fn resume(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        not_yet()
    }
    pub async fn execute(&self, id: &SandboxId, request: StartExecution) -> Result<Execution, Error> {
        not_yet()
    }
    pub fn executions(&self, id: &SandboxId) -> Result<Vec<Execution>, Error> {
        not_yet()
    }
    pub async fn execution(
        &self,
        id: &SandboxId,
        execution: &ExecutionId,
        wait: Duration,
    ) -> Result<Execution, Error> {
        not_yet()
    }
    pub async fn output(
        &self,
        id: &SandboxId,
        execution: &ExecutionId,
        query: OutputQuery,
    ) -> Result<OutputSlice, Error> {
        not_yet()
    }
    pub async fn signal(&self, id: &SandboxId, execution: &ExecutionId, signal: i32) -> Result<Execution, Error> {
        not_yet()
    }
    pub async fn cancel(&self, id: &SandboxId, execution: &ExecutionId) -> Result<Execution, Error> {
        not_yet()
    }
    pub async fn read_file(&self, id: &SandboxId, path: &str) -> Result<(FileStat, ByteStream), Error> {
        not_yet()
    }
    pub async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        options: WriteOptions,
        body: ByteStream,
    ) -> Result<FileStat, Error> {
        not_yet()
    }
    pub async fn list_files(&self, id: &SandboxId, path: &str) -> Result<FileList, Error> {
        not_yet()
    }
    pub async fn stat_file(&self, id: &SandboxId, path: &str) -> Result<FileStat, Error> {
        not_yet()
    }
    pub async fn remove_file(&self, id: &SandboxId, path: &str, recursive: bool) -> Result<(), Error> {
        not_yet()
    }
    pub async fn make_directory(&self, id: &SandboxId, path: &str, parents: bool) -> Result<FileStat, Error> {
        not_yet()
    }
    pub async fn dial(&self, id: &SandboxId, port: u16) -> Result<tokio::net::TcpStream, Error> {
        not_yet()
    }
    pub async fn capture(&self, id: &SandboxId, request: CreateSnapshot) -> Result<Snapshot, Error> {
        not_yet()
    }
    pub fn snapshots(&self, include_deleted: bool) -> Vec<Snapshot> {
        Vec::new()
    }
    pub fn snapshot(&self, id_or_name: &str) -> Result<Snapshot, Error> {
        not_yet()
    }
    pub async fn remove_snapshot(&self, id_or_name: &str) -> Result<SnapshotRemoval, Error> {
        not_yet()
    }
    pub async fn fork(&self, id: &SandboxId, request: ForkSandbox) -> Result<Fork, Error> {
        not_yet()
    }
    pub async fn restore(&self, id_or_name: &str, request: RestoreSnapshot) -> Result<Sandbox, Error> {
        not_yet()
    }
}
