use allocation_counter::measure;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{chat, elsewhere, post, sent};
use crate::attempt::{Candidate, strip_hop};

const ACCOUNT: [(&str, &str); 5] = [
    ("authorization", "Bearer caller"),
    ("x-api-key", "caller"),
    ("api-key", "caller"),
    ("x-goog-api-key", "caller"),
    ("cookie", "caller=1"),
];

fn named(headers: &HeaderMap, names: &[(&str, &str)]) -> usize {
    let known = |(name, _): &&(&str, &str)| headers.contains_key(*name);
    names.iter().filter(known).count()
}

#[test]
fn the_callers_credentials_go_nowhere_else() {
    let original = chat(&ACCOUNT);
    for candidate in [
        elsewhere(),
        elsewhere().trusted(true),
        elsewhere().api_key("own").unwrap(),
    ] {
        let headers = sent(&candidate, &original);
        assert!(
            headers
                .values()
                .all(|value| !value.as_bytes().ends_with(b"caller"))
        );
        assert!(!headers.contains_key("cookie"));
    }
    assert_eq!(named(&sent(&Candidate::new("m"), &original), &ACCOUNT), 5);
}

#[test]
fn nor_do_those_in_the_query() {
    let asked = |candidate: &Candidate, query: &str| {
        let path = format!("/v1/chat/completions{query}");
        let mut original = post(&path, &[("x-amz-security-token", "caller")], super::BODY);
        candidate.request(&mut original, None).unwrap()
    };
    for (query, sent) in [
        ("?key=caller", None),
        ("?beta=true&API_KEY=caller&a=key", Some("beta=true&a=key")),
        ("?api-key&apikey=caller&access_token=caller", None),
        ("?keys=1&monkey=2", Some("keys=1&monkey=2")),
    ] {
        let request = asked(&elsewhere(), query);
        assert_eq!(request.uri().query(), sent);
        assert!(!request.headers().contains_key("x-amz-security-token"));
        for candidate in [elsewhere().forward_credentials(true), Candidate::new("m")] {
            let request = asked(&candidate, query);
            assert_eq!(request.uri().query(), query.strip_prefix('?'));
            assert!(request.headers().contains_key("x-amz-security-token"));
        }
    }
}

#[test]
fn they_go_where_the_program_says() {
    let original = chat(&[&ACCOUNT[..], &[("host", "gateway")]].concat());
    let headers = sent(&elsewhere().forward_credentials(true), &original);
    assert_eq!(named(&headers, &ACCOUNT), 5);
    // The name of another server.
    assert!(!headers.contains_key("host"));
}

#[test]
fn host_stays_with_the_url() {
    let original = chat(&[("host", "gateway")]);
    assert_eq!(sent(&Candidate::new("m"), &original)["host"], "gateway");
    assert!(!sent(&elsewhere(), &original).contains_key("host"));
}

#[test]
fn an_own_key_is_sent_as_the_operation_expects() {
    let keyed = |candidate: Candidate| candidate.api_key("own").unwrap();
    for candidate in [keyed(elsewhere()), keyed(Candidate::new("m"))] {
        let headers = sent(&candidate, &chat(&ACCOUNT));
        assert_eq!(headers["authorization"], "Bearer own");
        assert!(headers["authorization"].is_sensitive());
        assert_eq!(named(&headers, &ACCOUNT[..4]), 1);

        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            let headers = sent(&candidate, &post(path, &ACCOUNT, super::BODY));
            assert_eq!(headers["x-api-key"], "own");
            assert!(headers["x-api-key"].is_sensitive());
            assert_eq!(named(&headers, &ACCOUNT[..4]), 1);
        }
    }
}

#[test]
fn its_headers_override_and_are_secret() {
    let candidate = elsewhere()
        .api_key("key")
        .unwrap()
        .header(header::AUTHORIZATION, HeaderValue::from_static("Custom x"))
        .header(
            HeaderName::from_static("x-team"),
            HeaderValue::from_static("b"),
        );
    let headers = sent(&candidate, &chat(&[("x-team", "a"), ("x-team", "c")]));
    assert_eq!(headers["authorization"], "Custom x");
    assert_eq!(headers.get_all("x-team").iter().collect::<Vec<_>>(), ["b"]);
    assert!(headers["x-team"].is_sensitive());
}

