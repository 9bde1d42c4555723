//! The spans of the gateway at a receiver of OTLP, and the trace context in its requests.
//!
//! covers: H10

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes},
    routing::post,
};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, StatusCode};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus},
};
use prost::Message;

use crate::{
    net::{Ask, CHAT, Upstream, asks, chat, eventually, run, serve},
    support::{Config, Gateway},
};

/// The caller's trace, and its span.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// One repeat without a delay, and then the next candidate.
const REPEATS: &str = "[retry]\nmax_attempts_per_candidate = 2\nbase_delay = \"1ms\"\n\
                       max_delay = \"1ms\"\n";

/// A span as it was received: its attributes as text, and those of its resource.
#[derive(Clone, Debug)]
struct Received {
    span: Span,
    attributes: BTreeMap<String, String>,
    service: String,
}

impl Received {
    fn get(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(|value| &**value)
    }

    fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    fn error(&self) -> Option<&str> {
        let status = self.span.status.as_ref().map(|status| status.code());
        let error = self.get("error.type");
        assert_eq!(status == Some(SpanStatus::Error), error.is_some());
        error
    }
}

/// A receiver of OTLP over HTTP.
#[derive(Clone, Default)]
struct Receiver {
    spans: Arc<Mutex<Vec<Received>>>,
    heads: Arc<Mutex<Vec<HeaderMap>>>,
}

impl Receiver {
    async fn start() -> (Self, SocketAddr) {
        let receiver = Self::default();
        let own = receiver.clone();
        let take = move |headers: HeaderMap, body: Bytes| async move {
            own.take(headers, &body);
            [("content-type", "application/x-protobuf")]
        };
        let addr = serve(Router::new().route("/v1/traces", post(take))).await;
        (receiver, addr)
    }

    fn take(&self, headers: HeaderMap, body: &[u8]) {
        self.heads.lock().unwrap().push(headers);
        let batch = ExportTraceServiceRequest::decode(body).unwrap();
        for of_resource in batch.resource_spans {
            let resource = texts(of_resource.resource.unwrap().attributes);
            let spans = of_resource.scope_spans.into_iter().flat_map(|it| it.spans);
            let received = spans.map(|span| Received {
                attributes: texts(span.attributes.clone()),
                service: resource["service.name"].clone(),
                span,
            });
            self.spans.lock().unwrap().extend(received);
        }
    }

    fn spans(&self) -> Vec<Received> {
        self.spans.lock().unwrap().clone()
    }

    /// Ends the gateway, which sends all that is left: the spans.
    async fn after(&self, mut gateway: Gateway) -> Vec<Received> {
        gateway.signal("TERM");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
        self.spans()
    }
}

/// The attributes as text; each stands once.
fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let count = attributes.len();
    let texts = attributes.into_iter().map(|attribute| {
        let value = match attribute.value.and_then(|value| value.value).unwrap() {
            Value::StringValue(text) => text,
            Value::IntValue(number) => number.to_string(),
            Value::DoubleValue(number) => number.to_string(),
            other => panic!("{other:?}"),
        };
        (attribute.key, value)
    });
    let texts: BTreeMap<_, _> = texts.collect();
    assert_eq!(texts.len(), count, "{texts:?}");
    texts
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn start(settings: &str, models: &[&str]) -> (Receiver, Upstream, Gateway) {
    let (receiver, addr) = Receiver::start().await;
    let telemetry = format!("{settings}[telemetry]\notlp = \"http://{addr}\"\n");
    let (upstream, gateway) = Config::new(telemetry).start_with_model(models).await;
    (receiver, upstream, gateway)
}

fn traceparent() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

/// The trace id and the span id that an upstream got with each request.
fn sent(upstream: &Upstream) -> Vec<[String; 2]> {
    let calls = upstream.calls().into_iter();
    let context = calls.map(|call| {
        let all: Vec<_> = call.headers.get_all("traceparent").iter().collect();
        assert_eq!(all.len(), 1, "{all:?}");
        let parts: Vec<_> = all[0].to_str().unwrap().split('-').collect();
        assert_eq!([parts[0], parts[3]], ["00", "01"]);
        [parts[1].to_owned(), parts[2].to_owned()]
    });
    context.collect()
}

