//! The names of the keys, and which hash tag they carry.
//!
//! A run, the part of its session's index that lists it, and the log of its news carry one tag, so
//! that a script has all its keys in one slot.

use std::time::SystemTime;

use tower_agent::{
    Owner, RunId,
    registry::store::{OwnerPeriod, RunKey},
};

/// The number of hash tags.
pub(crate) const TAGS: u8 = 16;

/// Makes the names of keys below one prefix.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    prefix: String,
}

impl KeyNames {
    pub(crate) const fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// A key of this tag.
    pub(crate) fn tagged(&self, tag: u8, name: &str) -> String {
        format!("{}:{{{tag:02}}}:{name}", self.prefix)
    }

    /// The hash of a run.
    pub(crate) fn run(&self, run: &RunKey) -> String {
        let (tag, owner) = (
            tag_of(run.owner, run.id.to_string().as_bytes()),
            hex(run.owner),
        );
        format!("{}:{{{tag:02}}}:run:{owner}:{}", self.prefix, run.id)
    }

    /// The sorted set of the session's runs that carry this tag.
    pub(crate) fn session(&self, tag: u8, owner: Owner, session: &str) -> String {
        let owner = hex(owner);
        format!("{}:{{{tag:02}}}:ses:{owner}:{session}", self.prefix)
    }

    /// The owners of the runs of this id that carry this tag.
    pub(crate) fn owners_of_id(&self, tag: u8, id: &RunId) -> String {
        format!("{}:{{{tag:02}}}:id:{id}", self.prefix)
    }

    /// The owners of the session's runs that carry this tag.
    pub(crate) fn owners_of_session(&self, tag: u8, session: &str) -> String {
        format!("{}:{{{tag:02}}}:sid:{session}", self.prefix)
    }

    /// The hash of what the replicas have counted for an owner.
    pub(crate) fn owner(&self, owner: Owner) -> String {
        let tag = tag_of(owner, b"");
        format!("{}:{{{tag:02}}}:own:{}", self.prefix, hex(owner))
    }

    /// The hash of what the replicas have counted for an owner in a period of the calendar.
    pub(crate) fn period(&self, owner: Owner, period: &OwnerPeriod) -> String {
        let began = period.began.duration_since(SystemTime::UNIX_EPOCH);
        let began = began.unwrap_or_default().as_secs();
        format!("{}:{}:{began}", self.owner(owner), period.period)
    }

    /// The log of the news about what carries this tag.
    pub(crate) fn log(&self, tag: u8) -> String {
        format!("{}:{{{tag:02}}}:log", self.prefix)
    }

    /// The fingerprint of the secret that all replicas have.
    pub(crate) fn secret(&self) -> String {
        format!("{}:{{00}}:secret", self.prefix)
    }

    /// The sorted set of the replicas, by when each said last that it lives.
    pub(crate) fn replicas(&self) -> String {
        format!("{}:{{00}}:replicas", self.prefix)
    }

    /// The log of the questions to the programs of the other replicas.
    pub(crate) fn questions(&self) -> String {
        format!("{}:{{00}}:ask", self.prefix)
    }

    /// The list of the replicas that have come as far as a barrier, or of the answers to a question.
    pub(crate) fn answers(&self, tag: u8, barrier: &str) -> String {
        format!("{}:{{{tag:02}}}:re:{barrier}", self.prefix)
    }
}

/// One of many runs.
#[cfg(test)]
pub(crate) fn numbered_run(number: usize) -> RunKey {
    RunKey {
        owner: Owner::default(),
        id: format!("r-{number}").parse().unwrap(),
    }
}

/// The tag of a run, or of another thing of this owner.
///
/// Replicas of different versions must agree: the hash is FNV-1a, and never changes below one
/// prefix.
pub(crate) fn tag_of(owner: Owner, name: &[u8]) -> u8 {
    let bytes = owner.digest().to_be_bytes();
    let hash = bytes
        .iter()
        .chain(name)
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    ((hash >> 32) % u64::from(TAGS)) as u8
}

pub(crate) fn tag_of_run(run: &RunKey) -> u8 {
    tag_of(run.owner, run.id.to_string().as_bytes())
}

/// The owner as 32 hexadecimal digits.
pub(crate) fn hex(owner: Owner) -> String {
    format!("{:032x}", owner.digest())
}

/// The owner of 32 hexadecimal digits.
pub(crate) fn owner_of(hex: &str) -> Option<Owner> {
    if hex.len() != 32 {
        return None;
    }
    u128::from_str_radix(hex, 16).ok().map(Owner::from_digest)
}
