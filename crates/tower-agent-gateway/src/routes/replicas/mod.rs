//! The other gateways of `[replicas]`: what this one's routes ask them, and what it answers theirs.
//!
//! A gateway asks all others at once, by the store that they share. Each answers from its own runs, and
//! asks no further. `question` lists what can be asked: whoever can write to the store may do that and no
//! more. A question or an answer of another version is one that its reader cannot read, and the gateway
//! that wrote it counts as silent.

mod answering;
mod asking;
mod pages;
mod positions;
mod question;

pub(crate) use self::answering::answers;
pub(super) use self::{
    answering::{Completion, completion, page_of, raw, without_texts},
    asking::{AnswersElsewhere, OtherGateways, Reached, at_replica},
    pages::{Page, merge, merge_sorted},
    positions::Positions,
    question::{ControlAnswer, ControlQuestion, EventsAnswer, OwnerDigest, RelayedEvent},
};
