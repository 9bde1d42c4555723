//! The questions and the answers, as they go through the store.

use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tower_agent::Owner;

use super::Positions;
use crate::routes::{
    adjust::{Adjusted, Adjustment},
    selection::{RowKey, RunOrder, Selection},
};

/// The version of questions and answers. One of another version is not read.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    it: T,
}

/// What one gateway asks of the others.
///
/// Each is about the runs of the gateway that is asked. Another operation of the operator's routes is
/// another variant, and its answer one of [`ControlAnswer`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ControlQuestion {
    /// A page of the runs, newest first, behind the position of the gateway that is asked.
    List {
        limit: usize,
        after: Positions,
        #[serde(default)]
        wanted: Selection,
        #[serde(default)]
        sort: RunOrder,
    },
    /// Ends the open runs that are wanted; with `dry_run` only says which.
    Abort { wanted: Selection, dry_run: bool },
    /// Changes the runs of this id that go on.
    Adjust {
        run: String,
        by: Adjustment,
        /// Only the runs of these owners, each at the gateway with this id in the store.
        #[serde(default)]
        at: Option<Vec<(OwnerDigest, String)>>,
    },
    /// The runs of this id.
    Show {
        run: String,
        owner: Option<OwnerDigest>,
    },
    /// Completes the runs of this id.
    Complete {
        run: String,
        owner: Option<OwnerDigest>,
    },
    /// The events behind the position of the gateway that is asked.
    Events {
        after: Positions,
        /// How long the observer has been there, in ms. A gateway without a position that is older
        /// begins with its next event, and any other one with its first. `None` means the first.
        since_ms: Option<u64>,
    },
}

/// What a gateway answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ControlAnswer {
    Page(PageAnswer),
    Runs(Vec<FoundRun>),
    Completion(CompletionAnswer),
    Events(EventsAnswer),
    Adjusted(Adjusted),
    /// The runs that an abort ended, or would end.
    Aborted(Vec<Box<RawValue>>),
    /// The gateway does not know the operation, or cannot read the question.
    Unknown,
}

/// A page of a gateway's runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PageAnswer {
    pub(super) rows: Vec<PageRow>,
    /// The position before the first of them.
    pub(super) start: u64,
    /// Whether more follow.
    pub(super) more: bool,
}

impl PageAnswer {
    /// The position behind the last row, if more follow.
    pub(crate) fn next(&self) -> Option<u64> {
        let last = self.rows.last().map_or(self.start, |row| row.position);
        self.more.then_some(last)
    }

    pub(crate) fn into_rows(self) -> Vec<Box<RawValue>> {
        self.rows.into_iter().map(|row| row.run).collect()
    }
}

/// A row of a page.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PageRow {
    /// The position behind the row.
    pub(super) position: u64,
    /// The time since the run was opened at its gateway.
    pub(super) age_us: u64,
    /// By what a list in another order than the usual one is sorted.
    #[serde(default)]
    pub(super) key: RowKey,
    pub(super) run: Box<RawValue>,
}

/// A run of an id that was asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FoundRun {
    pub(super) owner: OwnerDigest,
    pub(super) is_live: bool,
    pub(super) run: Box<RawValue>,
}

/// What became of the runs of an id that were to complete.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CompletionAnswer {
    /// How many runs of the id there are.
    pub(crate) runs: usize,
    /// The work in flight of those that complete after it.
    pub(super) in_flight: usize,
    /// The reason of one that had ended otherwise.
    pub(super) ended: Option<String>,
}

/// Events of a gateway's runs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct EventsAnswer {
    /// How many were lost before the first of them.
    pub(crate) lost: u64,
    pub(crate) events: Vec<RelayedEvent>,
    /// The position behind the last of them.
    pub(crate) position: u64,
    /// Whether more follow.
    pub(crate) more: bool,
}

/// An event as an observer gets it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RelayedEvent {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) data: Box<RawValue>,
}

