//! `cancel`: ends executions, or sends them a signal. Each is one call of the client.

use remuda_client::part_key;
use remuda_types::ExecutionState;

use super::DONE;
use crate::args::{Cancel, Global};
use crate::connection::connect;
use crate::{failure, print};

/// Ends each, or signals it; one that can't be does not keep the others.
pub async fn run(global: &Global, args: Cancel) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let (id, mut executions, mut code) = (args.sandbox.id, Vec::new(), DONE);
    for execution in &args.executions {
        // A key is one of its sandbox, and not of an execution in it.
        let client = match &args.key.key {
            Some(key) if args.executions.len() == 1 => client.with_key(key.clone()),
            Some(key) => client.with_key(part_key(key, execution.as_str())?),
            None => client.clone(),
        };
        let outcome = match args.signal {
            Some(signal) => client.signal(&id, execution, signal).await,
            None => client.cancel(&id, execution).await,
        };
        match outcome {
            Ok(shown) => {
                if !global.json {
                    print::line(match (args.signal, shown.state) {
                        (Some(signal), _) => format!("{execution} got signal {signal}"),
                        (None, ExecutionState::Cancelled) => format!("{execution} cancelled"),
                        (None, state) => format!("{execution} had ended before: {state}"),
                    })?;
                }
                executions.push(shown);
            }
            Err(error) => code = failure::report(&error.into()),
        }
    }
    if global.json {
        print::json(&executions)?;
    }
    Ok(code)
}
