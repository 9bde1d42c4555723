//! Public reports about agents and gateways: what happened there does not happen here.
//!
//! Each test names the report, says what it is about, and holds what its reporter had expected.

mod load;
mod setup;

use std::time::{Duration, Instant};

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::{
    net::{Ask, CHAT, DONE, Play, Step, Upstream, chat, error_event, eventually, run, within},
    support::{Config, Gateway},
};

/// The simulated candidate that answers, and the one that is silent behind the first deltas.
const MODELS: [&str; 2] = ["sim-healthy", "sim-stall-stream"];

/// A request of Claude Code's, of its main agent or of the sub-agent of this name.
fn claude(gateway: &Gateway, agent: Option<&str>, model: &str, words: &str) -> RequestBuilder {
    let says = json!([{"role": "user", "content": words}]);
    let stream = model == MODELS[1];
    let body = json!({"model": model, "max_tokens": 9, "stream": stream, "messages": says});
    let request = gateway.post("/v1/messages", body.to_string());
    let request = request.header("x-claude-code-session-id", "s-1");
    match agent {
        Some(agent) => request.header("x-claude-code-agent-id", agent),
        None => request,
    }
}

/// An upstream that always gives this answer.
async fn answering(kind: &str, body: &str) -> Upstream {
    let length = body.len();
    let head = format!("content-type: {kind}\r\ncontent-length: {length}");
    Upstream::bytes(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}")).await
}

/// The run's row once nothing of it is in flight.
async fn idle_row(gateway: &Gateway, id: &str) -> Value {
    eventually(async || {
        let row = gateway.json(&format!("/runs/{id}")).await;
        (row["in_flight"] == 0).then_some(row)
    })
    .await
}

/// A stop reached the main agent alone: its sub-agents worked on, came back as running after they
/// had been stopped one by one, and kept a gateway from restarting for its whole drain.
///
/// <https://github.com/openclaw/openclaw/pull/122909>,
/// <https://github.com/anthropics/claude-code/issues/66339>
///
/// covers: H17, C9
#[test]
fn stopped_sub_agents_stay_stopped_and_hold_up_no_restart() {
    run(async {
        let mut gateway = Gateway::simulated("", &MODELS).await;
        let main = claude(&gateway, None, MODELS[0], "audit it").ask().await;
        assert_eq!(main.status, 200);
        let idle = claude(&gateway, Some("idle"), MODELS[0], "one").ask().await;
        assert_eq!(idle.status, 200);
        let busy = claude(&gateway, Some("busy"), MODELS[1], "two");
        let mut busy = busy.open().await;
        busy.until("data:").await;

        let stopped = gateway.post("/sessions/s-1/abort", "").ask().await;
        assert_eq!(stopped.status, 200);

        let text = within(busy.rest()).await;
        assert!(text.contains("event: error"), "{text}");
        let served = gateway.simulated_calls(MODELS[0]).await;
        for _ in 0..3 {
            for agent in ["idle", "busy", "new"] {
                let answer = claude(&gateway, Some(agent), MODELS[0], "go on")
                    .ask()
                    .await;
                assert_eq!(answer.reason(), Some("aborted"), "{agent}");
            }
        }
        assert_eq!(gateway.simulated_calls(MODELS[0]).await, served);
        let runs = gateway.json("/runs").await["runs"].clone();
        for row in runs.as_array().unwrap() {
            assert_eq!(row["reason"], "aborted", "{row}");
        }
        // The user goes on with other words.
        let next = claude(&gateway, None, MODELS[0], "something else")
            .ask()
            .await;
        assert_eq!(next.status, 200);

        let began = Instant::now();
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
    });
}

/// A sub-agent had done all of its work, and its parent was told of a timeout: a ceiling passed
/// before anyone had looked at the result.
///
/// <https://github.com/Miosa-osa/OSA/pull/133>
///
/// covers: H16
#[test]
fn a_sub_agent_that_is_done_is_completed_when_its_ceiling_passes() {
    run(async {
        let settings = "[run]\nidle = \"1s\"\nmax_turn_time = \"1s\"";
        let gateway = Gateway::simulated(settings, &MODELS).await;
        let main = claude(&gateway, None, MODELS[0], "build it").ask().await;
        let sub = claude(&gateway, Some("a-1"), MODELS[0], "the pages")
            .ask()
            .await;
        for answer in [main, sub] {
            assert_eq!(answer.status, 200);
            let id = answer.header("x-run-id").unwrap();
            let reason = eventually(async || {
                let reason = gateway.reason(id).await;
                (!reason.is_null()).then_some(reason)
            })
            .await;
            assert_eq!(reason, "completed", "{id}");
        }
        assert!(gateway.records().is_empty(), "{:?}", gateway.records());
        let log = gateway.log();
        assert!(!log.contains("max_turn_time"), "{log}");
    });
}