/// An owner as 32 hexadecimal digits, which go through the store and are never printed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct OwnerDigest(u128);

impl fmt::Debug for OwnerDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerDigest(..)")
    }
}

impl From<Owner> for OwnerDigest {
    fn from(owner: Owner) -> Self {
        Self(owner.digest())
    }
}

impl From<OwnerDigest> for Owner {
    fn from(digest: OwnerDigest) -> Self {
        Self::from_digest(digest.0)
    }
}

impl From<OwnerDigest> for String {
    fn from(digest: OwnerDigest) -> Self {
        format!("{:032x}", digest.0)
    }
}

impl TryFrom<String> for OwnerDigest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_digest = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digest = u128::from_str_radix(&text, 16).ok();
        digest
            .filter(|_| is_digest)
            .map(Self)
            .ok_or("not a digest of an owner")
    }
}

/// Writes a question or an answer.
pub(super) fn write<T: Serialize>(it: T) -> String {
    // Structs of texts and numbers always serialize.
    serde_json::to_string(&Versioned { v: VERSION, it }).unwrap_or_default()
}

/// Reads a question or an answer; `None` for what is none of this version.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    let read: Versioned<T> = serde_json::from_str(text).ok()?;
    (read.v == VERSION).then_some(read.it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_as_it_was_written() {
        let after: Positions = "a-1~7~b-2~0".parse().unwrap();
        let (run, owner) = ("r".to_owned(), Some(OwnerDigest(0xabc)));
        for question in [
            ControlQuestion::List {
                limit: 5,
                after: after.clone(),
                wanted: Selection::default(),
                sort: RunOrder::Spent,
            },
            ControlQuestion::Adjust {
                run: run.clone(),
                by: Adjustment::Extend {
                    turns: Some(10),
                    tokens: None,
                    cost: Some(0.5),
                    time_ms: None,
                },
                at: owner.clone().map(|owner| vec![(owner, "a-1".to_owned())]),
            },
            ControlQuestion::Abort {
                wanted: Selection {
                    owner: Some("anonymous".to_owned()),
                    ..Selection::default()
                },
                dry_run: true,
            },
            ControlQuestion::Show {
                run: run.clone(),
                owner,
            },
            ControlQuestion::Complete { run, owner: None },
            ControlQuestion::Events {
                after,
                since_ms: Some(1),
            },
        ] {
            assert_eq!(read(&write(&question)), Some(question));
        }
    }

    /// Whoever can write to the store can ask.
    #[test]
    fn what_is_no_question_of_this_version_is_not_read() {
        let show =
            |owner: &str| format!(r#"{{"v":1,"it":{{"show":{{"run":"r","owner":{owner}}}}}}}"#);
        let digest = |digits: &str| show(&format!("\"{digits}\""));
        assert!(read::<ControlQuestion>(&show("null")).is_some());
        assert!(read::<ControlQuestion>(&digest(&"a".repeat(32))).is_some());
        for text in [
            "",
            "null",
            "POST /runs/x/abort",
            r#"{"it":{"show":{"run":"r","owner":null}}}"#,
            r#"{"v":2,"it":{"show":{"run":"r","owner":null}}}"#,
            r#"{"v":1,"it":{"abort":{"run":"r","owner":null}}}"#,
            r#"{"v":1,"it":{"show":{"run":"r","owner":null,"path":"/runs/x/abort"}}}"#,
            r#"{"v":1,"it":{"list":{"limit":-1,"after":{}}}}"#,
            r#"{"v":1,"it":{"list":{"limit":1,"after":{"a-1":"x"}}}}"#,
            r#"{"v":1,"it":"list"}"#,
            &digest("abc"),
            &digest(&format!("+{}", "a".repeat(31))),
            &digest(&"g".repeat(32)),
            &"[".repeat(100_000),
        ] {
            assert_eq!(read::<ControlQuestion>(text), None, "{text:.80}");
        }
    }
}
