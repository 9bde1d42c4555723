//! Plays a plan.

use std::{
    future::Future,
    sync::{Arc, Mutex, mpsc},
    task::Waker,
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;
use tower_agent::{BoxError, NodeKind, ReplayBody, RetryBudget, Run, RunRegistry, TerminalReason};

use crate::run::gap;
use crate::tests::stacks::{
    build::{self, Boxed, model, stack},
    outside,
    plan::{Action, Announced, PATIENCE, Plan},
    script,
    trace::{Entry, Event, Node, Over, Story, Trace, Turn},
};

pub(crate) const HALF: Duration = Duration::from_millis(500);
pub(crate) const QUARTER: Duration = Duration::from_millis(250);

/// The longest that any reader waits for a frame.
pub(crate) const FOR_EVER: Duration = Duration::from_millis(PATIENCE * 1000 + 250);

pub(crate) const fn ticks(ticks: u64) -> Duration {
    Duration::from_secs(ticks)
}

/// One request, by a reader of the plan, and those that follow.
pub(crate) fn run(plan: &Plan) -> Story {
    let reader = Reader::default();
    let mut play = Box::pin(play(plan, &reader));
    runtime().block_on(std::future::poll_fn(|cx| {
        reader.0.lock().unwrap().clone_from(cx.waker());
        play.as_mut().poll(cx)
    }))
}

/// Two requests of one run that a program opened, in one task. Their readers wait for long,
/// unless the plan's reader leaves: then the first of them does.
pub(crate) fn two(plan: &Plan) -> Story {
    runtime().block_on(async {
        let trace = Trace::new();
        let registry = RunRegistry::new();
        let budget = build::budget(plan);
        let service = stack(plan, &trace, &registry, &budget);
        let run = Run::open();
        trace.know(run.clone());
        let patience = first_patience(plan);
        let asked = || {
            let mut request = request(plan);
            request.extensions_mut().insert(run.clone());
            request
        };
        let first = read_all(&trace, &service, asked(), patience);
        let second = read_all(&trace, &service, asked(), FOR_EVER);
        let ends = async {
            if let Some((at, _)) = plan.action {
                sleep(ticks(at) + HALF).await;
                trace.push(Event::Acted("end"));
                run.end(TerminalReason::Shutdown);
                trace.push(Event::Spread);
            }
        };
        futures_util::join!(first, second, ends);
        settle(plan, &trace).await;
        trace.push(Event::Gone(run.in_flight(), 0, alive_tasks(plan)));
        Story {
            entries: trace.take(),
            given: vec![],
            said: trace.all_said(),
            left: left(&budget),
            known: true,
            observed: false,
            summaries: trace.take_summaries(),
            turns: vec![],
            elsewhere: vec![],
        }
    })
}

/// How long the first of several readers waits for its answer.
pub(crate) fn first_patience(plan: &Plan) -> Duration {
    let leaves = plan.reader.leaves.map(|leave| leave.patience.unwrap_or(0));
    leaves.map_or(FOR_EVER, |patience| ticks(patience) + QUARTER)
}

/// A request of the run, and all that its reader gets.
pub(crate) async fn read_all(
    trace: &Trace,
    service: &Boxed,
    request: Request<ReplayBody>,
    patience: Duration,
) {
    let reads = timeout(patience, async {
        let answer = match service.clone().oneshot(request).await {
            Ok(answer) => answer,
            Err(error) => return trace.push(Event::Over(over(&error))),
        };
        trace.push(Event::Head(answer.status().as_u16(), None, None));
        let mut body = answer.into_body();
        loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap();
                    let text = String::from_utf8(data.to_vec()).unwrap();
                    trace.push(Event::Got(text));
                }
                Some(Err(error)) => return trace.push(Event::Over(over(&error))),
                None => return trace.push(Event::Over(Over::Whole)),
            }
        }
    });
    if reads.await.is_err() {
        trace.push(Event::Left);
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    // The waits before repeats are drawn from it.
    fastrand::seed(0);
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// The task of the reader.
#[derive(Clone)]
struct Reader(Arc<Mutex<Waker>>);

impl Default for Reader {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Waker::noop().clone())))
    }
}

impl Reader {
    /// A task may be polled at any time.
    fn poll_again(&self) {
        self.0.lock().unwrap().wake_by_ref();
    }
}

