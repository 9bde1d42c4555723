//! The table of signals against the fixtures of real answers, and the page that is made of both.
//!
//! covers: H15

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderMap, HeaderName, StatusCode};
use serde::Deserialize;

use super::{
    super::{
        class::Concern,
        judgment::Rest,
        signals::{BROAD, DETAILS, EXACT, PHRASES, Row, SHARED},
    },
    LEFT_OUT, NOW,
};
use crate::{
    dialect::StreamFailure,
    failure::{Classifier, Failure},
};

#[derive(Deserialize)]
struct Index {
    fixture: Vec<Fixture>,
}

#[derive(Deserialize)]
struct Fixture {
    file: String,
    signal: String,
    status: Option<u16>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    class: String,
    /// What rests for others, and for how long if the answer says so; absent for nothing.
    rests: Option<String>,
    /// The same once a second witness has confirmed it.
    confirmed: Option<String>,
    provenance: String,
    #[serde(skip)]
    body: Vec<u8>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/upstream")
}

fn fixtures() -> Vec<Fixture> {
    let index = fs::read_to_string(folder().join("index.toml")).unwrap();
    let mut fixtures = toml::from_str::<Index>(&index).unwrap().fixture;
    for fixture in &mut fixtures {
        fixture.body = fs::read(folder().join(&fixture.file)).unwrap();
    }
    fixtures
}

fn rows() -> impl Iterator<Item = &'static Row<'static>> {
    [EXACT, DETAILS, PHRASES, SHARED, BROAD]
        .into_iter()
        .flatten()
}

