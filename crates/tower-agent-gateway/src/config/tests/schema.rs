//! The JSON Schema accepts what the gateway reads, and refuses what has a wrong shape.
//!
//! covers: A5

use std::{collections::BTreeSet, fs, path::Path, sync::LazyLock};

use boon::{Compiler, SchemaIndex, Schemas, ValidationError};
use serde_json::{Value, json};
use tower_agent::config::{AgentConfig, ConfigError, KeyPart};

use super::{CANDIDATE, Config};

const MISTAKES: &str = include_str!("../../../../../tests/fixtures/config/mistakes.txt");
const SAME: &str = include_str!("../../../../../tests/fixtures/config/same.txt");

static SCHEMA: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(&Config::schema()).unwrap());

thread_local! {
    static VALIDATOR: (Schemas, SchemaIndex) = {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        let place = "file:///gateway.schema.json";
        compiler.add_resource(place, SCHEMA.clone()).unwrap();
        let index = compiler.compile(place, &mut schemas).unwrap();
        (schemas, index)
    };
}

/// The JSON of a document in TOML or in JSON, with a candidate; `None` if it is neither.
fn json_of(text: &str) -> Option<Value> {
    let mut document = match text.starts_with('{') {
        true => serde_json::from_str(text).ok()?,
        false => serde_json::to_value(text.parse::<toml::Table>().ok()?).unwrap(),
    };
    if document.get("candidates").is_none() {
        document["candidates"] = json!([{ "model": "m", "base_url": "http://127.0.0.1:9/v1" }]);
    }
    Some(document)
}

/// What is wrong with a document: the JSON pointer of each place, and the message.
fn faults(document: &Value) -> Vec<(String, String)> {
    fn collect(error: &ValidationError<'_, '_>, found: &mut Vec<(String, String)>) {
        if error.causes.is_empty() {
            found.push((error.instance_location.to_string(), error.kind.to_string()));
        }
        error.causes.iter().for_each(|cause| collect(cause, found));
    }
    let mut found = Vec::new();
    VALIDATOR.with(|(schemas, index)| {
        if let Err(error) = schemas.validate(document, *index) {
            collect(&error, &mut found);
        }
    });
    found
}

/// Fails if the schema refuses a text that the gateway reads.
#[track_caller]
pub(super) fn accepts(text: &str) {
    let document = json_of(text).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(faults(&document), [], "{text}");
}

/// The name and the text of each section of a file.
fn sections(file: &str) -> impl Iterator<Item = (&str, &str)> {
    let sections = file.split("\n=== ").skip(1);
    sections.map(|section| section.split_once('\n').unwrap())
}

/// The mistakes that the gateway finds in a document.
fn mistakes(text: &str) -> Vec<ConfigError> {
    let error = match text.starts_with('{') {
        true => AgentConfig::from_json(text).unwrap_err(),
        false if text.contains("[[candidates]]") => super::resolve(text, |_| None).unwrap_err(),
        false => super::resolve(&format!("{text}\n{CANDIDATE}"), |_| None).unwrap_err(),
    };
    error.each().collect()
}

/// Whether a mistake is one of a value alone, or of a key that is unknown or missing.
fn is_of_shape(message: &str) -> bool {
    let words = [
        "unknown key",
        "unknown variant",
        "missing key",
        "invalid type",
        "invalid value",
        "is not a whole number",
        "is not a number",
        "is not a duration",
        "is negative",
        "is neither a number nor a text",
        "is not a URL",
        "must be an absolute http or https URL",
        "must have no query and no fragment",
        "must not hold credentials",
        "is empty",
        "is zero: to set no floor",
        "is not a class of failures",
        "is not a status of an answer",
        "is not a field that is read",
        "is in months",
    ];
    words.iter().any(|it| message.contains(it))
}

fn pointer(key: &[KeyPart]) -> String {
    let parts = key.iter().map(|part| match part {
        KeyPart::Name(name) => format!("/{name}"),
        KeyPart::Index(index) => format!("/{index}"),
    });
    parts.collect()
}

/// The parts of a key as an error prints it.
fn parts(key: &str) -> Vec<KeyPart> {
    let parts = key.split('.').flat_map(|part| part.split('['));
    let parts = parts.filter(|part| !part.is_empty());
    let part = |part: &str| match part.strip_suffix(']') {
        Some(index) => KeyPart::Index(index.parse().unwrap()),
        None => KeyPart::from(part),
    };
    parts.map(part).collect()
}

