//! Random calls, tools and pauses of one run with a step window, against a reference that
//! counts in eighths of a second. Cases in which two things happen at once are left out.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use tokio::time::sleep_until;

use super::*;

const CASES: usize = 2_000;

#[derive(Clone, Debug)]
struct Plan {
    /// The window of the run, and that of its tools.
    window: u64,
    tool_window: Option<u64>,
    /// When the call starts, the gaps between its tokens, and whether it ends.
    call: (u64, Vec<u64>, bool),
    tools: Vec<ToolPlan>,
    /// When a pause begins, and how long it lasts.
    pause: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct ToolPlan {
    start: u64,
    /// How long it works; for ever if `None`.
    works: Option<u64>,
    window: Option<u64>,
}

/// The end of a tool: by itself, by its window, or with its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolEnd {
    Done,
    Cut(NodeKind),
}

/// When the run ended by its window, and how and when each tool that started did.
type Ends = (Option<u64>, Vec<Option<(u64, ToolEnd)>>);

/// The plans, in seconds that are given as eighths. Tools and pauses are off the full second.
fn plans() -> impl Strategy<Value = Plan> {
    let secs = |seconds: std::ops::Range<u64>| seconds.prop_map(|seconds| seconds * 8);
    let tool = (
        secs(0..9),
        prop::option::weighted(0.7, secs(1..13)),
        prop::option::weighted(0.4, secs(2..10)),
    );
    (
        secs(2..7),
        prop::option::weighted(0.2, secs(2..10)),
        (
            secs(0..9),
            prop::collection::vec(secs(1..6), 0..5),
            any::<bool>(),
        ),
        prop::collection::vec(tool, 0..4),
        prop::option::weighted(0.5, (secs(0..10), secs(1..10))),
    )
        .prop_map(|(window, tool_window, call, tools, pause)| Plan {
            window,
            tool_window,
            call,
            tools: (1..)
                .zip(tools)
                .map(|(offset, (start, works, window))| ToolPlan {
                    start: start + offset * 2,
                    works,
                    window,
                })
                .collect(),
            pause: pause.map(|(start, span)| (start + 1, span)),
        })
}

/// What must happen; `None` if two things happen at once.
fn expected(plan: &Plan) -> Option<Ends> {
    let (call_start, gaps, call_ends) = &plan.call;
    let tokens: Vec<u64> = gaps
        .iter()
        .scan(*call_start, |at, gap| {
            *at += gap;
            Some(*at)
        })
        .collect();
    let last_token = tokens.last().copied().unwrap_or(*call_start);
    let call_end = call_ends.then_some(last_token);
    let mut ends = vec![None; plan.tools.len()];
    // The counted silence of the call, and of each tool.
    let mut of_call = 0;
    let mut of_tools = vec![0; plan.tools.len()];
    for now in 0..8_000 {
        let own = |tool: &ToolPlan| tool.window.or(plan.tool_window);
        let is_live = |index: usize, ends: &[Option<_>]| {
            plan.tools[index].start < now && ends[index].is_none()
        };
        let call_waits = *call_start < now && call_end.is_none_or(|end| now <= end);
        let due_run = (call_waits && of_call >= plan.window)
            || (0..plan.tools.len()).any(|index| {
                is_live(index, &ends)
                    && own(&plan.tools[index]).is_none()
                    && of_tools[index] >= plan.window
            });
        let due_own: Vec<usize> = (0..plan.tools.len())
            .filter(|&index| is_live(index, &ends))
            .filter(|&index| own(&plan.tools[index]).is_some_and(|own| of_tools[index] >= own))
            .collect();
        let done: Vec<usize> = (0..plan.tools.len())
            .filter(|&index| is_live(index, &ends))
            .filter(|&index| {
                let tool = &plan.tools[index];
                tool.works.is_some_and(|works| tool.start + works == now)
            })
            .collect();
        let starts = plan.tools.iter().any(|tool| tool.start == now) || *call_start == now;
        let edge = plan
            .pause
            .is_some_and(|(from, span)| now == from || now == from + span);
        let told = tokens.contains(&now);
        let happenings = usize::from(due_run)
            + due_own.len()
            + done.len()
            + usize::from(starts)
            + usize::from(edge)
            + usize::from(told);
        if happenings > 1 {
            return None;
        }
        if due_run {
            for index in (0..plan.tools.len()).filter(|&index| plan.tools[index].start < now) {
                ends[index].get_or_insert((now, ToolEnd::Cut(NodeKind::Run)));
            }
            return Some((Some(now), ends));
        }
        for index in &done {
            ends[*index] = Some((now, ToolEnd::Done));
        }
        for index in &due_own {
            ends[*index] = Some((now, ToolEnd::Cut(NodeKind::Tool)));
        }
        let sign = told || call_end == Some(now) || !done.is_empty() || !due_own.is_empty();
        let starts_by = |tool: &ToolPlan| tool.start <= now;
        let live = |index: usize| starts_by(&plan.tools[index]) && ends[index].is_none();
        let paused = plan
            .pause
            .is_some_and(|(from, span)| (from..from + span).contains(&now));
        let stands =
            (0..plan.tools.len()).any(|index| live(index) && own(&plan.tools[index]).is_some());
        if sign {
            of_call = 0;
        }
        if *call_start <= now && call_end.is_none_or(|end| now < end) && !paused && !stands {
            of_call += 1;
        }
        for (index, counted) in of_tools.iter_mut().enumerate() {
            let has_own = own(&plan.tools[index]).is_some();
            if sign && !has_own {
                *counted = 0;
            }
            if live(index) && !paused && (has_own || !stands) {
                *counted += 1;
            }
        }
        let is_over = call_end.is_some_and(|end| end <= now) && ends.iter().all(Option::is_some);
        if is_over {
            return Some((None, ends));
        }
    }
    panic!("it never ends: {plan:?}");
}

