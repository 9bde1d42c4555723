//! A local model server that is slow, dead, looping or restarting: four conditions that a
//! limit on the total time cannot tell apart.
//!
//! ```text
//! cargo run --all-features --example local_model
//! ```
//!
//! The same stack calls a simulated server in each condition. A slow server reads a long prompt
//! and is not cut, with heartbeats or without a byte. A dead one is cut: no byte comes, and two
//! probes of its health fail; or its heartbeats stop. A model that asks for the same tool again
//! and again is warned of, and then ended. A call to a server that restarts waits for it.
//!
//! A step window of two seconds stands beside these layers in shadow mode. It tells which calls
//! an ordinary idle timeout would have cut.
//!
//! The example fails if it is told another condition than the server is in. All times are short,
//! so that it ends within seconds: a program would leave the defaults of the layers.

#[path = "local_model/server.rs"]
mod server;

use std::{process::ExitCode, time::Duration};

use axum::body::Body;
use futures_util::{FutureExt, future::join_all};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, HardCeilingLayer, HealthGateLayer, LoopGuardLayer, LoopVerdict, Run, RunEvent,
    RunNotice, StepTimeoutLayer, TerminalReason, Terminated,
};
use tower_agent_reqwest::ReqwestService;

use self::server::{Condition, LOAD, LocalModelServer, PREFILL};

/// The window of the idle timeout in shadow mode.
const IDLE: Duration = Duration::from_secs(2);

/// The interval of heartbeats and probes; 10 s and 5 s by default.
const INTERVAL: Duration = Duration::from_secs(1);

/// The numbers of same tool calls that are warned of, and that end the run.
const WARN: u32 = 3;
const STOP: u32 = 6;

type LocalModel = BoxCloneService<Request<String>, Response<Body>, BoxError>;

#[tokio::main]
async fn main() -> ExitCode {
    // Several providers may be linked in; the example needs one chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let conditions = [
        Condition::Slow,
        Condition::SlowWithHeartbeats,
        Condition::Hung,
        Condition::Stalled,
        Condition::Looping,
        Condition::Restarting,
    ];
    // All at once: they do nothing but wait.
    let played = join_all(conditions.map(play)).await;
    let mut status = ExitCode::SUCCESS;
    for (condition, played) in conditions.into_iter().zip(played) {
        let told = played.and_then(|played| {
            played.print(condition);
            played.check(condition)
        });
        if let Err(error) = told {
            eprintln!("local_model: {condition:?}: {error}");
            status = ExitCode::FAILURE;
        }
    }
    status
}

/// The layers around one server, from the outside in.
fn model(server: &LocalModelServer) -> Result<LocalModel, BoxError> {
    let client = ReqwestService::new(reqwest::Client::builder().no_proxy())?;
    let health: Uri = format!("http://{}/health", server.address).parse()?;
    let stack = ServiceBuilder::new()
        .map_response(|answer: Response<_>| answer.map(Body::new))
        .layer(HardCeilingLayer::new(Duration::from_secs(12)))
        .layer(StepTimeoutLayer::new(IDLE).observe())
        .layer(LoopGuardLayer::new().warn(WARN).stop(STOP))
        .layer(StepTimeoutLayer::local().heartbeat(INTERVAL))
        .layer(
            HealthGateLayer::get(client.clone(), health)
                .every(INTERVAL / 2)
                .timeout(INTERVAL)
                .watch_silence(INTERVAL),
        )
        .service(client);
    Ok(BoxCloneService::new(stack))
}

/// What one run met, and what the layers measured meanwhile.
struct Played {
    /// The end that cut the run; `None` if the model answered.
    cut: Option<Terminated>,
    took: Duration,
    calls: u32,
    probes: u32,
    heartbeats: u64,
    /// The number of notices that the idle timeout would have cut the call.
    idle_cuts: usize,
    /// The number of same calls at each warning of a loop.
    warnings: Vec<u32>,
}

