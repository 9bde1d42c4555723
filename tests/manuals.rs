//! The manuals name what there is: paths, configuration keys, routes, reasons and layers.
//!
//! Each test names the step of a recipe in CONTRIBUTING.md that was left out.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The texts between backquotes that are one word each.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.filter(|part| !part.contains(char::is_whitespace))
}

/// Whether `page` has this word between backquotes, alone or as a part of a longer text there.
fn names(page: &str, word: &str) -> bool {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    page.split('`').skip(1).step_by(2).any(|part| {
        part.match_indices(word).any(|(at, _)| {
            let before = part[..at].chars().next_back();
            let after = part[at + word.len()..].chars().next();
            !before.into_iter().chain(after).any(is_part)
        })
    })
}

/// The Rust sources at or below a folder, without tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name == "tests" {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
    found
}

/// Where the paths of a line may begin: at the root, in a room that has a table of its own, and in the
/// first path of the line, of which a row of such a table tells.
fn places(line: &str) -> Vec<PathBuf> {
    let rooms = [
        "",
        "src",
        "tests",
        "crates/tower-agent-gateway/src",
        "crates/tower-agent-gateway/ui",
        "crates/tower-agent-llm/src",
    ];
    let rooms = rooms.map(|room| root().join(room));
    let first = quoted(line).next().unwrap_or_default();
    let inner = rooms.iter().map(|room| room.join(first));
    rooms.iter().cloned().chain(inner).collect()
}

#[test]
fn the_paths_in_the_maps_exist() {
    for page in ["CONTRIBUTING.md", "README.md", "tests/README.md"] {
        let is_path = |word: &&str| {
            let is_plain = |it: char| it.is_ascii_alphanumeric() || "/_.-".contains(it);
            let is_file = word.ends_with(".rs") || word.ends_with(".md") || word.contains('/');
            // A path of an API, of a package's target, or a media type.
            let others = ["/", "target/", "text/", "application/"];
            let is_other = others.iter().any(|it| word.starts_with(it));
            word.chars().all(is_plain) && is_file && !is_other
        };
        let mut lost = Vec::new();
        let mut count = 0;
        let page_text = text(page);
        for line in page_text
            .lines()
            .filter(|line| !line.contains("../tower-agent"))
        {
            let links = line.split("](").skip(1);
            let links = links.filter_map(|rest| rest.split([')', '#']).next());
            let links = links.filter(|link| !link.is_empty() && !link.contains(':'));
            let links = links.map(|link| link.trim_start_matches("../"));
            for path in quoted(line).filter(is_path).chain(links) {
                count += 1;
                let path = path.trim_end_matches('/');
                let exists = |folder: &PathBuf| {
                    let path = folder.join(path);
                    path.exists() || path.with_extension("rs").exists()
                };
                if !places(line).iter().any(exists) {
                    lost.push(path.to_owned());
                }
            }
        }
        assert!(count > 5, "{page}: {count}");
        assert!(lost.is_empty(), "{page} names what is nowhere: {lost:?}");
    }
}

/// The fields of the structs in a source whose names end in `Table`, each with that name.
fn table_fields(source: &str) -> Vec<(&str, &str)> {
    let mut table = "";
    let mut fields = Vec::new();
    for line in source.lines() {
        if let Some((_, rest)) = line.split_once("struct ") {
            let end = rest.find(|it: char| !it.is_ascii_alphanumeric());
            table = rest[..end.unwrap_or(rest.len())].trim_end();
        }
        // The macro that makes two of the tables lists their fields.
        match line.trim() {
            "}" => table = "",
            "run {" => table = "RunTable",
            "retry {" => table = "RetryTable",
            _ => {}
        }
        let field = line
            .trim()
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        let Some((name, kind)) = field.split_once(": ") else {
            continue;
        };
        let is_name = name.chars().all(|it| it.is_ascii_lowercase() || it == '_');
        // An index is no key, but where an entry stood.
        if is_name && line.ends_with(',') && table.ends_with("Table") && !kind.starts_with("usize")
        {
            fields.push((table, name));
        }
    }
    fields
}

