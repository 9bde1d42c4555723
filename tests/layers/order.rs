//! The one order of the layers: what the documents show, and that it works.

use std::{
    convert::Infallible,
    fs,
    future::ready,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    AgentStack, Candidate, ClientDisconnectLayer, HardCeilingLayer, HealthGateLayer,
    LoopGuardLayer, ModelFallbackLayer, OwnerCapLayer, OwnerCaps, PumpLayer, RetryBudgetLayer, Run,
    RunLayer, RunRegistry, RunStoreLayer, StepTimeoutLayer, StopPhraseLayer, TerminalReason,
    TerminalResponseLayer, TokenCapLayer, TokenCaps, TurnCapLayer,
    registry::store::InMemoryRunStore,
};

use crate::support::{Outcome, Script, Upstream, no_delay, secs};

/// From the outside in.
const ORDER: [&str; 17] = [
    "TerminalResponseLayer",
    "RunStoreLayer",
    "RunLayer",
    "PumpLayer",
    "ClientDisconnectLayer",
    "HardCeilingLayer",
    "StepTimeoutLayer",
    "StopPhraseLayer",
    "OwnerCapLayer",
    "TurnCapLayer",
    "TokenCapLayer",
    "LoopGuardLayer",
    "ModelFallbackLayer",
    "RetryBudgetLayer",
    "HardCeilingLayer",
    "StepTimeoutLayer",
    "HealthGateLayer",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The names of this crate's layers in a line, in order.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| ORDER.contains(word))
}

/// The names in the first column of a document's table of layers.
fn table(text: &str) -> Vec<&str> {
    let lines = text
        .lines()
        .map(|line| line.trim_start_matches("//!").trim());
    let rows = lines
        .skip_while(|line| *line != "| layer | what it does |")
        .take_while(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.split('|').nth(1));
    columns.flat_map(names).collect()
}

/// The layers of each stack that a text builds, as far as they stand there by name.
fn stacks(text: &str) -> Vec<Vec<&str>> {
    let mut stacks: Vec<Vec<&str>> = Vec::new();
    let (mut building, mut wrong) = (false, false);
    for line in text.lines() {
        let line = line.trim_start_matches(['/', '!', ' ']);
        if line.starts_with("```") {
            wrong = line.contains("compile_fail");
        }
        if wrong {
            continue;
        }
        if line.contains("ServiceBuilder::new()") {
            building = true;
            stacks.push(Vec::new());
        } else if line.starts_with(".service(") || line.is_empty() || line.starts_with("```") {
            building = false;
        }
        if let (true, true, Some(stack)) =
            (building, line.starts_with(".layer("), stacks.last_mut())
        {
            stack.extend(names(line).take(1));
        }
    }
    stacks
}

/// Whether these stand one after the other in the order, with others between them.
fn is_in_order(stack: &[&str]) -> bool {
    let mut order = ORDER.iter();
    stack.iter().all(|name| order.any(|known| known == name))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs" || it == "md") {
            found.push(path);
        }
    }
}

#[test]
fn the_tables_of_layers_show_the_one_order() {
    for path in ["README.md", "src/lib.rs"] {
        assert_eq!(table(&text(path)), ORDER, "{path}");
    }
}

/// A health gate stands around the transport, outside of the builder; a pump needs no layer for
/// the disconnect.
#[test]
fn the_stack_builder_is_the_one_order() {
    let off = AgentStack::server(&RunRegistry::new());
    let shared = RunRegistry::new().share(InMemoryRunStore::new().replica());
    let on = AgentStack::server(&shared).loops(LoopGuardLayer::new());
    let on = on.fallback([Candidate::new("a")]);
    let built = |layers: String| -> Vec<String> { names(&layers).map(str::to_owned).collect() };
    let but = |left_out: &[&str]| -> Vec<&str> {
        let order = ORDER[..ORDER.len() - 1].iter().copied();
        order.filter(|name| !left_out.contains(name)).collect()
    };
    assert_eq!(
        built(format!("{:?}", on.layer())),
        but(&["ClientDisconnectLayer"])
    );
    let left_out = [
        "ClientDisconnectLayer",
        "LoopGuardLayer",
        "ModelFallbackLayer",
    ];
    assert_eq!(built(format!("{:?}", off.layer())), but(&left_out));
}

#[test]
fn every_stack_that_the_documents_and_examples_build_is_in_the_one_order() {
    let mut paths = vec![root().join("README.md")];
    for folder in ["src", "examples", "docs", "crates"] {
        sources(&root().join(folder), &mut paths);
    }
    let mut seen = 0;
    for path in paths {
        for stack in stacks(&text(&path)) {
            assert!(is_in_order(&stack), "{}: {stack:?}", path.display());
            seen += usize::from(stack.len() > 1);
        }
    }
    assert!(seen > 10, "only {seen} stacks were found");
    // The stack of the test below is all of it.
    let tested = stacks(include_str!("order.rs"));
    assert!(tested.iter().any(|stack| *stack == ORDER));
}

fn says(text: &str, run: &str) -> Request<Full<Bytes>> {
    let body = format!(r#"{{"model":"a","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    Request::post("/v1/chat/completions")
        .header("x-session-id", "chat-7")
        .header("x-run-id", run)
        .body(Full::from(body))
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_run_at_its_turn_cap_can_stop_the_others_of_its_session() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::answer(200, r#"{"choices":[{}]}"#));
    let candidates = ["a", "b"].map(Candidate::new);
    let runs = RunLayer::new(registry.clone());
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunStoreLayer::new(&runs))
        .layer(RunLayer::new(registry.clone()))
        .layer(PumpLayer::new())
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(secs(1800)))
        .layer(StepTimeoutLayer::new(secs(300)))
        .layer(StopPhraseLayer::new(registry.clone(), ["/stop"]))
        .layer(OwnerCapLayer::new(registry.clone(), OwnerCaps::new()))
        .layer(TurnCapLayer::new(1))
        .layer(TokenCapLayer::new(
            TokenCaps::new().max_output_tokens(1_000_000),
        ))
        .layer(LoopGuardLayer::new())
        .layer(ModelFallbackLayer::new(candidates))
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(HardCeilingLayer::new(secs(600)))
        .layer(StepTimeoutLayer::new(secs(120)))
        .layer(HealthGateLayer::new(service_fn(|()| {
            ready(Ok::<_, Infallible>(true))
        })))
        .service(upstream.clone());
    let ask = async |text: &str, run: &str| {
        let outcome = Outcome::of(service.clone().oneshot(says(text, run))).await;
        (outcome.status, outcome.whole().to_owned())
    };
    let run = |id: &str| -> Run { registry.find(&id.parse().unwrap())[0].clone() };
    assert_eq!(ask("go", "other").await.0, 200);
    assert_eq!(ask("go", "mine").await.0, 200);

    let (status, said) = ask("/stop", "mine").await;

    assert_eq!(status, 200, "{said}");
    assert!(said.contains("Stopped."), "{said}");
    assert_eq!(
        run("other").terminal_reason(),
        Some(TerminalReason::Aborted)
    );
    assert_eq!(run("mine").terminal_reason(), None);
    // It was at its cap.
    assert_eq!(ask("go", "mine").await.0, 422);
    assert_eq!(run("mine").terminal_reason(), Some(TerminalReason::TurnCap));
    assert_eq!(upstream.calls(), 2);
}
