//! The keys of digests: of one secret that replicas share, or random in each process.

use std::{
    error::Error,
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::OnceLock,
};

use siphasher::{sip::SipHasher24, sip128};

/// The keys of this process, from its first digest on.
static IN_USE: OnceLock<KeysInUse> = OnceLock::new();

struct KeysInUse {
    keys: DigestKeys,
    is_random: bool,
}

/// A secret that replicas share, so that their digests are the same.
///
/// Without a secret each process has random keys. With one, the same credential is the same
/// [`Owner`](super::Owner) in all processes, and the same turn of a
/// [known agent](crate::layers::run::KnownAgents) has the same run id; the keys of cooldowns and of
/// sticky sessions are the same, too. Whoever does not know the secret cannot find a credential by
/// its digest, even if the credential is easy to guess.
///
/// A good secret is 32 random bytes, or their hexadecimal text, such as `openssl rand -hex 32`
/// prints. All bytes count, also a line's end. Whoever has one credential and its digest can try
/// secrets offline, so a password is too weak. The secret stays the same while processes share runs.
///
/// ```
/// use tower_agent::{Owner, registry::SharedSecret};
///
/// # let secret = "0f3a61c5e2a84b7d9c10d2f86be7a935".to_owned();
/// // In `main`, before a stack is built; the text is from the environment, say.
/// SharedSecret::new(secret.as_bytes())?.install()?;
///
/// // In each process with this secret:
/// assert_eq!(Owner::of(b"sk-one").to_string(), "owner-f19d5339a9771f5f");
/// # Ok::<_, tower_agent::BoxError>(())
/// ```
#[derive(Clone)]
pub struct SharedSecret(DigestKeys);

impl SharedSecret {
    /// The minimum length of a secret, in bytes.
    pub const MIN_LEN: usize = 16;

    /// Makes a secret of at least [`MIN_LEN`](Self::MIN_LEN) bytes.
    ///
    /// # Errors
    ///
    /// [`SecretTooShort`] if there are fewer bytes.
    pub fn new(secret: &[u8]) -> Result<Self, SecretTooShort> {
        match secret.len() {
            Self::MIN_LEN.. => Ok(Self(DigestKeys::of_secret(secret))),
            len => Err(SecretTooShort { len }),
        }
    }

    /// The digest of a constant, by which replicas see whether they have the same secret.
    ///
    /// It tells nothing about other digests. A store of runs may keep it.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.0.wide(Purpose::Fingerprint, b"")
    }

    /// Makes this the secret of the process, for good.
    ///
    /// The program calls the method before the first digest is made: before a layer with candidates
    /// is built, and before the first [`Owner`](super::Owner) other than the program itself. To
    /// install the same secret again is not an error.
    ///
    /// # Errors
    ///
    /// [`SecretInUse`] if digests were made with random keys before, or another secret is
    /// installed; nothing changes then.
    pub fn install(&self) -> Result<(), SecretInUse> {
        let in_use = IN_USE.get_or_init(|| KeysInUse {
            keys: self.0.clone(),
            is_random: false,
        });
        match in_use.keys == self.0 {
            true => Ok(()),
            false => Err(SecretInUse {
                is_random: in_use.is_random,
            }),
        }
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

/// The error for bytes that are too few for a [`SharedSecret`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretTooShort {
    /// The number of bytes.
    pub len: usize,
}

impl fmt::Display for SecretTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, len) = (SharedSecret::MIN_LEN, self.len);
        write!(f, "a secret has at least {least} bytes; this one has {len}")
    }
}

impl Error for SecretTooShort {}

/// The error of a [`SharedSecret`] that is installed too late, or is not the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretInUse {
    is_random: bool,
}

impl fmt::Display for SecretInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_random {
            true => {
                "the process has made digests with random keys already: install the secret first, \
                 before an owner is made and a stack is built"
            }
            false => "the process has another secret already",
        })
    }
}

impl Error for SecretInUse {}

/// What a digest is for. Each purpose has a key of its own, so that no digest of one purpose tells
/// anything about those of another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Owner,
    PrintedOwner,
    /// What the user says in a turn.
    Words,
    /// A text that cannot be a part of a run's id.
    IdPart,
    Cooldown,
    StickySession,
    Fingerprint,
}

