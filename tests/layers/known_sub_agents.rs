//! Sub-agents that are known by their headers, and the end of the run that they belong to.
//!
//! covers: H17

use std::{sync::Barrier, thread};

use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http_body_util::Full;
use tokio::time::{advance, sleep};
use tower_agent::{
    Owner, OwnerCapLayer, OwnerCaps, Run, RunEvent, RunId, RunRegistry, StopPhraseLayer,
    TerminalReason, TurnCapLayer,
    layers::run::{KnownAgents, RequestRun},
    registry::AbortOutcome,
};

use crate::support::{
    LogCapture, Outcome, Place, Script, Stack, StackService, Upstream, poll_once, request, secs,
    with_header,
};

const ABORTED: TerminalReason = TerminalReason::Aborted;
const CAPPED: TerminalReason = TerminalReason::TurnCap;
const COMPLETED: TerminalReason = TerminalReason::Completed;

/// A server whose callers are agents in a session.
struct Team {
    service: StackService,
    registry: RunRegistry,
    upstream: Upstream,
}

/// What an agent sends: the names of itself and of its parent, and what the user said.
#[derive(Clone, Copy, Debug, Default)]
struct Asks<'a> {
    key: &'a str,
    agent: Option<&'a str>,
    parent: Option<&'a str>,
    words: &'a str,
}

fn main_agent(words: &str) -> Asks<'_> {
    Asks {
        words,
        ..Asks::default()
    }
}

fn sub_agent(agent: &str) -> Asks<'_> {
    Asks {
        agent: Some(agent),
        ..main_agent("part")
    }
}

fn below<'a>(agent: &'a str, parent: &'a str) -> Asks<'a> {
    Asks {
        parent: Some(parent),
        ..sub_agent(agent)
    }
}

impl Asks<'_> {
    fn request(self) -> Request<Full<Bytes>> {
        let said = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
            self.words
        );
        let mut request = Request::post("/v1/chat/completions");
        for (name, value) in [
            ("authorization", Some(self.key)),
            ("x-claude-code-session-id", Some("s-1")),
            ("x-claude-code-agent-id", self.agent),
            ("x-claude-code-parent-agent-id", self.parent),
        ] {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                request = request.header(name, value);
            }
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let run = KnownAgents::new().run_of(&parts, said.as_bytes());
        parts.extensions.insert(run.unwrap());
        Request::from_parts(parts, Full::from(said))
    }
}

impl Team {
    fn new(configure: impl FnOnce(Stack, &RunRegistry) -> Stack) -> Self {
        let registry = RunRegistry::new();
        let upstream = Upstream::script(Script::json().data("{}"));
        let stack = configure(Stack::default().terminal().run(&registry), &registry);
        Self {
            service: stack.build(&upstream),
            registry,
            upstream,
        }
    }

    fn plain() -> Self {
        Self::new(|stack, _| stack)
    }

    async fn ask(&self, asks: Asks<'_>) -> Outcome {
        self.service.ask(asks.request()).await
    }

    /// The run of a request that is served.
    async fn served(&self, asks: Asks<'_>) -> Run {
        let outcome = self.ask(asks).await;
        assert_eq!(outcome.status, 200, "{asks:?}");
        self.run(asks)
    }

    fn run(&self, asks: Asks<'_>) -> Run {
        let owner = match asks.key {
            "" => Owner::anonymous(),
            key => Owner::of(key.as_bytes()),
        };
        let request = asks.request();
        let id = request.extensions().get::<RequestRun>().unwrap().id();
        self.registry.get(owner, id).unwrap()
    }

