use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

/// Those of the digest, and that of what is shown of it.
static KEYS: LazyLock<[RandomState; 3]> =
    LazyLock::new(|| std::array::from_fn(|_| RandomState::new()));

/// Whose run it is: a digest of the caller's credential. The default is the
/// program itself.
///
/// The digest is keyed anew in each process and is never printed. What is shown of it,
/// in records and logs, tells owners apart and nothing else: `program`, `anonymous`, or
/// `owner-` and 16 digits that are made of it with another key.
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
    /// Every caller that shows no credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::of(b"")
    }

    /// The owner that this credential, or other name, stands for.
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
