use http::Uri;

use super::super::operation::Operation;
use crate::attempt::candidate::{Candidate, InvalidCandidate, base_url::BaseUrl};

fn base(url: &'static str) -> Result<BaseUrl, InvalidCandidate> {
    BaseUrl::new(&Uri::from_static(url))
}

#[test]
fn the_operation_and_the_query_follow_the_base() {
    for (url, joined) in [
        ("https://h/v1", "https://h/v1/messages?beta=true"),
        ("https://h/v1/", "https://h/v1/messages?beta=true"),
        ("http://h:8000", "http://h:8000/messages?beta=true"),
        ("HTTP://h:80/a//", "http://h/a/messages?beta=true"),
        (
            "https://[::1]:443/v1",
            "https://[::1]/v1/messages?beta=true",
        ),
    ] {
        let uri = base(url)
            .unwrap()
            .join(Operation::Messages, Some("beta=true"));
        assert_eq!(uri.unwrap().to_string(), joined);
    }
    let uri = base("https://h/v1")
        .unwrap()
        .join(Operation::Embeddings, None);
    assert_eq!(uri.unwrap().to_string(), "https://h/v1/embeddings");
}

#[test]
fn what_is_no_base_is_refused() {
    for (url, why) in [
        ("/v1", InvalidCandidate::Scheme),
        ("h:80", InvalidCandidate::Scheme),
        ("ftp://h/v1", InvalidCandidate::Scheme),
        ("https://h/v1?key=secret", InvalidCandidate::Query),
        ("https://h/v1?", InvalidCandidate::Query),
        ("https://user:secret@h/v1", InvalidCandidate::UserInfo),
        ("https://secret@h/v1", InvalidCandidate::UserInfo),
        ("https://h:99999/v1", InvalidCandidate::Host),
        ("https://:80/v1", InvalidCandidate::Host),
    ] {
        let error = base(url).expect_err(url);
        assert_eq!(error, why, "{url}");
        assert!(!error.to_string().contains("secret"));
    }
}

#[test]
fn origins_compare_with_their_ports() {
    let same = |one, other| base(one).unwrap().same_origin(&base(other).unwrap());
    assert!(same("https://h/v1", "https://H:443/v2"));
    assert!(!same("https://h", "http://h"));
    assert!(!same("https://h", "https://h:8443"));
    assert!(!same("https://h", "https://g"));
}

#[test]
fn a_base_is_read_from_a_text() {
    for (url, why) in [
        ("https://h/v1", None),
        ("", Some(InvalidCandidate::Url)),
        ("https://user:secret key@h/v1", Some(InvalidCandidate::Url)),
        ("h/v1", Some(InvalidCandidate::Url)),
        ("/v1", Some(InvalidCandidate::Scheme)),
        ("https://user:secret@h/v1", Some(InvalidCandidate::UserInfo)),
    ] {
        let texts = [
            Candidate::new("m").base_url(url),
            Candidate::new("m").base_url(url.to_owned()),
        ];
        for read in texts {
            let error = read.as_ref().err();
            assert_eq!(error.copied(), why, "{url}");
            assert!(!error.is_some_and(|it| it.to_string().contains("secret")));
        }
    }
    let error = Candidate::new("m").api_key("se\ncret").unwrap_err();
    assert_eq!(error, InvalidCandidate::ApiKey);
    assert_eq!(
        error.to_string(),
        "API key holds bytes that no header can hold"
    );
}
