use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tower_agent::{BoxError, llm::failure::TransportError};

use super::{
    continuation::SentTurn,
    error::SocketError,
    event::{Meaning, UpstreamEvent},
    lane::{KeptSocket, LaneLease},
};

/// The body of an answer that came over a socket: a stream of events, or an error.
///
/// # Cancel safety
///
/// A drop before the last event drops the socket.
pub(crate) struct SocketBody(SocketBodyState);

enum SocketBodyState {
    Whole(Bytes),
    Running(Box<RunningTurn>),
    Done,
}

/// A response that runs, with all that its end needs.
pub(super) struct RunningTurn {
    pub(super) kept: Box<KeptSocket>,
    pub(super) lease: LaneLease,
    /// `None` if no request can continue the response.
    pub(super) sent: Option<SentTurn>,
    /// A message that was read ahead.
    pub(super) first: Option<Utf8Bytes>,
}

impl SocketBody {
    /// A body of an error.
    pub(super) const fn whole(body: Bytes) -> Self {
        Self(SocketBodyState::Whole(body))
    }

    /// The body of a response that runs.
    pub(super) fn running(turn: RunningTurn) -> Self {
        Self(SocketBodyState::Running(Box::new(turn)))
    }
}

impl RunningTurn {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Bytes, Meaning), SocketError>> {
        let text = match self.first.take() {
            Some(text) => text,
            None => ready!(self.kept.socket.poll_text(cx))?,
        };
        let event = UpstreamEvent::read(&text)?;
        let meaning = event.meaning();
        match meaning {
            Meaning::Item => {
                let can_go_on = match (event.item(), &mut self.sent) {
                    (Some(item), Some(sent)) => sent.push_output(item),
                    _ => false,
                };
                if !can_go_on {
                    self.sent = None;
                }
            }
            Meaning::End => {
                let ended = self.sent.take().zip(event.response_id());
                self.kept.turn = ended.map(|(sent, id)| sent.ended(id));
            }
            Meaning::Failure | Meaning::Error | Meaning::Other => {}
        }
        Poll::Ready(Ok((event.to_sse(&text), meaning)))
    }
}

impl Body for SocketBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let event = match &mut self.0 {
            SocketBodyState::Running(turn) => ready!(turn.poll_event(cx)),
            SocketBodyState::Whole(_) | SocketBodyState::Done => {
                let SocketBodyState::Whole(body) =
                    std::mem::replace(&mut self.0, SocketBodyState::Done)
                else {
                    return Poll::Ready(None);
                };
                return Poll::Ready(Some(Ok(Frame::data(body))));
            }
        };
        let frame = match event {
            Ok((event, Meaning::Item | Meaning::Other)) => Ok(event),
            Ok((event, end)) => {
                let over = std::mem::replace(&mut self.0, SocketBodyState::Done);
                // The lane has its socket before the caller has the last event, and may ask again.
                if let (SocketBodyState::Running(turn), Meaning::End | Meaning::Failure) =
                    (over, end)
                {
                    let RunningTurn { kept, lease, .. } = *turn;
                    lease.keep(kept);
                }
                Ok(event)
            }
            Err(error) => {
                self.0 = SocketBodyState::Done;
                Err(TransportError::new(error).into())
            }
        };
        Poll::Ready(Some(frame.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, SocketBodyState::Done)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            SocketBodyState::Whole(body) => SizeHint::with_exact(body.len() as u64),
            SocketBodyState::Running(_) => SizeHint::default(),
            SocketBodyState::Done => SizeHint::with_exact(0),
        }
    }
}