impl Fixture {
    fn judged(&self) -> Option<Failure> {
        let body = &*self.body;
        let Some(status) = self.status else {
            let failure = StreamFailure::read(body);
            return Some(Classifier::new().of_stream(&failure, NOW));
        };
        let mut headers = HeaderMap::new();
        if self.file.ends_with(".json") {
            headers.insert("content-type", "application/json".parse().unwrap());
        }
        for (name, value) in &self.headers {
            let name: HeaderName = name.parse().unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        Classifier::new().of_answer(status, &headers, body, NOW)
    }

    /// Whether the answer has a row's signal anywhere: without it the row cannot decide.
    fn has(&self, row: &Row<'_>) -> bool {
        let what = row.what.rsplit('.').next().unwrap_or_default();
        let has = |text: &str| text.to_lowercase().contains(&what.to_lowercase());
        has(&String::from_utf8_lossy(&self.body)) || self.headers.values().any(|value| has(value))
    }

    fn is_judged_well(&self) -> bool {
        self.judged().is_some_and(|failure| {
            failure.class.as_str() == self.class && failure.signal() == self.signal
        })
    }
}

fn told(rest: Rest) -> String {
    let concern = match rest.concern {
        Concern::Request => "request",
        Concern::Model => "model",
        Concern::ModelOfAccount => "model_of_account",
        Concern::Account => "account",
        Concern::Host => "host",
    };
    let until = |stated: Duration| format!(" for {}", humantime::format_duration(stated));
    let until = rest.stated.map(until).unwrap_or_default();
    format!("{} as {}{until}", concern, rest.class)
}

#[test]
fn each_fixture_rests_what_it_says_and_no_more() {
    let mut wrong = String::new();
    for (at, fixture) in fixtures().iter().enumerate() {
        let failure = fixture.judged().unwrap();
        let eased = failure.easing().map(|easing| easing.rest);
        let rests = eased.unwrap_or(failure.rest()).map(told);
        let confirmed = failure.suspicion().map(|suspicion| told(suspicion.rest));
        if std::env::var_os("FIXTURES_PRINT").is_some() {
            println!("@@{at}\t{rests:?}\t{confirmed:?}");
        }
        if (&rests, &confirmed) != (&fixture.rests, &fixture.confirmed) {
            let Fixture { file, signal, .. } = fixture;
            writeln!(wrong, "{file} ({signal}): {rests:?}, {confirmed:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "rests otherwise:\n{wrong}");
}

/// Each row has fixtures, and decides exactly those that name it.
#[test]
fn without_a_row_exactly_its_fixtures_fail() {
    let fixtures = fixtures();
    let wrong = |signal: &str, row: Option<&Row<'_>>| {
        let concerned = fixtures
            .iter()
            .filter(|it| row.is_none_or(|row| it.has(row)));
        let failing = concerned.filter(|it| !it.is_judged_well());
        let failing: Vec<_> = failing.map(|it| (&*it.file, &*it.signal)).collect();
        let of_row = fixtures.iter().filter(|it| it.signal == signal);
        let of_row: Vec<_> = of_row.map(|it| (&*it.file, &*it.signal)).collect();
        (failing != of_row).then(|| format!("{signal:?}: {failing:?}, not {of_row:?}"))
    };
    let mut mistakes: Vec<_> = wrong("no row", None).into_iter().collect();
    for row in rows() {
        LEFT_OUT.set(Some(row));
        mistakes.extend(wrong(row.what, Some(row)));
        LEFT_OUT.set(None);
        if !fixtures.iter().any(|it| it.signal == row.what) {
            mistakes.push(format!("{:?} has no fixture", row.what));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn no_two_rows_contradict_each_other() {
    let rows: Vec<_> = rows().collect();
    for (at, one) in rows.iter().enumerate() {
        assert!(!one.provider.is_empty(), "{}", one.what);
        for other in &rows[at + 1..] {
            let meets = |a: &[u16], b: &[u16]| {
                a.is_empty() || b.is_empty() || a.iter().any(|status| b.contains(status))
            };
            let is_same = (one.place, one.what, one.beside)
                == (other.place, other.what, other.beside)
                && meets(one.statuses, other.statuses);
            assert!(!is_same, "{} is there twice", one.what);
        }
    }
}

/// `docs/providers.md` lists the rows by provider, with the place where each was seen.
#[test]
fn the_page_of_providers_is_made_of_the_table() {
    const BEGIN: &str = "<!-- The rest is made from the table; see CONTRIBUTING. -->\n";
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/providers.md");
    let known = fs::read_to_string(&page).unwrap();
    let (by_hand, _) = known.split_once(BEGIN).unwrap();
    let made = format!("{by_hand}{BEGIN}{}", listed());
    if std::env::var_os("PROVIDERS_WRITE").is_some() {
        return fs::write(&page, &made).unwrap();
    }
    assert!(
        known == made,
        "docs/providers.md is not what the table says: write it with PROVIDERS_WRITE=1"
    );
}

fn listed() -> String {
    let fixtures = fixtures();
    let mut providers: BTreeMap<&str, Vec<&Row<'_>>> = BTreeMap::new();
    for row in rows() {
        for provider in row.provider.split(", ") {
            providers.entry(provider).or_default().push(row);
        }
    }
    let mut page = String::new();
    for (provider, rows) in providers {
        writeln!(page, "\n### {provider}\n").unwrap();
        page.push_str("| place | signal | under | class | concerns | seen |\n");
        page.push_str("|---|---|---|---|---|---|\n");
        for row in rows {
            let under: Vec<_> = row.statuses.iter().map(ToString::to_string).collect();
            let of_row = fixtures.iter().filter(|it| it.signal == row.what);
            let seen: BTreeSet<_> = of_row.map(|it| &*it.provenance).collect();
            let seen = seen.into_iter().collect::<Vec<_>>().join("; ");
            let concern = told(Rest {
                class: row.class,
                concern: row.concern(),
                stated: None,
            });
            let concern = concern.split(' ').next().unwrap_or_default();
            writeln!(
                page,
                "| {} | `{}` | {} | `{}` | {} | {} |",
                row.place,
                row.what.replace('`', "'"),
                if under.is_empty() {
                    "any".to_owned()
                } else {
                    under.join(", ")
                },
                row.class,
                concern.replace('_', " "),
                seen.replace('|', "/"),
            )
            .unwrap();
        }
    }
    page
}
