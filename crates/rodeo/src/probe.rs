//! Asks machines and writes down what came back. Repeats reads openly, with a count, and never anything that changes a
//! machine.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;

use crate::observe::{ANSWER_BYTES_MAX, Action, Answer, Exchange, Listing};
use crate::provider::{Failure, HttpAnswer, HttpCall, Machine, Provider, ProviderError};

/// How long one request to an application may take.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause between two reads of something that is not there yet. The server outside tells no event for it.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Now, in Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Time since then, in milliseconds.
pub(crate) fn since_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The application in one machine.
pub(crate) struct Application<'a, P> {
    pub provider: &'a P,
    pub machine: &'a Machine,
    pub port: u16,
}

impl<P: Provider> Application<'_, P> {
    /// One request, sent once.
    pub async fn post(&self, path: &str, body: Option<String>) -> Exchange {
        let (at_ms, began) = (now_ms(), Instant::now());
        let call = HttpCall { port: self.port, method: "POST", path: path.to_owned(), body };
        let answer = self.ask(&call).await;
        exchange(at_ms, began, 1, call, answer)
    }

    /// Reads `path`; again and again while nothing listens or `again` holds for the answer, at most for `patience`. The
    /// last answer counts.
    pub async fn get(&self, path: &str, patience: Duration, again: impl Fn(&Exchange) -> bool) -> Exchange {
        let (at_ms, began) = (now_ms(), Instant::now());
        let call = HttpCall { port: self.port, method: "GET", path: path.to_owned(), body: None };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let answer = self.ask(&call).await;
            let nobody = matches!(&answer, Err(error) if error.kind == Failure::NotAnswering);
            let read = exchange(at_ms, began, attempts, call.clone(), answer);
            if !(nobody || again(&read)) || began.elapsed() >= patience {
                return read;
            }
            tokio::time::sleep(READ_AGAIN_AFTER).await;
        }
    }

    async fn ask(&self, call: &HttpCall) -> Result<HttpAnswer, ProviderError> {
        match tokio::time::timeout(REQUEST_TIME_MAX, self.provider.http(self.machine, call)).await {
            Ok(answer) => answer,
            Err(_) => Err(ProviderError {
                kind: Failure::Other,
                message: format!("no answer within {} seconds", REQUEST_TIME_MAX.as_secs()),
            }),
        }
    }
}

fn exchange(
    at_ms: i64,
    began: Instant,
    attempts: u32,
    call: HttpCall,
    answer: Result<HttpAnswer, ProviderError>,
) -> Exchange {
    let answer = match answer {
        Err(error) => Answer::Error { message: error.message },
        Ok(answer) if answer.body.len() > ANSWER_BYTES_MAX => {
            Answer::Error { message: format!("the answer is longer than {ANSWER_BYTES_MAX} bytes") }
        }
        Ok(HttpAnswer { status, cache_control, body }) => match String::from_utf8(body.into()) {
            Ok(body) => Answer::Response { status, cache_control, body },
            Err(_) => Answer::Error { message: format!("the answer with status {status} is no UTF-8 text") },
        },
    };
    let took_ms = since_ms(began);
    Exchange { at_ms, took_ms, attempts, method: call.method.to_owned(), path: call.path, sent: call.body, answer }
}

/// Whether the application answered, and with another status than 200: as while it is starting.
pub(crate) fn not_yet_200(exchange: &Exchange) -> bool {
    matches!(exchange.answer, Answer::Response { status, .. } if status != 200)
}

/// Does something and writes down how it went.
pub(crate) async fn act<T>(
    what: String,
    doing: impl Future<Output = Result<T, ProviderError>>,
) -> (Action, Result<T, ProviderError>) {
    let (at_ms, began) = (now_ms(), Instant::now());
    let result = doing.await;
    let error = result.as_ref().err().map(|error| error.message.clone());
    (Action { at_ms, took_ms: since_ms(began), what, error }, result)
}

/// How the putting of these bytes is recorded.
pub(crate) fn put_text(path: &str, bytes: &[u8]) -> String {
    format!("put {path}, {} bytes, blake3 {}", bytes.len(), blake3::hash(bytes).to_hex())
}

/// Puts one file and writes down how it went, with the digest of what was put.
pub(crate) async fn put<P: Provider>(provider: &P, machine: &Machine, path: &str, bytes: &[u8]) -> Action {
    act(put_text(path, bytes), provider.put(machine, path, Bytes::copy_from_slice(bytes), false)).await.0
}

/// Lists a folder.
pub(crate) async fn list<P: Provider>(provider: &P, machine: &Machine, folder: &str) -> Listing {
    let at_ms = now_ms();
    let names = provider.names(machine, folder).await.map_err(|error| error.message);
    Listing { at_ms, folder: folder.to_owned(), names }
}
