use std::{
    collections::VecDeque,
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, accept_hdr_async_with_config,
    tungstenite::{Message, handshake::server, protocol::WebSocketConfig},
};
use tower::{Layer, ServiceExt, util::BoxCloneSyncService};
use tower_agent::{BoxError, Candidate, ModelFallbackLayer, ReplayBody};
use tower_agent_hyper::HyperService;

use super::super::{UpstreamLane, UpstreamSockets};

/// The longest that a test waits for what must come at once.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn within<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("nothing came")
}

/// An upstream that hands each request to the test.
pub(super) struct Upstream {
    pub(super) addr: SocketAddr,
    asked: mpsc::UnboundedReceiver<Asked>,
    refusals: Arc<Mutex<VecDeque<String>>>,
    listening: JoinHandle<()>,
}

pub(super) enum Asked {
    Socket(Box<Peer>),
    /// An upgrade that was refused.
    Refused,
    /// A request that was answered with [`POSTED`].
    Post(HeaderMap, Value),
}

/// The upstream's end of a socket.
pub(super) struct Peer {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) io: WebSocketStream<TcpStream>,
}

/// The events of an answer to a POST.
pub(super) const POSTED: &str = "event: response.output_text.delta\n\
    data: {\"type\":\"response.output_text.delta\",\"delta\":\"posted\"}\n\n\
    event: response.completed\n\
    data: {\"type\":\"response.completed\",\"response\":{\"id\":\"p\",\"status\":\"completed\"}}\n\n";

impl Upstream {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, asked) = mpsc::unbounded_channel();
        let refusals = Arc::<Mutex<VecDeque<String>>>::default();
        let refused = Arc::clone(&refusals);
        let listening = tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                io.set_nodelay(true).unwrap();
                tokio::spawn(serve(io, sender.clone(), Arc::clone(&refused)));
            }
        });
        Self {
            addr,
            asked,
            refusals,
            listening,
        }
    }

    /// Takes no further connection.
    pub(super) async fn stop(&mut self) {
        self.listening.abort();
        let stopped = within(&mut self.listening).await;
        assert!(stopped.unwrap_err().is_cancelled());
    }

    /// Refuses the next upgrade with this answer: a status and headers.
    pub(super) fn refuse(&self, head: &str) {
        self.refusals.lock().unwrap().push_back(head.to_owned());
    }

    pub(super) async fn asked(&mut self) -> Asked {
        within(self.asked.recv()).await.unwrap()
    }

    pub(super) async fn socket(&mut self) -> Peer {
        match self.asked().await {
            Asked::Socket(peer) => *peer,
            Asked::Refused => panic!("an upgrade was refused"),
            Asked::Post(_, body) => panic!("a POST came: {body}"),
        }
    }

    pub(super) async fn post(&mut self) -> Value {
        match self.asked().await {
            Asked::Post(_, body) => body,
            Asked::Refused => panic!("an upgrade was refused"),
            Asked::Socket(_) => panic!("a socket was opened"),
        }
    }

    pub(super) async fn refused(&mut self) {
        assert!(matches!(self.asked().await, Asked::Refused));
    }

    /// Whether nothing else was asked so far.
    pub(super) fn is_idle(&mut self) -> bool {
        self.asked.try_recv().is_err()
    }

    /// This upstream as a candidate.
    pub(super) fn candidate(&self) -> Candidate {
        let url = format!("http://{}/v1", self.addr);
        let candidate = Candidate::new("m").base_url(url).unwrap();
        candidate.websocket(true).api_key("secret").unwrap()
    }

    /// The service below a layer with this upstream alone.
    pub(super) fn service(&self) -> TestService {
        service([self.candidate()])
    }
}

/// Answers what one connection asks.
async fn serve(
    mut io: TcpStream,
    asked: mpsc::UnboundedSender<Asked>,
    refusals: Arc<Mutex<VecDeque<String>>>,
) {
    let mut start = [0; 4];
    while io.peek(&mut start).await.unwrap_or(0) == 4 {
        if &start == b"GET " {
            let refusal = refusals.lock().unwrap().pop_front();
            let Some(refusal) = refusal else {
                let _ = asked.send(Asked::Socket(Box::new(Peer::accept(io).await)));
                return;
            };
            read_head(&mut io).await;
            io.write_all(format!("HTTP/1.1 {refusal}\r\ncontent-length: 0\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let _ = asked.send(Asked::Refused);
        } else {
            let headers = read_head(&mut io).await;
            let length = headers["content-length"].to_str().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            io.read_exact(&mut body).await.unwrap();
            let body = serde_json::from_slice(&body).unwrap();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: ";
            let answer = format!("{head}{}\r\n\r\n{POSTED}", POSTED.len());
            io.write_all(answer.as_bytes()).await.unwrap();
            let _ = asked.send(Asked::Post(headers, body));
        }
    }
}

async fn read_head(io: &mut TcpStream) -> HeaderMap {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let lines = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "));
    lines
        .map(|(name, value)| {
            (
                name.parse::<http::HeaderName>().unwrap(),
                value.parse().unwrap(),
            )
        })
        .collect()
}

impl Peer {
    #[allow(
        clippy::result_large_err,
        reason = "tungstenite's callback has that type"
    )]
    async fn accept(io: TcpStream) -> Self {
        let (mut path, mut headers) = (String::new(), HeaderMap::new());
        let read = |request: &server::Request, answer: server::Response| {
            path = request.uri().to_string();
            headers = request.headers().clone();
            Ok(answer)
        };
        let config = WebSocketConfig::default().max_frame_size(None);
        let io = accept_hdr_async_with_config(io, read, Some(config)).await;
        Self {
            io: io.unwrap(),
            path,
            headers,
        }
    }

    /// The next event of the gateway.
    pub(super) async fn create(&mut self) -> Value {
        match within(self.io.next()).await {
            Some(Ok(Message::Text(text))) => serde_json::from_str(&text).unwrap(),
            other => panic!("no request: {other:?}"),
        }
    }

    pub(super) async fn send(&mut self, event: &Value) {
        self.message(Message::text(event.to_string())).await;
    }

    pub(super) async fn message(&mut self, message: Message) {
        self.io.send(message).await.unwrap();
    }

    /// Answers with this item of output.
    pub(super) async fn answer(&mut self, id: &str, item: &Value) {
        self.send(&delta(id)).await;
        let item = json!({"type": "response.output_item.done", "item": item});
        self.send(&item).await;
        self.send(&completed(id)).await;
    }

    /// Waits until the gateway has closed the socket.
    pub(super) async fn closed(&mut self) {
        let end = within(self.io.next()).await;
        assert!(matches!(end, None | Some(Err(_))), "{end:?}");
    }
}

