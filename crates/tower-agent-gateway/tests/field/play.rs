//! Playing a case: upstreams and a gateway of its own, and its requests in order.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;
use toml::Table;

use super::{
    answer,
    case::{Answer, Case, Expect, Operation, Owner, Request, Rest},
    check::{self, Seen},
    healthy,
    net::{Call, ClosedPort, Play, Upstream},
    read::merge,
    support::{Config, Gateway},
};

/// What differs from the expectation; nothing if the case holds.
pub(crate) type Outcome = Vec<String>;

/// The longest that a caller waits.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn play(case: &Case) -> Outcome {
    let stage = Stage::new(&Arc::new(case.clone())).await;
    let mut differences = Vec::new();
    // After the first request nothing rests, unless the case says so.
    let rests: &[Rest] = case.expect.rests.as_deref().unwrap_or_default();
    let seen = stage.ask(&case.request).await;
    differences.extend(check::differences(&case.expect, Some(rests), &seen));
    differences.extend(stage.unreleased(&case.expect, &seen).await);
    for then in &case.then {
        tokio::time::sleep(Duration::from_millis(then.pause_ms)).await;
        let seen = stage.ask(&then.request).await;
        let found = check::differences(&then.expect, then.expect.rests.as_deref(), &seen);
        let unreleased = stage.unreleased(&then.expect, &seen).await;
        let found = found.into_iter().chain(unreleased);
        differences.extend(found.map(|found| format!("then, {}: {found}", then.why)));
    }
    if let Some(run) = stage.wrong_run(&case.expect).await {
        differences.push(run);
    }
    differences
}

/// The gateway of a case, and its upstreams.
struct Stage {
    gateway: Gateway,
    case: Arc<Case>,
    upstreams: Vec<Upstream>,
    // Their ports refuse connections.
    _closed: Vec<ClosedPort>,
}

impl Stage {
    async fn new(case: &Arc<Case>) -> Self {
        let (mut upstreams, mut closed) = (Vec::new(), Vec::new());
        let mut hosts: HashMap<String, SocketAddr> = HashMap::new();
        let mut config = Config::new(settings(case)).env("FIELD_KEYS", "one:key-one,two:key-two");
        for candidate in &case.candidates {
            let host = match candidate.refuses_connection {
                true => format!("{} is closed", candidate.name),
                false => candidate.host().to_owned(),
            };
            if !hosts.contains_key(&host) {
                let address = if candidate.refuses_connection {
                    closed.push(ClosedPort::new());
                    closed[closed.len() - 1].addr
                } else {
                    upstreams.push(upstream(case).await);
                    upstreams[upstreams.len() - 1].addr
                };
                hosts.insert(host.clone(), address);
            }
            let variable = format!("FIELD_KEY_{}", candidate.account().to_uppercase());
            config = config
                .candidate(candidate.model(), hosts[&host])
                .set(format_args!("name = {:?}", candidate.name))
                .set(format_args!("api_key_env = {variable:?}"))
                .set(toml::to_string(&candidate.config).unwrap())
                .env(&variable, &candidate.key());
        }
        Self {
            gateway: config.start().await,
            case: case.clone(),
            upstreams,
            _closed: closed,
        }
    }

    async fn ask(&self, request: &Request) -> Seen {
        let asked = self.calls();
        let moved = self.moves().await;
        let logged = self.gateway.log().len();
        let mut post = self.gateway.post(
            healthy::path(request.operation),
            body(request, self.first()).to_string(),
        );
        post = post.bearer_auth(match request.owner {
            Owner::One => "key-one",
            Owner::Two => "key-two",
        });
        for (name, value) in &request.headers {
            post = post.header(name, value);
        }
        let answer = tokio::time::timeout(PATIENCE, read(post));
        let (answer, ()) = tokio::join!(answer, self.freeze(request));
        let ended = Instant::now();
        let rests = self.gateway.json("/cooldowns").await["cooldowns"].take();
        let mut calls = self.calls();
        for (name, count) in asked {
            *calls.entry(name).or_default() -= count;
        }
        let class = self.class(moved, logged).await;
        Seen {
            answer: answer.unwrap_or(Err(format!("no answer within {PATIENCE:?}"))),
            ended,
            calls,
            rests,
            class,
        }
    }

    /// Stops the gateway's process for as long as the request says.
    async fn freeze(&self, request: &Request) {
        let Some(times) = request.freeze_ms else {
            return;
        };
        let [after, length] = times.map(Duration::from_millis);
        tokio::time::sleep(after).await;
        self.gateway.process.freeze().await;
        tokio::time::sleep(length).await;
        self.gateway.process.signal("CONT");
    }

