//! An upstream process that is stopped and started again.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, HealthGateLayer, ReplayBody, StepTimeoutLayer, TerminalReason, Terminated,
};
use tower_agent_reqwest::ReqwestService;

use super::upstream_process::UpstreamProcess;
use crate::net::{run, until, within};

const EVERY: Duration = Duration::from_millis(50);
/// What a process that lives takes for an answer, also on a busy machine.
const SILENT: Duration = Duration::from_secs(1);

type Service = BoxCloneService<Request<Full<Bytes>>, Bytes, BoxError>;

/// A client that waits for the upstream on that port, and looks after it when it is
/// silent for so long; what it probed, and what it sent.
fn client(port: u16, silent: Duration) -> (Service, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let [probes, calls] = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let [probed, called] = [Arc::clone(&probes), Arc::clone(&calls)];
    let builder = reqwest::Client::builder().no_proxy();
    let client = ReqwestService::new(builder).unwrap();
    let client = client.map_request(move |request: Request<ReplayBody>| {
        let count = if request.method() == Method::GET {
            &probed
        } else {
            &called
        };
        count.fetch_add(1, Ordering::SeqCst);
        request
    });
    let health = format!("http://127.0.0.1:{port}/health");
    let gate = HealthGateLayer::get(client.clone(), health.parse().unwrap());
    let gate = gate.every(EVERY).timeout(SILENT).watch_silence(silent);
    // Far shorter than the wait, if that counted.
    let service = StepTimeoutLayer::new(Duration::from_secs(30)).layer(gate.layer(client));
    let service = ServiceExt::<Request<Full<Bytes>>>::and_then(service, whole);
    (service.boxed_clone(), probes, calls)
}

async fn whole<B: Body<Data = Bytes>>(answer: Response<B>) -> Result<Bytes, B::Error> {
    assert_eq!(answer.status(), 200);
    answer
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes())
}

fn prompt(port: u16) -> Request<Full<Bytes>> {
    let uri = format!("http://127.0.0.1:{port}/v1/chat/completions");
    let body = Full::from(r#"{"model":"m"}"#);
    Request::post(uri).body(body).unwrap()
}

/// covers: E4
#[test]
fn calls_wait_while_the_process_restarts_and_each_is_served_once() {
    run(async {
        let upstream = UpstreamProcess::start().await;
        let port = upstream.port;
        let (service, probes, sent) = client(port, 60 * SILENT);
        let first = service.clone().oneshot(prompt(port)).await.unwrap();
        assert_eq!(first, r#"{"served":1}"#);
        assert_eq!(probes.load(Ordering::SeqCst), 0);

        upstream.process.kill().await;
        let calls: Vec<_> = (0..20)
            .map(|_| tokio::spawn(service.clone().oneshot(prompt(port))))
            .collect();
        // It is asked after again and again, and nobody is told anything.
        until(|| probes.load(Ordering::SeqCst) >= 5).await;
        assert!(calls.iter().all(|call| !call.is_finished()));
        let knocked = sent.load(Ordering::SeqCst);

        // The first two to come find it loading, and wait again.
        let _upstream = UpstreamProcess::start_on(port, 2).await;
        let mut served = BTreeSet::new();
        for call in calls {
            served.insert(within(call).await.unwrap().unwrap());
        }

        let each: BTreeSet<_> = (1..=20)
            .map(|number| Bytes::from(format!("{{\"served\":{number}}}")))
            .collect();
        assert_eq!(served, each);
        let after = sent.load(Ordering::SeqCst) - knocked;
        assert_eq!(after, 20 + 2, "each once, and two twice");
    });
}

/// The kernel goes on accepting for a process that does nothing any more.
/// covers: A10
#[cfg(unix)]
#[test]
fn a_process_that_is_frozen_is_found_dead() {
    run(async {
        let upstream = UpstreamProcess::start().await;
        let port = upstream.port;
        let (service, probes, _) = client(port, SILENT);
        service.clone().oneshot(prompt(port)).await.unwrap();
        let before = probes.load(Ordering::SeqCst);

        upstream.process.freeze().await;
        let error = within(service.oneshot(prompt(port))).await.unwrap_err();

        let ended = Terminated::find(&*error).unwrap();
        assert_eq!(ended.reason, TerminalReason::StepTimeout);
        assert!(ended.message().contains("failed its health probes"));
        assert_eq!(probes.load(Ordering::SeqCst) - before, 2);
    });
}
