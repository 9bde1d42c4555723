use http::{HeaderName, HeaderValue, Uri, header};

use super::elsewhere;
use crate::attempt::candidate::Candidate;

fn at(url: &'static str) -> Candidate {
    Candidate::new("m").base_url(Uri::from_static(url)).unwrap()
}

fn keyed(candidate: Candidate, key: &str) -> Candidate {
    candidate.api_key(key).unwrap()
}

/// Whether two candidates share a credential; their order must not matter.
fn same(one: &Candidate, other: &Candidate) -> bool {
    let same = one.same_credential(other);
    assert_eq!(same, other.same_credential(one));
    same
}

#[test]
fn ids_decide_if_there_is_one() {
    let a = || keyed(elsewhere(), "k").credential("a");
    assert!(same(&a(), &Candidate::new("m").credential("a")));
    assert!(!same(&a(), &a().credential("b")));
    assert!(!same(&a(), &keyed(elsewhere(), "k")));
}

#[test]
fn the_callers_credential_is_one() {
    assert!(same(&Candidate::new("a"), &Candidate::new("b")));
    assert!(!same(
        &Candidate::new("a"),
        &keyed(Candidate::new("b"), "k")
    ));
    assert!(!same(&Candidate::new("a"), &elsewhere()));
}

#[test]
fn a_key_counts_at_its_origin() {
    let here = keyed(at("https://h/v1"), "k");
    assert!(same(&here, &keyed(at("https://h:443/v2"), "k")));
    assert!(!same(&here, &keyed(at("https://h/v1"), "l")));
    assert!(!same(&here, &keyed(at("http://h/v1"), "k")));
    assert!(!same(&here, &keyed(at("https://g/v1"), "k")));
    assert!(!same(&here, &at("https://h/v1")));
    assert!(same(&at("https://h/v1"), &at("https://h/v1")));
}

#[test]
fn headers_of_an_account_are_keys() {
    for name in ["authorization", "x-api-key", "api-key", "x-goog-api-key"] {
        let with = |value| {
            elsewhere().header(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        assert!(same(&with("k"), &with("k")));
        assert!(!same(&with("k"), &with("l")));
        assert!(!same(&with("k"), &elsewhere()));
    }
    let other = elsewhere().header(header::USER_AGENT, HeaderValue::from_static("a"));
    assert!(same(&other, &elsewhere()));
}

#[test]
fn a_provider_is_an_authority() {
    assert!(Candidate::new("a").same_provider(&Candidate::new("b")));
    assert!(keyed(at("https://h/v1"), "k").same_provider(&at("https://h/v2")));
    assert!(!at("https://h/v1").same_provider(&at("https://h:8443/v1")));
    assert!(!at("https://h/v1").same_provider(&Candidate::new("a")));
    assert!(!Candidate::new("a").same_provider(&at("https://h/v1")));
}
