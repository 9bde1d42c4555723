//! Comparing what was seen with what a case expects.

use std::{collections::BTreeMap, time::Duration};

use http::{HeaderMap, Version};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    case::{Expect, Rest, Seconds},
    play::Outcome,
};

/// What a caller got.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Whether the connection ended before the body.
    pub(crate) is_cut: bool,
    pub(crate) version: Version,
    pub(crate) times: Times,
}

/// When parts of an answer came, from the request on.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) head: Duration,
    /// The first byte of the body; its end if there is none.
    pub(crate) first_byte: Duration,
    pub(crate) end: Duration,
}

/// What one request led to.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) answer: Result<Answer, String>,
    /// When the answer had come.
    pub(crate) ended: Instant,
    pub(crate) calls: BTreeMap<String, usize>,
    /// As `GET /cooldowns` lists them.
    pub(crate) rests: Value,
    pub(crate) class: Option<String>,
}

/// What differs; `rests` are compared if there are any to compare.
pub(crate) fn differences(expect: &Expect, rests: Option<&[Rest]>, seen: &Seen) -> Outcome {
    let mut found = Vec::new();
    match &seen.answer {
        Ok(answer) => found.extend(in_answer(expect, answer)),
        Err(error) => found.push(error.clone()),
    }
    if let Some(class) = &expect.class {
        let got = seen.class.as_deref().unwrap_or_default();
        if got != class {
            let [got, class] = [got, class].map(or_none);
            found.push(format!("class: {got}, should be {class}"));
        }
    }
    if let Some(calls) = &expect.calls {
        let is_some = |count: &&usize| **count > 0;
        let got = seen.calls.iter().filter(|(_, count)| is_some(count));
        let want = calls.iter().filter(|(_, count)| is_some(count));
        let [got, want]: [BTreeMap<_, _>; 2] = [got.collect(), want.collect()];
        if got != want {
            found.push(format!("calls: {got:?}, should be {want:?}"));
        }
    }
    if let Some(rests) = rests {
        found.extend(in_rests(rests, &seen.rests));
    }
    found
}

fn in_answer(expect: &Expect, answer: &Answer) -> Outcome {
    let mut found = Vec::new();
    let mut differ = |what: &str, got: &str, want: &str| {
        if got != want {
            let [got, want] = [got, want].map(or_none);
            found.push(format!("{what}: {got}, should be {want}"));
        }
    };
    let header = |name: &str| {
        let value = answer.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap_or("unreadable"))
    };
    differ(
        "status",
        &answer.status.to_string(),
        &expect.status.to_string(),
    );
    if let Some(served) = &expect.served {
        differ("served", header("x-served-candidate"), served);
    }
    for (name, want) in &expect.headers {
        differ(name, header(name), want);
    }
    if let Some(version) = &expect.version {
        differ("version", &format!("{:?}", answer.version), version);
    }
    match (answer.is_cut, expect.cut) {
        (true, false) => found.push("the answer is cut".to_owned()),
        (false, true) => found.push("the answer is whole, should be cut".to_owned()),
        _ => {}
    }
    found.extend(late(expect, &answer.times));
    let text = &answer.text;
    let ends = [
        ("begin", &expect.starts_with, short(text)),
        ("end", &expect.ends_with, short_end(text)),
    ];
    for (what, want, is) in ends {
        let Some(want) = want else { continue };
        let holds = match what {
            "begin" => text.starts_with(want.as_str()),
            _ => text.ends_with(want.as_str()),
        };
        if !holds {
            found.push(format!("the body does not {what} with {want:?}: {is}"));
        }
    }
    for (part, want) in &expect.counts {
        let got = text.matches(part.as_str()).count();
        if got != *want {
            found.push(format!(
                "the body has {part:?} {got} times, should {want} times: {}",
                short_end(text)
            ));
        }
    }
    let missing = expect.contains.iter().filter(|part| !text.contains(*part));
    found.extend(missing.map(|part| format!("the body has no {part:?}: {}", short(text))));
    let wrong = expect.lacks.iter().filter(|part| text.contains(*part));
    found.extend(wrong.map(|part| format!("the body has {part:?}: {}", short(text))));
    if !expect.json.is_empty() {
        let body = serde_json::from_str(text).unwrap_or_default();
        found.extend(pointers("body", &expect.json, &body));
    }
    if !expect.last_event.is_empty() {
        let data = text
            .lines()
            .rev()
            .filter_map(|line| line.strip_prefix("data: "));
        let mut data = data.filter_map(|data| serde_json::from_str(data).ok());
        let last: Value = data.next().unwrap_or_default();
        found.extend(pointers("last event", &expect.last_event, &last));
    }
    found
}

/// What came too late.
fn late(expect: &Expect, times: &Times) -> Outcome {
    let limits = [
        ("the head", times.head, expect.head_within_ms),
        (
            "the first byte",
            times.first_byte,
            expect.first_byte_within_ms,
        ),
        ("the end", times.end, expect.within_ms),
    ];
    let late = limits.into_iter().filter_map(|(what, came, limit)| {
        let limit = Duration::from_millis(limit?);
        (came > limit).then(|| format!("{what} came after {came:.1?}, should within {limit:?}"))
    });
    late.collect()
}

/// The values that differ in a document.
pub(crate) fn pointers(what: &str, want: &BTreeMap<String, Value>, document: &Value) -> Outcome {
    let differing = want.iter().filter_map(|(pointer, want)| {
        let got = document.pointer(pointer).unwrap_or(&Value::Null);
        (got != want).then(|| format!("{what} {pointer}: {got}, should be {want}"))
    });
    differing.collect()
}

fn in_rests(want: &[Rest], list: &Value) -> Outcome {
    let mut found = Vec::new();
    let mut left: Vec<&Rest> = want.iter().collect();
    for rest in list.as_array().into_iter().flatten() {
        let (candidate, class) = (&rest["candidate"], &rest["class"]);
        let seconds = rest["left_ms"].as_f64().unwrap_or_default() / 1000.0;
        let is_it = |rest: &&Rest| *candidate == *rest.candidate && *class == *rest.class;
        let Some(at) = left.iter().position(is_it) else {
            found.push(format!(
                "rests: {candidate} as {class} for {seconds:.1} s, should not"
            ));
            continue;
        };
        let [low, high] = bounds(left.remove(at).seconds);
        if !(low..=high).contains(&seconds) {
            found.push(format!(
                "rests: {candidate} as {class} for {seconds:.1} s, should for {low} to {high} s"
            ));
        }
    }
    let missing = left.into_iter().map(
        |Rest {
             candidate, class, ..
         }| { format!("rests: {candidate} does not as {class}, should") },
    );
    found.extend(missing);
    found
}

/// A rest of so many seconds has at least this left, and at most that.
fn bounds(seconds: Seconds) -> [f64; 2] {
    match seconds {
        // A loaded machine takes some seconds to look, and dates are in whole seconds.
        Seconds::Of(seconds) => [(seconds - 5.0).max(0.0), seconds + 1.0],
        Seconds::Between(bounds) => bounds,
    }
}

const fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

fn short(text: &str) -> String {
    text.chars().take(300).collect()
}

fn short_end(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(300);
    let end: String = text.chars().skip(skipped).collect();
    format!("..{end:?}")
}
