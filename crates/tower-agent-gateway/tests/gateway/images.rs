//! Images: prompts in JSON, and edits and variations as forms.
//!
//! covers: F15

use reqwest::{Method, RequestBuilder};

use crate::{
    net::{Ask, DIALECTS, Upstream, run},
    support::{Config, Gateway},
};

const SERVED: &str = r#"{"created":1,"data":[{"b64_json":"AAAA"}]}"#;

const ROUTES: [&str; 3] = [
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
];

/// An answer on a connection that stays open.
fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    let kind = "content-type: application/json";
    format!("HTTP/1.1 {status}\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A form with an image that has the beginning of a boundary, and a field, in it.
fn form(model: Option<&str>) -> Vec<u8> {
    let head = "--boundary\r\nContent-Disposition: form-data; name=";
    let image = "\"image\"; filename=\"a.png\"\r\nContent-Type: image/png";
    let mut body = format!("{head}{image}\r\n\r\n").into_bytes();
    body.extend_from_slice(b"\x89PNG\r\n\xff\x00\r\n--bound\r\nname=\"model\"\r\n\r\nz\r\n");
    if let Some(model) = model {
        body.extend_from_slice(format!("{head}\"model\"\r\n\r\n{model}\r\n").as_bytes());
    }
    body.extend_from_slice(format!("{head}\"n\"\r\n\r\n1\r\n--boundary--\r\n").as_bytes());
    body
}

fn upload(gateway: &Gateway, path: &str, body: Vec<u8>) -> RequestBuilder {
    let request = gateway.request(Method::POST, path).body(body);
    request.header("content-type", "multipart/form-data; boundary=boundary")
}

/// Two candidates, of which the first fails.
async fn two(settings: &str) -> (Upstream, Upstream, Gateway) {
    let failing = Upstream::bytes(answer("500 Internal Server Error", "{}")).await;
    let serving = Upstream::bytes(answer("200 OK", SERVED)).await;
    let gateway = Config::new(format_args!(
        "[retry]\nmax_attempts_per_candidate = 1\n{settings}"
    ))
    .candidate("one", failing.addr)
    .candidate("the-other-model", serving.addr)
    .set("dialect = \"openai\"")
    .start()
    .await;
    (failing, serving, gateway)
}

#[test]
fn a_prompt_falls_back_with_the_same_bytes_but_for_the_model() {
    run(async {
        let (failing, serving, gateway) = two("").await;
        let body = r#"{ "model":"one","prompt":"a cat","n":1.0,"a":{"model":"one"}} "#;
        let answer = gateway.post(ROUTES[0], body).ask().await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, SERVED));
        assert_eq!(answer.header("x-served-model"), Some("the-other-model"));
        assert_eq!(answer.header("x-attempt"), Some("2"));
        assert_eq!(failing.calls()[0].body, body);
        let sent = body.replacen("one", "the-other-model", 1);
        assert_eq!(serving.calls()[0].body, sent);
        assert_eq!(serving.calls()[0].uri, ROUTES[0]);
    });
}

#[test]
fn a_form_falls_back_with_the_same_bytes_but_for_the_model() {
    run(async {
        let (failing, serving, gateway) = two("").await;
        for (index, path) in ROUTES[1..].iter().enumerate() {
            let answer = upload(&gateway, path, form(Some("one"))).ask().await;
            assert_eq!((answer.status.as_u16(), answer.text()), (200, SERVED));
            assert_eq!(answer.header("x-served-model"), Some("the-other-model"));
            for (upstream, model) in [(&failing, "one"), (&serving, "the-other-model")] {
                let call = &upstream.calls()[index];
                let sent = form(Some(model));
                assert!(call.body == sent, "{path}");
                assert_eq!(call.uri, *path);
                assert_eq!(call.headers["content-length"], sent.len().to_string());
                let kind = &call.headers["content-type"];
                assert_eq!(kind, "multipart/form-data; boundary=boundary");
            }
        }
        // A model that no candidate has means the list as it stands.
        let answer = upload(&gateway, ROUTES[1], form(Some("unknown")))
            .ask()
            .await;
        assert_eq!(answer.status, 200);
        assert!(failing.calls()[2].body == form(Some("one")));
    });
}