#[test]
fn a_call_is_one_span_below_its_callers_and_each_try_a_span_below_it() {
    run(async {
        let (receiver, upstream, gateway) = start(REPEATS, &["503", "ok"]).await;

        let request = gateway.post(CHAT, asks("503", true));
        let request = request.header("traceparent", traceparent());
        let request = request.header("tracestate", "vendor=1");
        let request = request.header("x-run-id", "r-1");
        let answer = request.header("x-session-id", "s-1").ask().await;

        assert_eq!(answer.status, 200);
        assert_eq!(upstream.models(), ["503", "503", "ok"]);
        let states = upstream.calls();
        assert!(
            states
                .iter()
                .all(|it| it.headers["tracestate"] == "vendor=1")
        );
        let spans = receiver.after(gateway).await;
        assert_eq!(spans.len(), 4, "{spans:?}");
        for span in &spans {
            assert_eq!(hex(&span.span.trace_id), TRACE);
            assert_eq!(span.span.kind, SpanKind::Client as i32);
            assert_eq!(span.service, "tower-agent-gateway");
        }
        let [call] = &spans
            .iter()
            .filter(|it| hex(&it.span.parent_span_id) == CALLER)
            .collect::<Vec<_>>()[..]
        else {
            panic!("{spans:?}")
        };
        assert_eq!((&*call.span.name, call.error()), ("chat 503", None));
        for (key, value) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "openai"),
            ("gen_ai.request.model", "503"),
            ("gen_ai.response.model", "ok"),
            ("gen_ai.response.finish_reasons", "stop"),
            ("gen_ai.conversation.id", "s-1"),
            ("tower_agent.run.id", "r-1"),
        ] {
            assert_eq!(call.get(key), Some(value), "{key}");
        }
        let first: f64 = call
            .get("gen_ai.response.time_to_first_chunk")
            .unwrap()
            .parse()
            .unwrap();
        assert!(first > 0.0 && first < 30.0, "{first}");

        let mut tries: Vec<_> = spans
            .iter()
            .filter(|it| it.span.parent_span_id == call.span.span_id)
            .collect();
        tries.sort_by_key(|it| it.span.start_time_unix_nano);
        let told: Vec<_> = tries
            .iter()
            .map(|it| {
                (
                    &*it.span.name,
                    it.error(),
                    it.get("http.response.status_code"),
                )
            })
            .collect();
        let failed = ("attempt 503", Some("server"), Some("503"));
        assert_eq!(told, [failed, failed, ("attempt ok", None, Some("200"))]);
        let port = upstream.addr.port().to_string();
        for (number, it) in tries.iter().enumerate() {
            assert_eq!(it.get("server.address"), Some("127.0.0.1"));
            assert_eq!(it.get("server.port"), Some(&*port));
            let resent = (number > 0).then(|| number.to_string());
            assert_eq!(it.get("http.request.resend_count"), resent.as_deref());
        }
        let of_tries: Vec<_> = tries.iter().map(|it| [TRACE.to_owned(), it.id()]).collect();
        assert_eq!(sent(&upstream), of_tries);
    });
}

#[test]
fn without_a_callers_span_a_call_begins_a_trace() {
    run(async {
        let settings = format!("{REPEATS}[run]\nmax_turns = 1\n");
        let (receiver, upstream, gateway) = start(&settings, &["m"]).await;
        for status in [200, 422] {
            let request = gateway.post(CHAT, chat("m")).header("x-run-id", "r");
            assert_eq!(request.ask().await.status, status);
        }

        let spans = receiver.after(gateway).await;
        let calls = spans.iter().filter(|it| it.span.parent_span_id.is_empty());
        let mut errors: Vec<_> = calls.map(|it| it.error()).collect();
        errors.sort_unstable();
        assert_eq!(errors, [None, Some("turn_cap_reached")]);
        let attempt = spans.iter().find(|it| !it.span.parent_span_id.is_empty());
        let attempt = attempt.unwrap();
        assert_eq!(spans.len(), 3);
        let trace = hex(&attempt.span.trace_id);
        assert_eq!(sent(&upstream), [[trace, attempt.id()]]);
        assert!(upstream.calls()[0].headers.get("tracestate").is_none());
    });
}

#[test]
fn a_call_that_a_signal_cuts_is_sent_before_the_process_ends() {
    run(async {
        let (receiver, upstream, gateway) = start("", &["m"]).await;
        let stream = gateway.post(CHAT, chat("stall")).open().await;
        upstream.until_open(1).await;

        let spans = receiver.after(gateway).await;

        drop(stream);
        let errors: Vec<_> = spans.iter().map(Received::error).collect();
        assert_eq!(errors, [Some("shutdown"); 2], "{spans:?}");
    });
}

#[test]
fn without_telemetry_nothing_is_sent_and_the_callers_context_passes() {
    run(async {
        let (receiver, addr) = Receiver::start().await;
        let config =
            Config::new(REPEATS).env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{addr}"));
        let (upstream, gateway) = config.start_with_model(&["503", "ok"]).await;
        let request = gateway.post(CHAT, chat("ok"));
        let request = request.header("traceparent", traceparent());
        assert_eq!(request.ask().await.status, 200);

        let sent = sent(&upstream);
        receiver.after(gateway).await;

        assert_eq!(sent, [[TRACE, CALLER].map(str::to_owned)]);
        assert!(receiver.heads.lock().unwrap().is_empty());
    });
}

