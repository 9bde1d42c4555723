//! What people are told of a run that takes long.

mod comments;
mod early;
mod early_ends;
mod stacked;
mod tools;

use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use tokio::time::Instant;
use tower_agent::{BoxError, ProgressNotices, Run, RunEvent, RunNotice, TerminalResponseLayer};

use crate::support::{ReadExt, secs};

const KEEP_ALIVE: &str = ": keep-alive\n";

/// Notices to observers, and a comment after 15 s without bytes.
const LAYER: TerminalResponseLayer = TerminalResponseLayer::new()
    .keep_alive(Some(Duration::from_secs(15)))
    .notices(ProgressNotices::new());

/// A notice of a call as it stands in a stream.
fn comment(seconds: u64) -> String {
    format!(": Still working: llm_call has been running for {seconds} s\n")
}

/// The frames of a body, each with the second in which it came, and its end.
async fn timed<B>(mut body: B) -> (Vec<(u64, String)>, Result<(), BoxError>)
where
    B: Body<Data = Bytes> + Unpin + Send,
    B::Error: Into<BoxError> + Send,
{
    let start = Instant::now();
    let mut frames = Vec::new();
    loop {
        // Comments go on for ever, and a stream that should have ended with them.
        assert!(start.elapsed() < secs(20_000), "it does not end");
        match body.next().await {
            None => return (frames, Ok(())),
            Some(Err(error)) => return (frames, Err(error)),
            Some(Ok(text)) => frames.push((exactly(start.elapsed()), text)),
        }
    }
}

/// What should come when.
fn frames<const N: usize>(frames: [(u64, &str); N]) -> Vec<(u64, String)> {
    frames.map(|(at, text)| (at, text.to_owned())).to_vec()
}

/// The frames of a stream, and the code of the error event that ends it at that second.
fn cut<const N: usize>(
    mut read: Vec<(u64, String)>,
    expected: [(u64, &str); N],
    (at, code): (u64, &str),
) {
    let (told, event) = read.pop().unwrap();
    assert_eq!(read, frames(expected));
    assert_eq!(told, at);
    assert!(event.starts_with("event: error\n"), "{event}");
    assert!(event.contains(&format!("\"code\":\"{code}\"")), "{event}");
}

/// The notices of a run: at which second, and of what.
#[derive(Debug)]
struct Noticed {
    told: tokio::task::JoinHandle<Vec<(u64, String)>>,
}

impl Noticed {
    /// Listens until the run has ended; nothing may come after that.
    fn of(run: &Run) -> Self {
        let mut events = run.subscribe();
        let start = Instant::now();
        let told = tokio::spawn(async move {
            let mut told = Vec::new();
            while let Some(event) = events.next().await {
                match event {
                    RunEvent::Notice {
                        notice:
                            RunNotice::Working {
                                step,
                                running_for,
                                message,
                                ..
                            },
                        ..
                    } => {
                        let seconds = running_for.as_secs();
                        let sentence =
                            format!("Still working: {step} has been running for {seconds} s");
                        assert_eq!(message, sentence);
                        told.push((exactly(start.elapsed()), step.to_string()));
                    }
                    RunEvent::Ended { .. } => break,
                    other => panic!("{other:?}"),
                }
            }
            assert!(events.next().await.is_none(), "something after the end");
            told
        });
        Self { told }
    }

    /// All there were, once the run is over.
    async fn all(self) -> Vec<(u64, String)> {
        self.told.await.unwrap()
    }
}

/// A whole number of seconds.
fn exactly(at: Duration) -> u64 {
    assert_eq!(at.subsec_nanos(), 0, "{at:?}");
    at.as_secs()
}

/// The same of one thing at these seconds.
fn each(step: &str, at: &[u64]) -> Vec<(u64, String)> {
    at.iter().map(|at| (*at, step.to_owned())).collect()
}
