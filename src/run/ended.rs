use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{handle::Run, reason::TerminalReason};

/// Resolves when a node has ended: [`Run::ended`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Ended(Waiting);

/// Resolves when a node has ended and its work is gone: [`Run::settled`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Settled(Waiting);

#[derive(Debug)]
struct Waiting {
    run: Run,
    key: Option<usize>,
}

impl Ended {
    pub(in crate::run) const fn new(run: Run) -> Self {
        Self(Waiting { run, key: None })
    }
}

impl Settled {
    pub(in crate::run) const fn new(run: Run) -> Self {
        Self(Waiting { run, key: None })
    }
}

impl Future for Ended {
    type Output = TerminalReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TerminalReason> {
        self.0.poll(cx, |_| true)
    }
}

impl Future for Settled {
    type Output = TerminalReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TerminalReason> {
        self.0.poll(cx, |run| run.node().is_idle())
    }
}

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>, done: impl Fn(&Run) -> bool) -> Poll<TerminalReason> {
        // Register first: an end after the look would find no waker.
        self.run.node().wait(&mut self.key, cx.waker(), false);
        match self.run.terminal_reason() {
            Some(reason) if done(&self.run) => Poll::Ready(reason),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.run.node().unwait(key);
        }
    }
}
