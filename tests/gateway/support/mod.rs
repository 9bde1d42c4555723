//! The gateway as a child process, clients, and an upstream that counts.

mod client;
mod play;
mod process;
mod upstream;
mod verbatim;

pub(crate) use self::{
    client::{DIALECTS, Dialect, client, error_event},
    play::{STREAM, WHOLE, refusal},
    process::{Config, Gateway, candidate, fails},
    upstream::{Nobody, Upstream, chat},
    verbatim::Verbatim,
};

use std::{future::Future, sync::Once, time::Duration};

/// Longer than anything here takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

static PROVIDER: Once = Once::new();

pub(crate) fn run<F: Future>(test: F) -> F::Output {
    // Several providers may be linked in; reqwest needs one chosen.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let whole = async { tokio::time::timeout(3 * PATIENCE, test).await };
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
pub(crate) async fn eventually<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    within(async {
        loop {
            match look().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
}

/// None of the secrets stands in the text.
#[track_caller]
pub(crate) fn nobody_said(text: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is told: {text}");
    }
}
