//! Runs of agents that know nothing of this crate, by what their documentation says they send.
//!
//! covers: H7

use http::{HeaderName, HeaderValue, Request, request::Parts};
use tower::ServiceExt;
use tower_agent::{
    BoxError, Owner, Run, RunId, RunRegistry, TerminalReason,
    layers::run::{AgentHeaders, KnownAgents, RequestRun},
};

use crate::support::{DONE, ReadExt, Script, Stack, StackService, Upstream, chat, request};

type Headers<'a> = &'a [(&'static str, &'a str)];

const UUID: &str = "01a20e43-f6f2-7573-9c86-0c3097d62db4";

fn parts(headers: Headers<'_>) -> Parts {
    let mut request = Request::post("/v1/chat/completions");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn said(words: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}]}}"#)
}

/// The id of the run, and its session as its debug output has it.
fn found(agents: &KnownAgents, headers: Headers<'_>, body: &str) -> Option<(String, String)> {
    let run = agents.run_of(&parts(headers), body.as_bytes())?;
    Some((run.id().to_string(), format!("{run:?}")))
}

fn prefix_of(headers: Headers<'_>, body: &str) -> Option<String> {
    let (id, _) = found(&KnownAgents::new(), headers, body)?;
    let (prefix, turn) = id.rsplit_once(':')?;
    assert_eq!(turn.len(), 16, "{id}");
    Some(prefix.to_owned())
}

