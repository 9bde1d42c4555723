//! The error of a configuration: each mistake with its key, its place in the text, and the message.

use std::{error::Error, fmt};

use serde_path_to_error::{Path, Segment};
use toml::de::DeTable;

use super::{
    key::KeyPart,
    place,
    variable_name::{self, VariableName},
};

/// The beginning of the message about an unknown key.
pub(super) const UNKNOWN: &str = "unknown key";

/// The beginning of the message about a missing key.
pub(super) const MISSING: &str = "missing key";

/// The message about a text that no variable can have for a name.
const NO_NAME: &str = "is not the name of an environment variable, such as OPENAI_API_KEY: a secret does not belong \
                       in the configuration";

/// The mistakes for which a configuration cannot be used.
///
/// The error prints a line for each mistake, in the order of the text:
/// `NAME:LINE:COLUMN: KEY: MESSAGE`, as compilers print errors, so that editors find the place. A
/// part that is not known is left out. The methods that read one mistake read the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    name: Option<String>,
    first: Mistake,
    others: Vec<Mistake>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mistake {
    position: Option<(usize, usize)>,
    key: Vec<KeyPart>,
    message: String,
}

impl ConfigError {
    /// Makes an error about the key at this path.
    #[must_use]
    pub fn new<P: Into<KeyPart>>(
        key: impl IntoIterator<Item = P>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            name: None,
            first: Mistake {
                position: None,
                key: key.into_iter().map(Into::into).collect(),
                message: message.into(),
            },
            others: Vec::new(),
        }
    }

    /// Makes an error about the environment variable that the key at this path names.
    ///
    /// The message is the variable's name and `why`, such as `is not set`. A text that may be a secret, which
    /// was written in the place of the name, is left out.
    #[must_use]
    pub fn of_variable<P: Into<KeyPart>>(
        key: impl IntoIterator<Item = P>,
        variable: &str,
        why: impl fmt::Display,
    ) -> Self {
        let message = match variable_name::of(variable) {
            VariableName::Shown => format!("the environment variable {variable} {why}"),
            VariableName::Hidden => {
                format!("the environment variable of this name, which may be a secret, {why}")
            }
            VariableName::Invalid => NO_NAME.to_owned(),
        };
        Self::new(key, message)
    }

    /// Joins the mistakes of all `errors`, in their order; `None` if there is no error.
    #[must_use]
    pub fn join(errors: impl IntoIterator<Item = Self>) -> Option<Self> {
        errors.into_iter().reduce(|mut all, next| {
            all.others.push(next.first);
            all.others.extend(next.others);
            all
        })
    }

    /// Each mistake as an error of its own, the first one of the text at the front.
    pub fn each(&self) -> impl Iterator<Item = Self> {
        self.mistakes().map(|mistake| Self {
            name: self.name.clone(),
            first: mistake.clone(),
            others: Vec::new(),
        })
    }

    /// Whether a mistake concerns the key at this path, or one below it.
    #[must_use]
    pub fn concerns(&self, path: &[&str]) -> bool {
        let is = |(part, name): (&KeyPart, &&str)| *part == KeyPart::from(*name);
        self.mistakes()
            .any(|it| it.key.len() >= path.len() && it.key.iter().zip(path).all(is))
    }

    /// The dotted path of the key, such as `agents.coder.timeout`; empty for the whole document.
    #[must_use]
    pub fn key(&self) -> String {
        self.first.key()
    }

    /// The line and the column of the mistake, if they are known. Lines count from 1.
    ///
    /// The column counts from 1, in characters of TOML and in bytes of JSON. It is 0 if JSON ends
    /// too early, right after a line break.
    #[must_use]
    pub const fn position(&self) -> Option<(usize, usize)> {
        self.first.position
    }

    /// The message, on one line, without the key and its place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.first.message
    }

    /// Replaces the message of the first mistake.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.first.message = message.into();
        self
    }

    /// Sets the name of the text, such as the path of its file.
    #[must_use]
    pub fn in_file(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Finds the places of the keys in the TOML document that was read, unless they are known.
    #[must_use]
    pub fn in_toml(self, text: &str) -> Self {
        match DeTable::parse(text) {
            Ok(document) => self.placed(|key, is_unknown| {
                let span = place::in_toml(&document, key, is_unknown)?;
                Some(place::line_and_column(text, span.start))
            }),
            Err(_) => self,
        }
    }

    /// Finds the places of the keys in the JSON document that was read, unless they are known.
    pub(super) fn in_json(self, text: &str) -> Self {
        self.placed(|key, _| {
            let start = place::in_json(text, key)?;
            let (line, _) = place::line_and_column(text, start);
            let before = &text.as_bytes()[..start];
            let line_start = before.iter().rposition(|byte| *byte == b'\n');
            Some((
                line,
                start - line_start.map_or(0, |newline| newline + 1) + 1,
            ))
        })
    }

    /// Sets the places that `find` knows, and sorts the mistakes by them.
    fn placed(self, find: impl Fn(&[KeyPart], bool) -> Option<(usize, usize)>) -> Self {
        let Self {
            name,
            first,
            others,
        } = self;
        let mut all: Vec<Mistake> = std::iter::once(first).chain(others).collect();
        for mistake in &mut all {
            let is_unknown = mistake.message.starts_with(UNKNOWN);
            mistake.position = mistake.position.or_else(|| find(&mistake.key, is_unknown));
        }
        all.sort_by_key(|mistake| mistake.position.unwrap_or((usize::MAX, 0)));
        Self {
            name,
            first: all.remove(0),
            others: all,
        }
    }

    fn mistakes(&self) -> impl Iterator<Item = &Mistake> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(super) fn parts(&self) -> &[KeyPart] {
        &self.first.key
    }

    pub(super) fn set_parts(&mut self, key: Vec<KeyPart>) {
        self.first.key = key;
    }

    pub(super) fn of_toml(error: &toml::de::Error, text: &str) -> Self {
        let mut wrong = Self::new([""; 0], error.message().replace('\n', ": "));
        let span = error.span();
        wrong.first.position = span.map(|span| place::line_and_column(text, span.start));
        wrong
    }

    pub(super) fn of_json(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        // serde_json appends the place to the message.
        let message = text
            .rsplit_once(" at line ")
            .map_or(&*text, |(message, _)| message);
        let mut wrong = Self::new([""; 0], message);
        wrong.first.position = (error.line() > 0).then(|| (error.line(), error.column()));
        wrong
    }

    pub(super) fn at(mut self, path: &Path) -> Self {
        self.first.key = path
            .iter()
            .filter_map(|part| match part {
                Segment::Seq { index } => Some(KeyPart::Index(*index)),
                Segment::Map { key } => Some(KeyPart::Name(key.clone())),
                Segment::Enum { .. } | Segment::Unknown => None,
            })
            .collect();
        // Serde's message for an unknown key. The error's path ends at the key or at its table.
        let unknown = self.first.message.strip_prefix("unknown field `");
        if let Some((name, known)) = unknown.and_then(|rest| rest.split_once('`')) {
            let last = KeyPart::from(name);
            if self.first.key.last() != Some(&last) {
                self.first.key.push(last);
            }
            self.first.message = match meant(name, known) {
                Some(meant) => format!(
                    "{UNKNOWN}, did you mean `{meant}`?{}",
                    known.trim_start_matches(',')
                ),
                None => format!("{UNKNOWN}{known}"),
            };
        }
        self.first.message = self.first.message.replacen("missing field", MISSING, 1);
        self
    }
}

