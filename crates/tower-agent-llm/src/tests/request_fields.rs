use bytes::Bytes;

use super::super::request_fields::{AfterFinish, RequestFields, insert_model, names_stream};

fn read(body: &str) -> Result<RequestFields, String> {
    RequestFields::read(&Bytes::from(body.to_owned())).map_err(|error| error.to_string())
}

fn patched(body: &str, model: &str) -> String {
    let body = Bytes::from(body.to_owned());
    let spliced = RequestFields::read(&body).unwrap().splice(&body, model);
    String::from_utf8(spliced.concat()).unwrap()
}

#[test]
fn model_and_stream_are_read_from_the_top_level() {
    for (body, model, stream) in [
        (r#"{"model":"m","stream":true}"#, Some("m"), true),
        (
            "\n{ \"stream\" : false ,\t\"model\" : \"m\" }\r\n ",
            Some("m"),
            false,
        ),
        (
            r#"{"m\u006fdel":"\u006d\"\\","str\u0065am":true}"#,
            Some("m\"\\"),
            true,
        ),
        (r#"{"model":"\ud83d\ude00 é"}"#, Some("😀 é"), false),
        (r#"{"stream":"true"}"#, None, false),
        (
            r#"{"stream":1,"a":{"model":"x","stream":true}}"#,
            None,
            false,
        ),
        (r#"{"MODEL":1,"model ":2}"#, None, false),
        ("{}", None, false),
    ] {
        let fields = read(body).unwrap();
        assert_eq!((fields.model(), fields.stream()), (model, stream), "{body}");
    }
}

#[test]
fn only_the_value_changes() {
    for (before, after) in [
        (r#"{"model":"a"}"#, r#"{"model":"new"}"#),
        (" {\t\"model\" :\n\"a\" } ", " {\t\"model\" :\n\"new\" } "),
        (
            r#"{"m\u006fdel":"\u0061","n":1.0}"#,
            r#"{"m\u006fdel":"new","n":1.0}"#,
        ),
        (
            r#"{"a":1.0,"b":1.0000000000000000001,"c":1e400,"d":12345678901234567,"e":-0,"model":"","z":{"model":"a"},"b":2}"#,
            r#"{"a":1.0,"b":1.0000000000000000001,"c":1e400,"d":12345678901234567,"e":-0,"model":"new","z":{"model":"a"},"b":2}"#,
        ),
        (
            r#"{"text":"\ud800 \/","model":"a"}"#,
            r#"{"text":"\ud800 \/","model":"new"}"#,
        ),
        (r#"{"model":"é"}"#, r#"{"model":"new"}"#),
    ] {
        assert_eq!(patched(before, "new"), after);
    }
}

#[test]
fn what_need_not_change_does_not() {
    for body in [
        r#"{"model":"new"}"#,
        r#"{"model":"n\u0065w"}"#,
        r#"{"a":{"model":"x"}}"#,
    ] {
        let body = Bytes::from(body);
        let spliced = RequestFields::read(&body).unwrap().splice(&body, "new");
        let [whole, model, rest] = spliced;
        assert_eq!((whole.as_ptr(), whole.len()), (body.as_ptr(), body.len()));
        assert!(model.is_empty() && rest.is_empty());
    }
}

#[test]
fn a_missing_model_becomes_the_first_member() {
    for (before, after) in [
        ("{}", r#"{"model":"new"}"#),
        (" {\n}\n", " {\"model\":\"new\"\n}\n"),
        (
            r#"{ "n":1.0000000000000000001,"a":{"model":"x"}} "#,
            r#"{"model":"new", "n":1.0000000000000000001,"a":{"model":"x"}} "#,
        ),
    ] {
        let spliced = insert_model(&Bytes::from(before), "new");
        assert_eq!(spliced.concat(), after.as_bytes());
    }
    let spliced = insert_model(&Bytes::from("{}"), "a\"b").concat();
    assert_eq!(spliced, br#"{"model":"a\"b"}"#);
}

#[test]
fn a_new_model_is_escaped() {
    let patched = patched(r#"{"model":"a"}"#, "\"\\\n\u{1}é");
    assert_eq!(patched, r#"{"model":"\"\\\n\u0001é"}"#);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (body, problem) in [
        ("", "not JSON: EOF while parsing a value at line 1 column 0"),
        ("  ", "not JSON: EOF while parsing a value"),
        ("hello", "not JSON: expected value at line 1 column 1"),
        (
            "{\"model\":\"a\",\n}",
            "not JSON: trailing comma at line 2 column 1",
        ),
        (
            r#"{"model":"a"} x"#,
            "not JSON: trailing characters at line 1 column 15",
        ),
        (
            r#"{"model":"a"}{}"#,
            "not JSON: trailing characters at line 1 column 14",
        ),
        (r#"{"model":"a""#, "not JSON: EOF while parsing an object"),
        (
            r#"{"a":[1,],"model":"a"}"#,
            "not JSON: expected value at line 1 column 9",
        ),
        ("{\"a\":\"\n\"}", "not JSON: control character"),
        (
            r#"{'model':"a"}"#,
            "not JSON: key must be a string at line 1 column 2",
        ),
        ("\u{feff}{}", "not JSON: it begins with a byte order mark"),
        (r#""secret""#, "unusable: it is not a JSON object"),
        ("[1]", "unusable: it is not a JSON object"),
        ("null", "unusable: it is not a JSON object"),
        ("[1] 2", "not JSON: trailing characters at line 1 column 5"),
        (
            r#"{"model":"a","model":"a"}"#,
            "unusable: a second `model` at line 1 column 20",
        ),
        (
            r#"{"model":"a","mod\u0065l":"b"}"#,
            "unusable: a second `model`",
        ),
        (
            r#"{"\u006dodel":"a","model":"b"}"#,
            "unusable: a second `model`",
        ),
        (
            r#"{"model":null}"#,
            "unusable: `model` is not a string at line 1",
        ),
        (r#"{"model":1}"#, "unusable: `model` is not a string"),
        (
            r#"{"model":{"model":"a"}}"#,
            "unusable: `model` is not a string",
        ),
        (
            r#"{"model":"\ud800"}"#,
            "unusable: `model` is not Unicode text",
        ),
    ] {
        let error = read(body).expect_err(body);
        assert!(error.contains(problem), "{body}: {error}");
        assert!(!error.contains("secret"));
    }
}

#[test]
fn bytes_that_are_no_text_are_refused_wherever_they_are() {
    for body in [
        &b"\xff"[..],
        b"{\"a\":\"\xff\"}",
        b"{\"\xc3\":1}",
        b"{\"model\":\"\xed\xa0\x80\"}",
    ] {
        let error = RequestFields::read(&Bytes::from_static(body)).unwrap_err();
        assert!(error.to_string().contains("utf-8"), "{error}");
    }
}

#[test]
fn depth_does_not_overflow_the_stack() {
    const DEEP: usize = 200_000;
    let nested = ["[".repeat(DEEP), "]".repeat(DEEP)].concat();
    let objects = ["{\"a\":".repeat(DEEP), "0".into(), "}".repeat(DEEP)].concat();
    for value in [nested, objects] {
        let body = format!(r#"{{"deep":{value},"model":"a"}}"#);
        assert_eq!(
            patched(&body, "b"),
            body.replace(r#""model":"a""#, r#""model":"b""#)
        );
        assert!(read(&body[..body.len() / 2]).is_err());
        assert!(read(&format!(r#"{{"model":{value}}}"#)).is_err());
        assert!(read(&format!(r#"{{"stream":{value}}}"#)).is_ok());
        assert!(read(&value).is_err() || value.starts_with('{'));
    }
}

#[test]
fn five_megabytes_survive_byte_for_byte() {
    let line = r#"{"role":"user","content":"naïve \"quotes\" \\ and \u00e9 — 1.0"},"#;
    let before = format!(
        r#"{{"n":1.10,"messages":[{}0],"model":"#,
        line.repeat(80_000)
    );
    let after = format!(r#","more":[{}0]}}"#, line.repeat(1000));
    assert!(before.len() > 5_000_000);
    let body = [&*before, "\"asked\"", &*after].concat();
    assert!(patched(&body, "served") == [&*before, "\"served\"", &*after].concat());
}

#[test]
fn a_request_may_ask_for_a_stream_only_if_it_names_one() {
    for (body, names, following) in [
        (r#"{"model":"m"}"#, false, AfterFinish::Nothing),
        (r#"{"stream":false}"#, true, AfterFinish::Nothing),
        (
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            true,
            AfterFinish::Usage,
        ),
        (r#"{"stream_options":{}}"#, false, AfterFinish::Nothing),
        (r#"{"stream":true,"n":2}"#, true, AfterFinish::Choices),
        (r#"{"n":10,"stream":true}"#, true, AfterFinish::Choices),
        (r#"{"n":1e1,"stream":true}"#, true, AfterFinish::Choices),
        (r#"{"include_usage":1,"n":3}"#, false, AfterFinish::Choices),
        (r#"{"n": 1, "include_usage":1}"#, false, AfterFinish::Usage),
        (r#"{"stream":true,"n" :1}"#, true, AfterFinish::Nothing),
        (
            r#"{"messages":[{"content":"\"n\" of \"stream\""}]}"#,
            false,
            AfterFinish::Nothing,
        ),
        ("", false, AfterFinish::Nothing),
    ] {
        assert_eq!(names_stream([body]), names, "{body}");
        assert_eq!(AfterFinish::of([body]), following, "{body}");
        // The body may be several parts, between which no key is cut.
        assert_eq!(names_stream(["{", body, ""]), names, "{body}");
        assert_eq!(AfterFinish::of(["{", body, ""]), following, "{body}");
    }
}
