//! The stop phrases, which match without regard to letter case and punctuation.

use std::{collections::HashSet, sync::Arc};

/// The stop phrases, in the normalized form of `normalize`.
#[derive(Clone, Debug, Default)]
pub(super) struct Phrases(Arc<HashSet<String>>);

impl Phrases {
    /// Normalizes the phrases, and drops those that have no letter and no digit.
    pub(super) fn new(phrases: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let normalized = phrases.into_iter().map(|phrase| normalize(phrase.as_ref()));
        Self(Arc::new(
            normalized.filter(|phrase| !phrase.is_empty()).collect(),
        ))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the whole text `text` is one of the stop phrases.
    pub(super) fn contain(&self, text: &str) -> bool {
        self.0.contains(&normalize(text))
    }
}

/// Normalizes a text: lower case, letters and digits only, and single spaces between words.
fn normalize(text: &str) -> String {
    let mut normalized = String::with_capacity(text.len());
    let mut gap = false;
    for c in text.chars() {
        if c.is_whitespace() {
            gap = !normalized.is_empty();
        } else if c.is_alphanumeric() {
            if std::mem::take(&mut gap) {
                normalized.push(' ');
            }
            normalized.extend(c.to_lowercase());
        }
    }
    normalized
}

#[cfg(test)]
mod tests {
    //! covers: C5

    use super::*;

    #[test]
    fn case_and_punctuation_do_not_count_on_either_side() {
        let phrases = Phrases::new(["/stop", "Bitte, hör auf!", "停止"]);
        for text in [
            "stop",
            "STOP!!!",
            " /Stop.\n",
            "stop 🛑",
            "bitte hör  auf",
            "BITTE HÖR AUF",
            "停止。",
        ] {
            assert!(phrases.contain(text), "{text}");
        }
        for text in [
            "please stop",
            "stop it",
            "don't stop",
            "",
            "!!!",
            "st op",
            "hör auf",
        ] {
            assert!(!phrases.contain(text), "{text}");
        }
    }

    #[test]
    fn a_phrase_of_punctuation_alone_is_none() {
        assert!(Phrases::new(["!!!", "", " "]).is_empty());
    }
}
