//! The part that a layer has in a supervised call: it measures silence, handles the caller's
//! disconnect, or runs hooks of its own.

use std::{fmt::Debug, thread::panicking};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::{observer::Observer, step_window::StepWindow};
use crate::{
    error::BoxError,
    run::{Nanos, Run, Scope, TaskId, TerminalReason},
};

/// The reason of an unfinished call that is dropped: its caller left, unless a panic unwinds the task.
pub(crate) fn reason_of_drop() -> TerminalReason {
    match panicking() {
        true => TerminalReason::Aborted,
        false => TerminalReason::ClientDisconnect,
    }
}

/// The behavior of one layer in a supervised call.
#[derive(Debug)]
pub(super) enum LayerPart {
    /// The layer measures nothing, and changes nothing. If the layer has deadlines, they are on
    /// the node's clocks.
    Nothing,
    /// The layer ends the node, or notifies observers, after a window of silence.
    Window(StepWindow),
    /// A drop of the unfinished future or body ends the node that the scope chooses.
    Disconnect(Scope),
    /// The layer has hooks of its own, behind a pointer.
    Hooks(Box<dyn LayerHooks>),
}

/// The callbacks for behavior that only one layer has.
///
/// The parameter `run` of a method is the node that the layer acts on.
pub(crate) trait LayerHooks: Debug + Send + Sync {
    /// Handles a `Pending` of the inner future or body; the method does not end the node.
    ///
    /// Returns the next deadline of the layer, if any: the layer is polled again then at
    /// the latest. `observer` is `Some` if the layer [reads](super::LayerSettings::reading) the response
    /// or settles the node.
    fn pending(
        &mut self,
        _run: &Run,
        _observer: Option<&mut Observer>,
        _now: Nanos,
        _task: TaskId,
    ) -> Option<Nanos> {
        None
    }

    /// Whether the node ends once the deadline passes that [`pending`](Self::pending) returned.
    fn ends_node(&self) -> bool {
        false
    }

    /// Edits the headers of the response that the caller gets.
    fn head(&mut self, _run: &Run, _status: StatusCode, _headers: &mut HeaderMap) {}

    /// Observes the first frame after a `Pending`, before the caller gets the frame.
    ///
    /// A layer that [asked for it](super::LayerSettings::frames) gets every frame. `data` is `None` for
    /// trailers. `observer` has counted the frame, and is `Some` if the layer
    /// [reads](super::LayerSettings::reading) the response or settles the node.
    fn frame(&mut self, _run: &Run, _data: Option<&Bytes>, _observer: Option<&Observer>) {}

    /// Handles an error of the inner future or body, if the node was live until then.
    ///
    /// The deadlines are checked after the layer has handled the error.
    fn failed(&mut self, _run: &Run, _now: Nanos, _task: TaskId) {}

    /// Handles the drop of an unfinished future or body, before the inner one drops.
    fn dropped(&mut self, _run: &Run) {}

    /// A panic of what the call polls unwinds.
    fn unwound(&mut self, _run: &Run) {}

    /// Converts an error of the call into the one that the caller gets.
    fn error(&self, _run: &Run, error: BoxError) -> BoxError {
        error
    }

    /// Handles the end of the call before the layer settles its node, at most once.
    ///
    /// The usage of the response is stored on the node by then. `observer` is `None` if no response
    /// came.
    fn settling(&mut self, _run: &Run, _observer: Option<&Observer>) {}

    /// Releases the layer's registrations at the end of the call.
    fn release(&mut self, _run: &Run) {}
}

impl LayerPart {
    /// Whether the layer may have a deadline to report at a `Pending`.
    #[inline]
    pub(super) const fn measures(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Disconnect(_))
    }

    /// Whether the node ends once the layer's deadline passes.
    pub(super) fn ends_node(&self) -> bool {
        match self {
            Self::Window(window) => !window.observes(),
            Self::Hooks(hooks) => hooks.ends_node(),
            _ => false,
        }
    }

    pub(super) fn pending(
        &mut self,
        run: &Run,
        observer: Option<&mut Observer>,
        now: Nanos,
        task: TaskId,
    ) -> Option<Nanos> {
        match self {
            Self::Window(window) => window.pending(run, observer, now, task),
            Self::Hooks(hooks) => hooks.pending(run, observer, now, task),
            Self::Nothing | Self::Disconnect(_) => None,
        }
    }

    /// Handles the head of the response, and edits its headers.
    #[inline]
    pub(super) fn head(&mut self, run: &Run, status: StatusCode, headers: &mut HeaderMap) {
        match self {
            // The head is a sign of life, but no content. The head stops the count of silence,
            // because the time until the first poll of the body belongs to the reader.
            Self::Window(window) => {
                window.frame(run, None, false);
            }
            Self::Hooks(hooks) => hooks.head(run, status, headers),
            _ => {}
        }
    }

    /// Handles a frame that the caller gets; `observer` is `None` if the layer observes no
    /// response.
    ///
    /// The result says whether a window needs the next frame too, even without a `Pending` before
    /// it, because a later frame may be the progress that resets a window.
    pub(super) fn frame(
        &mut self,
        run: &Run,
        data: Option<&Bytes>,
        observer: Option<&Observer>,
    ) -> bool {
        match self {
            Self::Window(window) => {
                let is_progress = observer.is_some_and(Observer::has_progressed);
                window.frame(run, observer, is_progress && data.is_some())
            }
            Self::Hooks(hooks) => {
                hooks.frame(run, data, observer);
                false
            }
            _ => false,
        }
    }

    pub(super) fn failed(&mut self, run: &Run, now: Nanos, task: TaskId) {
        match self {
            Self::Window(window) => window.failed(run, now, task),
            Self::Hooks(hooks) => hooks.failed(run, now, task),
            _ => {}
        }
    }

    pub(super) fn dropped(&mut self, run: &Run) {
        match self {
            // If the node has ended already, the drop only follows from that end.
            Self::Disconnect(scope) if run.terminal_reason().is_none() => {
                let target = run.in_scope(*scope);
                drop(target.end(reason_of_drop(), None, run.now()));
            }
            Self::Hooks(hooks) => hooks.dropped(run),
            _ => {}
        }
    }

    #[cold]
    pub(super) fn unwound(&mut self, run: &Run) {
        match self {
            Self::Hooks(hooks) => hooks.unwound(run),
            _ => self.dropped(run),
        }
    }

    pub(super) fn error(&self, run: &Run, error: BoxError) -> BoxError {
        match self {
            Self::Hooks(hooks) => hooks.error(run, error),
            _ => error,
        }
    }

    #[inline]
    pub(super) fn settling(&mut self, run: &Run, observer: Option<&Observer>) {
        if let Self::Hooks(hooks) = self {
            hooks.settling(run, observer);
        }
    }

    #[inline]
    pub(super) fn release(&mut self, run: &Run) {
        match self {
            Self::Window(window) => window.release(run),
            Self::Hooks(hooks) => hooks.release(run),
            _ => {}
        }
    }
}