pub(super) fn delta(text: &str) -> Value {
    json!({"type": "response.output_text.delta", "delta": text})
}

pub(super) fn completed(id: &str) -> Value {
    json!({"type": "response.completed", "response": {"id": id, "status": "completed"}})
}

/// What an upstream answers.
pub(super) fn message(text: &str) -> Value {
    json!({"type": "message", "role": "assistant", "content": text})
}

pub(super) fn user(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": text})
}

pub(super) type TestBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

pub(super) type TestService =
    BoxCloneSyncService<Request<ReplayBody>, Response<TestBody>, BoxError>;

pub(super) fn service(candidates: impl IntoIterator<Item = Candidate>) -> TestService {
    let upgrades = HyperService::builder().http1_only().build().unwrap();
    let sockets = UpstreamSockets::new(vec![HyperService::new().unwrap()], Some(upgrades));
    let service = ModelFallbackLayer::new(candidates).layer(sockets);
    let service = service.map_request(|request: Request<ReplayBody>| request);
    BoxCloneSyncService::new(service.map_response(|answer| answer.map(boxed)))
}

fn boxed<B>(body: B) -> TestBody
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A request of the caller for this input.
pub(super) fn request(lane: Option<&UpstreamLane>, input: &[Value]) -> Request<ReplayBody> {
    request_of(lane, json!({"input": input}))
}

pub(super) fn request_of(lane: Option<&UpstreamLane>, mut fields: Value) -> Request<ReplayBody> {
    fields["model"] = "m".into();
    fields["stream"] = true.into();
    let request = Request::post("http://gateway.invalid/v1/responses?a=b")
        .header("content-type", "application/json")
        .header("accept", "text/event-stream")
        .header("session-id", "s");
    let mut request = request.body(fields.to_string().into()).unwrap();
    if let Some(lane) = lane {
        request.extensions_mut().insert(lane.clone());
    }
    request
}

/// Sends a request, and waits for the head of its answer.
pub(super) async fn send(
    service: &TestService,
    request: Request<ReplayBody>,
) -> Result<Response<TestBody>, BoxError> {
    within(service.clone().oneshot(request)).await
}

/// Reads a whole body as text.
pub(super) async fn text<B>(answer: Response<B>) -> Result<String, B::Error>
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let body = within(answer.into_body().collect()).await?.to_bytes();
    Ok(String::from_utf8(body.into()).unwrap())
}

/// Sends a request, and reads the whole answer.
pub(super) async fn ask(
    service: &TestService,
    request: Request<ReplayBody>,
) -> Result<String, BoxError> {
    text(send(service, request).await?).await
}

/// Events as those of SSE.
pub(super) fn sse(events: &[Value]) -> String {
    let line = |event: &Value| {
        let kind = event["type"].as_str().unwrap();
        format!("event: {kind}\ndata: {event}\n\n")
    };
    events.iter().map(line).collect()
}

/// Has a turn over a socket, from the question to the end of the answer.
pub(super) async fn turn(
    service: &TestService,
    lane: &UpstreamLane,
    peer: &mut Peer,
    input: &[Value],
    id: &str,
) -> Value {
    let asking = ask(service, request(Some(lane), input));
    let answering = async {
        let create = peer.create().await;
        peer.answer(id, &message(id)).await;
        create
    };
    let (answer, create) = tokio::join!(asking, answering);
    assert!(answer.unwrap().contains(id));
    create
}

/// Has the first turn of a lane: `a`, which is answered by `r1`.
pub(super) async fn first_turn(
    upstream: &mut Upstream,
    service: &TestService,
    lane: &UpstreamLane,
) -> Peer {
    let asking = ask(service, request(Some(lane), &[user("a")]));
    let answering = async {
        let mut peer = upstream.socket().await;
        let create = peer.create().await;
        assert_eq!(create["input"], json!([user("a")]));
        assert_eq!(create.get("previous_response_id"), None);
        peer.answer("r1", &message("r1")).await;
        peer
    };
    let (answer, peer) = tokio::join!(asking, answering);
    assert!(answer.unwrap().contains("r1"));
    peer
}

/// The input of a second turn, which the first one's answer precedes.
pub(super) fn second() -> [Value; 3] {
    [user("a"), message("r1"), user("b")]
}
