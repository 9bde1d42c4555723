//! HTTP/2: requests that the peer did not process, and peers that process nothing.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_agent::llm::failure::TransportError;
use tower_agent_hyper::{HyperService, HyperServiceBuilder};

use crate::upstream::{Peer, Server, ask, causes, send, within};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// `:status: 200`, of the static table.
pub(crate) const STATUS_200: &[u8] = &[0x88];

/// `:status: 103`, with the name of the static table.
const STATUS_103: &[u8] = &[0x08, 3, b'1', b'0', b'3'];

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

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.send(frame).await;
    }

    pub(crate) async fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
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
    /// An interim answer, and the connection ends.
    HintAndEnd,
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
            Self::HintAndEnd => {
                let hint = STATUS_103;
                frames.send(HEADERS, END_HEADERS, stream, hint).await;
            }
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
    let server = server(1, 1, Act::End).await;
    let client = http2().build().unwrap();
    ask(&client, server.post("a")).await.unwrap();

    assert_eq!(ask(&client, server.post("b")).await.unwrap(), "ok");

    assert_eq!(server.notes().len(), 3);
}

#[tokio::test]
async fn a_request_that_may_have_been_processed_is_not_repeated() {
    let cases = [
        (Act::Fail, 0),
        (Act::Fail, 1),
        (Act::End, 0),
        (Act::GoAwayAtAndEnd, 0),
        (Act::GoAwayAtAndEnd, 1),
        (Act::HintAndEnd, 1),
    ];
    for (act, answered) in cases {
        let server = server(1, answered, act).await;
        let client = http2().build().unwrap();
        for _ in 0..answered {
            ask(&client, server.post("a")).await.unwrap();
        }

        let error = ask(&client, server.post("b"))
            .await
            .expect_err("sent again");

        assert!(TransportError::is_in(&*error), "{error:?}");
        assert_eq!(server.notes().len(), answered + 1);
    }
}

/// The peer works on all of them when it crashes.
#[tokio::test]
async fn the_streams_of_a_connection_that_answered_one_meanwhile_are_not_repeated() {
    let server = Server::start(|peer| async move {
        let Some(mut frames) = Frames::accept(peer).await else {
            return;
        };
        if frames.0.number > 0 {
            return frames.answer_all().await;
        }
        let first = frames.request().await.unwrap();
        for _ in 1..6 {
            frames.request().await.unwrap();
        }
        frames.answer(first).await;
    })
    .await;
    let client = http2().build().unwrap();
    let calls = (0..6).map(|call| {
        let (client, request) = (client.clone(), server.post(&call.to_string()));
        async move { ask(&client, request).await.is_ok() }
    });

    let are_well = futures_util::future::join_all(calls).await;

    assert_eq!(are_well.into_iter().filter(|is_well| *is_well).count(), 1);
    assert_eq!(server.notes().len(), 6);
    assert_eq!(server.connections(), 1);
}

/// A peer that was frozen processes what its kernel acknowledged when it goes on.
#[tokio::test]
async fn a_request_whose_connection_answers_no_ping_is_not_repeated() {
    let server = Server::start(|peer| async move {
        let mut frames = Frames::accept(peer).await.unwrap();
        if frames.0.number > 0 {
            return frames.answer_all().await;
        }
        let stream = frames.request().await.unwrap();
        frames.answer(stream).await;
        std::future::pending().await
    })
    .await;
    let client = http2()
        .http2_keep_alive_interval(Duration::from_millis(300))
        .http2_keep_alive_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    ask(&client, server.post("a")).await.unwrap();

    let error = ask(&client, server.post("b"))
        .await
        .expect_err("sent again");

    let causes = causes(&error).concat();
    assert!(causes.contains("keep-alive timed out"), "{causes}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn refused_streams_share_the_next_connection() {
    const STREAMS: usize = 20;
    let server = Server::start(|peer| async move {
        let Some(mut frames) = Frames::accept(peer).await else {
            return;
        };
        if frames.0.number > 0 {
            return frames.answer_all().await;
        }
        let mut streams = Vec::new();
        while streams.len() < STREAMS {
            streams.push(frames.request().await.unwrap());
        }
        for stream in streams {
            frames.reset(stream, REFUSED_STREAM).await;
        }
        frames.answer_all().await;
    })
    .await;
    let client = http2().build().unwrap();
    let calls = (0..STREAMS).map(|_| ask(&client, server.post("a")));

    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.unwrap(), "ok");
    }

    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn the_streams_beside_a_refused_one_go_on() {
    let server = Server::start(|peer| async move {
        let Some(mut frames) = Frames::accept(peer).await else {
            return;
        };
        if frames.0.number > 0 {
            return frames.answer_all().await;
        }
        let beside = frames.request().await.unwrap();
        let refused = frames.request().await.unwrap();
        frames.reset(refused, REFUSED_STREAM).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        frames.answer(beside).await;
        frames.answer_all().await;
    })
    .await;
    let client = http2().build().unwrap();

    let (beside, refused) = tokio::join!(
        ask(&client, server.post("a")),
        ask(&client, server.post("b"))
    );

    assert_eq!(
        (beside.unwrap(), refused.unwrap()),
        ("ok".into(), "ok".into())
    );
    let at: Vec<_> = server.notes().into_iter().map(|(at, _)| at).collect();
    assert_eq!(at, [0, 0, 1]);
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
    assert_eq!(server.connections(), 1);
}
