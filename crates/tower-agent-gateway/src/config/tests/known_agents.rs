use super::{message, with_candidate};

fn agent(keys: &str) -> String {
    format!("[known_agents]\nbuilt_in = true\n[[known_agents.headers]]\n{keys}\n")
}

#[test]
fn an_agent_is_its_headers() {
    let text = agent("session = \"X-Chat\"\nturn = \"x-m\"\nagent = \"x-a\"\nparent = \"x-p\"");
    let known = format!("{:?}", with_candidate(&text).unwrap().known_agents);
    for name in ["x-chat", "x-m", "x-a", "x-p"] {
        assert!(known.contains(name), "{known}");
    }
}

#[test]
fn what_is_no_header_is_named() {
    for (keys, says) in [
        ("", "known_agents.headers[0]: "),
        (
            "session = \"a b\"",
            "headers[0].session: \"a b\" is not the name of a header",
        ),
        (
            "session = \"a\"\nturn = \"\"",
            "headers[0].turn: \"\" is not the name of a header",
        ),
        (
            "session = \"a\"\nparent = \"b\"",
            "headers[0].parent: has no effect without `agent`",
        ),
        (
            "session = \"a\"\ntrun = \"b\"",
            "headers[0].trun: unknown key",
        ),
    ] {
        let message = message(with_candidate(&agent(keys)));
        assert!(message.contains(says), "{message}");
    }
}
