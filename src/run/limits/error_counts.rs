//! Counts the failures of a run by subject and message.
//!
//! The key of a message leaves out the parts that differ between repeats, such as ids and
//! times.

#[cfg(test)]
mod tests;

use crate::{
    llm::{PIECE, ShortNumbers, cut, normalize},
    lock::Lock,
};

/// The maximum of error keys that a run counts separately.
const KEYS: usize = 64;

/// The failures of one run, counted against its limits.
///
/// ```
/// use tower_agent::{RetryBudget, run::{ErrorAllowance, ErrorKey}};
///
/// let counts = RetryBudget::new().per_error_key(1).counts();
/// let failed = |after| ErrorKey::new("search", &format!("timed out after {after} ms"));
///
/// assert_eq!(counts.count(failed(350)), ErrorAllowance::Within);
/// assert_eq!(counts.count(failed(1002)), ErrorAllowance::KeySpent);
/// ```
#[derive(Debug)]
pub struct ErrorCounts(Lock<ErrorRows>);

/// The result of counting a failure: which limit of the run it exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorAllowance {
    /// The failure is within the limits: another try is allowed.
    Within,
    /// The failures of this kind have exceeded their limit.
    KeySpent,
    /// The failures of the run have exceeded the limit on all of them.
    RunSpent,
    /// The limit on this kind of failure and the limit on all failures are exceeded.
    BothSpent,
    /// The run has reached its limit on failures in a row, and exceeded no other limit.
    RowSpent,
}

#[derive(Debug, Default)]
struct ErrorRows {
    per_key: Option<u32>,
    per_run: Option<u32>,
    in_a_row: Option<u32>,
    all: u32,
    /// The number of failures since the last success: of tools, and of calls after all their
    /// attempts.
    row: u32,
    /// The count of each key; at most `KEYS` keys, few enough for a linear search.
    keys: Vec<(ErrorKey, u32)>,
    /// The count of all keys beyond `KEYS` together.
    overflow: u32,
}

impl ErrorCounts {
    /// Makes counts at zero. With a limit of n, failure n + 1 exceeds it; `None` sets no limit.
    #[must_use]
    pub fn new(per_key: Option<u32>, per_run: Option<u32>) -> Self {
        Self(Lock::new(ErrorRows {
            per_key,
            per_run,
            ..ErrorRows::default()
        }))
    }

    /// Lowers each limit to the given one if that is smaller, and sets missing ones. The counts
    /// stay.
    pub fn tighten(&self, per_key: Option<u32>, per_run: Option<u32>) {
        let mut counted = self.0.lock();
        counted.per_key = smaller(counted.per_key, per_key);
        counted.per_run = smaller(counted.per_run, per_run);
    }

    /// Lowers the limit on failures of any key in a row, like [`tighten`](Self::tighten). With a
    /// limit of n, failure n in a row reaches it.
    pub fn tighten_in_a_row(&self, limit: Option<u32>) {
        let mut counted = self.0.lock();
        counted.in_a_row = smaller(counted.in_a_row, limit);
    }

    /// Counts one failure, and returns which limits it exceeds.
    ///
    /// With a limit of n per key or per run, failure n + 1 and each later failure that the limit
    /// counts exceed it. A limit of n in a row is reached at failure n in a row.
    ///
    /// The first 64 keys of a run have a count each; all other keys share one count.
    pub fn count(&self, key: ErrorKey) -> ErrorAllowance {
        let mut counted = self.0.lock();
        let verdict = counted.add(key);
        match (verdict, counted.add_to_row()) {
            (ErrorAllowance::Within, true) => ErrorAllowance::RowSpent,
            (verdict, _) => verdict,
        }
    }

    /// Resets the count of failures in a row after a success: the next failure is the first.
    pub fn succeeded(&self) {
        self.0.lock().row = 0;
    }

    /// Counts a failed attempt against the limits per key and per run, but not as a failure in a
    /// row: another try may succeed.
    pub(crate) fn count_attempt(&self, key: ErrorKey) -> ErrorAllowance {
        self.0.lock().add(key)
    }

    /// Counts a failure in a row, for a failed attempt that was counted before and now is the
    /// failure of its call. Returns whether the failures in a row have reached their limit.
    pub(crate) fn count_in_row(&self) -> bool {
        self.0.lock().add_to_row()
    }

    /// The number of all failures that were counted.
    pub(crate) fn all(&self) -> u32 {
        self.0.lock().all
    }
}

impl ErrorRows {
    fn add(&mut self, key: ErrorKey) -> ErrorAllowance {
        self.all = self.all.saturating_add(1);
        let of_key = self.of_key(key);
        *of_key = of_key.saturating_add(1);
        let of_key = *of_key;
        let key_spent = self.per_key.is_some_and(|limit| of_key > limit);
        let run_spent = self.per_run.is_some_and(|limit| self.all > limit);
        match (key_spent, run_spent) {
            (false, false) => ErrorAllowance::Within,
            (true, false) => ErrorAllowance::KeySpent,
            (false, true) => ErrorAllowance::RunSpent,
            (true, true) => ErrorAllowance::BothSpent,
        }
    }

    fn add_to_row(&mut self) -> bool {
        self.row = self.row.saturating_add(1);
        self.in_a_row.is_some_and(|limit| self.row >= limit)
    }

