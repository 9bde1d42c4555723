use std::fs;

use super::{CANDIDATE, message, parse, resolve, with_candidate};

#[test]
fn a_missing_variable_is_named_with_its_key() {
    let key = message(parse(&format!(
        "{CANDIDATE}name = \"main\"\napi_key_env = \"NOT_SET\"\n"
    )));
    let token = message(with_candidate("[control]\ntoken_env = \"NOT_SET\""));
    let empty = message(with_candidate("[control]\ntoken_env = \"EMPTY\""));

    assert_eq!(
        key,
        "gateway.toml:5:15: candidates[0].api_key_env: the environment variable NOT_SET is not set"
    );
    assert_eq!(
        token,
        "gateway.toml:2:13: control.token_env: the environment variable NOT_SET is not set"
    );
    assert_eq!(
        empty,
        "gateway.toml:2:13: control.token_env: the environment variable EMPTY is empty"
    );
}

/// HTTP takes spaces around a header's value away, so no request could carry such a token.
#[test]
fn a_token_with_a_space_at_an_end_is_refused() {
    for token in ["sk-secret ", " sk-secret", "sk-secret\t"] {
        let text = format!("[control]\ntoken_env = \"KEY\"\n{CANDIDATE}");
        let error = message(resolve(&text, |_| Some(token.to_owned())));

        let start = "gateway.toml:2:13: control.token_env: the environment variable KEY ";
        assert!(error.starts_with(start), "{error}");
        assert!(error.contains("space") && !error.contains("sk-"), "{error}");
    }
}

#[test]
fn the_token_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let text = format!("[control]\ntoken_file = \"{}\"", path.display());

    fs::write(&path, "sk-secret\n").unwrap();
    let config = with_candidate(&text).unwrap();
    assert!(config.control_token.unwrap().is("sk-secret"));

    for (token, why) in [
        ("\n", "is empty"),
        ("sk-secret \n", "space"),
        ("sk\nsecret", "no header may"),
    ] {
        fs::write(&path, token).unwrap();
        let error = message(with_candidate(&text));
        let start = format!(
            "gateway.toml:2:14: control.token_file: the file {} ",
            path.display()
        );
        assert!(error.starts_with(&start) && error.contains(why), "{error}");
        assert!(!error.contains("sk"), "{error}");
    }
}

#[test]
fn secrets_are_never_printed() {
    let control = "[control]\ntoken_env = \"KEY\"\n";
    let config = parse(&format!("{control}{CANDIDATE}api_key_env = \"KEY\"\n")).unwrap();
    let error = message(with_candidate("[control]\ntoken_env = \"TWO_LINES\""));

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
    let config = with_candidate("[control]\ntoken_env = \"KEY\"").unwrap();
    let secret = config.control_token.unwrap();

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