const fn eighths(eighths: u64) -> Duration {
    Duration::from_millis(eighths * 125)
}

async fn play(plan: &Plan) -> Ends {
    let run = Run::open();
    let layer = StepTimeoutLayer::new(eighths(plan.window)).scope(Scope::Run);
    let stack = Stack::default().layer(Place::Step, layer);
    let first = stack.build(&Upstream::script(Script::sse().data(DONE)));
    first.ask(run.attach(request())).await;
    if let Some(window) = plan.tool_window {
        run.tool_window(eighths(window));
    }
    let start = Instant::now();
    let at = move |now: u64| start + eighths(now);
    let (call_start, gaps, call_ends) = plan.call.clone();
    let mut script = Script::sse();
    for gap in gaps {
        script = script.wait(eighths(gap).as_secs_f64()).data(chat("a"));
    }
    let script = if call_ends {
        script.data(DONE)
    } else {
        script.never()
    };
    let stack = stack.build(&Upstream::script(script));
    let call = tokio::spawn({
        let run = run.clone();
        async move {
            sleep_until(at(call_start)).await;
            stack.ask(run.attach(request())).await;
        }
    });
    let pause = plan.pause.map(|(from, span)| {
        let run = run.clone();
        tokio::spawn(async move {
            sleep_until(at(from)).await;
            let _pause = run.pause();
            sleep_until(at(from + span)).await;
        })
    });
    let tools = plan.tools.iter().cloned().map(|tool| {
        let run = run.clone();
        tokio::spawn(async move {
            sleep_until(at(tool.start)).await;
            run.terminal_reason().is_none().then_some(())?;
            let work = async {
                match tool.works {
                    Some(works) => sleep(eighths(works)).await,
                    None => pending().await,
                }
            };
            let named = run.tool("t");
            let named = match tool.window {
                Some(window) => named.window(eighths(window)),
                None => named,
            };
            let end = match named.watch(work).await {
                Ok(()) => ToolEnd::Done,
                Err(end) => ToolEnd::Cut(end.kind),
            };
            Some((start.elapsed().as_millis() as u64 / 125, end))
        })
    });
    let tools = futures_util::future::join_all(tools.collect::<Vec<_>>()).await;
    call.await.unwrap();
    if let Some(pause) = pause {
        pause.await.unwrap();
    }
    let end = run.terminated().map(|end| {
        assert_eq!(end.reason, TerminalReason::StepTimeout);
        (end.elapsed.as_millis() / 125) as u64
    });
    assert_eq!(run.in_flight(), 0);
    (end, tools.into_iter().map(|end| end.unwrap()).collect())
}

/// covers: A1, A11, A13
#[test]
fn random_stacks_of_tools_under_a_runs_window_end_as_the_reference() {
    let mut runner = TestRunner::deterministic();
    let (mut compared, mut cut, mut alone) = (0, 0, 0);
    for _ in 0..CASES {
        let plan = plans().new_tree(&mut runner).unwrap().current();
        let Some(expected) = expected(&plan) else {
            continue;
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let played = runtime.block_on(play(&plan));
        assert_eq!(played, expected, "{plan:#?}");
        compared += 1;
        cut += usize::from(expected.0.is_some());
        let by_window = |end: &Option<(u64, ToolEnd)>| {
            end.is_some_and(|(_, end)| end == ToolEnd::Cut(NodeKind::Tool))
        };
        alone += usize::from(expected.1.iter().any(by_window));
    }
    assert!(compared > CASES / 3, "{compared}");
    assert!(cut > 100 && cut < compared - 100, "{cut} of {compared}");
    assert!(alone > 100, "{alone}");
}