impl Purpose {
    pub(super) const ALL: [Self; 7] = [
        Self::Owner,
        Self::PrintedOwner,
        Self::Words,
        Self::IdPart,
        Self::Cooldown,
        Self::StickySession,
        Self::Fingerprint,
    ];

    /// The text from which the purpose's key is derived: another one changes all its digests.
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Owner => b"owner",
            Self::PrintedOwner => b"printed owner",
            Self::Words => b"words",
            Self::IdPart => b"id part",
            Self::Cooldown => b"cooldown",
            Self::StickySession => b"sticky session",
            Self::Fingerprint => b"fingerprint",
        }
    }
}

/// The keys of all purposes. Digests are SipHash-2-4 under a key of 128 bits.
///
/// A digest depends on its bytes alone: not on the platform, the compiler or the `Hash` of a type.
#[derive(Clone, PartialEq)]
pub(crate) struct DigestKeys([(u64, u64); Purpose::ALL.len()]);

impl DigestKeys {
    /// The keys of this process. They are random if no secret is installed at the first call.
    #[inline]
    pub(crate) fn in_use() -> &'static Self {
        let random = || KeysInUse {
            keys: Self::random(),
            is_random: true,
        };
        &IN_USE.get_or_init(random).keys
    }

    pub(super) fn of_secret(secret: &[u8]) -> Self {
        // Each 16 bytes are a key, under which the result of those before is hashed. So all bytes
        // count, as those of a hexadecimal text must, whose first 16 have 64 random bits.
        let length = secret.len() as u128;
        Self::derive(secret.chunks(16).fold(length, |before, chunk| {
            let mut key = [0; 16];
            key[..chunk.len()].copy_from_slice(chunk);
            hash_128(u128::from_le_bytes(key), &before.to_le_bytes())
        }))
    }

    pub(super) fn random() -> Self {
        let seed = RandomState::new();
        let [low, high] = [0, 1].map(|half: u8| u128::from(seed.hash_one(half)));
        Self::derive((high << 64) | low)
    }

    fn derive(master: u128) -> Self {
        Self(Purpose::ALL.map(|purpose| halves(hash_128(master, purpose.name()))))
    }

    /// A digest of 128 bits.
    pub(super) fn wide(&self, purpose: Purpose, bytes: &[u8]) -> u128 {
        let (low, high) = self.0[purpose as usize];
        let hasher = sip128::SipHasher24::new_with_keys(low, high);
        u128::from_le_bytes(hasher.hash(bytes).as_bytes())
    }

    /// A digest of 64 bits.
    pub(crate) fn digest(&self, purpose: Purpose, bytes: &[u8]) -> u64 {
        self.hasher(purpose).hash(bytes)
    }

    /// A digest of several values, which differs for an absent value and an empty one.
    pub(crate) fn digest_all<const N: usize>(
        &self,
        purpose: Purpose,
        values: [Option<&[u8]>; N],
    ) -> u64 {
        const { assert!(N <= 16, "a bit for each value") };
        let mut hasher = self.hasher(purpose);
        let bits = values.iter().enumerate();
        let present = bits.fold(0, |bits, (at, it)| bits | (u16::from(it.is_some()) << at));
        hasher.write(&present.to_le_bytes());
        for value in values.into_iter().flatten() {
            hasher.write(&(value.len() as u64).to_le_bytes());
            hasher.write(value);
        }
        hasher.finish()
    }

    /// The hasher of digests of 64 bits, for a value that is read piece by piece.
    pub(crate) fn hasher(&self, purpose: Purpose) -> SipHasher24 {
        let (low, high) = self.0[purpose as usize];
        SipHasher24::new_with_keys(low, high)
    }
}

fn hash_128(key: u128, bytes: &[u8]) -> u128 {
    let hasher = sip128::SipHasher24::new_with_key(&key.to_le_bytes());
    u128::from_le_bytes(hasher.hash(bytes).as_bytes())
}

const fn halves(key: u128) -> (u64, u64) {
    (key as u64, (key >> 64) as u64)
}