/// The part of a page below the heading that begins with one of these; the whole page without one.
fn section<'a>(page: &'a str, starts: &[String]) -> &'a str {
    let is_it = |heading: &&str| starts.iter().any(|start| heading.starts_with(start));
    let heading = page.lines().find(is_it).unwrap_or_default();
    let from = page.find(heading).unwrap_or_default();
    let level = heading.split(' ').next().unwrap_or_default();
    let rest = &page[from + heading.len()..];
    let end = rest
        .find(&format!("\n{level} "))
        .filter(|_| !level.is_empty());
    &rest[..end.unwrap_or(rest.len())]
}

/// A key has a row in the section of its table; a table of several kinds, anywhere on the page.
#[test]
fn each_key_of_the_configuration_is_in_its_manual() {
    // In agents' own configurations some keys have their names in camel case.
    let camel = |key: &str| -> String {
        let mut words = key.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |all, word| {
            all + &word[..1].to_uppercase() + &word[1..]
        })
    };
    let own = fs::read_dir(root().join("crates/tower-agent-gateway/src/config")).unwrap();
    let own = own.map(|entry| entry.unwrap().path());
    let own = own.filter(|path| path.extension().is_some_and(|it| it == "rs"));
    let own: Vec<_> = own.map(|path| fs::read_to_string(path).unwrap()).collect();
    for (page, source, least) in [
        ("docs/config.md", text("src/config/tables.rs"), 60),
        ("docs/gateway.md", own.concat(), 20),
    ] {
        let manual = text(page);
        let fields = table_fields(&source);
        assert!(fields.len() > least, "{page}: {fields:?}");
        let is_named = |(table, key): &&(&str, &str)| {
            let name = table.trim_end_matches("Table").to_lowercase();
            let heads = [
                format!("## `[{name}]`"),
                format!("### `[{name}]`"),
                format!("## `[[{name}s]]`"),
                format!("### `[[{name}s]]`"),
            ];
            let part = section(&manual, &heads);
            part.contains(&format!("[{key}")) || names(part, key) || names(part, &camel(key))
        };
        let missing: Vec<_> = fields.iter().filter(|field| !is_named(field)).collect();
        assert!(missing.is_empty(), "not in {page}: {missing:?}");
    }
}

#[test]
fn each_route_of_the_gateway_is_in_its_manual() {
    let manual = text("docs/gateway.md");
    let mut routes = BTreeSet::new();
    for file in ["routes/mod.rs", "http/api.rs"] {
        let source = text(&format!("crates/tower-agent-gateway/src/{file}"));
        let literals = source.split('"').skip(1).step_by(2);
        let is_route = |it: &&str| it.starts_with('/') && it.len() > 1 && !it.contains(' ');
        routes.extend(literals.filter(is_route).map(str::to_owned));
    }
    assert!(routes.len() > 15, "{routes:?}");
    // A route is no part of a longer one.
    let says = |route: &str| {
        let mut places = manual.match_indices(route);
        let goes_on = |it: char| it.is_ascii_alphanumeric() || "_/".contains(it);
        places.any(|(at, _)| !manual[at + route.len()..].starts_with(goes_on))
    };
    let is_named = |route: &&String| {
        says(route) || says(&route.replace("{id}", "ID").replace("{candidate}", "NAME"))
    };
    let missing: Vec<_> = routes.iter().filter(|route| !is_named(route)).collect();
    assert!(missing.is_empty(), "not in docs/gateway.md: {missing:?}");
}

