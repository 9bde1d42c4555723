use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use futures_util::FutureExt as _;
use tokio::time::sleep;
use tower::{Layer as _, ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, Owner, OwnerCapLayer, OwnerCaps, Run, RunEvent, RunLayer, RunRegistry, Scope,
    TerminalReason,
};
use tracing_subscriber::layer::{Context as Spans, Layer, SubscriberExt};

use super::{ended, id, opened, us};
use crate::support::{DONE, LogCapture, ReadExt, Script, Upstream, request, secs};

const LIMIT: std::time::Duration = RunRegistry::WAIT;

/// Looks, when it is woken, whether a run is there.
struct Looking {
    registry: RunRegistry,
    found: AtomicBool,
}

impl Wake for Looking {
    fn wake(self: Arc<Self>) {
        let new = self.registry.get(us(), &id("new"));
        let lives = new.is_some_and(|new| new.terminal_reason().is_none());
        self.found.store(lives, Ordering::SeqCst);
    }
}

/// Acts once, while an event with this field is logged: that a limit was too short, before the end is
/// told, or a notice, before the notice is.
struct BeforeTheEvent(&'static str, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl BeforeTheEvent {
    fn new(field: &'static str, act: impl FnOnce() + Send + 'static) -> Self {
        Self(field, Mutex::new(Some(Box::new(act))))
    }
}

impl<S: tracing::Subscriber> Layer<S> for BeforeTheEvent {
    fn on_event(&self, event: &tracing::Event<'_>, _: Spans<'_, S>) {
        let fields = event.metadata().fields();
        if fields.field(self.0).is_some() {
            let act = self.1.lock().unwrap().take();
            act.into_iter().for_each(|act| act());
        }
    }
}

/// A run whose limit in shadow mode was too short: its end sends a notice first.
async fn limited() -> (RunRegistry, Run) {
    let registry = RunRegistry::new();
    let run = opened(&registry, us(), "r", "s").await;
    let slow = Upstream::script(Script::sse().wait(2.0).data(DONE));
    let ceiling = HardCeilingLayer::new(secs(1)).observe().scope(Scope::Run);
    let call = ceiling.layer(slow).oneshot(run.attach(request()));
    call.await.unwrap().into_body().read().await.whole();
    (registry, run)
}

/// Does `what`, and acts before it is told.
fn and(field: &'static str, act: impl FnOnce() + Send + 'static, what: impl FnOnce()) {
    // Others may listen meanwhile, who keep tracing from taking this for the only one.
    let _heard = LogCapture::start();
    let listening = tracing_subscriber::registry().with(BeforeTheEvent::new(field, act));
    let _listening = tracing::subscriber::set_default(listening);
    what();
}

/// Completes the run, and acts between the end and its events.
fn end_and(run: &Run, act: impl FnOnce() + Send + 'static) {
    and("took", act, || {
        run.end(TerminalReason::Completed);
    });
}

/// Another thread may end a run, or tell something of it, before the one that opened it tells that.
#[tokio::test(start_paused = true)]
async fn an_observer_hears_that_a_run_was_opened_before_all_else_and_once() {
    for (capped, ends) in [(false, true), (false, false), (true, true), (true, false)] {
        let registry = RunRegistry::new();
        let caps = OwnerCaps::new().max_open_runs(1);
        let slow = Upstream::script(Script::sse().data(DONE));
        let stack = ServiceBuilder::new()
            .layer(RunLayer::new(registry.clone()).owner_by(|_| us()))
            .layer(OwnerCapLayer::optional(
                registry.clone(),
                capped.then_some(caps),
            ))
            .service(slow);
        let mut events = registry.subscribe();
        let mut asked = request();
        asked
            .headers_mut()
            .insert("x-run-id", http::HeaderValue::from_static("r"));
        let (other, mut call) = (registry.clone(), None);

        let act = move || {
            let run = other.get(us(), &id("r")).unwrap();
            match ends {
                true => drop(run.end(TerminalReason::Aborted)),
                false => (0..5).for_each(|_| run.heartbeat_at(1, "round")),
            }
        };
        and("notice", act, || {
            call = Some(stack.oneshot(asked).now_or_never())
        });

        drop(call);
        registry.abort(us(), &id("r"));
        let told: &[_] = match ends {
            true => &["opened", "aborted"],
            false => &["opened", "looks_stuck", "aborted"],
        };
        let mut heard = Vec::new();
        while let Some(event) = events.next().now_or_never().flatten() {
            let event = serde_json::to_value(event).unwrap();
            let what = event["notice"]["kind"]
                .as_str()
                .or(event["reason"].as_str());
            heard.push(what.unwrap().to_owned());
            assert_eq!(event["sequence"], heard.len());
        }
        assert_eq!(heard, told, "{capped}");
    }
}

