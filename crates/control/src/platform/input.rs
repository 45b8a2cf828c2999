//! Calls about what goes into an execution that runs: its standard input in pieces, and the size of its terminal. None of
//! them is an operation with a key: a piece is known by its place, and a size that is given twice is the same size.

use std::sync::Arc;
use std::time::Duration;

use remuda_guest_proto::{INPUT_PIECE_BYTES_MAX, INPUT_WRITER_BYTES_MAX, Input, PtySize, Reply, Request};
use remuda_types::limits::{INPUT_ANSWER_MS_MAX, STDIN_BYTES_MAX, WAIT_MS_MAX};
use remuda_types::wire::{Execution, InputTaken, TerminalSize};
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId, SandboxState};

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::channel::unexpected;
use crate::driver::Live;
use crate::executions::ExecutionCell;
use crate::operations::execute::check_size;
use crate::stream::ExecutionInput;

impl Platform {
    /// Gives an execution input. What the guest has already is not taken again, so that a piece whose answer was lost is
    /// sent again as it was. The answer comes when all of it was taken, no more is wanted, or the wait is over.
    ///
    /// # Errors
    /// `execution_not_running`; `input_gap` where bytes before it are missing; `invalid_request` where it takes no
    /// input; `wrong_state` while the sandbox stands still; `unreachable` when it is not known what was taken: then the
    /// same piece is sent again.
    pub async fn write_input(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
        input: ExecutionInput,
    ) -> Result<InputTaken, Error> {
        caller.may(Action::WriteInput)?;
        if input.bytes.len() > STDIN_BYTES_MAX {
            return Err(Error::limit("stdin_bytes_max", STDIN_BYTES_MAX as u64, input.bytes.len() as u64));
        }
        if input.writer.len() > INPUT_WRITER_BYTES_MAX || !input.writer.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!("a writer's name is at most {INPUT_WRITER_BYTES_MAX} visible characters of ASCII");
            return Err(Error::new(ErrorCode::InvalidRequest, message));
        }
        let Some(end) = input.offset.checked_add(input.bytes.len() as u64) else {
            return Err(Error::new(ErrorCode::InvalidRequest, "the offset is beyond every possible input"));
        };
        let (live, cell) = self.takes_calls(caller, id, execution).await?;
        if !cell.head().stdin_open {
            return Err(Error::new(ErrorCode::InvalidRequest, format!("execution {execution} takes no input"))
                .remedy("start one with `stdin_open` or with a terminal"));
        }
        let deadline = tokio::time::Instant::now() + input.wait.min(Duration::from_millis(WAIT_MS_MAX));
        let mut at = input.offset;
        let mut moves = cell.input_moves();
        loop {
            moves.mark_unchanged();
            let from = usize::try_from(at - input.offset).unwrap_or(usize::MAX).min(input.bytes.len());
            let to = (from + INPUT_PIECE_BYTES_MAX).min(input.bytes.len());
            let piece = Input {
                channel: cell.channel,
                writer: input.writer.clone(),
                offset: at,
                bytes: input.bytes[from..to].to_vec(),
                end: input.close && to == input.bytes.len(),
            };
            let (taken, closed) =
                match ask(&live, Request::Input(piece)).await.map_err(|e| crate::errors::channel(id, e))? {
                    Reply::Input { taken, closed } => (taken, closed),
                    other => return Err(crate::errors::channel(id, unexpected(&other))),
                };
            if taken < at {
                let message = format!("the guest has {taken} bytes of this input, and these begin at {at}");
                return Err(Error::new(ErrorCode::InputGap, message)
                    .remedy("send what comes at the offset in `taken`")
                    .detail("taken", taken));
            }
            if closed || (taken >= end && !input.close) {
                return Ok(InputTaken { taken, closed });
            }
            if taken == at && to > from {
                let waited = tokio::select! {
                    moved = tokio::time::timeout_at(deadline, moves.changed()) => matches!(moved, Ok(Ok(()))),
                    () = cell.ended() => true,
                    () = self.closed() => false,
                };
                if !waited {
                    return Ok(InputTaken { taken, closed });
                }
            }
            at = taken.min(end);
        }
    }

    /// Gives the terminal of an execution another size, of which its programs are told.
    ///
    /// # Errors
    /// As for [`Platform::write_input`].
    pub async fn resize(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
        size: TerminalSize,
    ) -> Result<Execution, Error> {
        caller.may(Action::ResizeTerminal)?;
        check_size(size)?;
        let (live, cell) = self.takes_calls(caller, id, execution).await?;
        if cell.head().pty.is_none() {
            return Err(Error::new(ErrorCode::InvalidRequest, format!("execution {execution} has no terminal"))
                .remedy("start one with `pty`"));
        }
        let TerminalSize { cols, rows } = size;
        let request = Request::Resize { channel: cell.channel, size: PtySize { cols, rows } };
        ask(&live, request).await.map_err(|e| crate::errors::channel(id, e))?;
        cell.resized(size);
        Ok(cell.show())
    }

    /// An execution that runs in a sandbox that does.
    async fn takes_calls(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
    ) -> Result<(Arc<Live>, Arc<ExecutionCell>), Error> {
        let sandbox = self.living(caller, id).await?;
        let cell = sandbox.executions.get(execution, id)?;
        if cell.state().is_final() {
            let message = format!("execution {execution} has ended ({})", cell.state());
            return Err(Error::new(ErrorCode::ExecutionNotRunning, message));
        }
        let live = sandbox.live()?.clone();
        if sandbox.state() == SandboxState::Paused {
            return Err(Error::new(ErrorCode::WrongState, format!("{id} is paused"))
                .remedy(format!("let it go on first: remuda resume {id}")));
        }
        Ok((live, cell))
    }
}

/// A call that an agent answers at once, unless its machine is starved or stands still.
async fn ask(live: &Live, request: Request) -> Result<Reply, crate::channel::ChannelError> {
    live.channel.call_within(request, Duration::from_millis(INPUT_ANSWER_MS_MAX)).await
}
