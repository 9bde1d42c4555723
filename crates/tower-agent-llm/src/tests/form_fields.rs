use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};

use super::super::form_fields::FormFields;

fn headers(kind: &str) -> HeaderMap {
    let kind = HeaderValue::from_str(kind).unwrap();
    HeaderMap::from_iter([(header::CONTENT_TYPE, kind)])
}

fn read(kind: &str, body: &[u8]) -> Result<FormFields, &'static str> {
    FormFields::read(&headers(kind), body)
}

const KIND: &str = "multipart/form-data; boundary=b";

fn part(head: &str, value: &str) -> String {
    format!("--b\r\n{head}\r\n\r\n{value}\r\n")
}

const MODEL: &str = "Content-Disposition: form-data; name=\"model\"";
const IMAGE: &str = "content-disposition: form-data; name=\"image\"; filename=\"a; name=model\"";

#[test]
fn the_model_is_found_and_spliced_by_bytes() {
    let image = part(IMAGE, "\u{0}\r\n\r\n--c\r\nname=\"model\"\r\n\u{7f}");
    for (kind, head) in [
        (KIND, MODEL),
        ("Multipart/Form-Data;charset=utf-8; BOUNDARY=\"b\"", MODEL),
        (KIND, "content-disposition:form-data;name=model"),
        (
            KIND,
            "content-type: text/plain\r\ncontent-disposition: form-data; name=\"model\"; x=\"\\\"\"",
        ),
        (
            KIND,
            "content-transfer-encoding: 8bit\r\nContent-Disposition: form-data; name=\"mod\\el\"",
        ),
    ] {
        for (before, after) in [("", ""), (&*image, ""), ("", &*image), (&*image, &*image)] {
            let form = |model: &str| format!("{before}{}{after}--b--\r\n", part(head, model));
            let body = Bytes::from(form("asked"));
            let fields = read(kind, &body).unwrap();
            assert_eq!(fields.model(), Some("asked"), "{kind} {head}");
            for model in ["served", "asked", "é", "a much longer name"] {
                assert_eq!(fields.splice(&body, model).concat(), form(model).as_bytes());
            }
            assert!(fields.splice(&body, "asked")[1].is_empty());
        }
    }
}

#[test]
fn bytes_that_are_no_text_pass() {
    let mut body = part(IMAGE, "").into_bytes();
    body.splice(
        body.len() - 2..body.len() - 2,
        [0xff, 0xfe, b'\r', b'\n', 0x80],
    );
    body.extend_from_slice(part(MODEL, "m").as_bytes());
    body.extend_from_slice(b"--b--");
    let fields = read(KIND, &body).unwrap();
    assert_eq!(fields.model(), Some("m"));
    let spliced = fields.splice(&Bytes::from(body.clone()), "n").concat();
    let at = body.len() - b"m\r\n--b--".len();
    assert_eq!(spliced[..at], body[..at]);
    assert_eq!(spliced[at..], *b"n\r\n--b--");
}

#[test]
fn a_form_without_a_model_gets_it_as_its_first_part() {
    for before in ["", "a preamble\r\n"] {
        let rest = part(IMAGE, "i") + "--b--";
        let body = Bytes::from(format!("{before}{rest}"));
        let fields = read(KIND, &body).unwrap();
        assert_eq!(fields.model(), None);
        let head = "content-disposition: form-data; name=\"model\"";
        let wanted = format!("{before}{}{rest}", part(head, "new"));
        assert_eq!(fields.splice(&body, "new").concat(), wanted.as_bytes());
        let again = read(KIND, wanted.as_bytes()).unwrap();
        assert_eq!(again.model(), Some("new"));
    }
}

#[test]
fn a_stream_is_asked_for_in_a_field_of_its_own() {
    let stream = |value: &str| part("content-disposition: form-data; name=\"stream\"", value);
    for (value, streams) in [("true", true), ("false", false), ("", false)] {
        let body = part(MODEL, "m") + &stream(value) + "--b--";
        assert_eq!(read(KIND, body.as_bytes()).unwrap().stream(), streams);
    }
}

#[test]
fn why_a_form_cannot_be_read_is_said() {
    let model = part(MODEL, "m");
    let long = part(&format!("x: {}\r\n{MODEL}", "y".repeat(9000)), "m") + "--b--";
    let many = part(IMAGE, "").repeat(1025) + "--b--";
    let encoded = format!("content-transfer-encoding: base64\r\n{MODEL}");
    for (kind, body, why) in [
        (
            "multipart/form-data",
            "--b--",
            "its content type names no boundary",
        ),
        (
            "multipart/mixed; boundary=b",
            "--b--",
            "its content type names no boundary",
        ),
        (
            "multipart/form-data; boundary=",
            "--b--",
            "its content type names no boundary",
        ),
        (
            "multipart/form-data; boundary=\"b",
            "--b--",
            "its content type names no boundary",
        ),
        (KIND, "", "it has no part"),
        (KIND, "--c\r\n", "it has no part"),
        (KIND, "--b", "it ends in a part's head"),
        (KIND, &model, "it has no last boundary"),
        (
            KIND,
            "--bc\r\n\r\n",
            "a boundary in it does not end its line",
        ),
        (
            KIND,
            "--b\r\nx\r\n--b--",
            "the head of a part in it has no end, or is too long",
        ),
        (
            KIND,
            &long,
            "the head of a part in it has no end, or is too long",
        ),
        (KIND, &many, "it has too many parts"),
        (
            KIND,
            &format!("{model}{model}--b--"),
            "it has a second field `model`",
        ),
        (
            KIND,
            &(part(&encoded, "bQ==") + "--b--"),
            "its field `model` is encoded",
        ),
    ] {
        assert_eq!(read(kind, body.as_bytes()), Err(why), "{body:.80}");
    }
    let mut body = part(MODEL, "?").into_bytes();
    let at = body.len() - 3;
    body[at] = 0xff;
    body.extend_from_slice(b"--b--");
    assert_eq!(read(KIND, &body), Err("its field `model` is not a text"));
}

/// No cut and no changed byte may panic.
#[test]
fn any_cut_of_a_form_is_read_or_refused() {
    let body = part(MODEL, "m") + &part(IMAGE, "\r\n--\r\n--b") + "--b--\r\n";
    for end in 0..body.len() {
        let _ = read(KIND, &body.as_bytes()[..end]);
        for byte in *b"\r\n-\"; \\=b" {
            let mut changed = body.clone().into_bytes();
            changed[end] = byte;
            if let Ok(fields) = read(KIND, &changed) {
                let changed = Bytes::from(changed);
                fields.splice(&changed, "n");
            }
        }
    }
}
