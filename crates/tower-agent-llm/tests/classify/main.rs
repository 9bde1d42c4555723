//! How the answers of real providers are judged: one fixture per signal.
//!
//! `tests/fixtures/upstream/index.toml` says for each what it is, what it should
//! be judged as, and where its shape comes from.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod fixture;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    time::SystemTime,
};

use http::{HeaderMap, StatusCode};
use tower_agent_llm::{
    dialect::{Dialect, Truncated},
    error::BoxError,
    failure::{
        Answered, Classifier, Failure, FailureClass, IncompleteJson, Redirected, TransportError,
    },
    stream::StreamReader,
};

use self::fixture::{Fixture, fixtures, folder};

#[test]
fn each_fixture_is_judged_as_its_provider_means_it() {
    let mut wrong = Vec::new();
    for fixture in fixtures() {
        let failure = fixture.judged(&Classifier::new());
        let class = failure.as_ref().map(|failure| failure.class.as_str());
        let delay = failure.as_ref().and_then(|failure| failure.retry_after);
        let delay = delay.map(|delay| humantime::format_duration(delay).to_string());
        let decided = failure.as_ref().map(Failure::signal);
        let is_right = class == Some(&fixture.class) && decided == Some(&fixture.signal);
        if !is_right || delay != fixture.retry_after {
            let Fixture { file, signal, .. } = &fixture;
            wrong.push(format!(
                "{file} ({signal}): {class:?} {decided:?} {delay:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "judged otherwise:\n{}", wrong.join("\n"));
}

#[test]
fn each_body_is_indexed_with_where_it_comes_from() {
    let mut indexed = BTreeSet::new();
    for fixture in fixtures() {
        assert!(!fixture.provenance.is_empty(), "{}", fixture.file);
        indexed.insert(folder().join(fixture.file));
    }
    for provider in fs::read_dir(folder()).unwrap() {
        let provider = provider.unwrap().path();
        if !provider.is_dir() {
            continue;
        }
        for file in fs::read_dir(provider).unwrap() {
            let file = file.unwrap().path();
            assert!(indexed.remove(&file), "not indexed: {}", file.display());
        }
    }
    assert!(indexed.is_empty(), "missing: {indexed:?}");
}

#[test]
fn the_judge_of_a_stream_finds_the_same_failure() {
    for fixture in fixtures() {
        // AWS frames its streams otherwise: whoever unpacks them reads the event.
        if fixture.status.is_some() || fixture.file.starts_with("bedrock/") {
            continue;
        }
        let body = fixture.body();
        let mut judge = StreamReader::new(Dialect::Any);
        judge.push(b"data: ");
        judge.push(body.trim_ascii_end());
        judge.push(b"\n\n");
        let failure = judge.failure().expect(&fixture.file);
        let failure = Failure::of_stream(failure, SystemTime::UNIX_EPOCH);
        assert_eq!(Some(failure), fixture.judged(&Classifier::new()));
    }
}

#[test]
fn each_way_in_which_no_answer_comes_is_judged() {
    let io = |kind: ErrorKind| TransportError::new(io::Error::from(kind));
    let dns = "failed to lookup address information: Name or service not known";
    let goaway = "http2 error: connection error received: not a result of an error";
    let tls = rustls::Error::from(rustls::CertificateError::UnknownIssuer);
    let cases: [(&str, BoxError, FailureClass); 12] = [
        (
            "DNS",
            TransportError::new(io::Error::other(dns)).into(),
            FailureClass::Transport,
        ),
        (
            "refused",
            io(ErrorKind::ConnectionRefused).into(),
            FailureClass::Transport,
        ),
        (
            "unreachable",
            io(ErrorKind::HostUnreachable).into(),
            FailureClass::Transport,
        ),
        (
            "reset",
            io(ErrorKind::ConnectionReset).into(),
            FailureClass::Transport,
        ),
        (
            "a bare reset",
            io::Error::from(ErrorKind::ConnectionReset).into(),
            FailureClass::Transport,
        ),
        (
            "GOAWAY",
            TransportError::new(goaway).into(),
            FailureClass::Transport,
        ),
        (
            "truncated",
            Truncated::new(7).into(),
            FailureClass::Transport,
        ),
        (
            "certificate",
            TransportError::new(tls).into(),
            FailureClass::Certificate,
        ),
        (
            "half a JSON document under 200",
            IncompleteJson::new(7).into(),
            FailureClass::Transport,
        ),
        (
            "307",
            Redirected::new(StatusCode::TEMPORARY_REDIRECT).into(),
            FailureClass::Redirect,
        ),
        (
            "101",
            Redirected::new(StatusCode::SWITCHING_PROTOCOLS).into(),
            FailureClass::Redirect,
        ),
        ("unknown", "it broke".into(), FailureClass::Server),
    ];
    for (signal, error, class) in cases {
        assert_eq!(Failure::of_error(&*error).class, class, "{signal}");
    }
}

#[test]
fn a_rule_of_the_program_goes_before_everything() {
    let classifier = Classifier::new()
        .rule(|answered: &Answered<'_>| {
            let is_named = answered.error.code == "insufficient_quota";
            is_named.then_some(FailureClass::RateLimit)
        })
        .rule(|answered| {
            let is_named = answered.error.kind == "insufficient_quota";
            is_named.then_some(FailureClass::Caller)
        })
        .rule(|answered| {
            let is_ours = answered.headers.get("x-terminal-reason")? == "step_timeout";
            is_ours.then_some(FailureClass::RequestTimeout)
        })
        .rule(|answered| {
            let is_event = answered.status.is_none();
            let is_choice = answered.body.windows(7).any(|text| text == b"choices");
            (is_event && is_choice).then_some(FailureClass::ModelFault)
        })
        .rule(|answered| {
            let is_healthy = answered.status?.is_success() && answered.error.message.is_empty();
            is_healthy.then_some(FailureClass::Conflict)
        });
    let mut ruled = 0;
    for fixture in fixtures() {
        let plain = fixture.judged(&Classifier::new()).unwrap();
        let failure = fixture.judged(&classifier).unwrap();
        let by_rule = match &*fixture.signal {
            "insufficient_quota" => FailureClass::RateLimit,
            "x-terminal-reason" if fixture.status == Some(504) => FailureClass::RequestTimeout,
            _ if fixture.file.starts_with("openrouter/stream_") => FailureClass::ModelFault,
            _ if fixture.status == Some(200) && plain.message.is_empty() => FailureClass::Conflict,
            _ => plain.class,
        };
        assert_eq!(failure.class, by_rule, "{}", fixture.file);
        assert_eq!(failure.status, plain.status);
        assert_eq!(failure.message, plain.message);
        ruled += usize::from(by_rule != plain.class);
    }
    assert!(ruled >= 10, "{ruled}");

    let healthy = |classifier: &Classifier| {
        let (headers, now) = (HeaderMap::new(), SystemTime::UNIX_EPOCH);
        let answer = |status| classifier.of_answer(status, &headers, b"{}", now);
        assert_eq!(answer(StatusCode::FOUND), None);
        answer(StatusCode::OK).map(|failure| failure.class)
    };
    assert_eq!(healthy(&classifier), Some(FailureClass::Conflict));
    assert_eq!(healthy(&Classifier::new()), None);
    assert_eq!(
        format!("{classifier:?}"),
        "Classifier { rules: 5, signals: [] }"
    );
}