/// covers: B6
#[tokio::test(start_paused = true)]
async fn who_comes_between_an_end_and_its_event_is_told_the_numbers_of_all() {
    let (registry, run) = limited().await;
    let mut events = registry.subscribe();
    let (late, before) = (Arc::new(Mutex::new(None)), run.clone());
    let slot = Arc::clone(&late);

    end_and(&run, move || {
        *slot.lock().unwrap() = Some(before.subscribe())
    });

    let mut late = late.lock().unwrap().take().unwrap();
    for _ in 0..2 {
        let event = serde_json::to_value(events.next().await.unwrap()).unwrap();
        assert_eq!(
            serde_json::to_value(late.next().await.unwrap()).unwrap(),
            event
        );
    }
    assert!(late.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_end_is_told_though_its_id_was_opened_anew_before_that() {
    let (registry, first) = limited().await;
    let mut events = registry.subscribe();
    let again = registry.clone();

    end_and(&first, move || drop(again.reopen(us(), &id("r")).unwrap()));

    // Of the new run, and of the limit.
    for _ in 0..2 {
        assert!(matches!(events.next().await, Some(RunEvent::Notice { .. })));
    }
    let Some(RunEvent::Ended { snapshot, .. }) = events.next().await else {
        panic!("the first one's end is lost")
    };
    assert_eq!(snapshot.generation, 1);
    let session = registry.find_session("s");
    assert_eq!(session.len(), 1);
    assert_eq!(session[0].snapshot().generation, 2);
    assert_eq!(registry.abort_session(us(), "s"), [id("r")]);
}

#[tokio::test(start_paused = true)]
async fn the_new_run_is_there_before_anybody_hears_of_the_old_ones_end() {
    let registry = RunRegistry::new();
    let old = registry.open(us(), id("old"));
    let looking = Arc::new(Looking {
        registry: registry.clone(),
        found: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&looking));
    let mut ended = old.ended();
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut ended).poll(&mut cx).is_pending());

    let new = registry.supersede(us(), &id("old"), id("new")).unwrap();

    assert_eq!(old.terminal_reason(), Some(TerminalReason::Superseded));
    assert_eq!(new.terminal_reason(), None);
    assert!(looking.found.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_takes_anothers_place_is_of_its_session() {
    let registry = RunRegistry::new();
    opened(&registry, us(), "old", "s").await;

    registry.supersede(us(), &id("old"), id("new")).unwrap();

    assert_eq!(registry.abort_session(us(), "s"), [id("new")]);
}

#[tokio::test(start_paused = true)]
async fn an_old_run_that_is_unknown_or_over_is_in_nobodys_way() {
    let registry = RunRegistry::new();
    let over = registry.open(us(), id("over"));
    over.end(TerminalReason::TurnCap);
    for (old, new) in [("unknown", "a"), ("over", "b")] {
        let new = registry.supersede(us(), &id(old), id(new)).unwrap();
        assert_eq!(new.terminal_reason(), None);
    }
    assert!(over.terminated().unwrap().also.is_empty(), "not touched");
    assert!(registry.get(us(), &id("unknown")).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_new_id_that_is_taken_touches_nothing() {
    let registry = RunRegistry::new();
    let old = registry.open(us(), id("old"));
    let _live = registry.open(us(), id("live"));
    registry.open(us(), id("over")).end(TerminalReason::TurnCap);
    registry
        .open(us(), id("done"))
        .end(TerminalReason::Completed);

    for taken in ["old", "live", "over"] {
        assert!(registry.supersede(us(), &id("old"), id(taken)).is_none());
    }
    let theirs = Owner::of(b"key");
    assert!(registry.supersede(theirs, &id("old"), id("new")).is_some());

    assert_eq!(old.terminal_reason(), None);
    assert!(registry.supersede(us(), &id("old"), id("done")).is_some());
}

#[tokio::test(start_paused = true)]
async fn only_an_id_that_has_ended_is_reopened_and_in_its_session() {
    let registry = RunRegistry::new();
    assert!(registry.reopen(us(), &id("r")).is_none(), "unknown");
    opened(&registry, us(), "r", "s").await;
    assert!(registry.reopen(us(), &id("r")).is_none(), "it lives");
    registry.abort(us(), &id("r"));
    assert!(registry.reopen(Owner::of(b"key"), &id("r")).is_none());

    let again = registry.reopen(us(), &id("r")).unwrap();

    assert_eq!(again.terminal_reason(), None);
    assert_eq!(again.session().as_deref(), Some("s"));
    assert_eq!(registry.abort_session(us(), "s"), [id("r")]);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_opened_anew_is_the_next_generation() {
    let registry = RunRegistry::new();
    let first = registry.open(us(), id("r"));
    first.end(TerminalReason::Completed);
    let second = registry.open(us(), id("r"));
    second.end(TerminalReason::TurnCap);
    let third = registry.reopen(us(), &id("r")).unwrap();

    let runs = [first, second, third];
    assert_eq!(runs.map(|run| run.snapshot().generation), [1, 2, 3]);
    let other = registry.open(us(), id("other"));
    assert_eq!(other.snapshot().generation, 1);
}

/// covers: C6
#[tokio::test(start_paused = true)]
async fn who_knows_the_former_run_of_an_id_never_touches_the_next() {
    let registry = RunRegistry::new();
    let mut events = registry.subscribe();
    let first = registry.open(us(), id("r"));
    let waiting = tokio::spawn(registry.wait(us(), &id("r"), LIMIT));
    tokio::task::yield_now().await;
    first.end(TerminalReason::Aborted);
    let second = registry.reopen(us(), &id("r")).unwrap();

    let (_, waited) = ended(waiting.await.unwrap());
    assert_eq!(waited.generation, 1, "one answer, of the run it waited for");
    assert!(!first.end(TerminalReason::Shutdown));
    // What was remembered of the first is due, the second is busy.
    let _busy = second.attach(crate::support::request());
    sleep(RunRegistry::REMEMBERED * 2).await;

    assert_eq!(second.terminal_reason(), None);
    let known = registry.get(us(), &id("r")).unwrap();
    assert_eq!(known.snapshot().generation, 2);
    second.end(TerminalReason::TurnCap);
    drop(registry);
    let mut ends = Vec::new();
    while let Some(event) = events.next().await {
        if let RunEvent::Ended { snapshot, .. } = event {
            ends.push((snapshot.generation, snapshot.reason.clone()));
        }
    }
    let [first, second] = [TerminalReason::Aborted, TerminalReason::TurnCap];
    assert_eq!(ends, [(1, Some(first)), (2, Some(second))]);
}