    /// A call that its upstream still answers after the limit, from the end of the answer on.
    async fn unreleased(&self, expect: &Expect, seen: &Seen) -> Option<String> {
        let limit = Duration::from_millis(expect.released_within_ms?);
        let in_time = |call: &Call| {
            let released = call.released;
            call.complete || released.is_some_and(|at| at <= seen.ended + limit)
        };
        loop {
            let is_late = seen.ended.elapsed() > limit;
            let calls = self.upstreams.iter().flat_map(Upstream::calls);
            let held = calls.into_iter().find(|call| !in_time(call));
            let name = asked(&self.case, &held?);
            if is_late {
                return Some(format!(
                    "{name} is not released within {limit:?} of the end"
                ));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn first(&self) -> &str {
        &self.case.candidates[0].name
    }

    /// How many calls each candidate got so far.
    fn calls(&self) -> BTreeMap<String, usize> {
        let mut calls = BTreeMap::new();
        for call in self.upstreams.iter().flat_map(Upstream::calls) {
            *calls.entry(asked(&self.case, &call)).or_default() += 1;
        }
        calls
    }

    /// Why calls left the first candidate so far, each with how often.
    async fn moves(&self) -> BTreeMap<String, u64> {
        let metrics = self.gateway.get("/metrics").send().await.unwrap();
        let metrics = metrics.text().await.unwrap();
        let from = format!("from=\"{}\"", self.first());
        let lines = metrics.lines();
        let lines = lines.filter(|line| line.starts_with("agent_fallbacks_total{"));
        let moves = lines.filter(|line| line.contains(&from)).map(|line| {
            let why = line.split_once("why=\"").unwrap().1;
            let why = why.split_once('"').unwrap().0.to_owned();
            let count = line.rsplit_once(' ').unwrap().1;
            (why, count.parse().unwrap())
        });
        moves.fold(BTreeMap::new(), |mut moves, (why, count): (_, u64)| {
            *moves.entry(why).or_default() += count;
            moves
        })
    }

    /// The class of the failure for which the call left its first candidate, or ended.
    async fn class(&self, before: BTreeMap<String, u64>, logged: usize) -> Option<String> {
        for (why, count) in self.moves().await {
            if count > before.get(&why).copied().unwrap_or_default() {
                return Some(why);
            }
        }
        // The log comes a moment after the answer.
        for _ in 0..500 {
            let log = self.gateway.log();
            let ended = log[logged..]
                .lines()
                .find(|line| line.contains("call ended"));
            if let Some(line) = ended {
                let class = line.split_once(" class=")?.1;
                return class
                    .split(' ')
                    .next()
                    .map(|it| it.trim_matches('"').to_owned());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        None
    }

    /// Compares the newest run, which its snapshot may reach a moment after the answer.
    async fn wrong_run(&self, expect: &Expect) -> Option<String> {
        if expect.run.is_empty() {
            return None;
        }
        let mut wrong = None;
        for _ in 0..500 {
            let run = self.gateway.json("/runs?limit=1").await["runs"][0].take();
            let found = check::pointers("run", &expect.run, &run);
            wrong = found.into_iter().next();
            if wrong.is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        wrong
    }
}

/// The gateway's file, but for its candidates.
fn settings(case: &Case) -> String {
    let mut settings: Table =
        toml::from_str("[fallback]\ncooldown = true\n[auth]\nkeys_env = \"FIELD_KEYS\"\n").unwrap();
    merge(&mut settings, case.gateway.clone(), 2);
    toml::to_string(&settings).unwrap()
}

/// An upstream where each model answers as the case says.
async fn upstream(case: &Arc<Case>) -> Upstream {
    let case = case.clone();
    let played: Arc<Mutex<HashMap<(String, usize), usize>>> = Arc::default();
    Upstream::http1_of(move |call| respond(&case, call, &mut played.lock().unwrap())).await
}

/// The candidate that a call is for, by its model and its key.
fn asked(case: &Case, call: &Call) -> String {
    let request = call.json();
    let key = call
        .headers
        .get("authorization")
        .or(call.headers.get("x-api-key"));
    let key = key.map_or("", |key| key.to_str().unwrap());
    let mut candidates = case.candidates.iter();
    let of_call = candidates.find(|it| request["model"] == *it.model() && key.ends_with(&it.key()));
    let of_call = of_call.unwrap_or_else(|| panic!("no candidate's: {key} {request}"));
    of_call.name.clone()
}

/// The answer to a call; `played` counts those to each candidate, by operation.
fn respond(case: &Case, call: &Call, played: &mut HashMap<(String, usize), usize>) -> Play {
    let request = call.json();
    let name = asked(case, call);
    let model = request["model"].as_str().unwrap_or_default();
    let operation = healthy::operation(call.uri.path());
    let stream = request["stream"] == true;
    let answers = case.answers.get(&name).into_iter().flatten();
    let of_operation = |answer: &&Answer| answer.operation.is_none_or(|it| it == operation);
    let answers: Vec<_> = answers.filter(of_operation).collect();
    let healthy = Answer {
        healthy: true,
        ..Answer::default()
    };
    let count = played.entry((name, operation as usize)).or_default();
    let answer = answers.get(*count).or(answers.last()).copied();
    *count += 1;
    answer::play(
        answer.unwrap_or(&healthy),
        operation,
        stream,
        model,
        case.sent_as,
    )
}

fn body(request: &Request, first: &str) -> Value {
    let prompt = request.prompt.as_deref().unwrap_or("Say hi.");
    let mut body = match request.operation {
        Operation::Chat | Operation::Messages | Operation::CountTokens => {
            json!({"messages": [{"role": "user", "content": prompt}]})
        }
        Operation::Responses | Operation::Embeddings => json!({"input": prompt}),
        Operation::Images => json!({"prompt": prompt}),
    };
    if request.operation == Operation::Messages {
        body["max_tokens"] = json!(64);
    }
    body["model"] = json!(request.model.as_deref().unwrap_or(first));
    if request.stream {
        body["stream"] = json!(true);
    }
    for (key, value) in &request.body {
        body[key] = value.clone();
    }
    body
}

async fn read(request: reqwest::RequestBuilder) -> Result<check::Answer, String> {
    let asked = Instant::now();
    let mut response = request.send().await.map_err(|error| error.to_string())?;
    let head = asked.elapsed();
    let mut first_byte = None;
    let version = response.version();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let mut body = Vec::new();
    let cut = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                first_byte.get_or_insert_with(|| asked.elapsed());
                body.extend(chunk);
            }
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    Ok(check::Answer {
        status,
        headers,
        text: String::from_utf8_lossy(&body).into_owned(),
        is_cut: cut,
        version,
        times: check::Times {
            head,
            first_byte: first_byte.unwrap_or_else(|| asked.elapsed()),
            end: asked.elapsed(),
        },
    })
}
