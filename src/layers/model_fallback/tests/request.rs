use bytes::Bytes;
use http::{Method, Request, Version};

use super::{super::request::OriginalRequest, BODY, bytes, chat, elsewhere, post};
use crate::{attempt::Candidate, body::ReplayBody, error::InvalidRequest};

#[derive(Clone, Debug, PartialEq)]
struct RequestTemplate(u8);

fn refused(request: Request<impl Into<ReplayBody>>) -> InvalidRequest {
    OriginalRequest::read(request.map(Into::into), None).unwrap_err()
}

#[test]
fn without_a_base_url_only_the_model_changes() {
    let original = post("/any/v1/chat/completions?a=b", &[], BODY);
    let request = Candidate::new("served")
        .request(&mut original.clone(), None)
        .unwrap();
    assert_eq!(request.uri(), "/any/v1/chat/completions?a=b");
    assert_eq!(request.method(), Method::POST);
    assert_eq!(bytes(request.body()), BODY.replace("asked", "served"));
}

#[test]
fn with_one_the_operation_and_the_query_go_there() {
    let original = post("/any/v1/messages/count_tokens?beta=true", &[], BODY);
    let request = elsewhere().request(&mut original.clone(), None).unwrap();
    let url = "https://other.example/v1/messages/count_tokens?beta=true";
    assert_eq!(request.uri(), url);
}

#[test]
fn an_unknown_operation_has_no_place_elsewhere() {
    let original = post("/v1/threads", &[], BODY);
    let error = elsewhere()
        .request(&mut original.clone(), None)
        .unwrap_err();
    assert!(error.to_string().contains("\"/v1/threads\""), "{error}");
    let request = Candidate::new("served")
        .request(&mut original.clone(), None)
        .unwrap();
    assert_eq!(request.uri(), "/v1/threads");
}

#[test]
fn every_attempt_is_made_from_the_original() {
    let original = chat(&[]);
    for model in ["a", "a longer name", "asked"] {
        let request = Candidate::new(model)
            .request(&mut original.clone(), None)
            .unwrap();
        assert_eq!(bytes(request.body()), BODY.replace("asked", model));
    }
}

#[test]
fn extensions_go_along_and_the_callers_protocol_does_not() {
    let mut request = Request::post("/v1/responses")
        .body(ReplayBody::from(BODY))
        .unwrap();
    *request.version_mut() = Version::HTTP_2;
    request.extensions_mut().insert(RequestTemplate(7));
    let original = OriginalRequest::read(request, None).unwrap();

    let request = elsewhere().request(&mut original.clone(), None).unwrap();

    assert_eq!(request.extensions().get(), Some(&RequestTemplate(7)));
    assert_eq!(request.version(), Version::HTTP_11);
}

#[test]
fn nothing_is_spliced_into_no_body() {
    let request = Request::get("/v1/models")
        .body(ReplayBody::default())
        .unwrap();
    let original = OriginalRequest::read(request, None).unwrap();
    assert!(original.may_move() && original.model().is_none());
    let request = Candidate::new("served")
        .request(&mut original.clone(), None)
        .unwrap();
    assert!(request.body().is_empty());
}

#[test]
fn a_form_gets_the_model_in_its_field() {
    let form = "--b\r\ncontent-disposition: form-data; name=model\r\n\r\nasked\r\n--b--";
    for kind in [
        "multipart/form-data; boundary=b",
        "Multipart/Form-Data;boundary=b",
    ] {
        let original = post("/v1/images/edits", &[("content-type", kind)], form);
        assert!(original.may_move() && original.model() == Some("asked"));
        let mut request = elsewhere().request(&mut original.clone(), None).unwrap();
        assert_eq!(request.uri(), "https://other.example/v1/images/edits");
        let sent = form.replace("asked", elsewhere().model());
        assert_eq!(bytes(request.body()), sent);
        let length = request.headers_mut().remove("content-length").unwrap();
        assert_eq!(length, sent.len().to_string().as_str());
    }
    assert!(chat(&[("content-type", "multipart/form-data")]).may_move());
}

/// The layer cannot say which model its upstream would read.
#[test]
fn a_form_that_cannot_be_read_is_sent_as_it_is() {
    let form = "--b\r\ncontent-disposition: form-data; name=model\r\n\r\nasked\r\n--b--";
    for (kind, form) in [
        ("multipart/form-data", form),
        ("multipart/form-data; boundary=c", form),
        ("multipart/form-data; boundary=b", &form[..form.len() - 5]),
        (
            "multipart/form-data; boundary=b",
            "--b\r\ncontent-disposition: form-data; name=prompt\r\n\r\nasked\r\n--b--",
        ),
    ] {
        let original = post("/v1/images/edits", &[("content-type", kind)], form);
        assert!(!original.may_move() && original.model().is_none());
        let request = elsewhere().request(&mut original.clone(), None).unwrap();
        assert_eq!(bytes(request.body()), form);
    }
}

#[test]
fn what_is_neither_is_refused() {
    let plain = Request::post("/v1/responses").header("content-type", "text/plain");
    let error = refused(plain.body("hello").unwrap());
    assert!(error.to_string().contains("not JSON"), "{error}");

    let zipped = Request::post("/v1/responses").header("content-encoding", "gzip");
    let error = refused(zipped.body(vec![0x1f, 0x8b, 8]).unwrap());
    assert!(error.to_string().contains("gzip"), "{error}");
}

#[test]
fn what_was_spliced_further_out_is_spliced_again() {
    let body = Candidate::new("outer").patch(&Bytes::from(BODY)).unwrap();
    let original =
        OriginalRequest::read(Request::post("/v1/responses").body(body).unwrap(), None).unwrap();
    let request = Candidate::new("inner")
        .request(&mut original.clone(), None)
        .unwrap();
    assert_eq!(bytes(request.body()), BODY.replace("asked", "inner"));
}

#[test]
fn neither_headers_nor_prompt_are_printed() {
    let printed = format!("{:?}", chat(&[("authorization", "secret")]));
    assert!(
        !printed.contains("secret") && !printed.contains("messages"),
        "{printed}"
    );
}
