use super::split;
use crate::sse::{MAX_EVENT, Splitter};

fn data(stream: &str) -> Vec<String> {
    let events = split(&mut Splitter::new(), [stream.as_bytes()]);
    events
        .into_iter()
        .map(|event| String::from_utf8(event.data).unwrap())
        .collect()
}

fn boundary(stream: &str) -> u64 {
    let mut splitter = Splitter::new();
    splitter.push(stream.as_bytes(), |_| {});
    assert_eq!(splitter.position(), stream.len() as u64);
    splitter.boundary()
}

#[test]
fn line_ends_are_lf_cr_and_crlf() {
    assert_eq!(
        data("data: a\n\ndata: b\r\rdata: c\r\n\r\ndata: d\r\n\n"),
        ["a", "b", "c", "d"]
    );
    assert_eq!(data("data: a\n\rdata: b\n\r\n"), ["a", "b"]);
}

#[test]
fn a_crlf_may_be_split() {
    let mut splitter = Splitter::new();
    let events = split(
        &mut splitter,
        [&b"data: a\r"[..], b"\n\r", b"\ndata: b\r", b"\n", b"\r\n"],
    );
    assert_eq!(
        events.iter().map(|event| event.end).collect::<Vec<_>>(),
        [10, 21]
    );
    assert_eq!(splitter.boundary(), 22);
}

#[test]
fn a_lone_cr_ends_the_event_at_once() {
    assert_eq!(data("event: x\rdata: a\r\r"), ["a"]);
}

#[test]
fn data_lines_are_joined() {
    assert_eq!(data("data: a\ndata: b\n\n"), ["a\nb"]);
    assert_eq!(data("data\ndata\n\n"), ["\n"]);
    assert_eq!(data("data: a\nid: 1\ndata:\n\n"), ["a\n"]);
}

#[test]
fn one_space_after_the_colon_is_dropped() {
    assert_eq!(
        data("data:a\n\ndata: a\n\ndata:  a\n\ndata:\ta\n\n"),
        ["a", "a", " a", "\ta"]
    );
}

#[test]
fn a_byte_order_mark_counts_only_at_the_start() {
    assert_eq!(data("\u{feff}data: a\n\n"), ["a"]);
    assert_eq!(data("\u{feff}\u{feff}data: a\n\n"), [""; 0]);
    assert_eq!(data("data: a\n\n\u{feff}data: b\n\n"), ["a"]);
    let events = split(
        &mut Splitter::new(),
        [&b"\xEF"[..], b"\xBB", b"\xBFdata: a\n\n"],
    );
    assert_eq!(events.len(), 1);
}

#[test]
fn half_a_byte_order_mark_is_an_unknown_field() {
    let events = split(
        &mut Splitter::new(),
        [&b"\xEF\xBB"[..], b"data: a\n", b"data: b\n\n"],
    );
    assert_eq!(events[0].data, b"b");
}

#[test]
fn unknown_fields_and_comments_are_ignored() {
    assert_eq!(
        data("id: 7\nretry: 1\nfoo\ndatax: 1\nDATA: 1\n data: 1\n: c\ndata: a\n\n"),
        ["a"]
    );
    assert_eq!(data("id: 7\n\n: comment\n\n\n\n"), [""; 0]);
}

#[test]
fn a_field_without_a_colon_has_an_empty_value() {
    assert_eq!(data("data\n\n"), [""]);
    let events = split(&mut Splitter::new(), [&b"event: x\nevent\ndata: 1\n\n"[..]]);
    assert_eq!(events[0].name, b"");
}

#[test]
fn an_event_without_data_is_not_dispatched_but_ends() {
    assert_eq!(data("event: error\n\ndata: a\n\n"), ["a"]);
    let events = split(&mut Splitter::new(), [&b"event: x\n\ndata: a\n\n"[..]]);
    assert_eq!(events[0].name, b"");
    assert_eq!(boundary("event: error\n\n"), 14);
}

#[test]
fn the_last_name_wins() {
    let events = split(
        &mut Splitter::new(),
        [&b"event: a\ndata: 1\neve"[..], b"nt: bc\n\n"],
    );
    assert_eq!(events[0].name, b"bc");
}

#[test]
fn an_unfinished_event_is_not_dispatched() {
    assert_eq!(data("data: a\n\ndata: b\n"), ["a"]);
}

