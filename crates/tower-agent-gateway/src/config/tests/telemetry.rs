//! covers: H10

use super::{message, with_candidate};

#[test]
fn spans_go_to_the_path_of_traces_at_the_receiver() {
    for url in [
        "http://127.0.0.1:4318",
        "http://127.0.0.1:4318/",
        "http://127.0.0.1:4318/v1/traces",
    ] {
        let config = with_candidate(&format!("[telemetry]\notlp = \"{url}\"")).unwrap();
        let telemetry = config.telemetry.unwrap();
        assert_eq!(telemetry.traces, "http://127.0.0.1:4318/v1/traces");
        assert_eq!(telemetry.service_name, None);
    }
    let text = "[telemetry]\notlp = \"https://otel.example/otlp\"\nservice_name = \"edge\"";
    let telemetry = with_candidate(text).unwrap().telemetry.unwrap();
    assert_eq!(telemetry.traces, "https://otel.example/otlp/v1/traces");
    assert_eq!(telemetry.service_name.as_deref(), Some("edge"));
    assert_eq!(with_candidate("").unwrap().telemetry, None);
}

#[test]
fn a_mistake_is_named_with_its_place() {
    let url = "otlp = \"http://127.0.0.1:4318\"\n";
    for (text, place, says) in [
        (String::new(), "1:2", "telemetry: missing key `otlp`"),
        (
            "otlp = \"127.0.0.1:4318\"".to_owned(),
            "2:8",
            "telemetry.otlp: \"127.0.0.1:4318\"",
        ),
        (
            "otlp = \"grpc://127.0.0.1:4317\"".to_owned(),
            "2:8",
            "telemetry.otlp: \"grpc://127.0.0.1:4317\" must be an absolute http or https URL",
        ),
        (
            format!("{url}service_name = \"\""),
            "3:16",
            "telemetry.service_name: is empty",
        ),
        (
            format!("{url}grpc = true"),
            "3:1",
            "telemetry.grpc: unknown key",
        ),
    ] {
        let message = message(with_candidate(&format!("[telemetry]\n{text}")));
        let start = format!("gateway.toml:{place}: {says}");
        assert!(message.starts_with(&start), "{message}");
    }
}