/// Agents that were stopped at a time limit in mid-work were written down with no tokens at all, as
/// if they had failed at once, and the next attempt began from nothing.
///
/// <https://github.com/guettli/agentloop/issues/298>
///
/// covers: B6, E3
#[test]
fn a_run_that_its_time_limit_stops_says_so_and_what_it_has_done() {
    run(async {
        let settings = "[run]\nmax_turn_time = \"1s\"\npartial = 4096";
        let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        let ask = |user: &str| gateway.post(CHAT, chat(user)).header("x-run-id", "r-1");
        assert_eq!(ask("held-no-longer").ask().await.status, 200);
        let text = ask("stall").open().await.rest().await;
        assert_eq!(error_event(&text).1["code"], "max_turn_time");

        let row = idle_row(&gateway, "r-1").await;
        assert_eq!(
            (&row["reason"], &row["turns"]),
            (&"max_turn_time".into(), &2.into())
        );
        let spent = &row["spent"];
        assert!(spent["output_tokens"].as_u64() > Some(0), "{spent}");
        assert!(
            spent["estimated_input_tokens"].as_u64() > Some(0),
            "{spent}"
        );
        assert!(
            row["text"].as_str().is_some_and(|text| !text.is_empty()),
            "{row}"
        );
        let record = eventually(async || gateway.records().first().cloned()).await;
        assert_eq!(
            (&record["kind"], &record["reason"], &record["at_turn"]),
            (
                &"harness_terminate".into(),
                &"max_turn_time".into(),
                &2.into()
            )
        );
    });
}

/// One call of a batch failed harmlessly, and all others of the batch were cancelled with it; the
/// agent took its shell for broken.
///
/// <https://github.com/anthropics/claude-code/issues/64346>
///
/// covers: D5
#[test]
fn a_call_that_fails_cancels_no_other_of_its_run() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let ask = |user: &str| {
            let request = gateway.post(CHAT, chat(user));
            request.header("x-run-id", "r-1").ask()
        };
        let others: Vec<_> = (0..26).map(|_| tokio::spawn(ask("held"))).collect();
        upstream.until_open(26).await;

        for status in [400, 404, 500] {
            assert_eq!(ask(&status.to_string()).await.status, status);
        }
        let left = tokio::spawn(ask("silent"));
        upstream.until_open(27).await;
        left.abort();
        upstream.until_open(26).await;

        assert_eq!(gateway.reason("r-1").await, Value::Null);
        upstream.resume();
        for other in others {
            let answer = within(other).await.unwrap();
            assert_eq!(answer.status, 200);
            assert!(answer.text().ends_with(DONE), "{}", answer.text());
        }
    });
}

