//! covers: H12

use super::{CANDIDATE, Config, ConfigError, message, resolve};
use crate::config::WebhookKind;

/// Thirty-two bytes.
const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn with(secret: &str, keys: &str) -> Result<Config, ConfigError> {
    let text = format!("[[webhooks]]\n{keys}\n{CANDIDATE}");
    resolve(&text, |variable| {
        (variable == "HOOK").then(|| secret.to_owned())
    })
}

const RECEIVER: &str = "url = \"https://hooks.example/a\"\nsecret_env = \"HOOK\"\n";

#[test]
fn a_receiver_gets_everything_unless_it_names_what() {
    use WebhookKind::{CandidateDown, Ended, Frozen, NearCap, Paused, Stuck};

    let all = &with(SECRET, RECEIVER).unwrap().webhooks[0];
    assert_eq!(all.url, "https://hooks.example/a");
    for kind in [Ended, NearCap, Paused, Stuck, CandidateDown, Frozen] {
        assert!(all.wants(kind, None), "{kind:?}");
    }
    assert!(all.wants(Ended, Some("completed")));

    let keys =
        "on = [\"ended\", \"frozen\", \"paused\"]\nreasons = [\"stuck\", \"upstream_failed\"]";
    let some = &with(SECRET, &format!("{RECEIVER}{keys}")).unwrap().webhooks[0];
    assert!(some.wants(Ended, Some("stuck")) && some.wants(Ended, Some("upstream_failed")));
    assert!(!some.wants(Ended, Some("completed")) && !some.wants(Ended, Some("aborted")));
    assert!(some.wants(Frozen, None) && some.wants(Paused, None));
    assert!(!some.wants(NearCap, None) && !some.wants(CandidateDown, None));
    assert!(resolve(CANDIDATE, |_| None).unwrap().webhooks.is_empty());
}

#[test]
fn every_mistake_is_named_with_its_place() {
    let url = |value: &str| format!("url = \"{value}\"\nsecret_env = \"HOOK\"");
    let on = |value: &str| format!("{RECEIVER}on = [{value}]");
    let reasons = |value: &str| format!("{RECEIVER}reasons = [{value}]");
    for (keys, says) in [
        (String::new(), "1:1: webhooks[0]: missing key `url`"),
        (
            url("hooks.example"),
            "2:7: webhooks[0].url: must be an absolute http or https URL: it has no such scheme",
        ),
        (
            url("ftp://hooks.example/s3cr3t"),
            "2:7: webhooks[0].url: must be an absolute http or https URL: it has no such scheme",
        ),
        (
            url("https://u:s3cr3t@h"),
            "2:7: webhooks[0].url: must be an absolute http or https URL: it holds credentials",
        ),
        (
            url("https://h:99999/s3cr3t"),
            "2:7: webhooks[0].url: must be an absolute http or https URL: it names no host, or no port",
        ),
        (
            url("https://h/?key=s3cr3t#x"),
            "2:7: webhooks[0].url: must be an absolute http or https URL: it has a fragment",
        ),
        (
            url("https://h/s3cr3t with spaces"),
            "2:7: webhooks[0].url: must be an absolute http or https URL: invalid uri",
        ),
        (
            format!("{RECEIVER}retries = 3"),
            "4:1: webhooks[0].retries: unknown key",
        ),
        (
            on("\"ended\", \"began\""),
            "4:16: webhooks[0].on[1]: unknown variant `began`, expected one of `ended`, `near_cap`, \
             `paused`, `stuck`, `candidate_down`, `frozen`",
        ),
        (
            on(""),
            "4:6: webhooks[0].on: is empty: the receiver would get nothing",
        ),
        (
            reasons(""),
            "4:11: webhooks[0].reasons: is empty: the receiver would get no end",
        ),
        (
            reasons("\"stuck\", \"stuk\""),
            "4:21: webhooks[0].reasons[1]: \"stuk\" is not a reason of an end",
        ),
        (
            format!("{}\nreasons = [\"stuck\"]", on("\"frozen\"")),
            "5:11: webhooks[0].reasons: has no effect: `on` has no \"ended\"",
        ),
        (
            "url = \"https://h\"\nsecret_env = \"NOT_SET\"".to_owned(),
            "3:14: webhooks[0].secret_env: the environment variable NOT_SET is not set",
        ),
        (
            format!("{RECEIVER}[[webhooks]]\n{RECEIVER}"),
            "5:7: webhooks[1].url: is that of webhooks[0]: write one table for a receiver",
        ),
        (
            format!(
                "{RECEIVER}[[webhooks]]\n{}",
                RECEIVER.replacen("hooks", "HOOKS", 1)
            ),
            "5:7: webhooks[1].url: is that of webhooks[0]: write one table for a receiver",
        ),
    ] {
        let message = message(with(SECRET, &keys));
        let start = format!("gateway.toml:{says}");
        assert!(message.starts_with(&start), "{message}");
        assert!(!message.contains("s3cr3t"), "{message}");
    }
}

/// Receivers tell their senders apart by a path or a query, and may take another one for a slash more.
#[test]
fn a_url_is_used_as_it_is_written() {
    for url in ["http://[::1]:8080/a/", "https://h/a?key=b%2F"] {
        let keys = format!("url = \"{url}\"\nsecret_env = \"HOOK\"");
        let config = with(SECRET, &keys).unwrap();
        assert_eq!(config.webhooks[0].url.to_string(), url);
    }
}

/// Only a receiver that wants near caps turns their notices on, and a key of the configuration decides
/// before it.
#[test]
fn a_receiver_of_near_caps_sets_the_part_of_a_cap_that_is_near() {
    let near_at = |on: &str, run: &str| {
        let text = format!("[run]\n{run}\n[[webhooks]]\n{RECEIVER}{on}\n{CANDIDATE}");
        let config = resolve(&text, |_| Some(SECRET.to_owned())).unwrap();
        let run = &config.agent.to_toml().unwrap()["run"];
        run.get("near_at").map(|it| it.as_float().unwrap())
    };
    assert_eq!(near_at("", "max_turns = 5"), Some(0.8));
    assert_eq!(near_at("on = [\"near_cap\"]", "max_turns = 5"), Some(0.8));
    assert_eq!(near_at("", "max_turns = 5\nnear_at = 0.5"), Some(0.5));
    assert_eq!(near_at("", "max_turns = 5\nnear_at = 0"), Some(0.0));
    assert_eq!(near_at("", ""), None);
    assert_eq!(near_at("on = [\"ended\"]", "max_turns = 5"), None);
}

#[test]
fn a_secret_is_that_of_the_specification_and_is_never_printed() {
    let short = "whsec_c2VjcmV0";
    let long = format!("whsec_{}", "AAAA".repeat(22));
    for secret in [
        "",
        "s3cr3t-in-plain-text-of-some-length",
        short,
        &long,
        "whsec_%%%",
    ] {
        let message = message(with(secret, RECEIVER));
        let start = "gateway.toml:3:14: webhooks[0].secret_env: the environment variable HOOK ";
        assert!(message.starts_with(start), "{message}");
        assert!(secret.is_empty() || !message.contains(secret), "{message}");
    }
    let config = with(SECRET, RECEIVER).unwrap();
    let printed = format!("{config:?}");
    assert!(printed.contains("[hidden]"), "{printed}");
    assert!(!printed.contains("AAECAwQF"), "{printed}");
    assert!(!toml::to_string(&config.own).unwrap().contains("AAECAwQF"));
}
