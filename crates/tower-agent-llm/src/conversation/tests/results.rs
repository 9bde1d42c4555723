//! Which results of tools are the same.
//!
//! covers: D7

use serde_json::json;

use crate::{conversation::item::result, is_volatile_key, is_volatile_value};

fn same(one: &str, other: &str) -> bool {
    assert_ne!(
        result(one.as_bytes(), true),
        result(other.as_bytes(), true),
        "{one}"
    );
    result(one.as_bytes(), false) == result(other.as_bytes(), false)
}

/// A result as it stands in a history: raw, in a string, and in a block of text.
fn forms(result: &str) -> [String; 4] {
    let text = json!(result).to_string();
    [
        result.to_owned(),
        text.clone(),
        json!([{"type": "text", "text": result}]).to_string(),
        json!(json!({"content": [result]}).to_string()).to_string(),
    ]
}

#[test]
fn numbers_under_keys_for_durations_processes_and_times_do_not_count_at_any_depth() {
    let of = |took: f64, pid: u32, at: u32| {
        json!({
            "output": "no such file",
            "metadata": {"exit_code": 1, "duration_seconds": took, "runs": [{"pid": pid}]},
            "wallTime": took, "process-id": pid, "started_at": at, "time": at,
        })
        .to_string()
    };
    for (one, other) in forms(&of(0.1, 4711, 10))
        .iter()
        .zip(&forms(&of(12.0, 9, 20)))
    {
        assert!(same(one, other), "{one}");
    }
}