/// Another thread, which has stored an end, and spreads it once this is dropped. This
/// thread stands still until that one does, so that a seed replays.
struct Storing {
    goes_on: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Storing {
    fn new(node: Run, reason: TerminalReason) -> Self {
        let (goes_on, waits) = mpsc::channel();
        let (stands, is_standing) = mpsc::channel::<()>();
        let runtime = tokio::runtime::Handle::current();
        let thread = thread::spawn(move || {
            let _clock = runtime.enter();
            gap::act_in_next(move || {
                drop(stands);
                let _ = waits.recv();
            });
            node.end(reason);
        });
        // Closed once the end is stored, or nothing was to be ended.
        let _ = is_standing.recv();
        Self {
            goes_on: Some(goes_on),
            thread: Some(thread),
        }
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        self.goes_on = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

async fn play(plan: &Plan, reader: &Reader) -> Story {
    let trace = Trace::new();
    let registry = RunRegistry::new();
    let budget = build::budget(plan);
    let service = stack(plan, &trace, &registry, &budget);
    let mut outsiders = Vec::new();
    // The service is called at the first poll; then its node is known.
    let mut call = Box::pin(service.clone().oneshot(request(plan)));
    trace.push(Event::Asked);
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx))).await;
    if !plan.between.is_empty() {
        // The call may begin in another task.
        settle_at_once().await;
    }
    let observed = trace.call().is_some();
    if let Some(call) = trace.call() {
        for (node, run) in [(Node::Run, call.run()), (Node::Call, call.clone())] {
            let trace = trace.clone();
            outsiders.push(tokio::spawn(async move {
                let reason = run.ended().await;
                trace.push(Event::Noticed(node, reason));
            }));
        }
        if let Some((from, span)) = plan.pause {
            let call = call.clone();
            outsiders.push(tokio::spawn(async move {
                sleep(ticks(from) + HALF).await;
                let _pause = call.pause();
                sleep(ticks(span)).await;
            }));
        }
        if let Some(tool) = plan.tool {
            let work = outside::work(tool, trace.clone(), call.clone());
            outsiders.push(tokio::spawn(work));
        }
        if let Some(check) = plan.check {
            let ask = outside::ask(check, trace.clone(), call.clone());
            outsiders.push(tokio::spawn(ask));
        }
        if let Some((at, action)) = plan.action {
            let (trace, gap, reader) = (trace.clone(), plan.gap, reader.clone());
            outsiders.push(tokio::spawn(async move {
                sleep(ticks(at) + HALF).await;
                trace.push(Event::Acted("end"));
                let latest = trace.latest();
                let attempt = latest.filter(|node| node.kind() == NodeKind::Attempt);
                let end = match (action, attempt) {
                    (Action::Shutdown, _) => Some((call.run(), TerminalReason::Shutdown)),
                    (Action::Abort, _) => Some((call, TerminalReason::Aborted)),
                    (Action::Attempt, attempt) => attempt.zip(Some(TerminalReason::Aborted)),
                };
                if let Some((node, reason)) = end {
                    let storing = Storing::new(node, reason);
                    trace.push(Event::Stored);
                    for _ in 0..gap {
                        reader.poll_again();
                        sleep(QUARTER).await;
                    }
                    reader.poll_again();
                    settle_at_once().await;
                    drop(storing);
                }
                trace.push(Event::Spread);
            }));
        }
    }
    let answer = match first {
        std::task::Poll::Ready(answer) => Some(answer),
        std::task::Poll::Pending => {
            let leaves = plan
                .reader
                .leaves
                .filter(|leave| leave.after_frames.is_none());
            let patience = leaves.map(|leave| {
                leave
                    .patience
                    .map_or(Duration::ZERO, |p| ticks(p) + QUARTER)
            });
            match patience.unwrap_or(FOR_EVER) {
                Duration::ZERO => None,
                patience => timeout(patience, call.as_mut()).await.ok(),
            }
        }
    };
    match answer {
        None => {
            trace.push(Event::Left);
            drop(call);
        }
        Some(Err(error)) => trace.push(Event::Over(over(&error))),
        Some(Ok(answer)) => {
            let text = |name| Some(answer.headers().get(name)?.to_str().unwrap());
            trace.push(Event::Head(
                answer.status().as_u16(),
                text("x-served-model").map(str::to_owned),
                text("x-attempt").map(|number| number.parse().unwrap()),
            ));
            read(plan, &trace, answer.into_body()).await;
        }
    }
    settle(plan, &trace).await;
    let in_flight = trace.call().map_or(0, |call| call.run().in_flight());
    // Whoever lists the runs ends those whose deadline has passed.
    let listed = registry.list().iter().map(|run| run.in_flight).sum();
    settle_at_once().await;
    // Outsiders of a run that lives on.
    for outsider in &outsiders {
        outsider.abort();
    }
    for outsider in outsiders {
        drop(outsider.await);
    }
    trace.push(Event::Gone(in_flight, listed, alive_tasks(plan)));
    let mut story = Story {
        entries: trace.take(),
        given: (0..trace.calls())
            .map(|call| script::all(plan, call))
            .collect(),
        said: trace.all_said(),
        left: left(&budget),
        known: trace.call().is_some(),
        observed,
        summaries: trace.take_summaries(),
        turns: vec![],
        elsewhere: vec![],
    };
    // A reader who left at once may have reached no layer that knows the run.
    let named = registry.find(&"r".parse().unwrap());
    let run = named.first().filter(|_| plan.outlives());
    for _ in 0..plan.again {
        let Some(run) = run else {
            break;
        };
        story.turns.push(again(plan, &trace, &service, run).await);
    }
    story
}