async fn play(condition: Condition) -> Result<Played, BoxError> {
    let server = LocalModelServer::start(condition)?;
    let model = model(&server)?;
    let (run, start) = (Run::open(), Instant::now());
    let mut events = run.subscribe();
    let cut = match work(&run, &model, &server).await {
        Ok(()) => None,
        Err(error) => match Terminated::find(&*error) {
            Some(cut) => Some(cut.clone()),
            None => return Err(error),
        },
    };
    let mut played = Played {
        cut,
        took: start.elapsed(),
        calls: server.calls(),
        probes: server.probes(),
        heartbeats: run.snapshot().progress.heartbeats,
        idle_cuts: 0,
        warnings: Vec::new(),
    };
    while let Some(Some(event)) = events.next().now_or_never() {
        match event {
            RunEvent::Notice {
                notice: RunNotice::WouldHaveEnded { .. },
                ..
            } => played.idle_cuts += 1,
            RunEvent::Notice {
                notice:
                    RunNotice::Loop {
                        verdict: LoopVerdict::Warned,
                        times,
                        ..
                    },
                ..
            } => {
                played.warnings.push(times);
            }
            _ => {}
        }
    }
    Ok(played)
}

/// The loop of an agent whose job never finishes.
async fn work(run: &Run, model: &LocalModel, server: &LocalModelServer) -> Result<(), BoxError> {
    let url = format!("http://{}/v1/chat/completions", server.address);
    let mut history = vec![json!({"role": "user", "content": "is job 7 done?"})];
    loop {
        let ask = json!({"model": "local", "messages": history}).to_string();
        let ask = Request::post(&url)
            .header("content-type", "application/json")
            .body(ask)?;
        let answer = model.clone().oneshot(run.attach(ask)).await?;
        let bytes = answer.into_body().collect().await?.to_bytes();
        // A stream of text is the last answer; the tools are asked for in JSON.
        let Ok(answer) = serde_json::from_slice::<Value>(&bytes) else {
            return Ok(());
        };
        let said = &answer["choices"][0]["message"];
        let id = &said["tool_calls"][0]["id"];
        history.push(said.clone());
        history.push(json!({"role": "tool", "tool_call_id": id, "content": "running"}));
    }
}

impl Played {
    fn print(&self, condition: Condition) {
        let Self {
            took,
            calls,
            probes,
            heartbeats,
            idle_cuts,
            warnings,
            ..
        } = self;
        println!("--- {condition:?}");
        println!(
            "measured: {took:.1?}, calls: {calls}, probes: {probes}, heartbeats: {heartbeats}, \
             loop warned of at calls: {warnings:?}"
        );
        match &self.cut {
            None => println!("answered: {}", condition.why_it_lives()),
            Some(cut) => println!("ended: {}", cut.message()),
        }
        match idle_cuts {
            0 => println!("an idle timeout of {IDLE:?} would have cut nothing"),
            _ => println!("an idle timeout of {IDLE:?} would have cut this call"),
        }
    }

    /// Says where this run differs from what a server in this condition must cause.
    fn check(&self, condition: Condition) -> Result<(), BoxError> {
        let reason = self.cut.as_ref().map(|cut| &cut.reason);
        let message = self
            .cut
            .as_ref()
            .map(Terminated::message)
            .unwrap_or_default();
        let as_expected = match condition {
            Condition::Slow => reason.is_none() && self.took >= PREFILL && self.probes > 0,
            Condition::SlowWithHeartbeats => reason.is_none() && self.heartbeats == 8,
            Condition::Hung => reason == Some(&TerminalReason::StepTimeout) && self.probes > 0,
            Condition::Stalled => {
                let beats = message.contains("its heartbeats stopped");
                reason == Some(&TerminalReason::StepTimeout) && beats
            }
            Condition::Looping => {
                let counted = self.warnings == [WARN] && self.calls == STOP;
                reason == Some(&TerminalReason::LoopDetected) && counted
            }
            Condition::Restarting => reason.is_none() && self.took >= LOAD && self.calls == 1,
        };
        // The idle timeout cuts a slow server and a dead one alike, and never the loop.
        let idle = condition != Condition::Looping && condition != Condition::Restarting;
        if !as_expected || idle != (self.idle_cuts > 0) {
            return Err(format!("not as expected: {reason:?}, {message}").into());
        }
        Ok(())
    }
}

impl Condition {
    /// The measurement by which the layers did not cut a call.
    const fn why_it_lives(self) -> &'static str {
        match self {
            Self::Slow => "no byte came, but each probe said that the server is healthy",
            Self::SlowWithHeartbeats => "no content came, but heartbeats did",
            Self::Restarting => "the gate held the call, and sent it once a probe succeeded",
            Self::Hung | Self::Stalled | Self::Looping => "although it should not be",
        }
    }
}
