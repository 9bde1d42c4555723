//! The runtime of a test on sockets, and how long a test waits.

use std::{
    future::Future,
    sync::{Once, PoisonError, RwLock},
    time::Duration,
};

/// Longer than any step of a test takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How often [`eventually`] looks.
const INTERVAL: Duration = Duration::from_millis(2);

/// Held for writing by a test that measures: no other test of the target runs then.
static QUIET: RwLock<()> = RwLock::new(());
static PROVIDER: Once = Once::new();

/// Runs a test on a runtime of its own, beside other tests.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    let _shared = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    block_on(test)
}

/// Runs a test that measures: no other test of the target runs meanwhile.
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

/// Waits for the future's output; the test fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let place = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(output) => output,
            Err(_) => panic!("what the test waits for at {place} does not happen"),
        }
    }
}

/// Looks again and again until there is something; the test fails after [`PATIENCE`].
///
/// `look` is an async closure, or a plain one whose look is ready at once:
///
/// ```ignore
/// eventually(async || (upstream.open() == 0).then_some(())).await;
/// ```
#[track_caller]
pub(crate) fn eventually<T>(mut look: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    within(async move {
        loop {
            match look().await {
                Some(found) => return found,
                None => tokio::time::sleep(INTERVAL).await,
            }
        }
    })
}

/// Waits until the condition holds; the test fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn until(mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    eventually(async move || condition().then_some(()))
}
