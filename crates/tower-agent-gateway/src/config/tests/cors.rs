use super::super::Cors;
use super::{message, with_candidate};

fn origins(list: &str) -> String {
    format!("[cors]\norigins = [{list}]\n")
}

#[test]
fn origins_are_kept_as_browsers_write_them() {
    let text = origins(
        "\"https://app.example\", \"HTTP://App.Example:8080\", \"https://a.example:443\", \
         \"http://[::1]:80\", \"tauri://localhost\"",
    );
    let Some(Cors::Of(origins)) = with_candidate(&text).unwrap().cors else {
        panic!("origins are listed");
    };
    let wanted = [
        "https://app.example",
        "http://app.example:8080",
        "https://a.example",
        "http://[::1]",
        "tauri://localhost",
    ];
    assert_eq!(origins, wanted);
}

#[test]
fn what_is_no_origin_is_named() {
    for origin in [
        "",
        "null",
        "app.example",
        "//app.example",
        "https://",
        "https://app.example/",
        "https://app.example/path",
        "https://app.example?q",
        "https://app.example#top",
        "https://me@app.example",
        "https://*.example",
        "https://app.example:99999",
        "https://app.example:",
        "https://a b",
        "https://\u{e9}.example",
        "1http://app.example",
    ] {
        let list = format!("\"https://ok.example\", \"{origin}\"");
        let message = message(with_candidate(&origins(&list)));

        let start = format!("gateway.toml:2:34: cors.origins[1]: {origin:?} ");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn any_origin_needs_keys_and_stands_alone() {
    let auth = "[auth]\nkeys_env = \"KEYS\"\n";
    let any = with_candidate(&format!("{auth}{}", origins("\"*\""))).unwrap();
    let keyless = message(with_candidate(&origins("\"*\"")));
    let mixed = format!("{auth}{}", origins("\"https://a\", \"*\""));
    let mixed = message(with_candidate(&mixed));

    assert_eq!(any.cors, Some(Cors::Any));
    assert_eq!(
        keyless,
        "gateway.toml:2:12: cors.origins[0]: is \"*\", which needs [auth]: any page could spend your keys"
    );
    assert!(
        mixed.contains("cors.origins[1]: is \"*\" beside others"),
        "{mixed}"
    );
}

#[test]
fn an_empty_list_and_unknown_keys_are_refused() {
    let empty = message(with_candidate(&origins("")));
    let unknown = message(with_candidate("[cors]\norigin = \"https://a\"\n"));
    let text = message(with_candidate("[cors]\norigins = \"https://a\"\n"));

    assert!(
        empty.starts_with("gateway.toml:2:11: cors.origins: is empty"),
        "{empty}"
    );
    assert!(unknown.contains("cors.origin: unknown key"), "{unknown}");
    assert!(text.starts_with("gateway.toml:2:11: "), "{text}");
}
