//! Finds the runs of agents that send no `x-run-id`, from other headers and the body.

use std::{error::Error, fmt};

use http::{HeaderName, HeaderValue, request::Parts};

use super::request_run::{ParentRun, RequestRun};
use crate::{
    headers::X_RUN_ID,
    llm::{SenderIdentity, texts},
    registry::{DigestKeys, Purpose},
    run::RunId,
};

/// Finds the run of a request from an agent that knows nothing of this crate.
///
/// A run is one turn of the user: all model calls between one message of the user and the next. A
/// sub-agent's run is a child of its parent's run, and ends with that run. If the parent ended other
/// than as completed, the sub-agent's run is over from its birth, with the parent's reason. A
/// sub-agent with an unknown parent belongs to the main agent.
///
/// | agent | session | user turn | sub-agent |
/// |---|---|---|---|
/// | Codex | `session_id` in `x-codex-turn-metadata` | `turn_id` in it | child of `root_turn_id` |
/// | Claude Code | `x-claude-code-session-id` | the user's words | `x-claude-code-agent-id`, child of `x-claude-code-parent-agent-id` |
/// | OpenCode | `x-opencode-session` | the user's words | |
/// | OpenCode with a provider that its user named, pi | `x-session-affinity`, if it is a UUID or begins with `ses_` | the user's words, of a request with tools | child of the session `x-parent-session-id` |
/// | clients of LiteLLM | `x-litellm-session-id`, `x-litellm-trace-id` | the user's words | |
/// | Anthropic's API | `metadata.user_id`: its `session_id`, or the text after `_session_` | the user's words | |
/// | OpenAI's APIs | `prompt_cache_key`, if it is a UUID | the user's words | |
///
/// The first row that fits counts. The words of the user are the texts in the user's messages. A
/// text such as `<system-reminder>..</system-reminder>` is a note of the agent, and does not count;
/// nor does a tool's result. A request with `x-run-id` names its run itself, so nothing is found.
/// An `x-session-id` names the session of the run, instead of the session in the table. A
/// `prompt_cache_key` or an `x-session-affinity` of another form may be the same for all users of a
/// program, so it is not a session. With `x-session-affinity`, a request that offers the model no
/// tools is not a part of a turn: OpenCode asks so for a title, while the turn goes on.
///
/// In the id of the run a digest stands for the user's words, and another one for a session or turn
/// that cannot be a part of an id. With a [`SharedSecret`](crate::registry::SharedSecret) all processes that
/// share it make the same digests.
///
/// Callers choose their headers and bodies freely, so a cap on a run that is found so does not
/// bound a caller. The caps of an [`OwnerCapLayer`](crate::OwnerCapLayer) do.
///
/// ```
/// use http::Request;
/// use tower_agent::layers::run::KnownAgents;
///
/// let (parts, ()) = Request::post("/v1/messages")
///     .header("x-claude-code-session-id", "s-1")
///     .body(())?
///     .into_parts();
/// let agents = KnownAgents::new();
/// let turn = |said: &str| {
///     let body = format!(r#"{{"messages":[{{"role":"user","content":"{said}"}}]}}"#);
///     agents.run_of(&parts, body.as_bytes())
/// };
///
/// assert_eq!(turn("hi"), turn("hi"));
/// assert_ne!(turn("hi"), turn("bye"));
/// # Ok::<_, http::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct KnownAgents {
    own: Vec<AgentHeaders>,
    built_in: bool,
}

/// The headers by which an agent names its session, its turn and its sub-agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentHeaders {
    session: HeaderName,
    turn: Option<HeaderName>,
    agent: Option<HeaderName>,
    parent: Option<HeaderName>,
}

/// The header in which Codex describes its turn, as JSON.
const CODEX_TURN: HeaderName = HeaderName::from_static("x-codex-turn-metadata");

const CLAUDE_CODE_SESSION: HeaderName = HeaderName::from_static("x-claude-code-session-id");
const CLAUDE_CODE_AGENT: HeaderName = HeaderName::from_static("x-claude-code-agent-id");
const CLAUDE_CODE_PARENT: HeaderName = HeaderName::from_static("x-claude-code-parent-agent-id");

/// Further agents of which only the session is known.
static SESSIONS: [HeaderName; 3] = [
    HeaderName::from_static("x-opencode-session"),
    HeaderName::from_static("x-litellm-session-id"),
    HeaderName::from_static("x-litellm-trace-id"),
];

/// The session of OpenCode, unless it asks its own provider. Fireworks routes by this header, so
/// other programs send it, too.
const AFFINITY: HeaderName = HeaderName::from_static("x-session-affinity");
const PARENT_SESSION: HeaderName = HeaderName::from_static("x-parent-session-id");

/// The maximum length in bytes of a part of an id; a digest replaces a longer part.
///
/// Three such parts and two colons fit into an id.
const LONGEST: usize = 40;

impl Default for KnownAgents {
    fn default() -> Self {
        Self::new()
    }
}

