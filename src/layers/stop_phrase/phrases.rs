use std::{collections::HashSet, sync::Arc};

/// The stop phrases, in normalized form.
#[derive(Clone, Debug, Default)]
pub(super) struct Phrases(Arc<HashSet<String>>);

impl Phrases {
    /// Normalizes the phrases, and drops those without a letter or a digit.
    pub(super) fn new(phrases: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let plain = phrases.into_iter().map(|phrase| plain(phrase.as_ref()));
        Self(Arc::new(
            plain.filter(|phrase| !phrase.is_empty()).collect(),
        ))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the whole text `text` is one of the stop phrases.
    pub(super) fn contain(&self, text: &str) -> bool {
        self.0.contains(&plain(text))
    }
}

/// Normalizes a text to lower case, no punctuation, and single spaces.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut gap = false;
    for c in text.chars() {
        if c.is_whitespace() {
            gap = !plain.is_empty();
        } else if c.is_alphanumeric() {
            if std::mem::take(&mut gap) {
                plain.push(' ');
            }
            plain.extend(c.to_lowercase());
        }
    }
    plain
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
