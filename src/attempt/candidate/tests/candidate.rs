use std::time::Duration;

use http::{HeaderName, HeaderValue, header};

use super::elsewhere;
use crate::{
    attempt::candidate::{Candidate, operation::CandidateDialect},
    run::Limits,
};

#[test]
fn it_is_called_by_its_name_or_its_model() {
    let candidate = Candidate::new("model");
    assert_eq!((candidate.label(), candidate.model()), ("model", "model"));
    let candidate = candidate.name("name");
    assert_eq!((candidate.label(), candidate.model()), ("name", "model"));
}

#[test]
fn what_is_set_is_kept() {
    let limits = Limits {
        step: Some(Duration::from_secs(9)),
        ..Limits::default()
    };
    let candidate = Candidate::new("model")
        .context_window(8192)
        .limits(limits)
        .trusted(true)
        .dialect(CandidateDialect::OpenAi);
    assert_eq!(candidate.window(), Some(8192));
    assert_eq!(candidate.own_limits(), Some(limits));
    assert_eq!(candidate.spoken(), CandidateDialect::OpenAi);
    assert!(candidate.is_trusted());
    assert!(!Candidate::new("model").is_trusted());
}

#[test]
fn no_secret_is_printed() {
    let candidate = elsewhere()
        .api_key("sk-secret")
        .unwrap()
        .header(header::COOKIE, HeaderValue::from_static("secret"))
        .header(
            HeaderName::from_static("x-team"),
            HeaderValue::from_static("secret"),
        )
        .credential("team-a");
    for printed in [format!("{candidate:?}"), format!("{candidate:#?}")] {
        assert!(!printed.contains("secret"), "{printed}");
        for shown in [
            "served",
            "https://other.example/v1",
            "x-team",
            "cookie",
            "team-a",
        ] {
            assert!(printed.contains(shown), "{printed}");
        }
    }
}

#[test]
fn a_key_that_no_header_holds_is_refused() {
    let error = Candidate::new("model").api_key("secret\n").unwrap_err();
    assert!(!error.to_string().contains("secret"));
}
