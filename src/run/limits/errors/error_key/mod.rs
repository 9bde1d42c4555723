mod calendar;
mod normalise;
mod volatile;
mod words;

#[cfg(test)]
pub(crate) use self::normalise::PLACEHOLDER;
pub(crate) use self::normalise::normalise;

/// How much of a subject, and of a normalised message, makes a key, in bytes.
pub(super) const KEPT: usize = 4096;

/// What kind of failure it was: a digest of who failed and of the message,
/// without what is another each time.
///
/// Two messages have the same key if they differ only in numbers (also with a
/// unit, so durations), dates and times, UUIDs, words of six or more letters
/// and digits mixed (ids), IP addresses and ports, letter case, or white
/// space. Words without digits make a difference. The first 4 KiB of what is
/// left count.
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
    /// The key of `message` from `subject`, the name of a tool or model. Reads
    /// a bounded part of either, and allocates nothing.
    #[must_use]
    pub fn new(subject: &str, message: &str) -> Self {
        let mut digest = Digest::new();
        let subject = subject.as_bytes();
        for &byte in &subject[..subject.len().min(KEPT)] {
            digest.push(byte);
        }
        // In no UTF-8, so that where the one ends and the other begins counts.
        digest.push(0xff);
        let mut left = KEPT;
        normalise(message, |byte| {
            digest.push(byte);
            left -= 1;
            left > 0
        });
        Self(digest.0)
    }
}

/// FNV-1a: one multiplication per byte. Nobody gains by a collision, since
/// whoever writes the messages could as well vary them.
struct Digest(u64);

impl Digest {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    #[inline]
    const fn push(&mut self, byte: u8) {
        self.0 = (self.0 ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
    }
}