pub(crate) fn request(plan: &Plan) -> Request<ReplayBody> {
    let body = script::ask(plan, &model(plan.model));
    let mut request = Request::post("/v1/chat/completions");
    if plan.named {
        request = request.header("x-run-id", "r");
    }
    request = match plan.announces {
        Some(Announced::Whole(ticks)) => request.header("grpc-timeout", format!("{ticks}S")),
        Some(Announced::Head(ticks)) => request.header("x-stainless-timeout", ticks),
        Some(Announced::Silence(ticks)) => request.header("x-stainless-read-timeout", ticks),
        None => request,
    };
    request.body(body.into()).unwrap()
}

pub(crate) async fn settle_at_once() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Whatever goes on without its reader has the time for it.
pub(crate) async fn settle(plan: &Plan, trace: &Trace) {
    settle_at_once().await;
    if plan.drains() > 0 {
        sleep(ticks(plan.drains())).await;
        settle_at_once().await;
    }
    while trace.is_spreading() {
        sleep(QUARTER).await;
        settle_at_once().await;
    }
}

/// One more request of the run, by a reader who waits for long and reads on.
async fn again(plan: &Plan, trace: &Trace, service: &Boxed, run: &Run) -> Turn {
    let before = run.terminal_reason();
    let patience = FOR_EVER;
    let answer = timeout(patience, service.clone().oneshot(request(plan))).await;
    if let Ok(Ok(answer)) = answer {
        let read = answer.into_body().collect();
        drop(timeout(patience, read).await);
    }
    settle(plan, trace).await;
    let entries = trace.take();
    let called = |entry: &&Entry| matches!(entry.event, Event::Called(..));
    Turn {
        run: [before, run.terminal_reason()],
        calls: entries.iter().filter(called).count(),
        left: (run.in_flight(), alive_tasks(plan)),
    }
}

/// How many tasks live that are not the stack's own.
fn alive_tasks(plan: &Plan) -> usize {
    let metrics = tokio::runtime::Handle::current().metrics();
    metrics.num_alive_tasks() - plan.workers()
}

/// How many repeats there are yet, for a request that names no candidate and
/// for each candidate.
fn left(budget: &RetryBudget) -> Vec<(Option<String>, usize)> {
    let names = std::iter::once(None).chain((0..4).map(|index| Some(model(index))));
    let left = names.map(|name| {
        let grants = std::iter::from_fn(|| budget.withdraw(name.as_deref()));
        let grants: Vec<_> = grants.take(1_000).collect();
        (name, grants.len())
    });
    left.collect()
}

async fn read<B>(plan: &Plan, trace: &Trace, mut body: B)
where
    B: http_body::Body<Data = Bytes, Error = BoxError> + Unpin,
{
    let leaves = plan.reader.leaves;
    for frames in 0.. {
        let leaves = leaves.filter(|leave| leave.after_frames == Some(frames));
        if leaves.is_some_and(|leave| leave.patience.is_none()) {
            return leave(trace, body);
        }
        let away = plan.reader.away.get(frames).copied().unwrap_or(0);
        if away > 0 {
            sleep(ticks(away)).await;
        }
        let patience = leaves.and_then(|leave| leave.patience);
        let patience = patience.map_or(FOR_EVER, |patience| ticks(patience) + QUARTER);
        let Ok(frame) = timeout(patience, next(trace, &mut body)).await else {
            return leave(trace, body);
        };
        match frame {
            None => return trace.push(Event::Over(Over::Whole)),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap();
                let text = String::from_utf8(data.to_vec()).unwrap();
                for piece in script::pieces(&text) {
                    trace.push(Event::Got(piece));
                }
            }
            Some(Err(error)) => {
                trace.push(Event::Over(over(&error)));
                if body.frame().await.is_some() {
                    trace.push(Event::Unfused);
                }
                return;
            }
        }
    }
}

/// The next frame that the upstream gave, past all that was inserted.
async fn next<B>(trace: &Trace, body: &mut B) -> Option<Result<Frame<Bytes>, BoxError>>
where
    B: http_body::Body<Data = Bytes, Error = BoxError> + Unpin,
{
    loop {
        trace.push(Event::Asked);
        let frame = body.frame().await;
        let data = match &frame {
            Some(Ok(frame)) => frame.data_ref(),
            _ => None,
        };
        let text = data.map(|data| String::from_utf8(data.to_vec()).unwrap());
        let pieces = text.map(|text| script::pieces(&text)).unwrap_or_default();
        if pieces.is_empty() || pieces.iter().any(|piece| !script::is_inserted(piece)) {
            return frame;
        }
        for piece in pieces {
            trace.push(Event::Got(piece));
        }
    }
}

fn leave<B>(trace: &Trace, body: B) {
    trace.push(Event::Left);
    drop(body);
}

fn over(error: &BoxError) -> Over {
    match TerminalReason::find(&**error) {
        Some(reason) => Over::Reason(reason.clone()),
        None => Over::Error(error.to_string()),
    }
}
