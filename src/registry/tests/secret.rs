use proptest::prelude::*;

use super::super::secret::{DigestKeys, Purpose, SecretTooShort, SharedSecret};

fn keys(secret: &[u8]) -> DigestKeys {
    DigestKeys::of_secret(secret)
}

#[test]
fn a_secret_has_sixteen_bytes() {
    for len in [0, 15] {
        let error = SharedSecret::new(&vec![7; len]).unwrap_err();
        assert_eq!(error, SecretTooShort { len });
        let said = format!("a secret has at least 16 bytes; this one has {len}");
        assert_eq!(error.to_string(), said);
    }
    assert!(SharedSecret::new(&[7; 16]).is_ok());
}

#[test]
fn each_purpose_has_a_key_of_its_own() {
    let keys = keys(&[7; 16]);
    let digests = Purpose::ALL.map(|purpose| keys.digest(purpose, b"sk-one"));
    let wide = Purpose::ALL.map(|purpose| keys.wide(purpose, b"sk-one"));
    for at in 0..Purpose::ALL.len() {
        assert!(
            !digests[..at].contains(&digests[at]),
            "{:?}",
            Purpose::ALL[at]
        );
        assert!(!wide[..at].contains(&wide[at]), "{:?}", Purpose::ALL[at]);
    }
}

#[test]
fn processes_without_a_secret_have_other_keys() {
    let [one, two] = [(); 2].map(|()| DigestKeys::random());
    for purpose in Purpose::ALL {
        assert_ne!(one.digest(purpose, b""), two.digest(purpose, b""));
    }
}

#[test]
fn an_absent_value_is_no_empty_one_and_the_ends_of_values_count() {
    let keys = keys(&[7; 16]);
    let digest = |values: [Option<&str>; 3]| {
        keys.digest_all(Purpose::Cooldown, values.map(|it| it.map(str::as_bytes)))
    };
    let digests = [
        [None, None, None],
        [Some(""), None, None],
        [None, Some(""), None],
        [Some(""), Some(""), None],
        [Some("ab"), Some("c"), None],
        [Some("a"), Some("bc"), None],
        [Some("a"), None, Some("bc")],
        [Some("abc"), Some(""), None],
    ]
    .map(digest);
    for at in 0..digests.len() {
        assert!(!digests[..at].contains(&digests[at]), "{at}");
    }
}

proptest! {
    /// Each byte of a secret counts, and so does its length.
    #[test]
    fn another_secret_has_other_keys(
        secret in proptest::collection::vec(any::<u8>(), 16..80),
        at in any::<prop::sample::Index>(),
        flip in 1..=u8::MAX,
    ) {
        let digest = |secret: &[u8]| keys(secret).wide(Purpose::Owner, b"sk-one");
        let mut other = secret.clone();
        other[at.index(secret.len())] ^= flip;
        prop_assert_ne!(digest(&other), digest(&secret));
        other.clone_from(&secret);
        other.push(0);
        prop_assert_ne!(digest(&other), digest(&secret));
    }

    /// So nothing of it is in a log.
    #[test]
    fn the_same_is_printed_of_each_secret(secret in proptest::collection::vec(any::<u8>(), 0..80)) {
        match SharedSecret::new(&secret) {
            Ok(secret) => {
                prop_assert_eq!(format!("{secret:?} {secret:#?}"), "SharedSecret(..) SharedSecret(..)");
            }
            Err(error) => {
                let zeros = SharedSecret::new(&vec![0; secret.len()]).unwrap_err();
                prop_assert_eq!(format!("{error} {error:?}"), format!("{zeros} {zeros:?}"));
            }
        }
    }
}