#[test]
fn a_receiver_that_refuses_is_logged_once_and_delays_no_call() {
    run(async {
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        let refuse = move || async move {
            count.fetch_add(1, Ordering::Relaxed);
            StatusCode::SERVICE_UNAVAILABLE
        };
        let addr = serve(Router::new().route("/v1/traces", post(refuse))).await;
        let text = format!("[telemetry]\notlp = \"http://{addr}\"\n");
        let config = Config::new(text).env("OTEL_BSP_SCHEDULE_DELAY", "20");
        let (_upstream, mut gateway) = config.start_with_model(&["m"]).await;
        for batch in 1..=3 {
            assert_eq!(gateway.post(CHAT, chat("ok")).ask().await.status, 200);
            eventually(async || (refused.load(Ordering::Relaxed) >= batch).then_some(())).await;
        }

        gateway.signal("TERM");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
        let log = gateway.log();
        assert_eq!(log.matches("spans are lost").count(), 1, "{log}");
    });
}

/// The gateway holds a little of the answer, and the connection is dropped.
#[test]
fn a_receiver_whose_answer_does_not_end_is_read_no_further() {
    const CHUNK: usize = 64 * 1024;
    /// More than the buffers of a connection take.
    const MOST: usize = 32 * 1024 * 1024;
    run(async {
        let sent = Arc::new(AtomicUsize::new(0));
        let open = Arc::new(Mutex::new(Weak::new()));
        let (count, of_answer) = (Arc::clone(&sent), Arc::clone(&open));
        let answer = move || {
            let (count, held) = (Arc::clone(&count), Arc::new(()));
            *of_answer.lock().unwrap() = Arc::downgrade(&held);
            let chunks = stream::repeat_with(move || {
                let _held = &held;
                count.fetch_add(CHUNK, Ordering::Relaxed);
                Ok::<_, Infallible>(Bytes::from_static(&[0; CHUNK]))
            });
            async move { Body::from_stream(chunks.take(10 * MOST / CHUNK)) }
        };
        let addr = serve(Router::new().route("/v1/traces", post(answer))).await;
        let text = format!("[telemetry]\notlp = \"http://{addr}\"\n");
        let config = Config::new(text).env("OTEL_BSP_SCHEDULE_DELAY", "20");
        let (_upstream, gateway) = config.start_with_model(&["m"]).await;
        assert_eq!(gateway.post(CHAT, chat("ok")).ask().await.status, 200);
        eventually(async || (sent.load(Ordering::Relaxed) > 0).then_some(())).await;

        let is_dropped = async || (open.lock().unwrap().strong_count() == 0).then_some(());
        eventually(is_dropped).await;

        let sent = sent.load(Ordering::Relaxed);
        assert!(sent < MOST, "{sent} bytes were read");
        let told = async || gateway.log().contains("more than 64 KiB").then_some(());
        eventually(told).await;
    });
}

/// As OpenTelemetry says of all its variables: an empty one counts as absent.
#[test]
fn an_empty_variable_names_no_service() {
    run(async {
        let (receiver, addr) = Receiver::start().await;
        let text = format!("[telemetry]\notlp = \"http://{addr}\"\n");
        let config = Config::new(text).env("OTEL_SERVICE_NAME", "");
        let (_upstream, gateway) = config.start_with_model(&["m"]).await;
        assert_eq!(gateway.post(CHAT, chat("ok")).ask().await.status, 200);

        let spans = receiver.after(gateway).await;

        assert_eq!(spans[0].service, "tower-agent-gateway");
    });
}

/// The requests of the sender have no spans of their own, and its batches do not go on for ever.
#[test]
fn the_sender_makes_no_spans_and_names_its_service() {
    run(async {
        let (receiver, addr) = Receiver::start().await;
        let text = format!("[telemetry]\notlp = \"http://{addr}/\"\nservice_name = \"edge\"\n");
        let config = Config::new(text).env("OTEL_BSP_SCHEDULE_DELAY", "20");
        let (_upstream, gateway) = config.start_with_model(&["m"]).await;
        assert_eq!(gateway.post(CHAT, chat("ok")).ask().await.status, 200);
        eventually(async || (receiver.spans().len() == 2).then_some(())).await;

        let spans = receiver.after(gateway).await;

        assert_eq!(spans.len(), 2);
        assert!(spans.iter().all(|span| span.service == "edge"));
        let heads = receiver.heads.lock().unwrap();
        assert!(heads.iter().all(|it| it.get("traceparent").is_none()));
        assert!(heads.len() <= 2);
    });
}