/// Turns were counted by the results of tools that a request carries, so a run of few rounds, with
/// many tools called at once, was reported as beyond its cap.
///
/// <https://github.com/anthropics/claude-code-action/issues/1795>
///
/// covers: D1
#[test]
fn a_round_with_many_tool_results_is_one_turn() {
    run(async {
        let settings = "[run]\nmax_turns = 3";
        let (upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        let mut messages = vec![json!({"role": "user", "content": "six times"})];
        for round in 0..=3 {
            let body = json!({"model": "m", "messages": messages}).to_string();
            let answer = gateway
                .post(CHAT, body)
                .header("x-run-id", "r-1")
                .ask()
                .await;
            let row = gateway.json("/runs/r-1").await;
            if round == 3 {
                assert_eq!(answer.reason(), Some("turn_cap_reached"));
                assert_eq!((&row["turns"], upstream.count()), (&3.into(), 3));
                break;
            }
            assert_eq!(answer.status, 200, "{round}");
            assert_eq!(row["turns"], round + 1);
            let id = |call: usize| format!("call-{round}-{call}");
            let calls = (0..6).map(|call| {
                let function = json!({"name": "echo", "arguments": format!("{{\"n\":{call}}}")});
                json!({"id": id(call), "type": "function", "function": function})
            });
            let calls: Vec<_> = calls.collect();
            messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
            messages.extend((0..6).map(|call| {
                json!({"role": "tool", "tool_call_id": id(call), "content": call.to_string()})
            }));
        }
    });
}

/// An upstream stated zero tokens with every answer, so that a budget on tokens could never be used
/// up: a setting that did nothing, and said nothing.
///
/// <https://github.com/seangalliher/ProbOS/issues/1078>
///
/// covers: H8
#[test]
fn an_upstream_that_states_no_tokens_for_its_text_does_not_lift_a_cap() {
    run(async {
        let text = "word".repeat(100);
        let zeros = "\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0,\"total_tokens\":0}";
        let message = format!("\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}}");
        let whole = format!(
            "{{\"object\":\"chat.completion\",\"choices\":[{{\"index\":0,\"finish_reason\":\"stop\",\
             {message}}}],{zeros}}}"
        );
        let stream = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n\
             data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n\
             data: {{\"choices\":[],{zeros}}}\n\n{DONE}"
        );
        for cap in ["max_output_tokens = 150", "max_total_tokens = 150"] {
            for (kind, answer) in [("application/json", &whole), ("text/event-stream", &stream)] {
                let upstream = answering(kind, answer).await;
                let settings = format!("[run]\n{cap}");
                let gateway = Config::new(settings)
                    .candidate("m", upstream.addr)
                    .start()
                    .await;
                let streams = kind == "text/event-stream";
                let says = [json!({"role": "user", "content": "four hundred bytes"})];
                let body = json!({"model": "m", "stream": streams, "messages": says}).to_string();
                let mut served = 0;
                let refused = loop {
                    let request = gateway.post(CHAT, body.clone()).header("x-run-id", "r-1");
                    let answer = request.ask().await;
                    if answer.reason().is_some() || answer.text().contains("event: error") {
                        break answer;
                    }
                    served += 1;
                    assert!(served < 5, "{cap} {kind}: it is never used up");
                    idle_row(&gateway, "r-1").await;
                };
                let text = refused.text();
                assert!(text.contains("token_cap_reached"), "{cap} {kind}: {text}");
                assert!(text.contains("estimated"), "{cap} {kind}: {text}");
            }
        }
    });
}

/// The same answer had a price as a whole and none as a stream, as its upstream stated a cost of
/// zero beside its tokens: no budget of a caller that streams was ever used up.
///
/// <https://github.com/BerriAI/litellm/issues/37923>
///
/// covers: H8
#[test]
fn an_answer_costs_the_same_as_a_whole_and_as_a_stream() {
    run(async {
        let usage = "\"input_tokens\":9,\"cache_read_input_tokens\":100,\"cost\":0";
        let whole = format!(
            "{{\"type\":\"message\",\"id\":\"msg_1\",\"stop_reason\":\"end_turn\",\
             \"content\":[{{\"type\":\"text\",\"text\":\"hello\"}}],\
             \"usage\":{{{usage},\"output_tokens\":40}}}}"
        );
        let stream = format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\
             \"id\":\"msg_1\",\"usage\":{{{usage},\"output_tokens\":1}}}}}}\n\n\
             event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
             \"delta\":{{\"type\":\"text_delta\",\"text\":\"hello\"}}}}\n\n\
             event: message_delta\ndata: {{\"type\":\"message_delta\",\
             \"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{{\"output_tokens\":40}}}}\n\n\
             event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
        );
        let mut spent = Vec::new();
        for (kind, answer) in [("application/json", &whole), ("text/event-stream", &stream)] {
            let upstream = answering(kind, answer).await;
            let config = Config::new("").candidate("m", upstream.addr);
            let price = "price = { input = 3.0, cached_input = 0.3, output = 15.0 }";
            let gateway = config.set(price).start().await;
            let says = [json!({"role": "user", "content": "hi"})];
            let streams = kind == "text/event-stream";
            let body = json!({"model": "m", "max_tokens": 99, "stream": streams, "messages": says});
            let request = gateway.post("/v1/messages", body.to_string());
            assert_eq!(request.header("x-run-id", "r-1").ask().await.status, 200);
            spent.push(idle_row(&gateway, "r-1").await["spent"].clone());
        }
        // 9 at 3, 100 at 0.3 and 40 at 15, all per million.
        assert_eq!(spent[0]["cost"], 0.000657, "{spent:?}");
        assert_eq!(spent[0], spent[1]);
    });
}

/// A guard against loops compared the results of tools as they stood, so an id or a duration in
/// them hid that nothing changed from call to call.
///
/// <https://github.com/MarimerLLC/rockbot/issues/464>
///
/// covers: D7
#[test]
fn a_loop_is_found_though_its_results_carry_new_ids_and_durations() {
    run(async {
        let settings = "[loops]\nstop = 4";
        let (upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        let mut messages = vec![json!({"role": "user", "content": "spawn them"})];
        let tool = json!({"type": "function", "function": {"name": "spawn"}});
        let mut last = None;
        for call in 0..8_u32 {
            let body = json!({"model": "m", "messages": messages, "tools": [tool]}).to_string();
            let answer = gateway
                .post(CHAT, body)
                .header("x-run-id", "r-1")
                .ask()
                .await;
            if answer.status != 200 {
                last = Some((call, answer));
                break;
            }
            let function = json!({"name": "spawn", "arguments": "{\"kind\":\"search\"}"});
            let made = json!({"id": format!("c{call}"), "type": "function", "function": function});
            messages.push(json!({"role": "assistant", "tool_calls": [made]}));
            let hex = call.wrapping_add(7).wrapping_mul(2_654_435_761);
            let result = json!({
                "batch": format!("batch-{hex:08x}-1c2d-4e3f-8a9b-{hex:08x}{:04x}", call * 31),
                "durationMs": 1_200 + 37 * call,
                "startedAt": format!("2026-06-05T10:{:02}:{:02}.{:03}Z", call, 50 - call, 7 * call),
                "status": "failed",
                "stepsCompleted": 0,
            });
            let id = format!("c{call}");
            let result = result.to_string();
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
        let (calls, answer) = last.expect("it is never found");
        assert_eq!(answer.reason(), Some("loop_detected"));
        assert_eq!((calls, upstream.count()), (4, 4));
    });
}

/// A base URL with the operation at its end was taken as it stood: each call went to
/// `/chat/completions/chat/completions`, and the error named neither the setting nor what to write.
///
/// <https://github.com/harry0703/MoneyPrinterTurbo/issues/57>
///
/// covers: A5
#[test]
fn a_base_url_with_the_operation_in_it_is_refused_with_its_place_and_the_remedy() {
    run(async {
        let of = |end: &str| format!("https://api.openai.com/v1/{end}");
        for end in [
            "chat/completions",
            "chat/completions/",
            "responses",
            "messages",
        ] {
            let candidate = format!("[[candidates]]\nmodel = \"m\"\nbase_url = \"{}\"", of(end));
            let (path, lines) = Config::new(candidate).refused().await;
            let told = lines.join("\n");
            let place = format!("{path}:3:12: candidates[0].base_url: ");
            assert!(told.contains(&place), "{end}: {told}");
            assert!(told.contains("https://api.openai.com/v1"), "{end}: {told}");
        }
    });
}

/// A base URL without `/v1` was answered by the provider's web server with a page of HTML, which
/// was all that the user got to see.
///
/// <https://github.com/tsundereraws/aisub-translator/issues/2>
///
/// covers: A5
#[test]
fn a_page_in_place_of_an_api_is_logged_with_its_url_and_passed_on() {
    run(async {
        let page = "<html><body><center><h1>404 Not Found</h1></center></body></html>";
        let length = page.len();
        let upstream = Upstream::bytes(format!(
            "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: {length}\r\n\r\n{page}"
        ))
        .await;
        let url = format!("http://{}", upstream.addr);
        let candidate = format!("[[candidates]]\nmodel = \"m\"\nbase_url = \"{url}\"");
        let gateway = Config::new(candidate).start().await;
        let answer = gateway.post(CHAT, chat("m")).ask().await;

        assert_eq!((answer.status.as_u16(), answer.text()), (404, page));
        let line = eventually(async || {
            let log = gateway.log();
            let line = log.lines().find(|line| line.contains("status=404"));
            line.map(str::to_owned)
        })
        .await;
        for word in [&*format!("{url}/chat/completions"), "base_url", "/v1"] {
            assert!(line.contains(word), "{word}: {line}");
        }
    });
}

/// Images that took longer than a silence may last were made again and again, each paid for and
/// none received, as every repeat met the same limit.
///
/// <https://github.com/onyx-dot-app/onyx/pull/13282>
///
/// covers: F15, C1
#[test]
fn an_image_that_takes_too_long_is_made_once_and_the_caller_is_told_the_limit() {
    run(async {
        let upstream = Upstream::http1(Play::Script(vec![Step::Hang])).await;
        let settings = "[attempt]\nstep_timeout = \"1s\"\n\
                        [retry]\nmax_attempts_per_candidate = 3\nbase_delay = \"1ms\"";
        let gateway = Config::new(settings)
            .candidate("m", upstream.addr)
            .start()
            .await;
        let body = json!({"model": "m", "prompt": "a cat, in great detail"}).to_string();
        let request = gateway.post("/v1/images/generations", body);
        let answer = request.header("x-run-id", "r-1").ask().await;

        assert_eq!(answer.status, 504, "{}", answer.text());
        assert_eq!(upstream.count(), 1);
        let message = answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        for words in ["step_timeout", "1s", "No other attempt followed"] {
            assert!(message.contains(words), "{words}: {message}");
        }
        upstream.until_open(0).await;
    });
}