#[test]
fn it_refuses_each_mistake_of_shape_at_its_place() {
    // What JSON Schema cannot say: `2.0` is a whole number there, and a pattern knows no range.
    let beyond = ["a fraction", "less than a nanosecond", "no port"];
    let mut refused = 0;
    for (name, section) in sections(MISTAKES) {
        let (text, _) = section.split_once("=> ").unwrap();
        let Some(document) = json_of(text) else {
            continue;
        };
        let found = faults(&document);
        let mut has_shape = false;
        for mistake in mistakes(text) {
            if !is_of_shape(mistake.message()) || beyond.contains(&name) {
                continue;
            }
            has_shape = true;
            refused += 1;
            let key = parts(&mistake.key());
            let (last, table) = key.split_last().unwrap();
            let names_it = |said: &str| match last {
                KeyPart::Name(last) => said.contains(&format!("'{last}'")),
                KeyPart::Index(_) => false,
            };
            let is_it = |(place, said): &&(String, String)| {
                place.starts_with(&pointer(&key)) || *place == pointer(table) && names_it(said)
            };
            let is_there = found.iter().any(|fault| is_it(&fault));
            assert!(is_there, "{name}: {mistake}\n{found:#?}");
        }
        if !has_shape {
            assert_eq!(found, [], "{name}");
        }
    }
    assert!(refused > 80, "{refused}");
}

