//! What a candidate is sent is what the caller wrote, but for the model.

use std::fmt::Write as _;

use crate::{
    net::{Ask, CHAT, Raw, Upstream, run},
    support::Config,
};

/// The only bytes that may change, as they stand in the prompt.
const MODEL: &str = "\"model\" : \"500\"";

/// Full of what a JSON library would change on the way: long numbers, spaces, the
/// order of keys, escapes; and of keys that are called as the one that may change.
fn prompt(bytes: usize) -> String {
    let mut body = String::from("{ \"z\":1.0,\"seed\":12345678901234567,\"b\":1e-7,\n");
    body += "\"metadata\":{\"model\":\"500\",\"mod\\u0065l\":\"500\"},";
    let _ = write!(body, "\t{MODEL} ,\"note\":\"x\\u00e9\\/\\ud83e\\udd80\",");
    body += "\"messages\":[{\"role\":\"user\",\"content\":\"";
    // Not one piece again and again: what is lost or swapped shows.
    for line in 0_u32.. {
        if body.len() >= bytes {
            break;
        }
        let _ = write!(body, "line {line}: \\\"model\\\": \\\"500\\\"; ");
    }
    body + "\"}],\"a\":1.0000000000000000001} \n"
}

/// covers: T56
#[test]
fn a_large_prompt_reaches_the_second_candidate_byte_for_byte_but_for_the_model() {
    run(async {
        let (upstream, gateway) = Config::new("[retry]")
            .start_with_model(&["500", "a-longer-name"])
            .await;
        let body = prompt(5_000_000);

        let answer = gateway.post(CHAT, body.clone()).ask().await;

        assert_eq!(answer.status, 200);
        assert_eq!(upstream.models(), ["500", "500", "a-longer-name"]);
        let second = body.replacen(MODEL, "\"model\" : \"a-longer-name\"", 1);
        let seen = upstream.calls();
        for (seen, wanted) in seen.iter().zip([&body, &body, &second]) {
            assert_eq!(seen.headers["content-length"], wanted.len().to_string());
            // Not by `assert_eq!`, which would print both.
            assert!(seen.body == *wanted, "{} bytes came", seen.body.len());
        }
    });
}

/// The name in the list is the caller's; the upstream knows the model by its own.
#[test]
fn each_candidate_is_sent_its_own_model() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Config::default()
            .candidate("503", upstream.addr)
            .set("name = \"one\"")
            .candidate("org/\"second\" é", upstream.addr)
            .set("name = \"two\"")
            .start()
            .await;
        let body = "{\"mod\\u0065l\":\"one\"}";
        let answer = gateway.post(CHAT, body).ask().await;
        assert_eq!(answer.status, 200);
        assert_eq!(upstream.models(), ["503", "org/\"second\" é"]);
        assert_eq!(upstream.calls()[0].body, "{\"mod\\u0065l\":\"503\"}");
    });
}

/// covers: T57
#[test]
fn a_model_that_is_there_twice_is_400_without_a_call() {
    run(async {
        let (upstream, gateway) = Config::new("[retry]")
            .start_with_model(&["ok", "500"])
            .await;
        for body in [
            "{\"model\":\"ok\",\"model\":\"500\"}",
            "{\"model\":\"ok\",\"mod\\u0065l\":\"ok\"}",
            "{\"model\":3}",
            "[\"model\"]",
            "{\"model\":\"ok\"} {}",
        ] {
            let answer = gateway.post(CHAT, body).ask().await;
            assert_eq!(answer.status, 400, "{body}");
            let text = answer.text();
            assert!(text.contains("invalid_request_error"), "{text}");
        }
        assert_eq!(upstream.count(), 0);
    });
}

#[test]
fn a_body_over_the_limit_is_413_without_a_call() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let length = 32 * 1024 * 1024 + 1;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n{{");
        let answer = Raw::request(gateway.addr, &head).await.answer().await;
        assert_eq!(answer.status, 413);
        assert_eq!(upstream.count(), 0);
    });
}