/// The key that an unknown one resembles most, of the quoted ones in `known`; `None` if none does.
fn meant<'a>(name: &str, known: &'a str) -> Option<&'a str> {
    let plain = |name: &str| {
        let letters = name.chars().filter(|it| !matches!(it, '_' | '-'));
        letters.collect::<String>().to_lowercase()
    };
    let written = plain(name);
    let known = known.split('`').skip(1).step_by(2);
    let ranked = known.map(|it| (strsim::damerau_levenshtein(&written, &plain(it)), it));
    let (distance, nearest) = ranked.min_by_key(|(distance, _)| *distance)?;
    (distance <= written.chars().count() / 4).then_some(nearest)
}

impl Mistake {
    fn key(&self) -> String {
        let mut path = String::new();
        for part in &self.key {
            match part {
                KeyPart::Name(name) if path.is_empty() => path.push_str(name),
                KeyPart::Name(name) => path.extend([".", name]),
                KeyPart::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        path
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let Some(name) = &self.name {
                write!(f, "{name}:")?;
            }
            if let Some((line, column)) = mistake.position {
                write!(f, "{line}:{column}:")?;
            }
            let known = self.name.is_some() || mistake.position.is_some();
            f.write_str(if known { " " } else { "" })?;
            let key = mistake.key();
            if !key.is_empty() {
                write!(f, "{key}: ")?;
            }
            f.write_str(&mistake.message)?;
        }
        Ok(())
    }
}

impl Error for ConfigError {}

/// The mistakes that were found so far.
pub(super) type Mistakes = Vec<ConfigError>;

/// The error about a key of a table.
pub(super) fn error(table: &[&str], key: &str, message: impl Into<String>) -> ConfigError {
    ConfigError::new(table.iter().copied().chain([key]), message)
}
