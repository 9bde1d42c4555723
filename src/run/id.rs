use std::{error::Error, fmt, sync::Arc};

/// The maximum length of a run's id, in bytes.
const MAX_LEN: usize = 128;

/// The name of a run: 1 to 128 characters of `[A-Za-z0-9._:-]`.
///
/// A run that was given no id has a generated one, so that logs and operators can name the run.
///
/// ```
/// use tower_agent::RunId;
///
/// let id: RunId = "billing:42".parse()?;
/// assert_eq!(id.to_string(), "billing:42");
/// assert!("not an id".parse::<RunId>().is_err());
/// # Ok::<_, tower_agent::InvalidRunId>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RunId(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Given(Arc<str>),
    Made(u64),
}

const MADE: &str = "run-";

impl RunId {
    pub(crate) const fn made(number: u64) -> Self {
        Self(Repr::Made(number))
    }

    /// The id up to and including its last colon; `None` without a colon.
    pub(crate) fn prefix(&self) -> Option<&str> {
        let Repr::Given(id) = &self.0 else {
            return None;
        };
        Some(&id[..=id.rfind(':')?])
    }
}

/// Parses the number of a generated id: `run-` and 16 lower-case hex digits. `None` for any other
/// text. So a parsed text equals the generated id that prints the same.
fn made_number(text: &str) -> Option<u64> {
    let hex = text.strip_prefix(MADE)?;
    let canonical = hex.len() == 16 && hex.bytes().all(|b| b"0123456789abcdef".contains(&b));
    if !canonical {
        return None;
    }
    u64::from_str_radix(hex, 16).ok()
}

impl std::str::FromStr for RunId {
    type Err = InvalidRunId;

    fn from_str(text: &str) -> Result<Self, InvalidRunId> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
        if text.is_empty() || text.len() > MAX_LEN || !text.bytes().all(allowed) {
            return Err(InvalidRunId { len: text.len() });
        }
        let made = made_number(text).map(Repr::Made);
        Ok(Self(made.unwrap_or_else(|| Repr::Given(text.into()))))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Given(id) => f.write_str(id),
            Repr::Made(number) => {
                // Each request writes its run's id several times, and `write!` costs more.
                let mut text = *b"run-0000000000000000";
                let mut rest = *number;
                for digit in text[MADE.len()..].iter_mut().rev() {
                    *digit = b"0123456789abcdef"[(rest & 0xf) as usize];
                    rest >>= 4;
                }
                f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
            }
        }
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

impl serde::Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The error for a text that cannot be a [`RunId`] or a session id.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRunId {
    /// The length of the text in bytes; the error does not repeat the text.
    pub len: usize,
}

impl fmt::Display for InvalidRunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an id is 1 to {MAX_LEN} characters of A-Z, a-z, 0-9, dot, underscore, colon and \
             hyphen; "
        )?;
        match self.len {
            1..=MAX_LEN => f.write_str("this one has another character"),
            len => write!(f, "this one has {len} bytes"),
        }
    }
}

impl Error for InvalidRunId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_was_made_up_is_the_same_id_when_it_comes_back() {
        let made = RunId::made(0xfeed);
        assert_eq!(made.to_string().parse(), Ok(made));
        let upper: RunId = "run-000000000000FEED".parse().unwrap();
        assert_ne!(upper, RunId::made(0xfeed));
        assert_eq!(upper.to_string(), "run-000000000000FEED");
    }

    #[test]
    fn an_unusable_id_is_an_error_that_says_what_is_usable() {
        for bad in ["", "a b", "é", &"x".repeat(129), "a/b", "a\n"] {
            let error = bad.parse::<RunId>().unwrap_err();
            let said = error.to_string();
            assert!(said.contains("1 to 128 characters"), "{bad:?}");
            let is_length = bad.is_empty() || bad.len() > 128;
            assert_eq!(said.ends_with("bytes"), is_length, "{said}");
        }
        assert!("x".repeat(128).parse::<RunId>().is_ok());
    }
}
