use http::Uri;

use super::super::operation::Operation;
use crate::attempt::candidate::base_url::{BaseUrl, InvalidBaseUrl};

fn base(url: &'static str) -> Result<BaseUrl, InvalidBaseUrl> {
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
        ("/v1", InvalidBaseUrl::Scheme),
        ("h:80", InvalidBaseUrl::Scheme),
        ("ftp://h/v1", InvalidBaseUrl::Scheme),
        ("https://h/v1?key=secret", InvalidBaseUrl::Query),
        ("https://h/v1?", InvalidBaseUrl::Query),
        ("https://user:secret@h/v1", InvalidBaseUrl::UserInfo),
        ("https://secret@h/v1", InvalidBaseUrl::UserInfo),
        ("https://h:99999/v1", InvalidBaseUrl::Host),
        ("https://:80/v1", InvalidBaseUrl::Host),
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