#[test]
fn only_a_trusted_upstream_learns_our_run() {
    let ids = [("x-run-id", "callers"), ("x-session-id", "callers")];
    let original = chat(&ids);

    assert_eq!(named(&sent(&elsewhere(), &original), &ids), 0);
    let headers = sent(&elsewhere().trusted(true), &original);
    assert_eq!(headers["x-run-id"], "r-1");
    assert!(!headers.contains_key("x-session-id"));
    let headers = sent(&Candidate::new("m"), &original);
    assert!(!headers.contains_key("x-run-id"));
    assert_eq!(headers["x-session-id"], "callers");
    assert_eq!(
        sent(&Candidate::new("m").trusted(true), &original)["x-run-id"],
        "r-1"
    );
}

#[test]
fn what_belongs_to_the_callers_connection_stays_there() {
    let original = chat(&[
        ("connection", "close, X-Mine"),
        ("connection", "x-other"),
        ("x-mine", "1"),
        ("x-other", "1"),
        ("te", "trailers"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("expect", "100-continue"),
        ("accept-encoding", "gzip"),
        ("anthropic-beta", "kept"),
    ]);
    for candidate in [Candidate::new("served"), elsewhere()] {
        let headers = sent(&candidate, &original);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                "accept-encoding",
                "anthropic-beta",
                "content-length",
                "x-attempt"
            ]
        );
        assert_eq!(headers["accept-encoding"], "identity");
    }
}

#[test]
fn a_caller_cannot_name_our_headers_away() {
    let original = chat(&[("connection", "authorization, content-length, x-run-id")]);
    let candidate = elsewhere().api_key("own").unwrap().trusted(true);
    let headers = sent(&candidate, &original);
    for name in ["authorization", "content-length", "x-run-id"] {
        assert!(headers.contains_key(name), "{name}");
    }
}

#[test]
fn the_length_is_that_of_the_patched_body() {
    // `asked` becomes `served`.
    let length = super::BODY.len() + 1;
    for given in ["31", "5", "99999"] {
        let headers = sent(&elsewhere(), &chat(&[("content-length", given)]));
        assert_eq!(headers["content-length"], length.to_string());
    }
    assert_eq!(
        sent(&elsewhere(), &chat(&[]))["content-length"],
        length.to_string()
    );

    let right = ("content-length", &*length.to_string().leak());
    let twice = sent(&elsewhere(), &chat(&[right, ("content-length", "5")]));
    let said: Vec<_> = twice.get_all("content-length").iter().collect();
    assert_eq!(said, [right.1]);

    let lying = elsewhere()
        .header(header::CONTENT_LENGTH, HeaderValue::from_static("1"))
        .header(
            header::TRANSFER_ENCODING,
            HeaderValue::from_static("chunked"),
        );
    let headers = sent(&lying, &chat(&[]));
    assert_eq!(headers["content-length"], length.to_string());
    assert!(!headers.contains_key("transfer-encoding"));
}

#[test]
fn no_body_has_no_length_but_nought() {
    let empty = |headers: &[_]| sent(&elsewhere(), &post("/v1/responses", headers, ""));
    assert!(!empty(&[]).contains_key("content-length"));
    assert_eq!(empty(&[("content-length", "7")])["content-length"], "0");
}

#[test]
fn a_length_beside_another_framing_is_stripped_with_it() {
    let stripped = |given: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, HeaderValue::from_static(value));
        }
        strip_hop(&mut headers);
        headers
    };
    let length = ("content-length", "2");
    let chunked = ("transfer-encoding", "chunked");
    for given in [
        vec![length, chunked],
        vec![chunked, length],
        vec![length, length, chunked],
        vec![chunked, ("connection", "transfer-encoding"), length],
    ] {
        assert!(stripped(&given).is_empty(), "{given:?}");
    }
    assert_eq!(stripped(&[length, ("connection", "close")]).len(), 1);
}

#[test]
fn nothing_to_strip_costs_no_allocation() {
    let mut headers = HeaderMap::new();
    headers.insert("x-a", HeaderValue::from_static("1"));
    let allocations = measure(|| strip_hop(&mut headers));
    assert_eq!(allocations.count_total, 0);
    assert_eq!(headers.len(), 1);
}
