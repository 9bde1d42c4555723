//! Reads a document to its end: each value that cannot be read is noted, and the rest is read
//! without it.

use serde::de::DeserializeOwned;

use super::{
    error::{ConfigError, MISSING},
    key::KeyPart,
    place,
};

/// The most mistakes that are looked for: each costs one more pass over the document.
const MOST: usize = 100;

/// The result of reading a whole document.
#[derive(Debug)]
pub(super) struct Reading<T> {
    /// The document without its mistakes; `None` if it is not a table at all.
    pub(super) value: Option<T>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) removed: Removed,
}

/// The paths that were left out of a value, as the document has them; the empty one is all of it.
#[derive(Debug, Default)]
pub(super) struct Removed(Vec<Vec<KeyPart>>);

/// A document from which entries can be removed.
trait Document {
    fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError>;

    /// Removes the entry at this path; `false` if there is none.
    fn remove(&mut self, path: &[KeyPart]) -> bool;
}

/// The text of a JSON document. A removed entry becomes white space, so that all others keep their
/// places.
struct Json(Vec<u8>);

impl<T: DeserializeOwned> Reading<T> {
    pub(super) fn of_toml(table: toml::Table) -> Self {
        Self::of(table)
    }

    pub(super) fn of_json(text: &str) -> Self {
        Self::of(Json(text.as_bytes().to_vec()))
    }

    /// Of a format that can be read only once: the first mistake is the only one.
    pub(super) fn of_result(value: Result<T, ConfigError>) -> Self {
        match value {
            Ok(value) => Self {
                value: Some(value),
                errors: Vec::new(),
                removed: Removed::default(),
            },
            Err(error) => Self {
                value: None,
                errors: vec![error],
                removed: Removed(vec![Vec::new()]),
            },
        }
    }

    fn of(mut document: impl Document) -> Self {
        let mut reading = Self {
            value: None,
            errors: Vec::new(),
            removed: Removed::default(),
        };
        while reading.errors.len() < MOST {
            let mut error = match document.read() {
                Ok(value) => {
                    reading.value = Some(value);
                    break;
                }
                Err(error) => error,
            };
            let found = error.parts().to_vec();
            let wrong = match duplicate(error.message()) {
                Some(name) => [&*found, &[KeyPart::from(name)]].concat(),
                None => found.clone(),
            };
            let path = reading.removed.written(&found);
            // A key that was removed, or that another was meant to be, is missing for that alone.
            let is_below = |it: &Vec<KeyPart>| it.len() > path.len() && it.starts_with(&path);
            let follows =
                error.message().starts_with(MISSING) && reading.removed.0.iter().any(is_below);
            let removed = reading.removed.written(&wrong);
            if !follows {
                error.set_parts(path);
                reading.errors.push(error);
            }
            if !document.remove(&wrong) {
                break;
            }
            reading.removed.0.push(removed);
        }
        if reading.value.is_none() {
            reading.removed.0.push(Vec::new());
        }
        reading
    }
}

impl Removed {
    /// Whether something was left out above, at or below this path.
    pub(super) fn concerns(&self, path: &[&str]) -> bool {
        let is = |(part, name): (&KeyPart, &&str)| *part == KeyPart::from(*name);
        self.0.iter().any(|it| it.iter().zip(path).all(is))
    }

    /// The path in the document of what has this path in the value.
    ///
    /// An entry that was left out of a list moves those behind it up.
    pub(super) fn written(&self, path: &[KeyPart]) -> Vec<KeyPart> {
        let mut written: Vec<KeyPart> = Vec::new();
        for part in path {
            let part = match part {
                KeyPart::Index(index) => KeyPart::Index(self.index(&written, *index)),
                name => name.clone(),
            };
            written.push(part);
        }
        written
    }

    /// The index in the document of the entry that has this index in the value.
    pub(super) fn index(&self, list: &[KeyPart], index: usize) -> usize {
        let entry = |it: &Vec<KeyPart>| match it.split_last()? {
            (KeyPart::Index(at), parent) if parent == list => Some(*at),
            _ => None,
        };
        let mut gone: Vec<usize> = self.0.iter().filter_map(entry).collect();
        gone.sort_unstable();
        gone.into_iter()
            .fold(index, |index, gone| index + usize::from(gone <= index))
    }
}

/// The name of the key that serde says is there twice.
fn duplicate(message: &str) -> Option<&str> {
    let name = message.strip_prefix("duplicate field `")?;
    name.strip_suffix('`')
}

impl Document for toml::Table {
    fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let document = toml::Value::Table(self.clone());
        serde_path_to_error::deserialize(document).map_err(|error| {
            let message = error.inner().message();
            ConfigError::new([""; 0], message).at(error.path())
        })
    }

    fn remove(&mut self, path: &[KeyPart]) -> bool {
        let Some((last, parents)) = path.split_last() else {
            return false;
        };
        let mut parents = parents.iter();
        let Some(KeyPart::Name(name)) = parents.next() else {
            return match last {
                KeyPart::Name(name) => Self::remove(self, name).is_some(),
                KeyPart::Index(_) => false,
            };
        };
        let parent = parents.try_fold(self.get_mut(name), |parent, part| {
            let parent = parent?;
            Some(match part {
                KeyPart::Name(name) => parent.as_table_mut()?.get_mut(name),
                KeyPart::Index(index) => parent.as_array_mut()?.get_mut(*index),
            })
        });
        match (last, parent.flatten()) {
            (KeyPart::Name(name), Some(toml::Value::Table(table))) => table.remove(name).is_some(),
            (KeyPart::Index(index), Some(toml::Value::Array(array))) if *index < array.len() => {
                array.remove(*index);
                true
            }
            _ => false,
        }
    }
}

impl Document for Json {
    fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let mut json = serde_json::Deserializer::from_slice(&self.0);
        let value = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| ConfigError::of_json(error.inner()).at(error.path()))?;
        json.end().map_err(|error| ConfigError::of_json(&error))?;
        Ok(value)
    }

    fn remove(&mut self, path: &[KeyPart]) -> bool {
        let Some(place::JsonEntry { before, value }) = place::json_entry(&self.0, path) else {
            return false;
        };
        let mut end = value.end;
        let text = &self.0;
        let is_token = |at: &usize| !text[*at].is_ascii_whitespace();
        let leads = (before..value.start).find(is_token).map(|at| text[at]);
        if leads != Some(b',') {
            // The first entry takes the comma behind it along.
            let next = (end..text.len()).find(is_token);
            end = next.filter(|at| text[*at] == b',').map_or(end, |at| at + 1);
        }
        for byte in &mut self.0[before..end] {
            if !byte.is_ascii_whitespace() {
                *byte = b' ';
            }
        }
        true
    }
}
