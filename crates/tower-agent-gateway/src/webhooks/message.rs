//! The ids and the bodies of messages.

use std::{
    fmt::Write,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use jiff::Timestamp;
use ring::digest::{Context, SHA256};
use serde_json::{Value, json};
use tower_agent::RunSnapshot;

use super::ShowOwner;
use crate::config::WebhookKind;

/// Makes the ids of messages. All tries of a message have one id, at all receivers.
#[derive(Debug)]
pub(super) struct MessageIds {
    /// Tells the ids of this process from those of others.
    process: [[u8; 8]; 2],
    /// Identifies the store of runs: gateways that share it make one id for one event.
    store: Option<u128>,
    next: AtomicU64,
}

impl MessageIds {
    pub(super) fn new(store: Option<u128>) -> Self {
        let process = [(); 2].map(|()| RandomState::new().hash_one(0).to_be_bytes());
        Self {
            process,
            store,
            next: AtomicU64::new(0),
        }
    }

    /// The id of an event of a run that other gateways may see, too. `detail` tells it from other
    /// events of its type in the run.
    pub(super) fn of_run(&self, kind: WebhookKind, run: &RunSnapshot, detail: &str) -> String {
        let (Some(store), Some(incarnation)) = (self.store, run.incarnation) else {
            return self.once(kind);
        };
        let owner = run.owner.map(|owner| owner.to_string());
        id(&[
            &store.to_be_bytes(),
            &incarnation.to_be_bytes(),
            type_of(kind).as_bytes(),
            owner.unwrap_or_default().as_bytes(),
            run.run.to_string().as_bytes(),
            detail.as_bytes(),
        ])
    }

    /// The id of an event that only this gateway sees.
    pub(super) fn once(&self, kind: WebhookKind) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        id(&[
            &self.process.concat(),
            &number.to_be_bytes(),
            type_of(kind).as_bytes(),
        ])
    }
}

fn id(parts: &[&[u8]]) -> String {
    let mut digest = Context::new(&SHA256);
    for part in parts {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let mut id = "msg_".to_owned();
    for byte in &digest.finish().as_ref()[..16] {
        // Writing to a string does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// The type of a message.
const fn type_of(kind: WebhookKind) -> &'static str {
    match kind {
        WebhookKind::Ended => "run.ended",
        WebhookKind::NearCap => "run.near_cap",
        WebhookKind::Paused => "run.paused",
        WebhookKind::Stuck => "run.stuck",
        WebhookKind::CandidateDown => "candidate.down",
        WebhookKind::Frozen => "gateway.frozen",
    }
}

pub(super) fn body(kind: WebhookKind, data: Value) -> Bytes {
    let now = format!("{:.3}", Timestamp::now());
    let message = json!({ "type": type_of(kind), "timestamp": now, "data": data });
    message.to_string().into()
}

/// What a message says of a run: no text of a request and none of an answer.
pub(super) fn data_of_run(run: &RunSnapshot, candidate: Option<&str>, show: &ShowOwner) -> Value {
    json!({
        "run": run.run,
        "parent": run.parent,
        "session": run.session,
        "owner": run.owner.map(|owner| show(owner)),
        "turns": run.turns,
        "max_turns": run.max_turns,
        "usage": run.usage,
        "spent": run.spent,
        "token_caps": run.token_caps,
        "candidate": run.candidate.as_deref().or(candidate),
        "elapsed_ms": u64::try_from(run.elapsed.as_millis()).unwrap_or(u64::MAX),
    })
}
