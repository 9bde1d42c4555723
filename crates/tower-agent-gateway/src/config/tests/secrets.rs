use super::{CANDIDATE, message, parse, with_candidate};

#[test]
fn a_missing_variable_is_named_with_its_owner() {
    let key = message(parse(&format!(
        "{CANDIDATE}name = \"main\"\napi_key_env = \"NOT_SET\"\n"
    )));
    let empty = message(parse(&format!("{CANDIDATE}api_key_env = \"EMPTY\"\n")));
    let token = message(with_candidate("[control]\ntoken_env = \"NOT_SET\""));

    assert_eq!(
        key,
        "gateway.toml:5:15: the environment variable NOT_SET of candidate \"main\" is not set"
    );
    assert_eq!(
        empty,
        "gateway.toml:4:15: the environment variable EMPTY of candidate \"m\" is empty"
    );
    assert_eq!(
        token,
        "gateway.toml:2:13: the environment variable NOT_SET of [control] is not set"
    );
}

#[test]
fn secrets_are_never_printed() {
    let config = parse(&format!("{CANDIDATE}api_key_env = \"KEY\"\n")).unwrap();
    let error = message(parse(&format!("{CANDIDATE}api_key_env = \"TWO_LINES\"\n")));

    let printed = format!("{config:?}");

    assert!(printed.contains("[hidden]"), "{printed}");
    assert!(!printed.contains("sk-"), "{printed}");
    assert!(
        error.contains("no header may carry") && !error.contains("sk-"),
        "{error}"
    );
}

#[test]
fn a_secret_is_itself_and_nothing_else() {
    let secret = parse(&format!("{CANDIDATE}api_key_env = \"KEY\"\n")).unwrap();
    let secret = secret.candidates[0].api_key.clone().unwrap();

    assert!(secret.is("sk-secret"));
    for other in [
        "",
        "s",
        "sk-secre",
        "sk-secretx",
        "sk-secretsk-secret",
        "sk-Secret",
        "\0",
    ] {
        assert!(!secret.is(other), "{other:?}");
    }
}
