//! What an upstream does when it is asked: the answer of a case, as steps on the wire.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    case::{Answer, Close, Http, Operation, SentAs},
    healthy,
    net::{Play, Step, chunk},
};

/// The steps by which a model answers a request.
pub(crate) fn play(
    answer: &Answer,
    operation: Operation,
    stream: bool,
    model: &str,
    sent_as: SentAs,
) -> Play {
    let error = error(answer);
    let (content_type, pieces) = match (error, sent_as) {
        (Some(body), SentAs::FirstEvent) => (STREAM, vec![healthy::error_event(operation, &body)]),
        (Some(body), SentAs::AfterContent) => {
            let [mut events, _] = healthy::events(operation, model);
            events.push(healthy::error_event(operation, &body));
            (STREAM, events)
        }
        (Some(body), SentAs::Answer) => (JSON, vec![body]),
        (None, _) if answer.healthy && stream => {
            (STREAM, healthy::events(operation, model).concat())
        }
        (None, _) if answer.healthy => (JSON, vec![healthy::whole(operation, model).to_string()]),
        (None, _) => match (&answer.events, &answer.chunks) {
            (Some(events), _) => (STREAM, events.iter().map(|it| with_places(it)).collect()),
            (None, Some(chunks)) => (JSON, chunks.iter().map(|it| with_places(it)).collect()),
            (None, None) => (JSON, Vec::new()),
        },
    };
    let in_stream = content_type == STREAM;
    let status = match sent_as {
        SentAs::Answer => answer.status.unwrap_or(200),
        _ => 200,
    };
    let mut steps = vec![
        Step::Pause(Duration::from_millis(answer.head_pause_ms)),
        Step::write(head(answer, status, content_type)),
    ];
    for (at, mut piece) in pieces.into_iter().enumerate() {
        let pause = answer.pause_ms.before(at);
        if !pause.is_zero() {
            steps.push(Step::Pause(pause));
        }
        if in_stream {
            piece.push_str("\n\n");
        }
        if !piece.is_empty() {
            steps.push(Step::write(match answer.http {
                Http::Http11 => chunk(&piece),
                Http::Http10 => piece,
            }));
        }
    }
    steps.push(match (answer.close, answer.http) {
        (Close::Kept, Http::Http11) => Step::write("0\r\n\r\n"),
        (Close::Kept, Http::Http10) | (Close::Cut, _) => Step::Close,
        (Close::Reset, _) => Step::Reset,
        (Close::Open, _) => Step::Hang,
    });
    Play::Script(steps)
}

const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";

/// The body that one write has: that of an error, mostly.
fn error(answer: &Answer) -> Option<String> {
    let json = answer.json.as_ref().map(ToString::to_string);
    let body = json.or_else(|| answer.body.clone())?;
    Some(with_places(&body))
}

fn head(answer: &Answer, status: u16, content_type: &str) -> String {
    let mut head = match answer.http {
        Http::Http11 => format!("HTTP/1.1 {status} Status\r\ntransfer-encoding: chunked\r\n"),
        Http::Http10 => format!("HTTP/1.0 {status} Status\r\n"),
    };
    if !answer.headers.contains_key("content-type") {
        let _ = write!(head, "content-type: {content_type}\r\n");
    }
    for (name, value) in &answer.headers {
        // An empty content type is none.
        if !value.is_empty() {
            let _ = write!(head, "{name}: {}\r\n", with_places(value));
        }
    }
    head.push_str("\r\n");
    head
}

/// Replaces `{{unix+600}}`, `{{unix_ms+600}}` and `{{rfc3339+600}}` by the time in 600 s, and
/// `{{repeat:ab:3}}` by `ababab`.
fn with_places(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (place, after) = after.split_once("}}").unwrap_or_else(|| panic!("{text}"));
        out.push_str(before);
        rest = after;
        if let Some(repeated) = place.strip_prefix("repeat:") {
            let (unit, times) = repeated.rsplit_once(':').unwrap();
            out.push_str(&unit.repeat(times.parse().unwrap()));
            continue;
        }
        let (form, seconds) = place.split_once('+').unwrap_or((place, "0"));
        let at = SystemTime::now() + Duration::from_secs(seconds.parse().unwrap());
        let unix = at.duration_since(UNIX_EPOCH).unwrap();
        let _ = match form {
            "unix" => write!(out, "{}", unix.as_secs()),
            "unix_ms" => write!(out, "{}", unix.as_millis()),
            "rfc3339" => write!(out, "{}", humantime::format_rfc3339_seconds(at)),
            _ => panic!("{{{{{place}}}}} is no time"),
        };
    }
    out.push_str(rest);
    out
}
