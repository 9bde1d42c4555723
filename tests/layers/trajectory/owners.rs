//! Owners that are at their caps.
//!
//! covers: D6

use http::Request;
use serde_json::{Value, json};
use tokio::time::advance;
use tower::{Layer, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, Owner, OwnerCapLayer, OwnerCaps, RunLayer, RunRegistry, TerminalReason, Trajectory,
    supervise::SupervisedBody,
};

use super::{Paper, writer::Before};
use crate::support::{LogCapture, ReadExt, Script, Upstream, UpstreamBody, request, secs};

type Body = SupervisedBody<SupervisedBody<UpstreamBody>>;

/// Requests of callers whose runs are capped, and what is written of that.
struct Stage {
    service: BoxCloneService<Request<()>, http::Response<Body>, BoxError>,
    registry: RunRegistry,
    paper: Paper,
}

impl Stage {
    fn new(caps: OwnerCaps) -> Self {
        let paper = Paper::default();
        Self::with(caps, RunRegistry::new(), &paper.trajectory(), paper)
    }

    fn with(caps: OwnerCaps, registry: RunRegistry, told: &Trajectory, paper: Paper) -> Self {
        let registry = registry.trajectory(told);
        let upstream = Upstream::script(Script::json().data("{}"));
        let layer = RunLayer::new(registry.clone());
        let caps = OwnerCapLayer::new(registry.clone(), caps);
        Self {
            service: layer.layer(caps.layer(upstream)).boxed_clone(),
            registry,
            paper,
        }
    }

