use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
};

/// Whose run it is: a digest of the caller's credential. The default is the
/// program itself.
///
/// The digest is keyed anew in each process and is never printed.
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
        static KEYS: OnceLock<[RandomState; 2]> = OnceLock::new();
        let keys = KEYS.get_or_init(|| [RandomState::new(), RandomState::new()]);
        let [high, low] = keys
            .each_ref()
            .map(|key| u128::from(key.hash_one(credential)));
        Self((high << 64) | low)
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