impl KnownAgents {
    /// Makes the list of the agents in the [table](Self).
    #[must_use]
    pub const fn new() -> Self {
        Self {
            own: Vec::new(),
            built_in: true,
        }
    }

    /// Makes an empty list, to which [`with`](Self::with) adds agents.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            own: Vec::new(),
            built_in: false,
        }
    }

    /// Adds an agent, after those added before and before those of the table.
    ///
    /// An added agent with its turn in a header goes before one with its turn in the body.
    #[must_use]
    pub fn with(mut self, agent: AgentHeaders) -> Self {
        self.own.push(agent);
        self
    }

    /// Finds the run of a request; the body is read only if the headers do not name the turn.
    ///
    /// `body` is the whole body, not compressed. The result is `None` if the request names its run
    /// itself, if no agent fits, or if the body decides and has no conversation.
    #[must_use]
    pub fn run_of(&self, parts: &Parts, body: &[u8]) -> Option<RequestRun> {
        if names_its_run(parts) {
            return None;
        }
        self.of_headers(parts).or_else(|| {
            let session = self.session_of(parts, body)?;
            let words = DigestKeys::in_use().hasher(Purpose::Words);
            session.run(parts, &SenderIdentity::read(body, &words)?)
        })
    }

    /// Finds the run of a request by its headers alone.
    ///
    /// `Ok` is the answer of [`run_of`](Self::run_of) for any body.
    ///
    /// # Errors
    ///
    /// [`NeedsBody`] if the headers do not decide, but the body may.
    pub fn run_of_head(&self, parts: &Parts) -> Result<Option<RequestRun>, NeedsBody> {
        let may_fit = self.built_in || self.is_own(parts);
        if !may_fit || names_its_run(parts) {
            return Ok(None);
        }
        self.of_headers(parts).map(Some).ok_or(NeedsBody)
    }

    fn of_headers(&self, parts: &Parts) -> Option<RequestRun> {
        let own = self.own.iter().find_map(|agent| {
            let (session, turn) = (agent.session_in(parts)?, agent.turn.as_ref()?);
            Some(agent.run(parts, session, &part(text(parts, turn)?)))
        });
        // An agent that the program added comes first even if its turn is in the body.
        own.or_else(|| (self.built_in && !self.is_own(parts)).then(|| codex(parts))?)
    }

    /// Whether an agent that the program added sent the request.
    fn is_own(&self, parts: &Parts) -> bool {
        self.own.iter().any(|it| it.session_in(parts).is_some())
    }

    /// Finds what names the session of a request with its turn in the body; `None` if nothing does.
    ///
    /// The body is only searched for the keys of a session.
    fn session_of<'a>(&'a self, parts: &'a Parts, body: &[u8]) -> Option<SessionName<'a>> {
        let mut own = self.own.iter();
        if let Some((agent, session)) = own.find_map(|it| Some((it, it.session_in(parts)?))) {
            return Some(SessionName::Own(agent, session));
        }
        if !self.built_in {
            return None;
        }
        if let Some(session) = text(parts, &CLAUDE_CODE_SESSION) {
            return Some(SessionName::ClaudeCode(session));
        }
        if let Some(session) = SESSIONS.iter().find_map(|name| text(parts, name)) {
            return Some(SessionName::Header(session));
        }
        let affinity = text(parts, &AFFINITY);
        match affinity.filter(|it| is_uuid(it) || it.starts_with("ses_")) {
            Some(session) => Some(SessionName::OpenCode(session)),
            None => SenderIdentity::may_be_named(body).then_some(SessionName::Body),
        }
    }
}

/// What names the session of a request with its turn in the body.
#[derive(Clone, Copy, Debug)]
enum SessionName<'a> {
    /// The header of an agent that the program added.
    Own(&'a AgentHeaders, &'a str),
    ClaudeCode(&'a str),
    /// The header of an agent of which only the session is known.
    Header(&'a str),
    OpenCode(&'a str),
    /// The body, if anything.
    Body,
}

impl SessionName<'_> {
    /// The run of the request; `None` if its body names no session either.
    fn run(self, parts: &Parts, sender: &SenderIdentity) -> Option<RequestRun> {
        let turn = format!("{:016x}", sender.words);
        match self {
            Self::Own(agent, session) => Some(agent.run(parts, session, &turn)),
            Self::ClaudeCode(session) => {
                let claude_code = AgentHeaders::session(CLAUDE_CODE_SESSION)
                    .agent(CLAUDE_CODE_AGENT)
                    .parent(CLAUDE_CODE_PARENT);
                Some(claude_code.run(parts, session, &turn))
            }
            Self::Header(session) => Some(run(session, None, &turn)),
            Self::OpenCode(session) => sender.has_tools.then(|| opencode(parts, session, &turn)),
            Self::Body => {
                let of_key = || sender.cache_key.as_deref().filter(|key| is_uuid(key));
                let session = sender.session.as_deref().or_else(of_key)?;
                Some(run(session, None, &turn))
            }
        }
    }
}

/// The error of a search in headers alone, if the body may name the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsBody;

impl fmt::Display for NeedsBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the run is named in the request's body, if at all")
    }
}

