//! One attempt over a socket, from its request to the head of its answer.

use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Either};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tower_agent::{BoxError, ReplayBody, llm::failure::TransportError};
use tower_agent_hyper::{HyperService, RESEND_WITHIN};

use super::{
    body::{RunningTurn, SocketBody},
    continuation::{CreateEvent, CreateRequest, SentTurn},
    error::SocketError,
    event::{ErrorEvent, Meaning, UpstreamEvent},
    lane::{KeptSocket, LaneLease, Target},
    service::{UpstreamBody, UpstreamSockets},
    upgrade::{Upgrade, of_turn, upgrade},
};

/// The most bytes of a request over a socket; a longer one goes over POST. OpenAI closes a socket at
/// 16 MiB.
const MOST_SENT: usize = 15 * 1024 * 1024;

/// The beginning of an answer.
enum AnswerBeginning {
    Events {
        kept: Box<KeptSocket>,
        sent: Option<SentTurn>,
        first: Utf8Bytes,
    },
    Error(ErrorEvent),
}

/// Sends a request over the lane's socket, and waits for the first event of its answer.
///
/// A request that cannot be sent so goes over POST. A socket that turns out to be closed, too old or
/// without the response that is continued is replaced once.
///
/// # Errors
///
/// If the socket cannot be opened, or ends before the first event.
///
/// # Cancel safety
///
/// A drop of the future drops the socket.
pub(super) async fn exchange(
    sockets: UpstreamSockets,
    upgrades: HyperService,
    request: Request<ReplayBody>,
    lease: LaneLease,
) -> Result<Response<UpstreamBody>, BoxError> {
    let body = request.body().clone().collect().await?.to_bytes();
    let Some(create) = CreateRequest::read(&body) else {
        return sockets.post(request).await;
    };
    let target = Target::of(&request);
    let of_turn = of_turn(request.headers());
    let mut kept = lease.take(&target);
    let mut can_reopen = true;
    let mut died = None;
    loop {
        let is_kept = kept.is_some();
        let turn = kept.as_mut().and_then(|kept| kept.turn.take());
        let event = create.event(turn.as_ref(), &of_turn);
        if event.text.len() > MOST_SENT {
            return sockets.post(request).await;
        }
        let open = match kept.take() {
            Some(kept) => kept,
            None => match upgrade(&upgrades, &request).await {
                // The error of a connection that cannot be made says that nothing was sent.
                Err(error) => {
                    return Err(died.map_or(error, |died| TransportError::new(died).into()));
                }
                Ok(Upgrade::Open(socket)) => {
                    tracing::debug!(host = request.uri().host(), "upstream socket opened");
                    Box::new(KeptSocket::new(socket, target.clone()))
                }
                Ok(Upgrade::Unknown(refusal)) => {
                    sockets.refuse(request.uri(), &refusal);
                    return sockets.post(request).await;
                }
                Ok(Upgrade::Answer(answer)) => return Ok(answer.map(Either::Left)),
            },
        };
        let is_continuation = event.is_continuation;
        let began = Instant::now();
        match ask(open, event).await {
            Ok(AnswerBeginning::Events { kept, sent, first }) => {
                return Ok(events(RunningTurn {
                    kept,
                    lease,
                    sent,
                    first: Some(first),
                }));
            }
            Ok(AnswerBeginning::Error(error)) => {
                let is_stale = error.is_of_socket() || is_continuation && error.is_forgotten();
                if !is_stale || !can_reopen {
                    return Ok(error.to_answer().map(Either::Right));
                }
            }
            // A socket that was kept may have ended meanwhile, like an idle HTTP connection. An
            // upstream that worked on the request before has seen it.
            Err(error) if is_kept && can_reopen && began.elapsed() <= RESEND_WITHIN => {
                died = Some(error);
            }
            Err(error) => return Err(TransportError::new(error).into()),
        }
        can_reopen = false;
    }
}

/// Sends an event, and reads the first one of the answer.
async fn ask(
    mut kept: Box<KeptSocket>,
    create: CreateEvent,
) -> Result<AnswerBeginning, SocketError> {
    kept.socket.send(&create.text).await?;
    let first = kept.socket.text().await?;
    if UpstreamEvent::read(&first)?.meaning() == Meaning::Error {
        return ErrorEvent::read(&first).map(AnswerBeginning::Error);
    }
    let sent = create.sent;
    Ok(AnswerBeginning::Events { kept, sent, first })
}

fn events(turn: RunningTurn) -> Response<UpstreamBody> {
    let mut answer = Response::new(Either::Right(SocketBody::running(turn)));
    let stream = HeaderValue::from_static("text/event-stream");
    answer.headers_mut().insert(header::CONTENT_TYPE, stream);
    answer
}
