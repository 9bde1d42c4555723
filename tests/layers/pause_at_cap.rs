//! Runs that wait at a cap for an operator, and runs that an operator suspends.
//!
//! covers: H12

mod by_hand;
mod clocks;
mod early_head;
mod elsewhere;
mod held;
mod near;
mod refused;
mod sub_agents;
mod tokens;

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::{task::JoinHandle, time::sleep};
use tower::{ServiceExt, util::BoxCloneService};
use tower_agent::{
    AgentStack, BoxError, Owner, Run, RunExtension, RunRegistry, TerminalReason, TurnCapLayer,
    run::{PauseAtCap, RunCap, RunPaused},
    stack::Server,
};

use crate::support::{Outcome, Script, Upstream, prompt_as, secs, with_header};

const WAIT: Duration = secs(60);

/// A server with a stack.
#[derive(Clone)]
struct Served {
    service:
        BoxCloneService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>,
    registry: RunRegistry,
    upstream: Upstream,
    streams: bool,
}

impl Served {
    fn new(script: Script, set: impl FnOnce(AgentStack<Server>) -> AgentStack<Server>) -> Self {
        let (registry, upstream) = (RunRegistry::new(), Upstream::script(script));
        let service = set(AgentStack::server(&registry)).service(upstream.clone());
        let service = service.map_response(|answer| answer.map(BodyExt::boxed_unsync));
        Self {
            service: BoxCloneService::new(service.map_err(Into::into)),
            registry,
            upstream,
            streams: false,
        }
    }

    /// A server whose runs pause after so many turns.
    fn pausing(turns: u32) -> Self {
        Self::new(Script::json().data("{}"), |stack| {
            stack.max_turns(TurnCapLayer::new(turns).pause(PauseAtCap::new()))
        })
    }

    /// Its requests are for streams.
    const fn streaming(mut self) -> Self {
        self.streams = true;
        self
    }

    fn send(&self, request: Request<Full<Bytes>>) -> impl Future<Output = Outcome> + use<> {
        Outcome::of(self.service.clone().oneshot(request))
    }

    fn request(&self, model: &str) -> Request<Full<Bytes>> {
        with_header(prompt_as(model, self.streams), "x-run-id", "r")
    }

    /// One turn of the run `r`, whose prompt is for this model.
    async fn turn(&self, model: &str) -> Outcome {
        self.send(self.request(model)).await
    }

    /// The same, in a task, a second later.
    async fn spawn(&self, model: &'static str) -> JoinHandle<Outcome> {
        let turn = tokio::spawn(self.send(self.request(model)));
        sleep(secs(1)).await;
        turn
    }

    fn run(&self) -> Run {
        let found = self.registry.get(Owner::anonymous(), &"r".parse().unwrap());
        found.unwrap()
    }

    /// The cap at which the run is paused, and how many turns wait.
    fn pause(&self) -> Option<(Option<RunCap>, usize)> {
        let paused = self.run().snapshot().paused?;
        Some((paused.cap, paused.held))
    }
}

fn turns(turns: u32) -> RunExtension {
    RunExtension::new().turns(turns)
}

fn is_paused(outcome: &Outcome) -> bool {
    let error = outcome.error.as_deref();
    let mut causes = std::iter::successors(
        error.map(|error| error as &(dyn std::error::Error + 'static)),
        |error| error.source(),
    );
    outcome.status == 503 || causes.any(|error| error.is::<RunPaused>())
}

const TURN_CAP: Option<TerminalReason> = Some(TerminalReason::TurnCap);
