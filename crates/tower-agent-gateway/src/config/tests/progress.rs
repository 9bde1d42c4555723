//! covers: B4, B5

use std::time::Duration;

use super::super::Progress;
use super::{message, with_candidate};

#[test]
fn nothing_is_said_unless_the_file_says_so() {
    for text in [
        "",
        "preset = \"recommended\"",
        "[progress]\nnotify_after = \"0s\"\nkeep_alive = \"0s\"\ncomments = true",
    ] {
        assert_eq!(with_candidate(text).unwrap().progress, None, "{text}");
    }
}

#[test]
fn what_the_table_leaves_out_is_as_usual() {
    let read = |text| with_candidate(text).unwrap().progress.unwrap();
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let progress = |notify_after, keep_alive, comments| Progress {
        notify_after,
        keep_alive,
        comments,
    };

    assert_eq!(
        read("[progress]\n"),
        progress(seconds(30), seconds(15), false)
    );
    assert_eq!(
        read("[progress]\nnotify_after = \"0s\"\nkeep_alive = \"5s\""),
        progress(None, seconds(5), false)
    );
    assert_eq!(
        read("[progress]\nnotify_after = \"7s\"\nkeep_alive = \"0s\"\ncomments = true"),
        progress(seconds(7), None, true)
    );
}

#[test]
fn a_time_that_is_none_is_named() {
    for key in ["notify_after", "keep_alive"] {
        let message = message(with_candidate(&format!("[progress]\n{key} = 5")));

        assert!(
            message.contains(&format!("progress.{key} = 5 is not a duration")),
            "{message}"
        );
    }
}
