//! HTTP/2: requests that the peer did not process, and peers that process nothing.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_agent::llm::failure::TransportError;
use tower_agent_hyper::{HyperService, HyperServiceBuilder};

use crate::upstream::{Peer, Server, ask, send, within};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// `:status: 200`, of the static table.
const STATUS_200: &[u8] = &[0x88];

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

/// A connection of HTTP/2, frame by frame.
pub(crate) struct Frames(Peer);

impl Frames {
    /// Reads the client's preface, and sends the settings.
    pub(crate) async fn accept(mut peer: Peer) -> Option<Self> {
        let mut preface = [0; 24];
        peer.io.read_exact(&mut preface).await.ok()?;
        assert!(preface.starts_with(b"PRI * HTTP/2.0"));
        let mut frames = Self(peer);
        frames.send(SETTINGS, 0, 0, &[]).await;
        Some(frames)
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.send(frame).await;
    }

    async fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.io.read_exact(&mut head).await.ok()?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        self.0.io.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], head[4], stream, payload))
    }

    /// Waits for a request, and answers settings and pings; the request's stream.
    pub(crate) async fn request(&mut self) -> Option<u32> {
        loop {
            let (kind, flags, stream, payload) = self.next().await?;
            match kind {
                SETTINGS | PING if flags & ACK == 0 => {
                    let payload = if kind == PING { payload } else { Vec::new() };
                    self.send(kind, ACK, 0, &payload).await;
                }
                HEADERS => {
                    self.0.note(format!("stream {stream}"));
                    return Some(stream);
                }
                _ => {}
            }
        }
    }

    pub(crate) async fn answer(&mut self, stream: u32) {
        self.send(HEADERS, END_HEADERS, stream, STATUS_200).await;
        self.send(DATA, END_STREAM, stream, b"ok").await;
    }

    pub(crate) async fn answer_all(mut self) {
        while let Some(stream) = self.request().await {
            self.answer(stream).await;
        }
    }

    async fn reset(&mut self, stream: u32, reason: u32) {
        self.send(RST_STREAM, 0, stream, &reason.to_be_bytes())
            .await;
    }

    async fn go_away(&mut self, last: u32, reason: u32) {
        let payload = [last.to_be_bytes(), reason.to_be_bytes()].concat();
        self.send(GOAWAY, 0, 0, &payload).await;
    }
}

pub(crate) fn http2() -> HyperServiceBuilder {
    HyperService::builder().http2_prior_knowledge()
}

/// What the first connection does with its request, or with its second.
#[derive(Clone, Copy)]
enum Act {
    Refuse,
    GoAwayBelow,
    /// The same, and the connection ends.
    GoAwayBelowAndEnd,
    /// The last id is the request's own, and the connection ends.
    GoAwayAtAndEnd,
    Fail,
    End,
}

impl Act {
    async fn play(self, frames: &mut Frames, stream: u32) {
        match self {
            Self::Refuse => frames.reset(stream, REFUSED_STREAM).await,
            Self::GoAwayBelow | Self::GoAwayBelowAndEnd => {
                frames.go_away(stream - 1, NO_ERROR).await;
            }
            Self::GoAwayAtAndEnd => frames.go_away(stream, NO_ERROR).await,
            Self::Fail => frames.reset(stream, INTERNAL_ERROR).await,
            Self::End => {}
        }
        if matches!(self, Self::Refuse | Self::GoAwayBelow | Self::Fail) {
            std::future::pending::<()>().await;
        }
        // A close with unread bytes would be a reset.
        frames.0.io.shutdown().await.unwrap();
        while frames.next().await.is_some() {}
    }
}

/// The first `faulty` connections answer `answered` requests, then act; later ones answer all.
async fn server(faulty: usize, answered: usize, act: Act) -> Server {
    Server::start(move |peer| async move {
        let number = peer.number;
        let Some(mut frames) = Frames::accept(peer).await else {
            return;
        };
        if number >= faulty {
            return frames.answer_all().await;
        }
        for _ in 0..answered {
            let stream = frames.request().await.unwrap();
            frames.answer(stream).await;
        }
        let stream = frames.request().await.unwrap();
        act.play(&mut frames, stream).await;
    })
    .await
}