    /// Whether it was let in.
    async fn ask(&self, key: &str, headers: &[(&'static str, &str)]) -> bool {
        let mut request = request();
        for (name, value) in headers.iter().chain(&[("authorization", key)]) {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        match self.service.clone().oneshot(request).await {
            Ok(answer) => {
                answer.into_body().read().await.whole();
                true
            }
            Err(_) => false,
        }
    }

    async fn refused(&self, key: &str, times: usize) {
        for number in 0..times {
            let id = format!("new-{number}");
            assert!(
                !self
                    .ask(key, &[("x-run-id", &id), ("x-session-id", "s")])
                    .await
            );
        }
    }

    /// How many were refused by each line of a cap, in order.
    fn told(&self, key: &str, cap: &str) -> Vec<u64> {
        let owner = Value::from(Owner::of(key.as_bytes()).to_string());
        let lines = self.paper.lines();
        let ours = lines
            .iter()
            .filter(|it| it["owner"] == owner && it["cap"] == cap);
        ours.map(|line| line["refused"].as_u64().unwrap()).collect()
    }
}

/// A cap, and its limit, that the first request of a caller reaches.
const CAPS: [(&str, OwnerCaps); 2] = [
    ("max_open_runs", OwnerCaps::new().max_open_runs(1)),
    ("turns_per_hour", OwnerCaps::new().turns_per_hour(1)),
];

#[tokio::test(start_paused = true)]
async fn a_thousand_refusals_are_one_line_a_minute_that_says_how_many() {
    for (cap, caps) in CAPS {
        let heard = LogCapture::start();
        let stage = Stage::new(caps);
        assert!(stage.ask("sk-one", &[("x-run-id", "a")]).await);
        assert_eq!(stage.paper.lines(), [Value::Null; 0], "nothing was refused");

        stage.refused("sk-one", 1000).await;
        let owner = Owner::of(b"sk-one").to_string();
        let line = json!({
            "type": "harness_refused", "kind": "harness_refused", "reason": "turn_cap_reached",
            "cap": cap, "limit": 1, "refused": 1, "owner": owner, "run": null, "session": null,
        });
        assert_eq!(stage.paper.lines(), [line]);

        advance(secs(59)).await;
        stage.refused("sk-one", 1).await;
        assert_eq!(stage.told("sk-one", cap), [1]);
        advance(secs(1)).await;
        stage.refused("sk-one", 1).await;
        assert_eq!(stage.told("sk-one", cap), [1, 1001]);
        advance(secs(60)).await;
        assert_eq!(stage.told("sk-one", cap), [1, 1001], "nothing was refused");

        let logged = heard.events("owner cap exceeded");
        let counts: Vec<_> = logged.iter().map(|event| &*event["refused"]).collect();
        assert_eq!(counts, ["1", "1001"]);
        for event in &logged {
            let fields = ["level", "reason", "cap", "limit", "owner"].map(|name| &*event[name]);
            assert_eq!(fields, ["WARN", "turn_cap_reached", cap, "1", &owner]);
            assert!(!event.contains_key("run"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn owners_and_caps_are_told_apart() {
    let stage = Stage::new(OwnerCaps::new().max_open_runs(1).turns_per_hour(3));
    for key in ["sk-one", "sk-two"] {
        assert!(stage.ask(key, &[("x-run-id", "a")]).await);
        stage.refused(key, 2).await;
        for _ in 0..2 {
            assert!(stage.ask(key, &[("x-run-id", "a")]).await);
        }
        for _ in 0..4 {
            assert!(!stage.ask(key, &[("x-run-id", "a")]).await);
        }
    }
    for key in ["sk-one", "sk-two"] {
        assert_eq!(stage.told(key, "max_open_runs"), [1]);
        assert_eq!(stage.told(key, "turns_per_hour"), [1]);
    }
    let text: Vec<_> = stage.paper.lines().iter().map(Value::to_string).collect();
    assert_eq!(text.len(), 4);
    assert!(!text.concat().contains("sk-"), "{text:?}");
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_a_run_that_there_is_is_told_with_it() {
    let stage = Stage::new(OwnerCaps::new().turns_per_hour(1));
    let headers = [("x-run-id", "a"), ("x-session-id", "s")];
    assert!(stage.ask("sk-one", &headers).await);
    let heard = LogCapture::start();

    assert!(!stage.ask("sk-one", &headers).await);

    let lines = stage.paper.lines();
    assert_eq!(
        (&lines[0]["run"], &lines[0]["session"]),
        (&"a".into(), &"s".into())
    );
    assert_eq!(heard.events("owner cap exceeded")[0]["run"], "a");
    let run = stage.registry.find(&"a".parse().unwrap());
    assert_eq!(
        run[0].terminal_reason(),
        None,
        "no end is written down for it"
    );
    assert_eq!(lines.len(), 1);
}

/// Not where a minute of the clock begins, and not because the owner was forgotten.
#[tokio::test(start_paused = true)]
async fn a_minute_is_one_from_line_to_line() {
    let stage = Stage::new(OwnerCaps::new().max_open_runs(1));
    let open = async || assert!(stage.ask("sk-one", &[("x-run-id", "a")]).await);
    advance(secs(59)).await;
    open().await;
    stage.refused("sk-one", 3).await;
    let run = stage.registry.find(&"a".parse().unwrap())[0].clone();
    run.end(TerminalReason::Completed);
    // Now it has nothing open, and others are looked through.
    advance(secs(1)).await;
    assert!(stage.ask("sk-two", &[]).await);

    open().await;
    stage.refused("sk-one", 1).await;
    assert_eq!(stage.told("sk-one", "max_open_runs"), [1]);
    advance(secs(59)).await;
    stage.refused("sk-one", 1).await;
    assert_eq!(stage.told("sk-one", "max_open_runs"), [1, 4]);
}

#[tokio::test(start_paused = true)]
async fn what_is_let_in_or_is_over_for_another_reason_is_no_line() {
    let stage = Stage::new(OwnerCaps::new().max_open_runs(2).turns_per_hour(4));
    assert!(stage.ask("sk-one", &[("x-run-id", "a")]).await);
    let run = stage.registry.find(&"a".parse().unwrap())[0].clone();
    run.end(TerminalReason::Aborted);
    for _ in 0..20 {
        assert!(!stage.ask("sk-one", &[("x-run-id", "a")]).await);
    }
    for id in ["b", "c", "b"] {
        assert!(stage.ask("sk-one", &[("x-run-id", id)]).await);
    }
    assert_eq!(stage.paper.lines(), [Value::Null; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_writer_may_come_back_to_the_registry() {
    for (_, caps) in CAPS {
        let (registry, paper) = (RunRegistry::new(), Paper::default());
        let program = registry.clone();
        let look = move || {
            assert_eq!(program.list().len(), 1);
            let id = || "a".parse().unwrap();
            let run = program.get(Owner::of(b"sk-one"), &id()).unwrap();
            run.end(TerminalReason::Completed);
            // What the program opens counts for its owner.
            drop(program.reopen(Owner::of(b"sk-one"), &id()));
        };
        let trajectory = Trajectory::new(Before(look, paper.clone()));
        let stage = Stage::with(caps, registry, &trajectory, paper);
        assert!(stage.ask("sk-one", &[("x-run-id", "a")]).await);
        stage.refused("sk-one", 1).await;
        assert_eq!(stage.paper.lines().len(), 1);
    }
}