#[test]
fn the_session_is_what_the_agent_sends() {
    let plain = said("hi");
    let tools = plain.replace("}]}", "}],\"tools\":[{\"type\":\"function\"}]}");
    let metadata = |user: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"hi"}}],"metadata":{{"user_id":{user}}}}}"#
        )
    };
    let key = |key: &str| {
        format!(r#"{{"input":[{{"role":"user","content":"hi"}}],"prompt_cache_key":"{key}"}}"#)
    };
    let rows: [(Headers<'_>, String, Option<&str>); 18] = [
        (
            &[("x-claude-code-session-id", "s-1")],
            plain.clone(),
            Some("s-1"),
        ),
        (
            &[
                ("x-claude-code-session-id", "s-1"),
                ("x-claude-code-agent-id", "a-2"),
            ],
            plain.clone(),
            Some("s-1:a-2"),
        ),
        (
            &[("x-opencode-session", "ses_7f")],
            plain.clone(),
            Some("ses_7f"),
        ),
        (
            &[
                ("x-litellm-session-id", "l-1"),
                ("x-litellm-trace-id", "t-1"),
            ],
            plain.clone(),
            Some("l-1"),
        ),
        (&[("x-litellm-trace-id", "t-1")], plain.clone(), Some("t-1")),
        (
            &[],
            metadata(r#""user_ab_account__session_s-9""#),
            Some("s-9"),
        ),
        (
            &[],
            metadata(r#""{\"device_id\":\"d\",\"session_id\":\"s-8\"}""#),
            Some("s-8"),
        ),
        (&[], metadata(r#""just-a-user""#), None),
        (&[], key(UUID), Some(UUID)),
        // A key of a whole program: its users are many.
        (&[], key("support-bot"), None),
        (&[], plain.clone(), None),
        (&[("x-opencode-session", " ")], plain.clone(), None),
        (
            &[("x-session-affinity", "ses_7")],
            tools.clone(),
            Some("ses_7"),
        ),
        (&[("x-session-affinity", UUID)], tools.clone(), Some(UUID)),
        // Fireworks routes by the header: its value may be a user, or a program.
        (&[("x-session-affinity", "user-7")], tools.clone(), None),
        // A title is no turn.
        (&[("x-session-affinity", "ses_7")], plain.clone(), None),
        (
            &[("x-session-affinity", "ses_7")],
            plain.replace("}]}", "}],\"tools\":[]}"),
            None,
        ),
        (&[("x-opencode-session", "s-1")], "no json".to_owned(), None),
    ];
    for (headers, body, wanted) in rows {
        assert_eq!(
            prefix_of(headers, &body).as_deref(),
            wanted,
            "{headers:?} {body}"
        );
    }
}

#[test]
fn a_request_that_names_its_run_is_left_alone() {
    let agents = KnownAgents::new();
    let headers = parts(&[("x-opencode-session", "s"), ("x-run-id", "r-1")]);
    assert_eq!(agents.run_of_head(&headers), Ok(None));
    assert_eq!(agents.run_of(&headers, said("hi").as_bytes()), None);
    // The name of the session does not tell its turns apart.
    let headers = parts(&[("x-opencode-session", "s"), ("x-session-id", "mine")]);
    assert!(agents.run_of_head(&headers).is_err(), "the body decides");
    assert!(agents.run_of(&headers, said("hi").as_bytes()).is_some());
    let session = parts(&[("x-session-id", "mine")]);
    assert_eq!(agents.run_of(&session, said("hi").as_bytes()), None);
    let known = parts(&[("x-opencode-session", "s")]);
    assert!(agents.run_of_head(&known).is_err(), "the body decides");
    assert_eq!(KnownAgents::none().run_of_head(&known), Ok(None));
}

#[test]
fn what_no_id_may_hold_is_digested() {
    let long = "s".repeat(500);
    for session in [long.as_str(), "a b", "a:b", "{\"x\":1}"] {
        let prefix = prefix_of(&[("x-opencode-session", session)], &said("hi")).unwrap();
        assert_eq!(prefix.len(), 16, "{prefix}");
        let again = prefix_of(&[("x-opencode-session", session)], &said("bye"));
        assert_eq!(again, Some(prefix));
    }
}

#[test]
fn codex_names_its_turn_and_the_turn_of_its_root() {
    let agents = KnownAgents::new();
    let of = |json: &str| agents.run_of_head(&parts(&[("x-codex-turn-metadata", json)]));
    let id = |text: &str| text.parse::<RunId>().unwrap();
    let root = RequestRun::new(id("t-1")).session(id("s-1"));
    let turn = r#"{"session_id":"s-1","turn_id":"t-1","root_turn_id":"t-1"}"#;
    assert_eq!(of(turn), Ok(Some(root)));
    let sub = RequestRun::new(id("t-2"))
        .session(id("s-1"))
        .child_of(id("t-1"));
    let turn = r#"{"session_id":"s-1","turn_id":"t-2","root_turn_id":"t-1"}"#;
    assert_eq!(of(turn), Ok(Some(sub)));
    for broken in [
        "{",
        "[]",
        "{}",
        r#"{"session_id":"s-1"}"#,
        r#"{"session_id":"s","turn_id":7}"#,
    ] {
        assert!(of(broken).is_err(), "{broken}");
    }
}

#[test]
fn agents_of_the_programs_own_come_first() {
    let name = HeaderName::from_static;
    let own = AgentHeaders::session(name("x-chat"))
        .agent(name("x-part"))
        .turn(name("x-message"));
    let agents = KnownAgents::new().with(own);
    let both: Headers<'_> = &[
        ("x-chat", "c"),
        ("x-opencode-session", "s"),
        ("x-message", "m"),
    ];
    assert_eq!(found(&agents, both, "").unwrap().0, "c:m");
    let no_turn: Headers<'_> = &[
        ("x-chat", "c"),
        ("x-part", "p"),
        ("x-opencode-session", "s"),
    ];
    assert!(
        found(&agents, no_turn, &said("hi"))
            .unwrap()
            .0
            .starts_with("c:p:")
    );
    let alone = KnownAgents::none().with(AgentHeaders::session(name("x-chat")));
    assert_eq!(alone.run_of_head(&parts(&[])), Ok(None), "no body is read");
    assert!(alone.run_of_head(&parts(no_turn)).is_err());
    let codex = r#"{"session_id":"s","turn_id":"t"}"#;
    let codex: Headers<'_> = &[("x-chat", "c"), ("x-codex-turn-metadata", codex)];
    assert!(
        found(&agents, codex, &said("hi"))
            .unwrap()
            .0
            .starts_with("c:")
    );
    let other: Headers<'_> = &[("x-opencode-session", "s")];
    assert!(
        found(&agents, other, &said("hi"))
            .unwrap()
            .0
            .starts_with("s:")
    );
}

fn stack() -> (RunRegistry, StackService, Upstream) {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE));
    let stack = Stack::default().run(&registry).build(&upstream);
    (registry, stack, upstream)
}

/// Sends what Claude Code's main agent, or one of its sub-agents, sends; answers the run's id.
async fn send(
    service: &mut StackService,
    agent: Option<&'static str>,
    words: &str,
) -> Result<RunId, BoxError> {
    let mut headers = vec![("x-claude-code-session-id", "s-1")];
    headers.extend(agent.map(|agent| ("x-claude-code-agent-id", agent)));
    let run = KnownAgents::new().run_of(&parts(&headers), said(words).as_bytes());
    let mut request = request();
    request.extensions_mut().insert(run.unwrap());
    let answer = service.clone().oneshot(request).await?;
    let id = answer.headers()["x-run-id"].to_str()?.parse()?;
    answer.into_body().read().await.whole();
    Ok(id)
}

fn get(registry: &RunRegistry, id: &RunId) -> Run {
    registry.get(Owner::anonymous(), id).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_is_a_child_of_the_latest_turn() {
    let (registry, mut service, _upstream) = stack();
    let first = send(&mut service, None, "one").await.unwrap();
    let child = send(&mut service, Some("a"), "part").await.unwrap();
    let second = send(&mut service, None, "two").await.unwrap();
    let later = send(&mut service, Some("b"), "part").await.unwrap();
    assert_eq!(send(&mut service, Some("a"), "part").await.unwrap(), child);

    let parent = |id: &RunId| get(&registry, id).snapshot().parent;
    assert_eq!(parent(&child), Some(first.clone()));
    assert_eq!(parent(&later), Some(second));
    get(&registry, &first).end(TerminalReason::Aborted);
    let ended = send(&mut service, Some("a"), "part").await.unwrap_err();
    assert_eq!(
        TerminalReason::find(&*ended),
        Some(&TerminalReason::Aborted)
    );
    send(&mut service, Some("b"), "part").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_an_unknown_or_completed_parent_a_sub_agent_has_a_run_of_its_own() {
    let (registry, mut service, _upstream) = stack();
    let orphan = send(&mut service, Some("a"), "part").await.unwrap();
    assert_eq!(get(&registry, &orphan).snapshot().parent, None);
    let first = send(&mut service, None, "one").await.unwrap();
    get(&registry, &first).end(TerminalReason::Completed);
    let late = send(&mut service, Some("b"), "part").await.unwrap();
    assert_eq!(get(&registry, &late).snapshot().parent, None);
}

fn reason(refused: &BoxError) -> TerminalReason {
    TerminalReason::find(&**refused).unwrap().clone()
}

/// covers: H17
#[tokio::test(start_paused = true)]
async fn a_sub_agent_that_begins_after_its_parents_end_hears_the_parents_reason() {
    for ended in [
        TerminalReason::Aborted,
        TerminalReason::TurnCap,
        TerminalReason::HardCeiling,
    ] {
        let (registry, mut service, upstream) = stack();
        let turn = send(&mut service, None, "one").await.unwrap();
        get(&registry, &turn).end(ended.clone());
        for agent in ["a", "b", "a"] {
            let refused = send(&mut service, Some(agent), "part").await.unwrap_err();
            assert_eq!(reason(&refused), ended);
        }
        // A sub-agent of such a sub-agent, and one whose parent sent nothing yet.
        for parent in ["b", "unknown"] {
            let headers = [
                ("x-claude-code-session-id", "s-1"),
                ("x-claude-code-agent-id", "c"),
                ("x-claude-code-parent-agent-id", parent),
            ];
            let run = KnownAgents::new().run_of(&parts(&headers), said(parent).as_bytes());
            let mut request = request();
            request.extensions_mut().insert(run.unwrap());
            let refused = service.clone().oneshot(request).await.unwrap_err();
            assert_eq!(reason(&refused), ended, "{parent}");
        }
        assert_eq!(upstream.calls(), 1);

        // The user's next message is another matter, and so are its sub-agents.
        let next = send(&mut service, None, "two").await.unwrap();
        let child = send(&mut service, Some("d"), "part").await.unwrap();
        assert_eq!(get(&registry, &child).snapshot().parent, Some(next));
    }
}

/// covers: H17
#[tokio::test(start_paused = true)]
async fn an_end_is_remembered_for_sub_agents_as_long_as_for_its_own_id() {
    let (registry, mut service, _upstream) = stack();
    let turn = send(&mut service, None, "one").await.unwrap();
    get(&registry, &turn).end(TerminalReason::Aborted);
    for _ in 0..3 {
        tokio::time::advance(RunRegistry::REMEMBERED * 9 / 10).await;
        let refused = send(&mut service, Some("a"), "part").await.unwrap_err();
        assert_eq!(reason(&refused), TerminalReason::Aborted);
    }

    tokio::time::advance(RunRegistry::REMEMBERED).await;

    let late = send(&mut service, Some("b"), "part").await.unwrap();
    assert_eq!(get(&registry, &late).snapshot().parent, None);
}

/// covers: H17
#[tokio::test(start_paused = true)]
async fn the_end_of_another_owners_turn_is_none_of_a_sub_agents() {
    let (registry, mut service, _upstream) = stack();
    let other = registry.open_in(
        Owner::of(b"other"),
        "s-1:x".parse().unwrap(),
        "s-1".parse().unwrap(),
    );
    other.end(TerminalReason::Aborted);

    send(&mut service, Some("a"), "part").await.unwrap();
}

/// Its first run completed, so the id begins a new generation, which needs a parent as well.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_whose_run_completed_is_a_child_again() {
    let (registry, mut service, _upstream) = stack();
    let turn = send(&mut service, None, "one").await.unwrap();
    let child = send(&mut service, Some("a"), "part").await.unwrap();
    assert!(get(&registry, &child).end(TerminalReason::Completed));

    assert_eq!(send(&mut service, Some("a"), "part").await.unwrap(), child);

    let again = get(&registry, &child);
    assert_eq!(again.snapshot().generation, 2);
    assert_eq!(again.snapshot().parent, Some(turn.clone()));
    get(&registry, &turn).end(TerminalReason::Aborted);
    assert_eq!(again.terminal_reason(), Some(TerminalReason::Aborted));
}

/// A sub-agent of an ended turn does not live on below an earlier turn, which is open until it has
/// been idle.
#[tokio::test(start_paused = true)]
async fn the_turn_before_an_ended_one_is_no_parent() {
    let (registry, mut service, _upstream) = stack();
    send(&mut service, None, "one").await.unwrap();
    let second = send(&mut service, None, "two").await.unwrap();
    get(&registry, &second).end(TerminalReason::Aborted);
    let late = send(&mut service, Some("a"), "part").await.unwrap_err();
    assert_eq!(reason(&late), TerminalReason::Aborted);
}

/// While a sub-agent works its parent is not idle.
#[tokio::test(start_paused = true)]
async fn a_sub_agents_work_keeps_its_parent_alive() {
    let (registry, mut service, _upstream) = stack();
    let first = send(&mut service, None, "one").await.unwrap();
    for _ in 0..4 {
        tokio::time::advance(RunRegistry::IDLE / 2).await;
        send(&mut service, Some("a"), "part").await.unwrap();
    }
    assert_eq!(get(&registry, &first).terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn the_callers_own_id_wins_over_the_extension() {
    let (_registry, service, _upstream) = stack();
    let mut request = request();
    request
        .headers_mut()
        .insert("x-run-id", HeaderValue::from_static("mine"));
    let given = RequestRun::new("given".parse().unwrap());
    request.extensions_mut().insert(given);
    let answer = service.oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["x-run-id"], "mine");
}
