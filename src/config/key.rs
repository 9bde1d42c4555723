//! The places of keys in a configuration.

/// A part of a key's dotted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// A key of a table.
    Name(String),
    /// The index of an entry, from 0.
    Index(usize),
}

impl From<&str> for KeyPart {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<usize> for KeyPart {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}
