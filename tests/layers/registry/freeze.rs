//! A registry that admits no new runs.
//!
//! covers: H11

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower::{ServiceExt, util::BoxCloneService};
use tower_agent::{
    AgentStack, BoxError, Owner, OwnerCaps, RunRegistry, layers::run::RequestRun, stack::Server,
};

use super::id;
use crate::support::{Outcome, Script, Upstream, prompt, with_header};

/// A server with a stack.
struct Served(
    BoxCloneService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>,
);

impl Served {
    fn new(stack: &AgentStack<Server>, upstream: &Upstream) -> Self {
        let service = stack.service(upstream.clone());
        let service = service.map_response(|answer| answer.map(BodyExt::boxed_unsync));
        Self(BoxCloneService::new(service.map_err(Into::into)))
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> Outcome {
        Outcome::of(self.0.clone().oneshot(request)).await
    }
}

fn server(registry: &RunRegistry) -> (Served, Upstream) {
    let upstream = Upstream::script(Script::json().data("{}"));
    (
        Served::new(&AgentStack::server(registry), &upstream),
        upstream,
    )
}

fn of(key: &'static str, run: Option<&str>) -> Request<Full<Bytes>> {
    let request = with_header(prompt("a"), "authorization", key);
    match run {
        Some(run) => with_header(request, "x-run-id", run),
        None => request,
    }
}

fn assert_frozen(outcome: &Outcome) {
    assert_eq!(outcome.status, 503, "{}", outcome.text);
    assert_eq!(outcome.header("retry-after"), Some("30"));
    assert_eq!(
        outcome.header("x-terminal-reason"),
        None,
        "no run has ended"
    );
    assert!(outcome.text.contains("\"frozen\""), "{}", outcome.text);
}

#[tokio::test(start_paused = true)]
async fn new_runs_are_kept_out_and_open_ones_go_on() {
    let registry = RunRegistry::new();
    let (server, upstream) = server(&registry);
    for run in ["open", "ended"] {
        assert_eq!(server.ask(of("one", Some(run))).await.status, 200);
    }
    registry.abort(Owner::of(b"one"), &id("ended"));
    assert!(registry.freeze(None));
    assert!(!registry.freeze(None), "it is no news");
    assert!(registry.frozen().all);
    assert_frozen(&server.ask(of("one", Some("new"))).await);
    assert_frozen(&server.ask(of("one", None)).await);
    assert_frozen(&server.ask(of("two", Some("open"))).await);
    assert_eq!(registry.list().len(), 2, "the refused runs are unknown");
    assert_eq!(server.ask(of("one", Some("open"))).await.status, 200);
    let ended = server.ask(of("one", Some("ended"))).await;
    assert_eq!(ended.header("x-terminal-reason"), Some("aborted"));
    let sub_agent = |parent| {
        let mut request = of("one", None);
        let run = RequestRun::new(id("sub-agent")).child_of(id(parent));
        request.extensions_mut().insert(run);
        request
    };
    assert_frozen(&server.ask(sub_agent("nobody")).await);
    assert_eq!(server.ask(sub_agent("open")).await.status, 200);
    assert_eq!(upstream.calls(), 4);
    assert!(registry.thaw(None));
    assert!(!registry.thaw(None));
    assert_eq!(server.ask(of("one", Some("new"))).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn one_owner_is_kept_out_and_the_program_is_not() {
    let registry = RunRegistry::new();
    let (server, _) = server(&registry);
    let one = Owner::of(b"one");
    assert!(registry.freeze(one));
    assert_frozen(&server.ask(of("one", Some("r"))).await);
    assert_eq!(server.ask(of("two", Some("r"))).await.status, 200);
    // The run that the program opens is open for requests, too.
    let _run = registry.open(one, id("of-the-program"));
    assert_eq!(
        server.ask(of("one", Some("of-the-program"))).await.status,
        200
    );
    registry.freeze(None);
    assert!(registry.thaw(None));
    assert_eq!(registry.frozen().owners.len(), 1);
    assert_frozen(&server.ask(of("one", Some("r"))).await);
    assert!(registry.thaw(one));
    assert_eq!(server.ask(of("one", Some("r"))).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_takes_no_turn_of_its_owner() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::json().data("{}"));
    let caps = OwnerCaps::new().turns_per_hour(2);
    let stack = AgentStack::server(&registry).owner_caps(caps);
    let server = Served::new(&stack, &upstream);
    registry.freeze(None);
    for _ in 0..5 {
        assert_frozen(&server.ask(of("one", None)).await);
    }
    registry.thaw(None);
    for status in [200, 200, 422] {
        assert_eq!(server.ask(of("one", None)).await.status, status);
    }
}
