//! Answers as text for a terminal.

use std::{
    io::{self, Write},
    time::Duration,
};

use serde_json::Value;

/// Rows under a head, each column as wide as its longest text.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        let head = head.iter().map(ToString::to_string).collect();
        Self { rows: vec![head] }
    }

    fn push(&mut self, row: impl IntoIterator<Item = String>) {
        let row = row.into_iter().map(|text| plain(&text));
        self.rows.push(row.collect());
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let texts = self.rows.iter().map(|row| row[column].chars().count());
            texts.max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(text, width)| format!("{text:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A text without what a terminal would act on: ids and names are the callers'.
pub(super) fn plain(text: &str) -> String {
    let acts = |char: char| {
        char.is_control()
            || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|char| if acts(char) { '\u{fffd}' } else { char })
        .collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// A number of milliseconds as people read it, in its two greatest units.
fn time(millis: &Value) -> String {
    let Some(millis) = millis.as_u64() else {
        return "-".to_owned();
    };
    let time = match millis {
        0..10_000 => Duration::from_millis(millis / 100 * 100),
        _ => Duration::from_secs(millis / 1000),
    };
    let text = humantime::format_duration(time).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn of_cap(used: &Value, cap: &Value) -> String {
    match cap {
        Value::Null => text(used),
        cap => format!("{}/{}", text(used), text(cap)),
    }
}

fn spent(run: &Value) -> String {
    let (spent, caps) = (&run["spent"], &run["token_caps"]);
    let cost = spent["cost"].as_f64().unwrap_or(0.0);
    if cost > 0.0 {
        let cap = caps["max_cost"]
            .as_f64()
            .map(|cap| format!("/{cap}"))
            .unwrap_or_default();
        return format!("{cost:.4}{cap}");
    }
    let tokens = ["input_tokens", "cached_input_tokens", "output_tokens"];
    let tokens: u64 = tokens.iter().filter_map(|key| spent[*key].as_u64()).sum();
    format!("{tokens} tokens")
}

/// What a run does now, or the reason of its end.
fn state(run: &Value) -> String {
    if let Some(reason) = run["reason"].as_str() {
        return reason.to_owned();
    }
    if run["paused"].is_object() {
        return match run["paused"]["cap"].as_str() {
            Some(cap) => format!("paused: {cap}"),
            None => "paused".to_owned(),
        };
    }
    let in_flight = run["in_flight"].as_u64().unwrap_or(0);
    match (run["stuck"] == true, run["closing"].as_str(), in_flight) {
        (true, ..) => "stuck".to_owned(),
        (_, Some(closing), _) => format!("closing: {closing}"),
        (.., 0) => "idle".to_owned(),
        _ if run["alive"] == false => "silent".to_owned(),
        _ => "working".to_owned(),
    }
}

pub(super) fn runs(runs: &[Value]) -> Table {
    let head = [
        "RUN",
        "OWNER",
        "STATE",
        "CANDIDATE",
        "TRY",
        "TURNS",
        "SPENT",
        "SILENT",
        "AGE",
        "LEFT",
    ];
    let is_of_many = runs.iter().any(|run| !run["replica"].is_null());
    let gateway = is_of_many.then_some("GATEWAY");
    let head: Vec<_> = head.into_iter().chain(gateway).collect();
    let mut table = Table::new(&head);
    for run in runs {
        let row = [
            text(&run["run"]),
            text(&run["owner"]),
            state(run),
            text(&run["candidate"]),
            text(&run["attempts"]),
            of_cap(&run["turns"], &run["max_turns"]),
            spent(run),
            time(&run["progress"]["last_change_ago_ms"]),
            time(&run["elapsed_ms"]),
            time(&run["time_left_ms"]),
        ];
        let gateway = is_of_many.then(|| text(&run["replica"]));
        table.push(row.into_iter().chain(gateway));
    }
    table
}

pub(super) fn aborted(runs: &[Value]) -> Table {
    let mut table = Table::new(&["RUN", "OWNER", "SESSION", "CANDIDATE", "AGE"]);
    for run in runs {
        table.push([
            text(&run["run"]),
            text(&run["owner"]),
            text(&run["session"]),
            text(&run["candidate"]),
            time(&run["elapsed_ms"]),
        ]);
    }
    table
}

pub(super) fn candidates(answer: &Value) -> Table {
    let mut table = Table::new(&[
        "CANDIDATE",
        "STATE",
        "LEFT",
        "CLASS",
        "FAILED",
        "OF",
        "FIRST CONTENT",
    ]);
    for it in answer["candidates"].as_array().into_iter().flatten() {
        table.push([
            text(&it["candidate"]),
            text(&it["state"]),
            time(&it["left_ms"]),
            text(&it["class"]),
            text(&it["failures"]),
            text(&it["attempts"]),
            time(&it["first_content_p50_ms"]),
        ]);
    }
    table
}

/// A run, or several of one id.
pub(super) fn detail(out: &mut dyn Write, answer: &Value) -> io::Result<()> {
    let several = answer["runs"].as_array();
    let all = several.map_or_else(|| std::slice::from_ref(answer), Vec::as_slice);
    for (number, run) in all.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        one(out, run)?;
    }
    Ok(())
}

fn one(out: &mut dyn Write, run: &Value) -> io::Result<()> {
    runs(std::slice::from_ref(run)).write(out)?;
    for key in ["message", "session", "parent", "also"] {
        let value = &run[key];
        let is_nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        if !is_nothing {
            writeln!(out, "{key}: {}", plain(&text(value)))?;
        }
    }
    if run["paused"].is_object() {
        let paused = &run["paused"];
        let remedy = match (paused["cap"].as_str(), paused["suspended"] == true) {
            (None, _) => "`resume` lets it go on",
            (Some(_), false) => "`extend` raises its cap and lets it go on",
            (Some(_), true) => "`extend` raises its cap, and `resume` lets it go on",
        };
        let (time, held) = (time(&paused["since_ms"]), text(&paused["held"]));
        writeln!(out, "paused: for {time}, turns held: {held}; {remedy}")?;
    }
    let work = run["work"].as_array().map_or(&[][..], Vec::as_slice);
    if !work.is_empty() {
        let mut table = Table::new(&["IN FLIGHT", "CANDIDATE", "AGE", "SILENT", "WINDOW LEFT"]);
        for it in work {
            table.push([
                text(&it["kind"]),
                text(&it["candidate"]),
                time(&it["elapsed_ms"]),
                time(&it["progress"]["last_change_ago_ms"]),
                time(&it["deadlines"]["step_ms"]),
            ]);
        }
        writeln!(out)?;
        table.write(out)?;
    }
    let attempts = run["attempts_of_late"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if !attempts.is_empty() {
        let mut table = Table::new(&[
            "ATTEMPT",
            "RESULT",
            "STATUS",
            "FIRST CONTENT",
            "TOOK",
            "UPSTREAM SAID",
        ]);
        for it in attempts {
            let class = it["class"].as_str();
            table.push([
                text(&it["candidate"]),
                class.map_or_else(|| text(&it["reason"]), ToOwned::to_owned),
                text(&it["status"]),
                time(&it["served_after_ms"]),
                time(&it["duration_ms"]),
                text(&it["message"]),
            ]);
        }
        writeln!(out)?;
        table.write(out)?;
    }
    Ok(())
}

/// Says which gateways an answer does not cover.
pub(super) fn missing(out: &mut dyn Write, answer: &Value) -> io::Result<()> {
    if answer["replicas"] == "lost" {
        writeln!(
            out,
            "the store of the gateways does not answer: this is of one gateway"
        )?;
    }
    let missing = answer["missing"].as_array().into_iter().flatten();
    for replica in missing.filter_map(Value::as_str) {
        writeln!(out, "silent: {}", plain(replica))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(table: &Table) -> String {
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_run_that_waits_says_so() {
        let mut run = json!({
            "run": "nightly", "owner": "coder", "reason": null, "in_flight": 1, "alive": true,
            "paused": {"cap": "turns", "suspended": false, "since_ms": 61_000, "held": 1},
        });
        let written = |run: &Value| {
            let mut out = Vec::new();
            detail(&mut out, run).unwrap();
            String::from_utf8(out).unwrap()
        };
        let at_cap = written(&run);
        assert!(at_cap.contains(" paused: turns "), "{at_cap}");
        let line = "paused: for 1m 1s, turns held: 1; `extend` raises its cap and lets it go on\n";
        assert!(at_cap.ends_with(line), "{at_cap}");

        run["paused"] = json!({"cap": null, "suspended": true, "since_ms": 0, "held": 0});
        let by_hand = written(&run);
        assert!(by_hand.contains(" paused "), "{by_hand}");
        let line = "paused: for 0s, turns held: 0; `resume` lets it go on\n";
        assert!(by_hand.ends_with(line), "{by_hand}");

        run["reason"] = json!("aborted");
        assert_eq!(state(&run), "aborted");
    }

    #[test]
    fn a_row_says_what_burns() {
        let run = json!({
            "run": "nightly", "owner": "coder", "reason": null, "in_flight": 1, "alive": true,
            "stuck": false, "candidate": "large", "attempts": 2, "turns": 3, "max_turns": 30,
            "spent": {"cost": 0.25}, "token_caps": {"max_cost": 2.0},
            "progress": {"last_change_ago_ms": 61_500}, "elapsed_ms": 3_723_000,
            "time_left_ms": null,
        });
        let text = written(&runs(&[run]));
        let expected = "\
RUN      OWNER  STATE    CANDIDATE  TRY  TURNS  SPENT     SILENT  AGE    LEFT
nightly  coder  working  large      2    3/30   0.2500/2  1m 1s   1h 2m  -
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_a_terminal_would_act_on_is_not_printed() {
        let run = json!({ "run": "a\u{1b}[2Jb", "session": "\u{202e}evil" });
        let mut out = Vec::new();
        detail(&mut out, &run).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("a\u{fffd}[2Jb") && text.contains("session: \u{fffd}evil"),
            "{text:?}"
        );
    }
}