#[test]
fn the_stream_may_be_cut_after_events_and_comments() {
    assert_eq!(boundary(""), 0);
    assert_eq!(boundary("data: a"), 0);
    assert_eq!(boundary("data: a\n"), 0);
    assert_eq!(boundary("data: a\n\n"), 9);
    assert_eq!(boundary("data: a\n\ndata"), 9);
    assert_eq!(boundary(": c\n"), 4);
    assert_eq!(boundary(": c"), 0);
    assert_eq!(boundary(": c\n: d"), 4);
    assert_eq!(boundary(": c\r\n"), 5);
    assert_eq!(boundary("data: a\n: c\n"), 0);
    assert_eq!(boundary("id: 1\n: c\n"), 0);
    assert_eq!(boundary("data: a\n\r\n"), 10);
    assert_eq!(boundary("data: a\r\n\r"), 10);
    assert_eq!(boundary("\n"), 1);
    assert_eq!(boundary("\u{feff}"), 3);
}

#[test]
fn a_comment_in_parts_is_a_boundary_too() {
    let mut splitter = Splitter::new();
    split(
        &mut splitter,
        [&b":"[..], b" keep", b"-alive", b"\r", b"\n"],
    );
    assert_eq!(splitter.boundary(), 14);
}

#[test]
fn an_oversized_event_is_named_and_the_next_is_whole() {
    let most = "x".repeat(MAX_EVENT);
    for (size, oversized) in [(MAX_EVENT, false), (MAX_EVENT + 1, true)] {
        let text = format!("event: e\ndata: {}\n\ndata: next\n\n", "x".repeat(size));
        for chunk in [text.len(), 4096] {
            let events = split(&mut Splitter::new(), text.as_bytes().chunks(chunk));
            assert_eq!(events.len(), 2);
            assert_eq!(
                (events[0].oversized, &*events[0].name),
                (oversized, &b"e"[..])
            );
            assert_eq!(events[0].data.is_empty(), oversized);
            assert_eq!(
                (events[1].oversized, &*events[1].data),
                (false, &b"next"[..])
            );
        }
    }
    // The line feed that joins two data lines counts towards the limit.
    let text = format!("data: {}\ndata: {}\n\n", &most[1..], "");
    assert!(!split(&mut Splitter::new(), [text.as_bytes()])[0].oversized);
    let text = format!("data: {most}\ndata: {}\n\n", "");
    assert!(split(&mut Splitter::new(), [text.as_bytes()])[0].oversized);
}

#[test]
fn what_is_ignored_is_not_stored() {
    let mut splitter = Splitter::new();
    splitter.push(b"data: a\n: ", |_| {});
    for _ in 0..64 {
        splitter.push(&[b'c'; MAX_EVENT], |_| {});
    }
    let events = split(&mut splitter, [&b"\n\n"[..]]);
    assert_eq!((&*events[0].data, events[0].oversized), (&b"a"[..], false));
}

#[test]
fn a_long_name_is_cut() {
    let text = format!("event: {}\ndata: 1\n\n", "n".repeat(1000));
    for chunk in [1, 7, 2000] {
        let events = split(&mut Splitter::new(), text.as_bytes().chunks(chunk));
        assert_eq!(events[0].name.len(), 256);
    }
}

/// The names, data and ends of the events, at any chunking.
fn at_any_chunking(stream: &str) -> Vec<(String, String, u64)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let events = |size: usize| {
        let events = split(&mut Splitter::new(), stream.as_bytes().chunks(size));
        let events = events.into_iter();
        events
            .map(|it| (text(&it.name), text(&it.data), it.end))
            .collect::<Vec<_>>()
    };
    let whole = events(stream.len());
    for size in 1..stream.len() {
        assert_eq!(events(size), whole, "{stream:?} by {size}");
    }
    whole
}

fn named_data(stream: &str) -> Vec<(String, String)> {
    let events = at_any_chunking(stream).into_iter();
    events.map(|(name, data, _)| (name, data)).collect()
}

fn event(name: &str, data: &str) -> (String, String) {
    (name.to_owned(), data.to_owned())
}

#[test]
fn an_error_field_is_an_event_of_that_name() {
    let named = |data| event("error", data);
    assert_eq!(named_data("error: {\"a\":1}\n\n"), [named("{\"a\":1}")]);
    assert_eq!(
        named_data("error:no\n\ndata: b\n\n"),
        [named("no"), event("", "b")]
    );
    assert_eq!(named_data("data: a\nerror: b\n\n"), [named("a\nb")]);
    assert_eq!(named_data("error: a\r\ndata: b\r\n\r\n"), [named("a\nb")]);
    assert_eq!(named_data("event: x\nerror: a\n\n"), [named("a")]);
}

