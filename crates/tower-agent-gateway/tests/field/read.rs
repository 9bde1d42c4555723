//! Reading cases: the files below a folder, and their variations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use super::case::{Candidate, Case};

/// The cases below a folder in the order of their names, and what is wrong with its files.
pub(crate) fn folder(folder: &Path) -> (Vec<Case>, Vec<String>) {
    let mut files = Vec::new();
    find(folder, &mut files);
    files.sort();
    let (mut cases, mut mistakes) = (Vec::new(), Vec::new());
    for path in files {
        let name = path.strip_prefix(folder).ok();
        let name = name.filter(|name| !name.as_os_str().is_empty());
        let name = name.unwrap_or(&path).with_extension("");
        match file(
            &name.display().to_string(),
            &fs::read_to_string(&path).unwrap(),
        ) {
            Ok(of_file) => cases.extend(of_file),
            Err(mistake) => mistakes.push(format!("{}: {mistake}", path.display())),
        }
    }
    (cases, mistakes)
}

fn find(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            find(&entry.unwrap().path(), files);
        }
    } else if path.extension().is_some_and(|end| end == "toml") {
        files.push(path.to_owned());
    }
}

/// The cases of a file: itself, and its variations.
fn file(name: &str, text: &str) -> Result<Vec<Case>, String> {
    let mut base: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let variations = match base.remove("variation") {
        None => Vec::new(),
        Some(Value::Array(variations)) => variations,
        Some(_) => return Err("variation: is written `[[variation]]`".to_owned()),
    };
    let mut cases = vec![case(name.to_owned(), base.clone())?];
    // Each variation has its own marks.
    base.remove("open");
    base.remove("held_at_first");
    for (at, variation) in variations.into_iter().enumerate() {
        let place = format!("variation {}", at + 1);
        let Value::Table(mut variation) = variation else {
            return Err(format!("{place}: is no table"));
        };
        let Some(Value::String(of)) = variation.remove("name") else {
            return Err(format!("{place}: has no `name`"));
        };
        let mut merged = base.clone();
        merge(&mut merged, variation, 2);
        let place = format!("{place}, {of:?}");
        let case = case(format!("{name} ({of})"), merged);
        cases.push(case.map_err(|mistake| format!("{place}: {mistake}"))?);
    }
    Ok(cases)
}

fn case(name: String, mut table: Table) -> Result<Case, String> {
    inherit_request(&mut table);
    let case: Case = table.try_into().map_err(|error| error.to_string())?;
    let case = Case { name, ..case };
    check(&case)?;
    Ok(case)
}

/// A request that follows is like the first, but for what it says.
fn inherit_request(case: &mut Table) {
    let first = case.get("request").cloned();
    let then = case.get_mut("then").and_then(Value::as_array_mut);
    for then in then.into_iter().flatten().filter_map(Value::as_table_mut) {
        if let Some(Value::Table(mut request)) = first.clone() {
            if let Some(Value::Table(own)) = then.remove("request") {
                merge(&mut request, own, 1);
            }
            then.insert("request".to_owned(), Value::Table(request));
        }
    }
}

/// Puts `over` into `base`. Tables are merged down to this depth; whatever is deeper replaces what
/// is there.
pub(crate) fn merge(base: &mut Table, over: Table, depth: u32) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) if depth > 1 => {
                merge(base, over, depth - 1);
            }
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// What the types do not say.
fn check(case: &Case) -> Result<(), String> {
    let report = &case.report;
    if !report.source.starts_with("https://") {
        return Err("report.source: is no link".to_owned());
    }
    if report.what.trim().is_empty() || report.kind.trim().is_empty() {
        return Err("report: has no `what` or no `kind`".to_owned());
    }
    let known = |name: &str| case.candidates.iter().any(|it: &Candidate| it.name == name);
    let expects = [&case.expect].into_iter();
    let expects = expects.chain(case.then.iter().map(|then| &then.expect));
    let mut named: Vec<&String> = case.answers.keys().collect();
    for expect in expects {
        named.extend(expect.served.iter().filter(|name| !name.is_empty()));
        named.extend(expect.calls.iter().flatten().map(|(name, _)| name));
        named.extend(expect.rests.iter().flatten().map(|rest| &rest.candidate));
    }
    if let Some(name) = named.into_iter().find(|name| !known(name)) {
        return Err(format!("{name:?} is no candidate"));
    }
    for (name, answers) in &case.answers {
        for answer in answers {
            let shapes = [
                answer.json.is_some(),
                answer.body.is_some(),
                answer.events.is_some(),
                answer.chunks.is_some(),
                answer.healthy,
            ];
            if shapes.into_iter().filter(|it| *it).count() > 1 {
                return Err(format!(
                    "answers.{name}: has more than one of json, body, events, chunks and healthy"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::file;

    const REPORT: &str = "[report]\nsource = \"https://a.example\"\nwhat = \"w\"\nkind = \"k\"\n";

    #[test]
    fn a_variation_is_merged_into_its_file_and_marked_by_itself() {
        let text = format!(
            "open = true\n{REPORT}\n[expect]\nstatus = 429\nserved = \"a\"\n\
             [[variation]]\nname = \"other\"\n[variation.expect]\nstatus = 503\n"
        );

        let cases = file("kimi/quota", &text).unwrap();

        let names: Vec<_> = cases.iter().map(|case| &*case.name).collect();
        assert_eq!(names, ["kimi/quota", "kimi/quota (other)"]);
        assert_eq!([cases[0].open, cases[1].open], [true, false]);
        assert_eq!(cases[1].expect.status, 503);
        assert_eq!(cases[1].expect.served.as_deref(), Some("a"));
    }

    #[test]
    fn a_mistake_names_its_key_and_its_variation() {
        let mistakes = [
            ("[expect]\nstats = 3", "stats"),
            ("[expect]\nstatus = \"x\"", "status"),
            ("[expect]\n[answers]\nc = []", "\"c\" is no candidate"),
            ("[expect]\n[[variation]]\nstatus = 3", "variation 1"),
            (
                "[expect]\n[[variation]]\nname = \"v\"\nanswer = 3",
                "variation 1, \"v\"",
            ),
        ];
        for (text, named) in mistakes {
            let mistake = file("m", &format!("{REPORT}{text}")).unwrap_err();
            assert!(mistake.contains(named), "{mistake}");
        }
    }
}