#[tokio::test]
async fn a_request_that_the_peer_did_not_process_goes_out_again() {
    for act in [Act::Refuse, Act::GoAwayBelow, Act::GoAwayBelowAndEnd] {
        for answered in [0, 1] {
            let server = server(1, answered, act).await;
            let client = http2().build().unwrap();
            for _ in 0..answered {
                ask(&client, server.post("a")).await.unwrap();
            }

            let answer = ask(&client, server.post("b")).await;

            assert_eq!(answer.unwrap(), "ok");
            assert_eq!(server.notes().len(), answered + 2);
            assert_eq!(server.connections(), 2);
        }
    }
}

#[tokio::test]
async fn a_request_that_is_refused_twice_fails() {
    for act in [Act::Refuse, Act::GoAwayBelow, Act::GoAwayBelowAndEnd] {
        let server = server(9, 0, act).await;
        let client = http2().build().unwrap();

        let error = ask(&client, server.post("a")).await.unwrap_err();

        assert!(TransportError::is_in(&*error), "{error:?}");
        assert_eq!(server.notes().len(), 2);
    }
}

#[tokio::test]
async fn a_reused_connection_that_ends_under_a_request_is_replaced() {
    for act in [Act::End, Act::GoAwayAtAndEnd] {
        let server = server(1, 1, act).await;
        let client = http2().build().unwrap();
        ask(&client, server.post("a")).await.unwrap();

        assert_eq!(ask(&client, server.post("b")).await.unwrap(), "ok");

        assert_eq!(server.notes().len(), 3);
    }
}

#[tokio::test]
async fn a_request_that_may_have_been_processed_is_not_repeated() {
    let cases = [
        (Act::Fail, 0),
        (Act::Fail, 1),
        (Act::End, 0),
        (Act::GoAwayAtAndEnd, 0),
    ];
    for (act, answered) in cases {
        let server = server(1, answered, act).await;
        let client = http2().build().unwrap();
        for _ in 0..answered {
            ask(&client, server.post("a")).await.unwrap();
        }

        let error = ask(&client, server.post("b")).await.unwrap_err();

        assert!(TransportError::is_in(&*error), "{error:?}");
        assert_eq!(server.notes().len(), answered + 1);
    }
}

/// A refused stream says nothing about the connection, and the others on it go on.
#[tokio::test]
async fn a_refused_stream_costs_no_connection() {
    let server = Server::start(|peer| async move {
        let Some(mut frames) = Frames::accept(peer).await else {
            return;
        };
        let stream = frames.request().await.unwrap();
        match frames.0.number {
            0 => frames.reset(stream, REFUSED_STREAM).await,
            _ => frames.answer(stream).await,
        }
        frames.answer_all().await;
    })
    .await;
    let client = http2().build().unwrap();
    ask(&client, server.post("a")).await.unwrap();

    ask(&client, server.post("b")).await.unwrap();

    let at: Vec<_> = server.notes().into_iter().map(|(at, _)| at).collect();
    assert_eq!(at, [0, 1, 0]);
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_closed() {
    let server = Server::start(|peer| async move {
        let mut frames = Frames::accept(peer).await.unwrap();
        let stream = frames.request().await.unwrap();
        frames.answer(stream).await;
        // It acknowledges on TCP what it reads, and answers nothing.
        while frames.next().await.is_some() {}
        frames.0.note("closed");
    })
    .await;
    let every = Duration::from_millis(50);
    let client = http2()
        .http2_keep_alive_interval(every)
        .http2_keep_alive_timeout(every)
        .build()
        .unwrap();
    // The connection is idle, then under a request.
    let answer = send(&client, server.post("a")).await.unwrap();
    drop(answer);
    within(async {
        while !server.notes().iter().any(|(_, note)| note == "closed") {
            tokio::time::sleep(every).await;
        }
    })
    .await;
    assert!(server.connections() >= 1);
}
