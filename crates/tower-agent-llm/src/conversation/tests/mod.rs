mod answers;
mod any;
mod canonical;
mod histories;
mod linear;
mod results;

use std::collections::VecDeque;

use super::{
    history::History,
    item::{ConversationEvent, digest},
};
use crate::dialect::Dialect;

/// The conversation events of a body as words: calls as `name(id)`, results as `=id`.
fn said(body: &str) -> Vec<String> {
    let history = History::read(&Dialect::Any, body.as_bytes(), &VecDeque::new());
    history.map(|history| words(&history)).unwrap_or_default()
}

fn words(history: &History<'_>) -> Vec<String> {
    let known = |id: &Option<u64>| {
        let ids = ["a", "b", "c", "d"];
        let found = ids
            .into_iter()
            .find(|it| Some(digest(it.as_bytes())) == *id);
        found.unwrap_or(if id.is_some() { "?" } else { "-" })
    };
    let event = |event: &ConversationEvent<'_>| match event {
        ConversationEvent::Call(call) => {
            let name = String::from_utf8_lossy(&call.name);
            format!("{name}({})", known(&call.id))
        }
        ConversationEvent::Result { id, .. } => format!("={}", known(id)),
        ConversationEvent::Said => "said".to_owned(),
        ConversationEvent::Answered => "answered".to_owned(),
    };
    history.events.iter().map(event).collect()
}