#[test]
fn any_other_number_is_another_result() {
    let pairs = [
        (r#"{"exit_code":0,"pid":1}"#, r#"{"exit_code":1,"pid":1}"#),
        (r#"{"count":3}"#, r#"{"count":4}"#),
        (r#"{"page":3,"took":1}"#, r#"{"page":4,"took":1}"#),
        (r#"{"percent":30}"#, r#"{"percent":40}"#),
        (r#"{"status":1}"#, r#"{"status":2}"#),
        (r#"{"at":1}"#, r#"{"at":2}"#),
        (r#"{"id":1}"#, r#"{"id":2}"#),
        (
            r#"{"lines":{"start":1,"end":9}}"#,
            r#"{"lines":{"start":2,"end":9}}"#,
        ),
        (r#"{"duration":1}"#, r#"{"duration":null}"#),
        (r#"{"duration":1}"#, r#"{"elapsed":1}"#),
        (r#"{"duration":"short"}"#, r#"{"duration":"long"}"#),
        (r#"{"took":{"rows":1}}"#, r#"{"took":{"rows":2}}"#),
        (r#"{"time":[1]}"#, r#"{"time":[2]}"#),
        ("took 3", "took 4"),
        ("\"wall_time\": 3", "\"wall_time\": 4"),
        (
            "Exit code: 0\nWall time: 1 seconds\nOutput:\na",
            "Exit code: 1\nWall time: 1 seconds\nOutput:\na",
        ),
        (
            "Exit code: 0\nWall time: 1\nOutput:\nrow 3",
            "Exit code: 0\nWall time: 1\nOutput:\nrow 4",
        ),
        ("Exit code: 0\nWall time: 1", "Exit code: 0\nWall time: 2"),
    ];
    for (one, other) in pairs {
        // A text alone is not JSON, which a history is.
        let skipped = usize::from(!one.starts_with('{'));
        for (one, other) in forms(one).iter().zip(&forms(other)).skip(skipped) {
            assert!(!same(one, other), "{one}");
        }
    }
}

#[test]
fn a_time_of_rfc_3339_under_such_a_key_does_not_count() {
    let times = [
        "2026-01-01T00:00:00Z",
        "2026-11-30T23:59:59.123456+01:00",
        "2026-11-30 23:59:59-08:00",
        "1700000000",
    ];
    for time in &times[1..] {
        let [one, other] = [times[0], time].map(|time| json!({"ended_at": time}).to_string());
        for (one, other) in forms(&one).iter().zip(&forms(&other)) {
            assert!(same(one, other), "{one}, {other}");
        }
    }
    for text in [
        "today",
        "2026-11-30",
        "2026-11-30T23:59:59",
        "T10:00Z",
        "2026-11-30T23:59:59.Z",
    ] {
        assert!(!is_volatile_value(text.as_bytes()), "{text}");
    }
}

#[test]
fn the_header_of_a_commands_output_does_not_count() {
    let of = |chunk: &str, time: &str| {
        let header = format!("Chunk ID: {chunk}\nWall time: {time}\nProcess exited with code 0");
        [
            format!("Exit code: 0\nWall time: {time}\nTotal output lines: 2\nOutput:\na\nb"),
            format!("{header}\nOriginal token count: 7\nOutput:\na\nb"),
        ]
    };
    let [one, other] = [of("abcdef", "0.1 seconds"), of("112233", "12.25 seconds")];
    for (one, other) in one.iter().zip(&other) {
        for (one, other) in forms(one).iter().zip(&forms(other)) {
            assert!(same(one, other), "{one}");
        }
    }
    let [one, other] = [of("abcdef", "3"), of("abcdef", "4")];
    assert!(same(&one[0], &other[0]), "without a unit");
}

#[test]
fn json_in_a_string_is_compared_as_json() {
    let [one, other] = [r#"{"a":1,"b":"x"}"#, r#"{ "b": "x", "a": 1 }"#];
    assert!(same(&json!(one).to_string(), &json!(other).to_string()));
    // What is not JSON after all, or is in too many strings, is text.
    for text in [
        "[INFO] took 3",
        "{\"took\": 3",
        "{\"took\":3} and 4",
        "[1/3]",
    ] {
        let other = text.replace('3', "5");
        assert!(
            !same(&json!(text).to_string(), &json!(other).to_string()),
            "{text}"
        );
    }
    let nest = |took: u32, times: usize| {
        let mut text = json!({"took": took}).to_string();
        for _ in 0..times {
            text = json!({"text": text}).to_string();
        }
        text
    };
    assert!(same(&nest(3, 3), &nest(4, 3)));
    assert!(!same(&nest(3, 4), &nest(4, 4)));
}

#[test]
fn a_key_is_read_as_words() {
    let volatile = [
        "duration",
        "duration_ms",
        "durationMs",
        "DurationMS",
        "duration-ms",
        "elapsed",
        "elapsedTime",
        "elapsed_s",
        "took",
        "took_ms",
        "latency",
        "uptime",
        "wall_time",
        "Wall time",
        "WALL_TIME",
        "wallTime",
        "walltime",
        "cpu_time",
        "user time",
        "time",
        "time_s",
        "pid",
        "PID",
        "ppid",
        "parentPid",
        "process_id",
        "processId",
        "processID",
        "thread-id",
        "timestamp",
        "ts",
        "created_at",
        "createdAt",
        "startedAt",
        "ended_at",
        "start_time",
        "seconds",
        "total_seconds",
        "elapsedTimeInSeconds",
        "mtime",
        "x.duration",
    ];
    for key in volatile {
        assert!(is_volatile_key(key.as_bytes()), "{key}");
    }
    let other = [
        "",
        "exit_code",
        "count",
        "at",
        "id",
        "session_id",
        "times",
        "timeout",
        "timeouts",
        "duration_count",
        "pids",
        "rapid",
        "lattice",
        "format",
        "thousands_s",
        "s",
        "status",
        "seconds_left",
        "timestamps",
        "started",
        "finished",
        "start",
        "end",
        "process",
        "created",
        "_",
        "milliseconds_of_nothing",
        "millisecondss",
    ];
    for key in other {
        assert!(!is_volatile_key(key.as_bytes()), "{key}");
    }
}
