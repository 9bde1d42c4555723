//! What it costs to send a prompt to another model: T8.
//!
//! `cargo bench --bench rewrite`; a chat of 270 kB, times are per request.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};
use tower_agent::Candidate;

const SIZE: usize = 270 * 1000;

/// The turns of a coding agent: prose, tool calls, and files as their results.
fn turns(file: &str) -> impl Iterator<Item = Value> {
    (0_u64..).flat_map(move |turn| {
        let id = format!("call_{turn:024x}");
        let arguments = json!({ "path": format!("src/part_{turn}.rs"), "limit": 200 }).to_string();
        [
            json!({
                "role": "user",
                "content": "Why is the upload cut after 30 seconds? Look at \"limits\" first, please — it worked.",
            }),
            json!({
                "role": "assistant",
                "content": null,
                "tool_calls": [{
                    "id": id,
                    "type": "function",
                    "function": { "name": "read_file", "arguments": arguments },
                }],
            }),
            json!({ "role": "tool", "tool_call_id": id, "content": file }),
        ]
    })
}

fn chat(file: &str) -> Bytes {
    let mut size = 0;
    let messages: Vec<_> = turns(file)
        .take_while(|turn| {
            size += turn.to_string().len();
            size < SIZE
        })
        .collect();
    let chat = json!({
        "messages": messages,
        "model": "large",
        "stream": true,
        "temperature": 0.7,
    });
    chat.to_string().into()
}

fn round_trip(body: &Bytes, model: &str) -> Bytes {
    let mut chat: Value = serde_json::from_slice(body).unwrap();
    chat["model"] = model.into();
    serde_json::to_vec(&chat).unwrap().into()
}

fn rewrite(c: &mut Criterion) {
    let source = include_str!("layers.rs");
    let candidate = Candidate::new("small");
    for (name, file) in [
        ("T8_model_rewrite", source),
        // Short strings only: the worst case for whoever skips strings.
        ("T8_model_rewrite_short", "done"),
    ] {
        let body = chat(file);
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function("tower_agent", |b| {
            b.iter(|| candidate.patch(black_box(&body)).unwrap());
        });
        group.bench_function("value_round_trip", |b| {
            b.iter(|| round_trip(black_box(&body), "small"));
        });
        group.finish();
    }
}

criterion_group!(benches, rewrite);
criterion_main!(benches);
