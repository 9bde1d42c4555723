//! covers: D7

use crate::conversation::item::canonical as arguments;

#[test]
fn the_order_of_keys_and_white_space_do_not_count_at_any_depth() {
    let one = arguments(br#"{"a":1,"b":{"c":[1,{"x":"y","z":null}],"d":2.50}}"#);
    let other = arguments(
        br#" { "b" : {"d":2.50, "c":[ 1 , {"z":null,"x":"y"}]},
               "a":1 } "#,
    );

    assert_eq!(one, other);
}

#[test]
fn what_differs_differs() {
    let all = [
        r#"{"a":1}"#,
        r#"{"a":2}"#,
        r#"{"a":"1"}"#,
        r#"{"a":1.0}"#,
        r#"{"b":1}"#,
        r#"{"a":[1]}"#,
        r#"{"a":{}}"#,
        r#"{"a":[]}"#,
        r#"[{"a":1}]"#,
        r#"{"a":1,"b":1}"#,
        r#"{"a":[1,2]}"#,
        r#"{"a":[2,1]}"#,
        r#"{}"#,
        r#"[]"#,
        "not json",
        r#"{"a":1} "#.trim_end().strip_suffix('}').unwrap(),
        r#"{"a":1}x"#,
    ];
    let digests: std::collections::HashSet<_> =
        all.iter().map(|json| arguments(json.as_bytes())).collect();

    assert_eq!(digests.len(), all.len());
}

#[test]
fn no_arguments_are_an_empty_object() {
    assert_eq!(arguments(b""), arguments(b" {} "));
}

#[test]
fn what_is_nested_too_deeply_counts_by_its_bytes() {
    let deep = |end: &str| "[".repeat(100_000) + end;

    assert_eq!(
        arguments(deep("1").as_bytes()),
        arguments(deep("1").as_bytes())
    );
    assert_ne!(
        arguments(deep("1").as_bytes()),
        arguments(deep("2").as_bytes())
    );
}