#[test]
fn each_reason_is_in_the_manual_of_the_gateway() {
    let source = text("src/run/reason.rs");
    let manual = text("docs/gateway.md");
    let rows = source.lines().filter_map(|line| {
        let (variant, rest) = line.trim().strip_prefix("Self::")?.split_once(" => (\"")?;
        Some((variant, rest.split_once('"')?.0))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 10, "{rows:?}");
    let missing: Vec<_> = rows
        .iter()
        .filter(|(_, name)| !names(&manual, name))
        .collect();
    assert!(missing.is_empty(), "not in docs/gateway.md: {missing:?}");
}

#[test]
fn each_layer_is_in_the_tables() {
    let page = text("README.md");
    let mut layers = BTreeSet::new();
    for file in sources(&root().join("src/layers")) {
        let source = fs::read_to_string(file).unwrap();
        layers.extend(source.lines().filter_map(|line| {
            let name = line.strip_prefix("pub struct ")?;
            let end = name.find(|it: char| !it.is_ascii_alphanumeric())?;
            name[..end]
                .ends_with("Layer")
                .then(|| name[..end].to_owned())
        }));
    }
    assert!(layers.len() > 10, "{layers:?}");
    let missing: Vec<_> = layers
        .iter()
        .filter(|layer| !page.contains(&***layer))
        .collect();
    assert!(missing.is_empty(), "not in the README: {missing:?}");
}

/// An event of the log, as a source has it.
#[derive(Debug)]
struct LogEvent {
    /// The macro: `warn`, or `$level` if the source has several levels for it.
    level: String,
    name: String,
    fields: Vec<String>,
}

/// The text from the start of `text` to the parenthesis that closes the one before it, and its parts
/// between the commas outside of parentheses and strings.
fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut is_quoted, mut is_escaped, mut from) = (0, false, false, 0);
    let mut parts = Vec::new();
    for (at, char) in text.char_indices() {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_quoted,
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                parts.push(text[from..at].trim());
                return parts;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    panic!("not closed: {text:.80}")
}

/// The events of a source. The name of one is its message, up to the first colon.
fn log_events(source: &str) -> Vec<LogEvent> {
    let macros = source.match_indices("tracing::").filter_map(|(at, path)| {
        let (level, rest) = source[at + path.len()..].split_once("!(")?;
        let levels = ["error", "warn", "info", "debug", "trace", "$level"];
        levels.contains(&level).then(|| (level, arguments(rest)))
    });
    let events = macros.map(|(level, arguments)| {
        let message = arguments.iter().rev().find_map(|it| it.strip_prefix('"'));
        let name = message.expect("an event has a message").split([':', '"']);
        let fields = arguments
            .iter()
            .filter(|it| !it.is_empty() && !it.starts_with('"') && !it.starts_with("target:"))
            .map(|it| {
                it.split(" = ")
                    .next()
                    .unwrap()
                    .trim_start_matches(['%', '?'])
            });
        LogEvent {
            level: level.to_uppercase(),
            name: name.clone().next().unwrap().to_owned(),
            fields: fields.map(str::to_owned).collect(),
        }
    });
    events.collect()
}

#[test]
fn each_event_of_the_log_is_listed() {
    let page = text("docs/events.md");
    let start = page.find("## Log events").unwrap();
    let end = page.find("## Run events").unwrap();
    let rows = page[start..end]
        .lines()
        .filter(|line| line.starts_with("| `"));
    let rows: Vec<&str> = rows.collect();
    let is_named = |row: &str, name: &str| {
        let cell = row.split(" | ").next().unwrap();
        cell.split('`')
            .any(|part| part.split(':').next() == Some(name))
    };
    let (mut count, mut wrong) = (0, Vec::new());
    let crates = ["gateway", "hyper", "redis"].map(|it| format!("crates/tower-agent-{it}/src"));
    for folder in crates.iter().map(String::as_str).chain(["src"]) {
        for file in sources(&root().join(folder)) {
            for event in log_events(&fs::read_to_string(&file).unwrap()) {
                count += 1;
                // One macro logs both events, whose names are in a variable.
                let name = match &*event.name {
                    "{message}" => "call ended",
                    name => name,
                };
                let rows = rows.iter().filter(|row| is_named(row, name));
                let rows: Vec<&str> = rows.copied().collect();
                let has_level = |row: &&str| event.level == "$LEVEL" || names(row, &event.level);
                let in_last_cell =
                    |row: &str, field: &str| names(row.rsplit(" | ").next().unwrap(), field);
                let has_fields = |field: &String| rows.iter().any(|row| in_last_cell(row, field));
                let is_listed = rows.iter().any(has_level)
                    && (event.name == "{message}" || event.fields.iter().all(has_fields));
                if !is_listed {
                    wrong.push((file.strip_prefix(root()).unwrap().to_owned(), event));
                }
            }
        }
    }
    assert!(count > 50, "{count}");
    assert!(
        wrong.is_empty(),
        "not in docs/events.md as they are: {wrong:#?}"
    );
}
