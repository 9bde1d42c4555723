//! Body types: a replayable request body, its buffering, a held response prefix, announced
//! lengths, a gate before a body that is not woken.

mod buffer;
mod framing;
mod prefix;
mod replay;
#[cfg(test)]
mod tests;
mod wake_gate;

pub use self::{
    framing::{detach, unframe},
    replay::ReplayBody,
};

pub(crate) use self::{
    buffer::Buffering,
    framing::{AnnouncedLength, content_length, has_body},
    prefix::HeldPrefix,
    replay::MAX_BODY,
    wake_gate::WakeGate,
};
