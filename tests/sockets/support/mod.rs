//! Real sockets: an upstream that plays a script, a gateway in this process,
//! and clients that leave.

mod bare;
mod client;
mod figures;
mod gateway;
mod http2_upstream;
mod process;
mod upstream;

pub(crate) use self::{
    bare::Bare,
    client::{Client, Raw, Version, get, post, request_of},
    figures::Figures,
    gateway::{Back, Front, Gateway, Setup, boxed},
    process::Process,
    upstream::{Calls, Play, Upstream},
};

use std::{
    future::Future,
    sync::{Once, PoisonError, RwLock},
    time::Duration,
};

/// Longer than anything here takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One content delta of a chat stream.
pub(crate) const TOKEN: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"t\"}}]}\n\n";
/// The end of a chat stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// Held for writing by whoever measures: no other test of this file runs then.
static QUIET: RwLock<()> = RwLock::new(());
static PROVIDER: Once = Once::new();

/// Runs a test on sockets, beside others.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    let _shared = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    block_on(test)
}

/// Runs a test that measures: alone.
pub(crate) fn run_alone<F: Future>(test: F) -> F::Output {
    let _alone = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    block_on(test)
}

fn block_on<F: Future>(test: F) -> F::Output {
    // Several providers may be linked in; reqwest needs one chosen.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let whole = async { tokio::time::timeout(6 * PATIENCE, test).await };
    let output = runtime.block_on(whole).expect("the test takes too long");
    runtime.shutdown_background();
    output
}

/// The future's output, or a failed test.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("what the test waits for does not happen")
}

/// Waits until `look` finds something.
pub(crate) async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    within(async {
        loop {
            match look() {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    })
    .await
}

/// `data` as one chunk of a chunked body.
pub(crate) fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// The head of an answer that is a chunked stream of events.
pub(crate) const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
