//! What an operator reads of runs that no cap bounds: their turns, and what they have used.
//!
//! covers: E3

use serde_json::{Value, json};

use crate::{
    net::{Answer, Ask, CHAT, Upstream, chat, eventually, run},
    support::{Config, Gateway},
};

/// An API, its request, and an answer that states 7 tokens of the prompt and 2 of its own.
struct Case {
    path: &'static str,
    streams: bool,
    answer: &'static str,
}

const CASES: [Case; 6] = [
    Case {
        path: CHAT,
        streams: true,
        answer: concat!(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a word\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n",
            "data: [DONE]\n\n",
        ),
    },
    Case {
        path: CHAT,
        streams: false,
        answer: concat!(
            "{\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",",
            "\"message\":{\"role\":\"assistant\",\"content\":\"a word\"}}],",
            "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}",
        ),
    },
    Case {
        path: "/v1/responses",
        streams: true,
        answer: concat!(
            "event: response.output_text.delta\n",
            "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a word\"}\n\n",
            "event: response.completed\n",
            "data: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",",
            "\"status\":\"completed\",\"usage\":{\"input_tokens\":7,\"output_tokens\":2}}}\n\n",
        ),
    },
    Case {
        path: "/v1/responses",
        streams: false,
        answer: concat!(
            "{\"object\":\"response\",\"id\":\"resp_1\",\"status\":\"completed\",\"output\":[],",
            "\"usage\":{\"input_tokens\":7,\"output_tokens\":2}}",
        ),
    },
    Case {
        path: "/v1/messages",
        streams: true,
        answer: concat!(
            "event: message_start\n",
            "data: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",",
            "\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n",
            "event: content_block_delta\n",
            "data: {\"type\":\"content_block_delta\",\"index\":0,",
            "\"delta\":{\"type\":\"text_delta\",\"text\":\"a word\"}}\n\n",
            "event: message_delta\n",
            "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},",
            "\"usage\":{\"output_tokens\":2}}\n\n",
            "event: message_stop\n",
            "data: {\"type\":\"message_stop\"}\n\n",
        ),
    },
    Case {
        path: "/v1/messages",
        streams: false,
        answer: concat!(
            "{\"type\":\"message\",\"id\":\"msg_1\",\"stop_reason\":\"end_turn\",",
            "\"content\":[{\"type\":\"text\",\"text\":\"a word\"}],",
            "\"usage\":{\"input_tokens\":7,\"output_tokens\":2}}",
        ),
    },
];

impl Case {
    /// A gateway without caps in front of an upstream that gives this answer.
    async fn start(&self, settings: &str) -> (Upstream, Gateway) {
        let kind = match self.streams {
            true => "text/event-stream",
            false => "application/json",
        };
        let upstream = Upstream::bytes(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{}",
            self.answer.len(),
            self.answer,
        ))
        .await;
        let config = Config::new(settings).candidate("m", upstream.addr);
        // A price in whole numbers: 7 and 2 tokens cost 7 * 3 and 2 * 5 millionths.
        let config = config.set("price = { input = 3.0, output = 5.0 }");
        (upstream, config.start().await)
    }

    async fn ask(&self, gateway: &Gateway, headers: &[(&str, &str)]) -> Answer {
        let words = [json!({"role": "user", "content": "say a word"})];
        let said = match self.path {
            "/v1/responses" => "input",
            _ => "messages",
        };
        let body = json!({"model": "m", "max_tokens": 9, "stream": self.streams, said: words});
        let request = gateway.post(self.path, body.to_string());
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let answer = request.ask().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.text(), self.answer);
        answer
    }
}

fn spent(answers: u64) -> Value {
    json!({
        "input_tokens": 7 * answers,
        "cached_input_tokens": 0,
        "output_tokens": 2 * answers,
        "estimated_tokens": 0,
        "estimated_input_tokens": 0,
        "cost": (31 * answers) as f64 / 1e6,
    })
}

#[test]
fn a_run_without_caps_shows_its_turns_and_what_it_has_used() {
    run(async {
        for case in CASES {
            let (_upstream, gateway) = case.start("").await;
            for turns in 1..=2_u64 {
                case.ask(&gateway, &[("x-run-id", "r-1")]).await;
                let at = format!("{} {}", case.path, case.streams);
                // The call is settled a moment after its last byte.
                let row = eventually(async || {
                    let row = gateway.json("/runs/r-1").await;
                    (row["in_flight"] == 0).then_some(row)
                })
                .await;
                assert_eq!(
                    (&row["turns"], &row["spent"]),
                    (&turns.into(), &spent(turns)),
                    "{at}"
                );
                let listed = gateway.json("/runs").await["runs"][0].clone();
                assert_eq!(
                    (&listed["turns"], &listed["spent"]),
                    (&row["turns"], &row["spent"])
                );
            }
        }
    });
}