/// Its upstream would take a model of its own choice.
#[test]
fn a_form_without_a_readable_model_is_400_and_says_why() {
    run(async {
        let (failing, serving, gateway) = two("").await;
        let last = "--boundary--\r\n".len();
        let once = form(Some("one"));
        let twice = [&once[..once.len() - last], &once].concat();
        let cut = once[..once.len() - last].to_vec();
        for path in &ROUTES[1..] {
            for (body, why) in [
                (form(None), "the request's form names no `model`"),
                (
                    twice.clone(),
                    "the request's form is unusable: it has a second field `model`",
                ),
                (
                    cut.clone(),
                    "the request's form is unusable: it has no last boundary",
                ),
                (Vec::new(), "the request body is not JSON: it is empty"),
            ] {
                let answer = upload(&gateway, path, body).ask().await;
                assert_eq!(answer.status, 400, "{why}");
                let (kind, message) = DIALECTS[0].error(answer.text());
                assert_eq!((&*kind, &*message), ("invalid_request_error", why));
            }
        }
        let answer = upload(&gateway, ROUTES[0], form(Some("one"))).ask().await;
        assert_eq!(answer.status, 400, "a prompt is JSON");
        assert_eq!((failing.count(), serving.count()), (0, 0));
    });
}

#[test]
fn a_missing_model_of_a_form_is_filled_in_if_the_configuration_says_so() {
    run(async {
        let (failing, serving, gateway) = two("[fallback]\ndefault_model = true").await;
        let answer = upload(&gateway, ROUTES[1], form(None)).ask().await;
        assert_eq!(answer.status, 200);
        for (upstream, model) in [(&failing, "one"), (&serving, "the-other-model")] {
            let head = "--boundary\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n";
            let mut sent = format!("{head}{model}\r\n").into_bytes();
            sent.extend_from_slice(&form(None));
            assert!(upstream.calls()[0].body == sent);
        }
    });
}

/// An image has no tokens of a text, and is no round of an agent.
#[test]
fn images_are_no_turns_and_have_their_operation_in_the_metrics() {
    run(async {
        let gateway = Config::new("[run]\nmax_turns = 1");
        let (upstream, gateway) = gateway.start_with_model(&["m"]).await;
        for _ in 0..3 {
            for path in ROUTES {
                let request = gateway.post(path, r#"{"model":"m","prompt":"a cat"}"#);
                assert_eq!(request.header("x-run-id", "r").ask().await.status, 200);
            }
        }
        assert_eq!(upstream.count(), 9);
        let metrics = gateway.get("/metrics").ask().await;
        let name = "gen_ai_operation_name=\"generate_content\"";
        assert!(metrics.text().contains(name), "{}", metrics.text());
    });
}

#[test]
fn the_simulated_upstream_answers_images_and_fails_on_demand() {
    run(async {
        let gateway = Gateway::embedded().await;
        for model in ["sim-healthy", "sim-failing"] {
            let body = format!(r#"{{"model":"{model}","prompt":"a cat","n":2}}"#);
            let answer = gateway.post(ROUTES[0], body).ask().await;
            assert_eq!(answer.json()["data"].as_array().unwrap().len(), 2);
            assert_eq!(answer.header("x-served-model"), Some("sim-healthy"));
            for path in &ROUTES[1..] {
                let answer = upload(&gateway, path, form(Some(model))).ask().await;
                assert!(answer.json()["data"][0]["b64_json"].is_string());
                assert_eq!(answer.header("x-served-model"), Some("sim-healthy"));
            }
        }
    });
}
