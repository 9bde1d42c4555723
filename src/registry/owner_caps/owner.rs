//! The owner of runs.

use std::fmt;

use http::{HeaderMap, HeaderValue};

use crate::{
    headers::CREDENTIALS,
    registry::secret::{DigestKeys, Purpose},
};

/// The owner of a run: a digest of the caller's credential.
///
/// The default owner is the program itself. Callers without a credential are another owner,
/// [`anonymous`](Self::anonymous): so no request without a key finds, joins or ends a run of the
/// program by its id. To find or end the runs of a server without keys, the program names that
/// owner.
///
/// The digest has a random key in each process, or that of a [`SharedSecret`](crate::registry::SharedSecret), and is never
/// printed. Records and logs show `program`, `anonymous`, or `owner-` and 16 hexadecimal digits that
/// are derived from the digest with another key; these texts only distinguish owners.
///
/// ```
/// # use tower_agent::{RunRegistry, TerminalReason};
/// use tower_agent::{Owner, registry::AbortOutcome};
///
/// # let registry = RunRegistry::new();
/// # let _run = registry.open(Owner::anonymous(), "r-1".parse()?);
/// // A run that a request without a key opened.
/// assert_eq!(registry.abort(Owner::anonymous(), &"r-1".parse()?), AbortOutcome::Ended);
///
/// let (one, two) = (Owner::of(b"sk-one"), Owner::of(b"sk-two"));
/// assert!(one.to_string().starts_with("owner-"));
/// assert_ne!(one.to_string(), two.to_string());
/// # Ok::<_, tower_agent::InvalidRunId>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub(crate) u128);

impl Owner {
    /// Makes the one owner that stands for all callers without a credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::of(b"")
    }

    /// Makes the owner of a credential, or of another text that identifies the caller.
    #[must_use]
    pub fn of(credential: &[u8]) -> Self {
        Self(DigestKeys::in_use().wide(Purpose::Owner, credential))
    }

    /// The owner of the credential in a request's headers.
    ///
    /// The credential is the key in the first present header of `authorization`, `x-api-key`,
    /// `api-key` and `x-goog-api-key`, without a scheme before it, such as `Bearer`. Without any of
    /// these headers the owner is [`anonymous`](Self::anonymous).
    ///
    /// ```
    /// use http::{HeaderMap, HeaderValue};
    /// use tower_agent::Owner;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("authorization", HeaderValue::from_static("Bearer sk-one"));
    /// assert_eq!(Owner::of_headers(&headers), Owner::of(b"sk-one"));
    /// ```
    #[must_use]
    pub fn of_headers(headers: &HeaderMap) -> Self {
        let found = CREDENTIALS.iter().find_map(|name| headers.get(name));
        // The default owner is that of the program's own runs, so it is not used here.
        found.map_or_else(Self::anonymous, |value| Self::of(key_in(value)))
    }

    /// The keyed digest; with a shared [`SharedSecret`](crate::registry::SharedSecret) it is the same in each process.
    /// Never print it.
    ///
    /// The digest of the program itself is 0.
    #[must_use]
    pub const fn digest(self) -> u128 {
        self.0
    }

    /// The owner of this [`digest`](Self::digest), which another replica with the same key has
    /// written.
    #[must_use]
    pub const fn from_digest(digest: u128) -> Self {
        Self(digest)
    }
}

/// The key in a credential header, without `Bearer` or another scheme before it.
///
/// The letter case of a scheme and the spaces after it may vary, and would make many owners of one
/// key.
fn key_in(value: &HeaderValue) -> &[u8] {
    let value = value.as_bytes().trim_ascii();
    let mut words = value.splitn(2, u8::is_ascii_whitespace);
    match (words.next(), words.next()) {
        (Some(_scheme), Some(key)) => key.trim_ascii_start(),
        _ => value,
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            f.write_str("program")
        } else if *self == Self::anonymous() {
            f.write_str("anonymous")
        } else {
            let keys = DigestKeys::in_use();
            let printed = keys.digest(Purpose::PrintedOwner, &self.0.to_le_bytes());
            write!(f, "owner-{printed:016x}")
        }
    }
}

impl serde::Serialize for Owner {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == 0 {
            "Owner(program)"
        } else {
            "Owner(..)"
        })
    }
}
