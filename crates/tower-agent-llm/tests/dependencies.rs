//! The dependencies of the workspace's libraries: which there are, and which Rust they need.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use serde_json::Value;

/// The root of the workspace; `None` if the crate's sources are alone.
fn manifest() -> Option<&'static str> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    Path::new(root).exists().then_some(root)
}

fn cargo(words: &[&str], manifest: &str) -> String {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(words)
        .args(["--locked", "--manifest-path", manifest]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a program with the package `name` is built of, that one too: names and versions.
///
/// `cargo metadata` would also name what only the features of tests need.
fn built_of(name: &str, manifest: &str) -> BTreeSet<(String, String)> {
    let words = [
        "tree",
        "-p",
        name,
        "-e",
        "normal",
        "--all-features",
        "--prefix",
        "none",
    ];
    let tree = cargo(&words, manifest);
    let packages = tree.lines().filter(|line| !line.is_empty()).map(|line| {
        let mut words = line.split(' ');
        let (name, version) = (words.next().unwrap(), words.next().unwrap());
        (name.to_owned(), version.trim_start_matches('v').to_owned())
    });
    packages.collect()
}

/// What speaks to nobody needs no runtime.
#[test]
fn the_formats_depend_on_no_service_and_no_runtime() {
    let Some(manifest) = manifest() else {
        return;
    };
    let built_of = built_of("tower-agent-llm", manifest);
    let names: BTreeSet<_> = built_of.iter().map(|(name, _)| &**name).collect();
    assert!(names.contains("serde_json"), "{names:?}");
    let runtimes = [
        "tower",
        "tokio",
        "hyper",
        "async-std",
        "smol",
        "mio",
        "tracing",
    ];
    for name in &names {
        let is_of = |family: &&str| *name == *family || name.starts_with(&format!("{family}-"));
        let family = runtimes.iter().find(|family| is_of(family));
        assert!(*name == "tower-agent-llm" || family.is_none(), "{name}");
    }
}

#[test]
fn the_libraries_need_no_newer_rust_than_they_say() {
    let Some(manifest) = manifest() else {
        return;
    };
    let metadata = cargo(
        &["metadata", "--format-version", "1", "--all-features"],
        manifest,
    );
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let needed: BTreeMap<_, _> = packages
        .map(|it| {
            (
                (text(&it["name"]), text(&it["version"])),
                &it["rust_version"],
            )
        })
        .collect();
    let minor = |version: &str| -> u32 { version.split('.').nth(1).unwrap().parse().unwrap() };
    for library in ["tower-agent", "tower-agent-llm"] {
        for package in built_of(library, manifest) {
            let rust = needed[&package].as_str().unwrap_or("1.0");
            assert!(
                minor(rust) <= 85,
                "{library} needs Rust {rust} for {package:?}"
            );
        }
    }
}
