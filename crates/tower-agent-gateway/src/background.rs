//! Tasks that belong to no request.

use std::{future::Future, sync::Arc};

use tokio::task::JoinHandle;

/// Spawns a task that belongs to no request: a watchdog, one that keeps replaced stacks, one that
/// answers other gateways, or one that sends webhooks.
#[allow(clippy::disallowed_methods, reason = "it lives beside all requests")]
pub(crate) fn spawn_background(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

/// A task that ends with the last clone of this.
#[derive(Clone, Debug)]
pub(crate) struct BackgroundTask {
    _task: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl BackgroundTask {
    pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        let _task = Arc::new(AbortOnDrop(spawn_background(task)));
        Self { _task }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