#[test]
fn a_request_without_an_id_is_a_run_of_one_turn() {
    run(async {
        for case in CASES {
            let (_upstream, gateway) = case.start("").await;
            case.ask(&gateway, &[]).await;
            let row = eventually(async || {
                let row = gateway.json("/runs").await["runs"][0].clone();
                (row["reason"] == "completed").then_some(row)
            })
            .await;
            assert_eq!(
                (&row["turns"], &row["spent"]),
                (&1.into(), &spent(1)),
                "{}",
                case.path
            );
        }
    });
}

/// The sub-agent's turn is not a turn of its parent's, and its tokens are the parent's too.
#[test]
fn a_run_has_used_what_its_sub_agents_have() {
    run(async {
        let case = &CASES[4];
        let (_upstream, gateway) = case.start("").await;
        let session = ("x-claude-code-session-id", "s-1");
        let main = case.ask(&gateway, &[session]).await;
        let sub = case
            .ask(&gateway, &[session, ("x-claude-code-agent-id", "a-1")])
            .await;
        for (answer, used) in [(main, 2), (sub, 1)] {
            let id = answer.header("x-run-id").unwrap();
            let row = eventually(async || {
                let row = gateway.json(&format!("/runs/{id}")).await;
                (row["in_flight"] == 0).then_some(row)
            })
            .await;
            assert_eq!(
                (&row["turns"], &row["spent"]),
                (&1.into(), &spent(used)),
                "{id}"
            );
        }
    });
}

/// An agent whose own caps are off, beside the caps of all others.
#[test]
fn an_agent_without_caps_is_counted_as_all_others_are() {
    run(async {
        let case = &CASES[0];
        let settings = "[auth]\nkeys_env = \"TEST_KEYS\"\n\
                        [run]\nmax_turns = 1\nmax_total_tokens = 1\n\
                        [agents.free]\nmax_turns = 0\nmax_total_tokens = 0\n";
        let upstream = Upstream::bytes(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{}",
            case.answer.len(),
            case.answer,
        ))
        .await;
        let config = Config::new(settings).candidate("m", upstream.addr);
        let config = config.set("price = { input = 3.0, output = 5.0 }");
        let gateway = config.env("TEST_KEYS", "free:sk-free").start().await;
        let headers = [("x-run-id", "r-1"), ("authorization", "Bearer sk-free")];
        for _ in 0..3 {
            case.ask(&gateway, &headers).await;
        }
        let row = gateway.json("/runs/r-1").await;
        assert_eq!((&row["turns"], &row["spent"]), (&3.into(), &spent(3)));
    });
}

/// The record, the event and the log line of an end say the number, too.
#[test]
fn what_tells_the_end_of_a_run_without_caps_tells_its_turns() {
    run(async {
        let settings = "[run]\nmax_turn_time = \"1s\"";
        let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        let mut events = gateway.get("/events").open().await;
        let ask = |user: &str| gateway.post(CHAT, chat(user)).header("x-run-id", "r-1");
        for _ in 0..2 {
            assert_eq!(ask("ok").ask().await.status, 200);
        }
        // The third is in flight at the ceiling.
        assert_eq!(ask("silent").ask().await.reason(), Some("max_turn_time"));

        let record = eventually(async || gateway.records().first().cloned()).await;
        assert_eq!(
            (&record["at_turn"], &record["run"]),
            (&3.into(), &"r-1".into())
        );
        let is_end = |line: &&str| line.starts_with("data: ") && line.contains("\"ended\"");
        let told = |text: &str| {
            let whole = text.rsplit_once("\n\n")?.0;
            whole.lines().find(is_end).map(str::to_owned)
        };
        let ended = told(&events.read(|text| told(text).is_some()).await).unwrap();
        let ended: Value = serde_json::from_str(&ended["data: ".len()..]).unwrap();
        assert_eq!(ended["snapshot"]["turns"], 3, "{ended}");
        assert!(
            ended["snapshot"]["spent"]["estimated_input_tokens"].is_u64(),
            "{ended}"
        );
        let line = eventually(async || {
            let log = gateway.log();
            let line = log.lines().find(|line| line.contains("run ended"));
            line.map(str::to_owned)
        })
        .await;
        assert!(line.contains("turns=3"), "{line}");
    });
}

/// What is no turn stays none, and has what its upstream states.
#[test]
fn what_writes_nothing_is_no_turn_of_a_run_without_caps() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        for path in ["/v1/embeddings", "/v1/messages/count_tokens"] {
            let request = gateway.post(path, chat("ok")).header("x-run-id", "r-1");
            assert_eq!(request.ask().await.status, 200, "{path}");
        }
        let row = gateway.json("/runs/r-1").await;
        assert_eq!(
            (&row["turns"], &row["spent"]["input_tokens"]),
            (&0.into(), &0.into())
        );
    });
}
