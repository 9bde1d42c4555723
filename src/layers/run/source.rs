use std::{fmt, sync::Arc};

use http::{HeaderName, HeaderValue, request::Parts};

use crate::{
    headers::CREDENTIALS,
    registry::Owner,
    run::{InvalidRunId, RunId},
};

type RequestReadFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// The source of a run id or session id.
#[derive(Clone)]
pub(super) enum KeySource {
    Header(HeaderName),
    By(RequestReadFn<Option<String>>),
}

/// The source of a run's owner.
#[derive(Clone)]
pub(super) enum OwnerSource {
    Credential,
    By(RequestReadFn<Owner>),
}

impl KeySource {
    pub(super) fn read(&self, parts: &Parts) -> Result<Option<RunId>, InvalidRunId> {
        match self {
            Self::Header(name) => match parts.headers.get(name) {
                // Bytes that are no text contain no valid id: the space fails to parse.
                Some(value) => value.to_str().unwrap_or(" ").parse().map(Some),
                None => Ok(None),
            },
            Self::By(read) => read(parts).map(|id| id.parse()).transpose(),
        }
    }
}

impl OwnerSource {
    pub(super) fn read(&self, parts: &Parts) -> Owner {
        match self {
            Self::Credential => {
                let mut found = CREDENTIALS
                    .iter()
                    .filter_map(|name| parts.headers.get(name));
                // A caller without a credential gets the anonymous owner: the default
                // owner is that of the program's own runs.
                found
                    .next()
                    .map_or_else(Owner::anonymous, |value| Owner::of(key_in(value)))
            }
            Self::By(read) => read(parts),
        }
    }
}

/// The key of a credential, without `Bearer` or another scheme.
///
/// The letter case of a scheme and the spaces after it are free, so with them one key
/// would be many owners.
fn key_in(value: &HeaderValue) -> &[u8] {
    let value = value.as_bytes().trim_ascii();
    let mut words = value.splitn(2, u8::is_ascii_whitespace);
    match (words.next(), words.next()) {
        (Some(_scheme), Some(key)) => key.trim_ascii_start(),
        _ => value,
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "Header({name})"),
            Self::By(_) => f.write_str("By(..)"),
        }
    }
}

impl fmt::Debug for OwnerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Credential => "Credential",
            Self::By(_) => "By(..)",
        })
    }
}