#[test]
fn it_accepts_documents_that_are_read() {
    let mut count = 0;
    for (_, documents) in sections(SAME) {
        for text in documents.split("---\n") {
            accepts(text);
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

/// A value of each kind is accepted by the schema exactly where it is read.
#[test]
fn it_knows_the_values_that_are_read() {
    let check = |table: &str, key: &str, values: &[&str]| {
        for value in values {
            let text = format!("[{table}]\n{key} = {value}\n");
            let is_read = super::with_candidate(&text).is_ok();
            let found = faults(&json_of(&text).unwrap());
            assert_eq!(found.is_empty(), is_read, "{text}{found:?}");
        }
    };
    let times = [
        "0",
        "60",
        "0.5",
        "-1",
        "true",
        "[]",
        "\"60s\"",
        "\"60\"",
        "\"0\"",
        "\"\"",
        "\"1h 30m\"",
        "\"1h30m\"",
        "\" 5 s \"",
        "\"1 0s\"",
        "\"1.5h\"",
        "\"1.h\"",
        "\".5s\"",
        "\"-5s\"",
        "\"+5s\"",
        "\"5 S\"",
        "\"5M\"",
        "\"2 weeks 1day\"",
        "\"3months\"",
        "\"1fortnight\"",
        "\"10\u{b5}s\"",
        "\"10us\"",
        "\"7nanos\"",
        "\"5s,\"",
        "\"h\"",
        "\"1y\"",
        "\"9 yrs\"",
        "\"s5\"",
        "\"99999999999999999999999s\"",
    ];
    check("run", "timeout", &times);
    check("server", "keep_alive", &times);
    check(
        "server",
        "max_buffered",
        &[
            "\"256 MiB\"",
            "\"1GB\"",
            "\" 64MiB \"",
            "\"256\"",
            "\"256 M\"",
            "\"1.5 GiB\"",
            "\"-1 GiB\"",
            "33554432",
            "33554431",
            "0",
            "-1",
            "true",
            "\"33554432 B\"",
            "\"99 gb\"",
        ],
    );
    check(
        "run",
        "max_turns",
        &["0", "7", "1000000", "1000001", "-1", "\"7\"", "1.5", "[7]"],
    );
    check(
        "retry",
        "max_attempts_per_candidate",
        &["0", "1", "100", "101"],
    );
    check(
        "retry",
        "shared_ratio",
        &["0", "0.2", "10", "10.5", "-0.1", "nan", "inf", "\"1\""],
    );
    check(
        "telemetry",
        "otlp",
        &[
            "\"http://h\"",
            "\"HTTPS://h:1/v1\"",
            "\"http://[::1]:8080/v1/\"",
            "\"ftp://h\"",
            "\"h/v1\"",
            "\"http://\"",
            "\"http:///v1\"",
            "\"http://me:pw@h/v1\"",
            "\"http://h/a@b\"",
            "\"http://h/v1?k=1\"",
            "\"http://h/v1#top\"",
            "\"http://a b\"",
            "\"\"",
            "3",
            "\"http://h///\"",
        ],
    );
    check(
        "server",
        "proxy",
        &[
            "\"none\"",
            "\"environment\"",
            "\"http://p:3128\"",
            "\"https://u:pw@p:3128/\"",
            "\"off\"",
            "\"socks5://p\"",
            "\"\"",
            "true",
        ],
    );
}

/// The documents in the manuals, with the names of their files.
fn documented() -> Vec<(String, String)> {
    fn pages(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pages(&path, found);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    pages(&root.join("docs"), &mut found);
    pages(&root.join("crates"), &mut found);
    let mut blocks = Vec::new();
    for path in found {
        let page = fs::read_to_string(&path).unwrap();
        for block in page.split("```toml\n").skip(1) {
            let text = block.split("```").next().unwrap();
            blocks.push((path.display().to_string(), text.to_owned()));
        }
    }
    blocks
}

#[test]
fn it_accepts_every_example() {
    let blocks = documented();
    assert!(blocks.len() > 20, "{}", blocks.len());
    for (path, text) in blocks {
        let document = json_of(&text).unwrap_or_else(|| panic!("{path}\n{text}"));
        assert_eq!(faults(&document), [], "{path}\n{text}");
    }
}

/// The rows of the tables of keys on a page: the heading above, and the cells of the row.
fn key_rows(page: &str) -> Vec<(&str, Vec<&str>)> {
    let (mut heading, mut is_keys) = ("", false);
    let mut rows = Vec::new();
    for line in page.lines() {
        if line.starts_with('#') {
            heading = line;
        }
        match line.strip_prefix("| ") {
            Some(row) if row.starts_with("key | type |") => is_keys = true,
            Some(row) if is_keys => rows.push((heading, row.split(" | ").collect())),
            Some(_) => {}
            None => is_keys &= line.starts_with("|--"),
        }
    }
    rows
}

/// The schema of the table in a heading such as "## `[run]`: limits of a run".
fn table_of(heading: &str) -> Option<&'static Value> {
    let name = heading.split('`').nth(1).unwrap_or_default();
    let tables = &SCHEMA["properties"];
    let table = match name.trim_matches(['[', ']']) {
        "" => return Some(tables),
        name => tables.get(name)?,
    };
    match name.starts_with("[[") {
        true => Some(&table["items"]["properties"]),
        false => Some(&table["properties"]),
    }
}

/// The range that the manuals write as "count, 0 to 1,000".
fn range(kind: &str) -> Option<(f64, f64)> {
    let (_, range) = kind.split_once(", ")?;
    let (least, most) = range.split_once(" to ")?;
    let number = |text: &str| text.replace(',', "").parse::<f64>().ok();
    Some((number(least)?, number(most)?))
}

#[test]
fn it_has_each_key_of_the_manuals() {
    let (mut keys, mut ranges) = (BTreeSet::new(), 0);
    for page in [
        include_str!("../../../../../docs/config.md"),
        include_str!("../../../../../docs/gateway.md"),
    ] {
        for (heading, cells) in key_rows(page) {
            let table = table_of(heading).unwrap_or_else(|| panic!("{heading}"));
            for key in cells[0].split('`').skip(1).step_by(2) {
                let key = key.strip_prefix("[[known_agents.").unwrap_or(key);
                let key = key.trim_end_matches(']');
                let property = table.get(key);
                let property = property.unwrap_or_else(|| panic!("{heading}: {key}"));
                let says = property["description"].as_str().unwrap_or_default();
                assert!(
                    says.ends_with('.') && says.len() > 20,
                    "{heading}: {key}: {says}"
                );
                if let Some((least, most)) = range(cells[1]) {
                    let bound = |name: &str| property[name].as_f64();
                    assert_eq!(bound("minimum"), Some(least), "{heading}: {key}");
                    assert_eq!(bound("maximum"), Some(most), "{heading}: {key}");
                    ranges += 1;
                }
                keys.insert(format!("{heading} {key}"));
            }
            // The other name of the key, in agents' own configurations.
            let Some(other) = cells.get(5).and_then(|cell| cell.split('`').nth(1)) else {
                continue;
            };
            let agent = &SCHEMA["properties"]["agents"]["additionalProperties"];
            let top = if other.starts_with("tools.") {
                &*SCHEMA
            } else {
                agent
            };
            let found = other
                .split('.')
                .fold(top, |at, part| &at["properties"][part]);
            assert!(found.is_object(), "{other}");
        }
    }
    assert!(keys.len() > 120 && ranges > 15, "{} {ranges}", keys.len());
}

/// An agent's table has the caps of its owner; `[agents.defaults]` has none.
#[test]
fn caps_of_owners_stand_in_the_tables_of_agents_but_for_that_of_all() {
    let with = |name: &str| {
        let text = format!("[agents.{name}]\ncost_per_day = 3\nmax_turns = 2\n");
        faults(&json_of(&text).unwrap())
    };
    assert_eq!(with("coder"), []);
    let found = with("defaults");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "/agents/defaults");
}

/// Editors for TOML show nothing of what stands behind a reference, and TOML has no null.
#[test]
fn it_has_neither_references_nor_nulls() {
    let text = Config::schema();
    for word in ["$ref", "null", "anyOf", "allOf", "oneOf", "\"format\""] {
        assert!(!text.contains(word), "{word}");
    }
    assert!(text.ends_with("}\n"));
}

#[test]
fn a_file_needs_a_candidate() {
    for document in [json!({}), json!({ "candidates": [] })] {
        assert_eq!(faults(&document).len(), 1, "{document}");
    }
}