    fn of_key(&mut self, key: ErrorKey) -> &mut u32 {
        let known = self.keys.iter().position(|(known, _)| *known == key);
        let at = known.unwrap_or(self.keys.len());
        if at == KEYS {
            return &mut self.overflow;
        }
        if at == self.keys.len() {
            self.keys.push((key, 0));
        }
        &mut self.keys[at].1
    }
}

fn smaller(ours: Option<u32>, theirs: Option<u32>) -> Option<u32> {
    ours.into_iter().chain(theirs).min()
}

/// Only the first `KEPT` bytes of a subject count in an [`ErrorKey`].
///
/// Of a message, only the first `KEPT` bytes of its normalized form count. Two keys are equal if
/// their subjects and messages differ only behind these bytes.
const KEPT: usize = 4096;

/// The maximum length of a message that is read, in bytes. This length exceeds `KEPT`, because
/// volatile words may be longer than their placeholder.
const READ: usize = 8192;

/// The kind of a failure: a digest of the subject that failed and of the message.
///
/// Two messages have the same key if they differ only in words with a digit (numbers,
/// durations, dates, ids, addresses), in ids with a known prefix, in the unit of time after a
/// number, in letter case, or in white space. Any other word makes a different key. A `-` or
/// `_` within a word is part of it. The first 8 KiB of the message are read, and the first 4 KiB
/// of the normalized message count.
///
/// ```
/// use tower_agent::run::ErrorKey;
///
/// let key = ErrorKey::new("gpt", "Rate limit reached, try again in 1.2s (req_01H8XGJW)");
/// assert_eq!(key, ErrorKey::new("gpt", "rate limit reached, try again in 20s (req_7Q2M4B9Z)"));
/// assert_ne!(key, ErrorKey::new("gpt", "Quota reached, try again in 1.2s (req_01H8XGJW)"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorKey(u64);

impl ErrorKey {
    /// Makes the key of a failure of `subject`, a tool or model, with this `message`. The function
    /// reads a bounded part of both, and allocates nothing.
    #[must_use]
    pub fn new(subject: &str, message: &str) -> Self {
        let subject = &subject.as_bytes()[..subject.len().min(KEPT)];
        let mut digest = Digest::after(subject);
        normalize(cut(message, READ), ShortNumbers::Replaced, |piece, len| {
            digest.write(piece, len);
        });
        Self(digest.finish())
    }
}

/// The length of a block of the digest: `KEPT` is a multiple of it.
const BLOCK: usize = 64;

/// The number of bytes that are hashed at once.
const PAIR: usize = 16;

/// A hash of a subject, and of the first `KEPT` bytes written after it.
///
/// A call of the standard library's `DefaultHasher` for each piece takes several times as long, and
/// is no safer against made collisions, because its seed is known too.
struct Digest {
    state: u64,
    /// The length of the blocks that are part of the state.
    hashed: usize,
    /// The written bytes that are not hashed yet: the first `len` of this array. Behind them may be
    /// unused bytes of the last piece.
    rest: [u8; BLOCK + PAIR],
    len: usize,
}

impl Digest {
    fn after(subject: &[u8]) -> Self {
        Self {
            state: pairs(subject.len() as u64, subject),
            hashed: 0,
            rest: [0; BLOCK + PAIR],
            len: 0,
        }
    }

    /// Adds the first `len` bytes of a piece.
    #[inline]
    fn write(&mut self, piece: [u8; PIECE], len: usize) {
        self.rest[self.len..][..PIECE].copy_from_slice(&piece);
        self.len += len;
        if self.len >= BLOCK {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        if self.hashed < KEPT {
            self.state = pairs(self.state, &self.rest[..BLOCK]);
            self.hashed += BLOCK;
        }
        self.rest.copy_within(BLOCK.., 0);
        self.len -= BLOCK;
    }

    fn finish(&mut self) -> u64 {
        if self.hashed == KEPT {
            return self.state;
        }
        self.rest[self.len..][..PAIR].fill(0);
        let end = self.len.next_multiple_of(PAIR);
        pairs(self.state ^ self.len as u64, &self.rest[..end])
    }
}

/// Hashes bytes in groups of sixteen; a shorter last group is filled up with zeros.
#[inline]
fn pairs(mut state: u64, mut bytes: &[u8]) -> u64 {
    while let Some((pair, after)) = bytes.split_first_chunk::<PAIR>() {
        state = mix(state, u128::from_le_bytes(*pair));
        bytes = after;
    }
    if bytes.is_empty() {
        return state;
    }
    let last = bytes.iter().rev();
    mix(
        state,
        last.fold(0, |pair, &byte| pair << 8 | u128::from(byte)),
    )
}

/// Mixes the state and the halves of a pair into a new state, by one multiplication.
#[inline]
const fn mix(state: u64, pair: u128) -> u64 {
    // The fractional digits of the golden ratio, and of the square root of two.
    const ONE: u64 = 0x9e37_79b9_7f4a_7c15;
    const OTHER: u64 = 0x6a09_e667_f3bc_c909;
    let product = (state ^ pair as u64 ^ ONE) as u128 * ((pair >> 64) as u64 ^ OTHER) as u128;
    (product as u64) ^ (product >> 64) as u64
}
