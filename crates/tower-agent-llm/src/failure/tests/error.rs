//! Tests of errors that come instead of an answer.

use std::io;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Full, Limited};

use super::super::{
    class::FailureClass::{Caller, Certificate, Redirect, Server, Transport},
    errors::{IncompleteJson, Redirected, TransportError},
};
use crate::failure::classifier::Failure;
use crate::{
    dialect::Truncated,
    error::{BoxError, InvalidRequest, RequestCut},
};

#[tokio::test]
async fn errors_are_judged_by_what_is_in_their_chain() {
    let limited = Limited::new(Full::new(Bytes::from("12345")), 4);
    let too_long = || async { limited.clone().collect().await.unwrap_err() };
    let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
    let cases: [(BoxError, _); 11] = [
        (TransportError::new("refused").into(), Transport),
        (reset().into(), Transport),
        (io::Error::other(Truncated::new(7)).into(), Transport),
        (Truncated::new(7).into(), Transport),
        (IncompleteJson::new(7).into(), Transport),
        (RequestCut::new(reset()).into(), Caller),
        (too_long().await, Caller),
        (TransportError::new(too_long().await).into(), Caller),
        (InvalidRequest::new("no").into(), Caller),
        ("certificate verify failed".into(), Server),
        ("no idea".into(), Server),
    ];
    for (error, expected) in cases {
        let failure = Failure::of_error(&*error);
        assert_eq!(failure, Failure::new(expected), "{error}");
    }
}

#[test]
fn a_redirect_that_is_not_followed_keeps_its_status() {
    for status in [
        StatusCode::SWITCHING_PROTOCOLS,
        StatusCode::TEMPORARY_REDIRECT,
    ] {
        let failure = Failure::of_error(&io::Error::other(Redirected::new(status)));
        assert_eq!((failure.class, failure.status), (Redirect, Some(status)));
    }
}

#[test]
fn a_certificate_that_is_not_trusted_is_no_hiccup() {
    let rustls = rustls::Error::from(rustls::CertificateError::UnknownIssuer);
    let texts = [
        "error:0A000086:SSL routines:tls_post_process_server_certificate:certificate verify failed",
        "self-signed certificate in certificate chain",
        "self signed certificate",
        "The certificate was not trusted.",
        "The certificate chain was issued by an authority that is not trusted. (os error -2146893019)",
    ];
    let mut errors = vec![io::Error::new(io::ErrorKind::InvalidData, rustls)];
    errors.extend(texts.map(io::Error::other));
    for error in errors {
        let text = error.to_string();
        let failure = Failure::of_error(&TransportError::new(error));
        assert_eq!(failure.class, Certificate, "{text}");
    }
    let other = io::Error::other(rustls::Error::HandshakeNotComplete);
    assert_eq!(Failure::of_error(&other).class, Transport);
}
