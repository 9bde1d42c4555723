//! Reading and judging the fixtures.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use http::{HeaderMap, HeaderName, StatusCode};
use serde::Deserialize;
use tower_agent_llm::{
    dialect::StreamFailure,
    failure::{Classifier, Failure},
};

#[derive(Deserialize)]
struct Index {
    fixture: Vec<Fixture>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fixture {
    pub(crate) file: String,
    pub(crate) signal: String,
    /// None for an event of a stream.
    pub(crate) status: Option<u16>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    pub(crate) class: String,
    pub(crate) retry_after: Option<String>,
    /// What rests for others: the library's own tests check it.
    #[serde(default, rename = "rests")]
    _rests: Option<String>,
    #[serde(default, rename = "confirmed")]
    _confirmed: Option<String>,
    pub(crate) provenance: String,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/upstream")
}

pub(crate) fn fixtures() -> Vec<Fixture> {
    let index = fs::read_to_string(folder().join("index.toml")).unwrap();
    toml::from_str::<Index>(&index).unwrap().fixture
}

impl Fixture {
    pub(crate) fn body(&self) -> Vec<u8> {
        fs::read(folder().join(&self.file)).unwrap()
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if self.file.ends_with(".json") {
            headers.insert("content-type", "application/json".parse().unwrap());
        }
        for (name, value) in &self.headers {
            let name: HeaderName = name.parse().unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        headers
    }

    pub(crate) fn judged(&self, classifier: &Classifier) -> Option<Failure> {
        let Some(status) = self.status else {
            return Some(
                classifier.of_stream(&StreamFailure::read(&self.body()), SystemTime::UNIX_EPOCH),
            );
        };
        let status = StatusCode::from_u16(status).unwrap();
        let now = SystemTime::UNIX_EPOCH;
        classifier.of_answer(status, &self.headers(), &self.body(), now)
    }
}
