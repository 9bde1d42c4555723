//! When, and by whom, a writer is called.
//!
//! covers: T82

use std::{
    future::Future,
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
};

use tokio::time::advance;
use tower::{Layer, ServiceExt};
use tower_agent::{HardCeilingLayer, Run, RunRegistry, Scope, TerminalReason, Trajectory};

use super::{Paper, open};
use crate::support::{Script, Upstream, WakeCount, request, secs};

/// What does something for each line before that is written.
pub(super) struct Before<F>(pub(super) F, pub(super) Paper);

impl<F: FnMut()> Write for Before<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

/// Writes to the paper, and to the list whether a waker was woken by then.
fn watched(wakes: &Arc<WakeCount>, paper: &Paper) -> (Trajectory, Arc<Mutex<Vec<bool>>>) {
    let seen = Arc::<Mutex<Vec<bool>>>::default();
    let (wakes, list) = (Arc::clone(wakes), Arc::clone(&seen));
    let look = move || list.lock().unwrap().push(wakes.count() > 0);
    (Trajectory::new(Before(look, paper.clone())), seen)
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_run_is_woken_before_it_is_written() {
    let (wakes, paper) = (Arc::<WakeCount>::default(), Paper::default());
    let (trajectory, seen) = watched(&wakes, &paper);
    let run = Run::open();
    run.record_to(&trajectory);
    let mut ended = pin!(run.child().ended());
    assert!(wakes.poll(&mut ended).is_pending());

    run.end(TerminalReason::Stuck);

    assert_eq!(*seen.lock().unwrap(), [true]);
    assert_eq!(paper.lines().len(), 1, "by the time that it returns");
}

/// What panics when it is woken.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("woken");
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_is_written_though_who_waits_for_the_run_panics() {
    let paper = Paper::default();
    let run = Run::open();
    run.record_to(&paper.trajectory());
    let waker = Waker::from(Arc::new(Panics));
    let mut ended = pin!(run.ended());
    let polled = ended.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());

    let ending = catch_unwind(AssertUnwindSafe(|| run.end(TerminalReason::Stuck)));

    assert!(ending.is_err());
    assert_eq!(paper.lines().len(), 1);
}

/// Its run ends in between, by the same reason.
#[tokio::test(start_paused = true)]
async fn who_waits_for_the_one_call_of_a_run_is_woken_before_it_is_written() {
    let (wakes, paper) = (Arc::<WakeCount>::default(), Paper::default());
    let (trajectory, seen) = watched(&wakes, &paper);
    let registry = RunRegistry::new().trajectory(&trajectory);
    let calls = Arc::<Mutex<Option<Run>>>::default();
    let upstream = Upstream::script(Script::before_head().never());
    let service = tower::ServiceBuilder::new()
        .layer(tower_agent::RunLayer::new(registry.clone()))
        .map_request({
            let calls = Arc::clone(&calls);
            move |request: http::Request<()>| {
                *calls.lock().unwrap() = request.extensions().get::<Run>().cloned();
                request
            }
        })
        .service(upstream);
    let mut answer = pin!(service.oneshot(request()));
    let mut nobody = Context::from_waker(Waker::noop());
    assert!(answer.as_mut().poll(&mut nobody).is_pending());
    let call = calls.lock().unwrap().take().unwrap();
    let mut ended = pin!(call.ended());
    assert!(wakes.poll(&mut ended).is_pending());

    call.end(TerminalReason::HardCeiling);

    assert_eq!(
        call.run().terminal_reason(),
        Some(TerminalReason::HardCeiling)
    );
    assert_eq!(*seen.lock().unwrap(), [true]);
    assert_eq!(paper.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_writer_ends_is_written_next() {
    let paper = Paper::default();
    let registry = RunRegistry::new();
    let looking = registry.clone();
    // To look is to end what is due.
    let look = move || drop(looking.list());
    let trajectory = Trajectory::new(Before(look, paper.clone()));
    let registry = registry.trajectory(&trajectory);
    let (due, first) = (open(&registry, "due"), open(&registry, "first"));
    let limited = HardCeilingLayer::new(secs(60))
        .scope(Scope::Run)
        .layer(Upstream::script(Script::before_head().never()));
    let mut call = pin!(limited.oneshot(due.attach(request())));
    assert!(
        call.as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    advance(secs(60)).await;

    first.end(TerminalReason::Stuck);

    let told: Vec<_> = paper
        .lines()
        .iter()
        .map(|line| line["run"].clone())
        .collect();
    assert_eq!(told, ["first", "due"]);
}