impl Error for NeedsBody {}

impl AgentHeaders {
    /// Makes an agent that names its session in the header `name`.
    #[must_use]
    pub const fn session(name: HeaderName) -> Self {
        Self {
            session: name,
            turn: None,
            agent: None,
            parent: None,
        }
    }

    /// Sets the header that names the user's turn; by default the user's words identify it.
    #[must_use]
    pub fn turn(mut self, name: HeaderName) -> Self {
        self.turn = Some(name);
        self
    }

    /// Sets the header that names a sub-agent; the main agent does not send it.
    #[must_use]
    pub fn agent(mut self, name: HeaderName) -> Self {
        self.agent = Some(name);
        self
    }

    /// Sets the header that names the parent of a sub-agent, if that is another sub-agent.
    ///
    /// Without the header the main agent is the parent. The header counts only in requests with the
    /// header of [`agent`](Self::agent).
    #[must_use]
    pub fn parent(mut self, name: HeaderName) -> Self {
        self.parent = Some(name);
        self
    }

    fn session_in<'a>(&self, parts: &'a Parts) -> Option<&'a str> {
        text(parts, &self.session)
    }

    fn run(&self, parts: &Parts, session: &str, turn: &str) -> RequestRun {
        let of = |name: &Option<HeaderName>| text(parts, name.as_ref()?);
        let agent = of(&self.agent);
        let found = run(session, agent, turn);
        let parent = agent.map(|_| ParentRun::Latest {
            session: None,
            of: of(&self.parent).map(|parent| prefix(session, Some(parent))),
            main: prefix(session, None),
        });
        RequestRun { parent, ..found }
    }
}

/// Whether the request names its run in this crate's own header.
fn names_its_run(parts: &Parts) -> bool {
    parts.headers.contains_key(X_RUN_ID)
}

/// Finds the run of a request of Codex.
fn codex(parts: &Parts) -> Option<RequestRun> {
    let turn = parts.headers.get(CODEX_TURN).map(HeaderValue::as_bytes)?;
    let [session, turn, root] = texts(turn, [b"session_id", b"turn_id", b"root_turn_id"])?;
    let (session, turn) = (id(&part(&session?)), id(&part(&turn?)));
    let root = root.map(|root| id(&part(&root)));
    let root = root.filter(|root| *root != turn);
    let run = RequestRun::new(turn).session(session);
    Some(match root {
        Some(root) => run.child_of(root),
        None => run,
    })
}

/// Finds the run of a request of OpenCode, whose sub-agents have sessions of their own.
fn opencode(parts: &Parts, session: &str, turn: &str) -> RequestRun {
    let parent = text(parts, &PARENT_SESSION).filter(|parent| *parent != session);
    let parent = parent.map(|parent| ParentRun::Latest {
        session: Some(id(&part(parent))),
        of: None,
        main: prefix(parent, None),
    });
    RequestRun {
        parent,
        ..run(session, None, turn)
    }
}

/// The run of a session, of the main agent or of a sub-agent, in one turn of the user.
fn run(session: &str, agent: Option<&str>, turn: &str) -> RequestRun {
    let run = id(&format!("{}{turn}", prefix(session, agent)));
    RequestRun::new(run).session(id(&part(session)))
}

/// The common prefix of the ids of an agent's runs, in all turns.
fn prefix(session: &str, agent: Option<&str>) -> String {
    let session = part(session);
    match agent {
        Some(agent) => format!("{session}:{}:", part(agent)),
        None => format!("{session}:"),
    }
}

/// The text if it can be a part of an id; else its digest.
fn part(text: &str) -> String {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if text.len() <= LONGEST && text.bytes().all(allowed) {
        text.to_owned()
    } else {
        format!("{:016x}", digest(text))
    }
}

fn digest(text: &str) -> u64 {
    DigestKeys::in_use().digest(Purpose::IdPart, text.as_bytes())
}

/// The id that consists of parts that [`part`] made; such an id always parses.
fn id(parts: &str) -> RunId {
    parts.parse().unwrap_or_else(|_| RunId::made(digest(parts)))
}

/// The value of a header, trimmed; `None` if it is absent, empty or not printable ASCII.
fn text<'a>(parts: &'a Parts, name: &HeaderName) -> Option<&'a str> {
    let value = parts.headers.get(name)?.to_str().ok()?;
    Some(value.trim()).filter(|value| !value.is_empty())
}

fn is_uuid(text: &str) -> bool {
    let mut groups = text.split('-').map(str::len);
    let hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    text.bytes().all(hex)
        && [8, 4, 4, 4, 12]
            .iter()
            .all(|len| groups.next() == Some(*len))
        && groups.next().is_none()
}