    /// Holds that a sub-agent is refused for this reason, and that its run tells the same.
    async fn refused(&self, asks: Asks<'_>, reason: &TerminalReason) {
        let calls = self.upstream.calls();
        let outcome = self.ask(asks).await;
        let told = outcome.headers["x-terminal-reason"].to_str().unwrap();
        assert_eq!(told, reason.as_str(), "{asks:?}");
        assert_eq!(self.run(asks).terminal_reason().as_ref(), Some(reason));
        assert_eq!(self.upstream.calls(), calls, "an upstream was asked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_sub_agent_ends_with_the_reason_of_its_parent() {
    let timeout = TerminalReason::HardCeiling;
    for reason in [ABORTED, CAPPED, TerminalReason::TokenCap, timeout] {
        let team = Team::plain();
        let main = team.served(main_agent("one")).await;
        let child = team.served(sub_agent("a")).await;
        main.end(reason.clone());
        for asks in [
            sub_agent("a"),
            sub_agent("b"),
            below("c", "a"),
            below("d", "c"),
            sub_agent("b"),
        ] {
            team.refused(asks, &reason).await;
        }
        assert_eq!(child.terminal_reason(), Some(reason));
        let late = team.run(below("d", "c"));
        // Its own parent never began, so it is told of the main agent's run.
        assert_eq!(late.snapshot().parent, Some(main.id()));
        // The user's next message begins a run that may have sub-agents.
        let next = team.served(main_agent("two")).await;
        let child = team.served(sub_agent("e")).await;
        assert_eq!(child.snapshot().parent, Some(next.id()));
    }
}

#[tokio::test(start_paused = true)]
async fn only_an_unknown_or_a_completed_parent_gives_a_run_of_its_own() {
    let team = Team::plain();
    let orphan = team.served(sub_agent("a")).await;
    assert_eq!(orphan.snapshot().parent, None);
    let main = team.served(main_agent("one")).await;
    main.end(COMPLETED);
    let late = team.served(sub_agent("b")).await;
    assert_eq!(late.snapshot().parent, None);
}

/// A caller that names a parent of which nobody has heard does not get rid of the main agent.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_of_an_unknown_one_belongs_to_the_main_agent() {
    let team = Team::plain();
    let main = team.served(main_agent("one")).await;
    let child = team.served(below("a", "unheard-of")).await;
    assert_eq!(child.snapshot().parent, Some(main.id()));
    team.run(sub_agent("a")).end(COMPLETED);
    let child = team.served(below("b", "a")).await;
    assert_eq!(child.snapshot().parent, Some(main.id()));

    main.end(CAPPED);

    team.refused(below("c", "unheard-of"), &CAPPED).await;
    team.refused(below("d", "a"), &CAPPED).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_sub_agent_ends_its_own_sub_agents_alone() {
    let team = Team::plain();
    let main = team.served(main_agent("one")).await;
    let child = team.served(sub_agent("a")).await;
    assert_eq!(
        team.registry.abort(Owner::anonymous(), &child.id()),
        AbortOutcome::Ended
    );

    team.refused(below("b", "a"), &ABORTED).await;

    team.served(sub_agent("c")).await;
    assert_eq!(main.terminal_reason(), None);
}

/// A session of the same name is another owner's own.
#[tokio::test(start_paused = true)]
async fn the_sub_agents_of_another_owner_go_on() {
    let team = Team::plain();
    let [ours, theirs] = ["one", "two"];
    let of = |key, asks: Asks<'static>| Asks { key, ..asks };
    for key in [ours, theirs] {
        team.served(of(key, main_agent("hi"))).await;
    }
    let owner = Owner::of(ours.as_bytes());
    assert_eq!(team.registry.abort_session(owner, "s-1").len(), 1);

    team.refused(of(ours, sub_agent("a")), &ABORTED).await;

    let other = team.served(of(theirs, sub_agent("a"))).await;
    let main = team.run(of(theirs, main_agent("hi")));
    assert_eq!(other.snapshot().parent, Some(main.id()));
}

/// The end is known for as long as its tombstone, which each later sub-agent keeps.
#[tokio::test(start_paused = true)]
async fn an_end_is_known_until_its_tombstone_is_forgotten() {
    let team = Team::plain();
    team.served(main_agent("one")).await.end(ABORTED);
    for late in ["a", "b", "c"] {
        advance(RunRegistry::REMEMBERED - secs(1)).await;
        team.refused(sub_agent(late), &ABORTED).await;
    }

    advance(RunRegistry::REMEMBERED).await;

    let orphan = team.served(sub_agent("d")).await;
    assert_eq!(orphan.snapshot().parent, None);
}

/// Sub-agents that come late cost their caller nothing, so they push out no other run.
#[tokio::test(start_paused = true)]
async fn a_flood_of_late_sub_agents_forgets_no_other_end() {
    let team = Team::plain();
    let other = team
        .registry
        .open(Owner::anonymous(), "other".parse().unwrap());
    other.end(ABORTED);
    team.served(main_agent("one")).await.end(CAPPED);
    for number in 0..RunRegistry::ENDED + 10 {
        let name = format!("a-{number}");
        let outcome = team.ask(sub_agent(&name)).await;
        assert_eq!(outcome.status, 422);
    }
    let known = |id: &RunId| team.registry.get(Owner::anonymous(), id);
    assert!(known(&other.id()).is_some());
    // Also those that were pushed out are refused again.
    team.refused(sub_agent("a-0"), &CAPPED).await;
    team.refused(below("b", "a-1"), &CAPPED).await;
}

/// What is no turn of the user does not hide the turn that was ended.
#[tokio::test(start_paused = true)]
async fn a_refused_request_of_the_main_agent_is_no_turn() {
    let team = Team::new(|stack, _| stack.candidates(["m"]));
    team.served(main_agent("one")).await.end(ABORTED);
    let mut broken = main_agent("two").request();
    *broken.body_mut() = Full::from("{\"model\":");
    assert_eq!(team.service.ask(broken).await.status, 400);

    team.refused(sub_agent("a"), &ABORTED).await;
}

#[tokio::test(start_paused = true)]
async fn a_word_to_stop_is_no_turn() {
    let caps = OwnerCaps::new().max_open_runs(9);
    for caps in [None, Some(caps)] {
        let team = Team::new(|stack, registry| {
            let stop = StopPhraseLayer::new(registry.clone(), ["/stop"]);
            let stack = stack.layer(Place::StopPhrase, stop);
            match caps {
                Some(caps) => {
                    stack.layer(Place::OwnerCap, OwnerCapLayer::new(registry.clone(), caps))
                }
                None => stack,
            }
        });
        let main = team.served(main_agent("one")).await;
        for _ in 0..2 {
            let told = team.ask(main_agent("/stop")).await;
            assert_eq!(told.status, 200);
        }
        assert_eq!(main.terminal_reason(), Some(ABORTED));

        team.refused(sub_agent("a"), &ABORTED).await;

        team.served(main_agent("two")).await;
        team.served(sub_agent("b")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_a_cap_of_its_owner_refused_is_none() {
    let caps = OwnerCaps::new().max_open_runs(1);
    let team = Team::new(|stack, registry| {
        stack.layer(Place::OwnerCap, OwnerCapLayer::new(registry.clone(), caps))
    });
    team.served(main_agent("one")).await.end(ABORTED);
    let other = with_header(main_agent("other").request(), "x-run-id", "elsewhere");
    assert_eq!(team.service.ask(other).await.status, 200);
    assert_eq!(team.ask(main_agent("two")).await.status, 422);

    // It counts for nothing: neither as a run, nor as one that was refused.
    team.refused(sub_agent("a"), &ABORTED).await;
}

/// What is under way goes on, but no sub-agent begins.
#[tokio::test(start_paused = true)]
async fn a_closing_parent_has_no_new_sub_agent() {
    let team = Team::new(|stack, _| {
        let held_open = TurnCapLayer::new(1).final_call(secs(60));
        stack.layer(Place::TurnCap, held_open)
    });
    let main = team.served(main_agent("one")).await;
    assert_eq!(team.ask(main_agent("one")).await.status, 422);
    assert_eq!(main.terminal_reason(), None, "it may make a last call");

    team.refused(sub_agent("a"), &CAPPED).await;
    team.refused(below("b", "a"), &CAPPED).await;

    assert_eq!(main.terminal_reason(), None, "nor does that end it");
    assert!(main.final_call(request()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_drain_has_no_new_sub_agent() {
    let team = Team::plain();
    let main = team.served(main_agent("one")).await;
    let mut tool = Box::pin(main.tool("t").call(sleep(secs(5)).map(Ok::<_, &str>)));
    assert!(poll_once(&mut tool).is_pending());
    let drain = team.registry.drain(secs(60));

    let refused = team.ask(sub_agent("a")).await;

    assert_eq!(refused.headers["x-terminal-reason"], "shutdown");
    assert_eq!(main.terminal_reason(), None);
    tool.await.unwrap();
    assert_eq!(drain.await, 0);
}

/// One event of each kind, and one line of the log, with the id that the sub-agent has.
#[tokio::test(start_paused = true)]
async fn a_late_sub_agent_is_told_of_by_its_own_id() {
    let log = LogCapture::start();
    let team = Team::plain();
    team.served(main_agent("one")).await.end(CAPPED);
    let mut events = team.registry.subscribe();

    team.refused(sub_agent("a"), &CAPPED).await;

    let id = team.run(sub_agent("a")).id();
    let mut told = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        match event {
            RunEvent::Notice { run, .. } => told.push(("opened", run)),
            RunEvent::Ended { run, .. } => told.push(("ended", run)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, [("opened", id.clone()), ("ended", id.clone())]);
    let logged = |name: &str| {
        let lines = log.events(name);
        lines
            .iter()
            .map(|line| line["run"].clone())
            .collect::<Vec<_>>()
    };
    let main = team.run(main_agent("one")).id().to_string();
    assert_eq!(logged("run ended"), [main, id.to_string()]);
    assert_eq!(logged("call ended").last(), Some(&id.to_string()));
}

/// An abort on another thread, while sub-agents are opened: those before it end with it, and those
/// after it are over from their birth.
#[test]
fn an_abort_beside_the_opening_of_sub_agents_misses_none() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for _ in 0..200 {
        let team = Team::plain();
        runtime.block_on(team.served(main_agent("one")));
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            let aborts = scope.spawn(|| {
                let _entered = runtime.enter();
                barrier.wait();
                team.registry.abort_session(Owner::anonymous(), "s-1")
            });
            barrier.wait();
            runtime.block_on(async {
                for agent in ["a", "b", "c", "d"] {
                    team.ask(sub_agent(agent)).await;
                }
            });
            assert!(!aborts.join().unwrap().is_empty());
        });
        let _entered = runtime.enter();
        for agent in ["a", "b", "c", "d"] {
            let reason = team.run(sub_agent(agent)).terminal_reason();
            assert_eq!(reason, Some(ABORTED), "{agent}");
        }
    }
}

/// A sub-agent and its own sub-agent come at once, on two threads, after the end of the main agent's run.
#[test]
fn a_sub_agent_that_is_over_from_its_birth_is_open_for_no_instant() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for _ in 0..10 {
        let team = Team::plain();
        runtime.block_on(team.served(main_agent("one")));
        {
            let _entered = runtime.enter();
            team.registry.abort_session(Owner::anonymous(), "s-1");
        }
        let barrier = Barrier::new(2);
        let ask = |service: StackService, is_child: bool| {
            for number in 0..1_000 {
                let (parent, child) = (format!("a-{number}"), format!("b-{number}"));
                let asks = match is_child {
                    true => below(&child, &parent),
                    false => sub_agent(&parent),
                };
                barrier.wait();
                runtime.block_on(async { drop(service.ask(asks.request()).await) });
            }
        };
        let (one, other) = (team.service.clone(), team.service.clone());
        thread::scope(|scope| {
            scope.spawn(|| ask(one, false));
            ask(other, true);
        });
        assert_eq!(team.upstream.calls(), 1, "that of the main agent");
    }
}
