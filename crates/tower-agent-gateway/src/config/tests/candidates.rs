use super::super::ConfigError;
use super::{CANDIDATE, Config, message, parse, with_candidate};

fn base_url(url: &str) -> Result<Config, ConfigError> {
    parse(&format!(
        "[[candidates]]\nmodel = \"m\"\nbase_url = \"{url}\"\n"
    ))
}

#[test]
fn candidates_keep_their_order() {
    let second = "[[candidates]]\nname = \"n\"\nmodel = \"m\"\nbase_url = \"http://h/v1\"\n";
    let config = with_candidate(second).unwrap();

    let names: Vec<_> = config.candidates.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["n", "m"]);
}

#[test]
fn there_is_a_candidate_and_no_two_of_one_name() {
    let none = message(parse(""));
    let two = message(with_candidate(CANDIDATE));
    let renamed = message(parse(&format!(
        "{CANDIDATE}[[candidates]]\nname = \"m\"\nmodel = \"n\"\nbase_url = \"http://h/v1\"\n"
    )));
    let nameless = message(parse(&format!("{CANDIDATE}name = \"\"\n")));

    assert_eq!(
        none,
        "gateway.toml: no candidate: add one [[candidates]] with `model` and `base_url`"
    );
    assert_eq!(
        two,
        "gateway.toml:5:1: a second candidate is named \"m\": give it another `name`"
    );
    assert_eq!(
        renamed,
        "gateway.toml:4:1: a second candidate is named \"m\": give it another `name`"
    );
    assert_eq!(nameless, "gateway.toml:4:8: candidates.name is empty");
}

#[test]
fn a_candidate_needs_model_and_base_url() {
    let no_model = message(parse("[[candidates]]\nbase_url = \"http://h/v1\"\n"));
    let empty_model = message(parse(
        "[[candidates]]\nmodel = \"\"\nbase_url = \"http://h/v1\"\n",
    ));
    let no_url = message(parse("[[candidates]]\nmodel = \"m\"\n"));

    assert!(no_model.contains("missing key `model`"), "{no_model}");
    assert!(
        empty_model.contains("candidates.model is empty"),
        "{empty_model}"
    );
    assert!(no_url.contains("missing key `base_url`"), "{no_url}");
}

#[test]
fn a_base_url_is_absolute_http() {
    let wrong = [
        "",
        "/v1",
        "host/v1",
        "host:80",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "http://host:99999/v1",
        "http://host/v1?key=1",
        "http://host/v1#top",
        "http://a b/v1",
    ];
    for url in wrong {
        let message = message(base_url(url));

        assert!(
            message.starts_with(&format!(
                "gateway.toml:3:12: candidates.base_url = \"{url}\" "
            )),
            "{message}"
        );
    }
}

#[test]
fn a_password_in_a_base_url_is_refused_unseen() {
    let message = message(base_url("http://me:hunter2@host/v1"));

    assert!(message.contains("must not hold credentials"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn a_trailing_slash_is_dropped() {
    for (url, resolved) in [
        ("http://h/v1/", "http://h/v1"),
        ("http://[::1]:8/", "http://[::1]:8/"),
    ] {
        let config = base_url(url).unwrap();

        assert_eq!(config.candidates[0].base_url, resolved);
    }
}
