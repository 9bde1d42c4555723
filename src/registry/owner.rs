use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

/// The keys of this process for owners: two for the digest, and one for its printed form.
static KEYS: LazyLock<[RandomState; 3]> =
    LazyLock::new(|| std::array::from_fn(|_| RandomState::new()));

/// The owner of a run: a digest of the caller's credential.
///
/// The default owner is the program itself. The digest has a new key in each process, and is never
/// printed. Records and logs show `program`, `anonymous`, or `owner-` and 16 digits that are
/// derived from the digest with another key; these texts only distinguish owners.
///
/// ```
/// use tower_agent::Owner;
///
/// let (one, two) = (Owner::of(b"sk-one"), Owner::of(b"sk-two"));
/// assert!(one.to_string().starts_with("owner-"));
/// assert_ne!(one.to_string(), two.to_string());
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
        let [high, low] = [&KEYS[0], &KEYS[1]].map(|key| u128::from(key.hash_one(credential)));
        Self((high << 64) | low)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            f.write_str("program")
        } else if *self == Self::anonymous() {
            f.write_str("anonymous")
        } else {
            write!(f, "owner-{:016x}", KEYS[2].hash_one(self.0))
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
