//! Who is asked to stop, whatever else the thread does.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Wake, Waker},
};

use tower_agent::{Run, TerminalReason};

use crate::support::secs;

const CAP: TerminalReason = TerminalReason::TurnCap;

/// When woken, ends a run and looks at its sub-agent.
struct Looks {
    run: Run,
    child: Run,
    seen: OnceLock<Option<TerminalReason>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.run.end(CAP);
        let _seen_before = self.seen.set(self.child.terminal_reason());
    }
}

#[test]
fn whoever_is_woken_by_one_end_may_bring_about_another() {
    let (run, other) = (Run::open(), Run::open());
    let child = run.child_asked(secs(1));
    let looks = Arc::new(Looks {
        child: other.child_asked(secs(1)),
        run: other,
        seen: OnceLock::new(),
    });
    let waker = Waker::from(Arc::clone(&looks));
    let mut ended = pin!(child.ended());
    let polled = ended.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());

    run.end(TerminalReason::Aborted);

    assert_eq!(looks.seen.get(), Some(&Some(CAP)), "asked by then");
}