#[test]
fn an_error_field_that_says_nothing_is_none() {
    for empty in [
        "error:",
        "error: ",
        "error: null",
        "error",
        "errors: a",
        "error : a",
    ] {
        assert_eq!(named_data(&format!("{empty}\n\n")), [], "{empty}");
        let stream = format!("data: a\n\n{empty}\ndata: b\n\n");
        assert_eq!(
            named_data(&stream),
            [event("", "a"), event("", "b")],
            "{empty}"
        );
    }
}

#[test]
fn bare_json_is_an_event_once_it_is_whole() {
    let json = "{\"a\":1}";
    assert_eq!(
        at_any_chunking("{\"a\":1}\n"),
        [(String::new(), json.into(), 8)]
    );
    assert_eq!(
        named_data("{\"a\":1}\ndata: b\n\n"),
        [event("", json), event("", "b")]
    );
    assert_eq!(
        named_data("data: b\n\n{\"a\":1}\n\n"),
        [event("", "b"), event("", json)]
    );
    assert_eq!(
        named_data(": c\n[{\"a\":\n1}]\r\n"),
        [event("", "[{\"a\":1}]")]
    );
    let pretty = "{\n  \"a\": {\n\n    \"b\": \"}\"\n  }\n}\n\ndata: c\n\n";
    let joined = "{  \"a\": {    \"b\": \"}\"  }}";
    assert_eq!(named_data(pretty), [event("", joined), event("", "c")]);
    // Lines of a document that look like nothing, or like the start of a field.
    assert_eq!(
        named_data("{\n\"data\":1,\nnul\n}\n"),
        [event("", "{\"data\":1,nul}")]
    );
}

#[test]
fn a_field_ends_what_began_like_bare_json() {
    assert_eq!(named_data("{\"a\":\ndata: b\n\n"), [event("", "b")]);
    assert_eq!(
        named_data("{\"a\":\nevent: x\ndata: b\n\n"),
        [event("x", "b")]
    );
    assert_eq!(named_data("[\nerror: b\n\n"), [event("error", "b")]);
    assert_eq!(named_data("{\"a\":\n\n: c\n1}\n"), [event("", "{\"a\":1}")]);
    // Within an event a line like JSON is an unknown field.
    assert_eq!(named_data("data: a\n{\"b\":1}\n\n"), [event("", "a")]);
    assert_eq!(named_data("x\n{\"b\":1}\n\n"), []);
}

#[test]
fn the_end_completes_an_event_whose_last_line_is_data() {
    let ended = |stream: &str, is_whole: bool| {
        let mut splitter = Splitter::new();
        splitter.push(stream.as_bytes(), |_| {});
        let mut data = None;
        let mut asked = None;
        splitter.finish(
            |data| {
                asked = Some(String::from_utf8(data.to_vec()).unwrap());
                is_whole
            },
            |event| data = Some(String::from_utf8(event.data.to_vec()).unwrap()),
        );
        let at_end = splitter.boundary() == splitter.position();
        assert_eq!(at_end, data.is_some(), "{stream:?}");
        (asked, data)
    };
    let some = |text: &str| Some(text.to_owned());
    for stream in [
        "data: a",
        "data: a\n",
        "data: a\r",
        "data: a\r\n",
        "event: x\ndata:a",
    ] {
        assert_eq!(ended(stream, true), (some("a"), some("a")), "{stream:?}");
        assert_eq!(ended(stream, false), (some("a"), None), "{stream:?}");
    }
    assert_eq!(ended("data: a\ndata: b", true).1, some("a\nb"));
    assert_eq!(ended("error: a", true).1, some("a"));
    for stream in [
        "data: a\nda",
        "data: a\nid: 1",
        "data: a\n:",
        "event: x",
        "event: x\n",
        "da",
    ] {
        assert_eq!(ended(stream, true), (None, None), "{stream:?}");
    }
    // JSON without a field shows itself whether it is whole.
    assert_eq!(ended("{\"a\":1}", false), (None, some("{\"a\":1}")));
    assert_eq!(ended("{\"a\":1", true), (None, None));
}
