//! covers: A2, A5, A7, A12, B4, B5, B6, C5, D7, H3, H9
//! Configurations of `tests/fixtures/config`, and the stacks that they make.

use std::{collections::BTreeMap, time::Duration};

use tower_agent::{
    AgentStack, Candidate, CandidateDialect, Cooldowns, HardCeilingLayer, IdleBreaker,
    LoopGuardLayer, ModelFallbackLayer, ProgressNotices, RetryBudget, RetryBudgetLayer,
    RunRegistry, StepTimeoutLayer, TerminalResponseLayer, TokenCapLayer, TokenCaps, TurnCapLayer,
    config::{AgentConfig, ConfigError},
    llm::failure::{Classifier, FailureClass, Signal},
    run::{PauseAtCap, Price},
    stack::{Client, Server},
};

use crate::support::secs;

const SAME: &str = include_str!("../fixtures/config/same.txt");
const MISTAKES: &str = include_str!("../fixtures/config/mistakes.txt");

fn read(text: &str) -> Result<AgentConfig, ConfigError> {
    if text.starts_with('{') {
        AgentConfig::from_json(text)
    } else {
        AgentConfig::from_toml(text)
    }
}

/// The name and the text of each section of a file.
fn sections(file: &str) -> impl Iterator<Item = (&str, &str)> {
    let sections = file.split("\n=== ").skip(1);
    sections.map(|section| section.split_once('\n').unwrap())
}

/// The stacks of all and of each agent, as they print.
fn stacks(registry: &RunRegistry, config: &AgentConfig) -> String {
    let all = AgentStack::server(registry).configure(config).unwrap();
    let mut printed = format!("{all:?}");
    for agent in config.agents() {
        let stack = all.clone().for_agent(config, agent);
        printed.push_str(&format!("\n{agent}: {stack:?}"));
    }
    printed
}

#[test]
fn documents_that_mean_the_same_are_one_configuration() {
    let registry = RunRegistry::new();
    let mut meanings = BTreeMap::new();
    for (name, documents) in sections(SAME) {
        let mut read = documents.split("---\n").map(|text| match read(text) {
            Ok(config) => {
                let means = stacks(&registry, &config);
                let printed = config.to_toml().unwrap();
                let is_full = |value: &toml::Value| match value {
                    toml::Value::Table(table) => !table.is_empty(),
                    toml::Value::Array(list) => !list.is_empty(),
                    _ => true,
                };
                assert!(printed.values().all(is_full), "{name}: {printed}");
                let printed = toml::to_string(&printed).unwrap();
                let again = AgentConfig::from_toml(&printed);
                let again = again.unwrap_or_else(|error| panic!("{name}: {error}\n{printed}"));
                assert_eq!(stacks(&registry, &again), means, "{name}: {printed}");
                assert_eq!(again.to_toml(), config.to_toml(), "{name}");
                means
            }
            Err(error) => panic!("{name}: {error}\n{text}"),
        });
        let first = read.next().unwrap();
        let mut others = 0;
        for other in read {
            assert_eq!(first, other, "{name}");
            others += 1;
        }
        assert!(others > 0, "{name}");
        let known = meanings.insert(first, name);
        assert_eq!(known, None, "{name} means something else");
    }
    assert!(meanings.len() > 10);
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let mut failed = 0;
    for (name, section) in sections(MISTAKES) {
        let (text, says) = section.split_once("=> ").unwrap();
        let says: Vec<&str> = says.trim_end().split("\n=> ").collect();
        let error = read(text).map(|_| ()).unwrap_err().to_string();
        let told: Vec<&str> = error.lines().collect();
        let is_it = |(told, says): (&&str, &&str)| match says.strip_suffix("...") {
            Some(start) => told.starts_with(start),
            None => told == says,
        };
        if told.len() != says.len() || !told.iter().zip(&says).all(is_it) {
            failed += 1;
            println!("{name}\n  wanted {says:#?}\n  got    {told:#?}");
        }
    }
    assert_eq!(failed, 0);
}

/// A deployment may have the name of an operation.
#[test]
fn a_base_url_of_a_known_provider_without_its_path_is_a_warning() {
    let warnings = |url: &str| {
        let text = format!("[[candidates]]\nmodel = \"m\"\nbase_url = \"{url}\"");
        let warnings = read(&text).unwrap().warnings();
        warnings.map(|warnings| warnings.in_toml(&text).to_string())
    };
    for (url, whole) in [
        ("https://api.openai.com", "https://api.openai.com/v1"),
        ("https://API.OpenAI.com/", "https://API.OpenAI.com/v1"),
        ("https://api.anthropic.com", "https://api.anthropic.com/v1"),
        ("https://openrouter.ai", "https://openrouter.ai/api/v1"),
        ("https://openrouter.ai/api", "https://openrouter.ai/api/v1"),
        ("https://openrouter.ai/v1", "https://openrouter.ai/api/v1"),
        (
            "https://api.groq.com/openai",
            "https://api.groq.com/openai/v1",
        ),
        ("https://api.groq.com/v1", "https://api.groq.com/openai/v1"),
        ("https://api.mistral.ai", "https://api.mistral.ai/v1"),
        ("https://api.x.ai", "https://api.x.ai/v1"),
        ("https://api.together.xyz", "https://api.together.xyz/v1"),
        (
            "https://generativelanguage.googleapis.com/v1beta",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
    ] {
        let warning = warnings(url).unwrap_or_else(|| panic!("{url}"));
        assert!(
            warning.starts_with("3:12: candidates[0].base_url: "),
            "{warning}"
        );
        assert!(warning.ends_with(&format!("write {whole:?}")), "{warning}");
    }
    for url in [
        "https://api.openai.com/v1",
        "https://api.anthropic.com/v1",
        "https://openrouter.ai/api/v1",
        "https://api.groq.com/openai/v1",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "https://api.deepseek.com",
        "https://api.deepseek.com/v1",
        "https://api.deepseek.com/anthropic/v1",
        "https://api.moonshot.ai/anthropic/v1",
        "https://proxy.example",
        "http://127.0.0.1:8000/v1",
        "https://my.openai.azure.com/openai/deployments/embeddings",
        "https://host/models/messages",
        "https://host/my-responses",
    ] {
        assert_eq!(warnings(url), None, "{url}");
    }
}

/// The run would end first, whatever other candidates there are.
#[test]
fn a_limit_of_attempts_that_every_run_ends_before_is_a_warning() {
    for (text, key) in [
        (
            "[run]\nmax_turn_time = \"2m\"\n[attempt]\nstep_timeout = \"1m\"",
            None,
        ),
        ("[attempt]\nmax_time = \"2m\"", None),
        (
            "[run]\ntimeout = \"1m\"\n[attempt]\nmax_time = \"2m\"\nobserve = true",
            None,
        ),
        (
            "[run]\ntimeout = \"1m\"\nobserve = true\n[attempt]\nmax_time = \"2m\"",
            None,
        ),
        (
            "[run]\ntimeout = \"1m\"\n[attempt]\nmax_time = \"1m\"",
            Some("4:12: attempt.max_time: 60s"),
        ),
        (
            "[attempt]\nstep_timeout = \"3m\"\n[agents.coder]\nmax_turn_time = \"2m\"",
            Some("2:16: attempt.step_timeout: 180s"),
        ),
        (
            "preset = \"recommended\"\n[run]\nmax_turn_time = \"90s\"\nidle = \"1s\"",
            Some("attempt.step_timeout: 120s"),
        ),
    ] {
        let warnings = read(text).unwrap().warnings();
        let warnings = warnings.map(|it| it.in_toml(text).to_string());
        let Some(key) = key else {
            assert_eq!(warnings, None, "{text}");
            continue;
        };
        let warning = warnings.unwrap_or_else(|| panic!("{text}"));
        let says = "after which a run ends: no other attempt could follow";
        assert!(
            warning.starts_with(key) && warning.ends_with(says),
            "{warning}"
        );
        assert!(warning.contains(" is not shorter than the "), "{warning}");
    }
}

/// Their tokens cost nothing, so that a run is never at its cap.
#[test]
fn a_candidate_without_a_whole_price_beside_a_cap_on_cost_is_a_warning() {
    let candidates = "[[candidates]]\nmodel = \"whole\"\nbase_url = \"http://a/v1\"\n\
                      price = { input = 1, output = 2, cached_input = 0 }\n\
                      [[candidates]]\nmodel = \"no price\"\nbase_url = \"http://b/v1\"\n\
                      [[candidates]]\nmodel = \"part\"\nbase_url = \"http://c/v1\"\n\
                      price = { input = 1, output = 2 }\n";
    let warnings = |text: &str| {
        let text = format!("{candidates}{text}");
        let config = read(&text).unwrap();
        let warnings = config.warnings().map(|it| it.in_toml(&text).to_string());
        (config.caps_cost(), warnings.unwrap_or_default())
    };
    for text in [
        "",
        "[run]\nmax_cost = 0\nmax_total_tokens = 9",
        "[agents.coder]\nmax_turns = 3",
    ] {
        assert_eq!(warnings(text), (false, String::new()), "{text}");
    }
    for text in [
        "[run]\nmax_cost = 1",
        "[agents.defaults]\nmax_cost = 1",
        "[run]\nmax_turns = 3\n[agents.coder]\nmax_cost = 1",
    ] {
        let (caps_cost, warnings) = warnings(text);
        assert!(caps_cost);
        let lines: Vec<_> = warnings.lines().collect();
        let [no_price, part] = &lines[..] else {
            panic!("{warnings}");
        };
        let start = "5:1: candidates[1]: has no `price`: ";
        assert!(no_price.starts_with(start), "{warnings}");
        let start = "11:1: candidates[2].price: has no `cached_input`: ";
        assert!(part.starts_with(start), "{warnings}");
    }
}

/// Windows that leave an attempt its time, or that end nothing.
#[test]
fn windows_that_fit_are_no_mistake() {
    for text in [
        "[run]\nstep_timeout = \"121s\"\n[attempt]\nstep_timeout = \"2m\"",
        "[run]\nstep_timeout = \"5m\"\n[attempt]\nstep_timeout = \"2m\"\nfirst_token_timeout = \"4m\"",
        "[run]\nstep_timeout = \"1m\"\nobserve = true\n[attempt]\nstep_timeout = \"2m\"",
        "[run]\nstep_timeout = \"1m\"\n[attempt]\nstep_timeout = \"2m\"\nobserve = true",
        "[run]\nstep_timeout = \"1m\"\n[attempt]\nprofile = \"local\"",
        "[run]\nstep_timeout = \"2m\"\n[attempt]\nstep_timeout = \"1m\"\nfirst_token_timeout = 0",
        "[run]\nstep_timeout = 0\n[attempt]\nstep_timeout = \"2m\"",
        "[attempt]\nstep_timeout = \"2m\"\n[agents.look-up]\nstep_timeout = 0\nmax_turn_time = \"1m\"",
        // The windows of the preset make room.
        "preset = \"recommended\"\n[run]\nstep_timeout = \"1m\"",
        "preset = \"recommended\"\n[run]\nstep_timeout = \"3m\"\n[agents.coder]\nstep_timeout = \"9m\"",
        "preset = \"recommended\"\n[agents.look-up]\nstep_timeout = \"3m\"",
        "preset = \"recommended\"\n[attempt]\nstep_timeout = \"4m\"",
        // It serves an agent with longer runs.
        "[run]\nstep_timeout = \"2m\"\n[attempt]\nstep_timeout = \"1m\"\nfirst_token_timeout = \"4m\"\n\
         [agents.coder]\nstep_timeout = \"5m\"",
    ] {
        let config = read(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        let printed = config.to_toml().unwrap().to_string();
        read(&printed).unwrap_or_else(|error| panic!("{text}\n{error}\n{printed}"));
    }
}

/// A window of the preset that no run lives to see would let no attempt follow a silent one.
#[test]
fn the_presets_windows_leave_room_for_another_attempt() {
    for (text, step, first) in [
        ("", "2m", "4m"),
        ("[run]\nstep_timeout = \"3m\"", "1m 12s", "2m 24s"),
        ("[run]\nstep_timeout = \"1m\"", "24s", "48s"),
        ("[run]\nstep_timeout = 0", "2m", "4m"),
        (
            "[run]\nstep_timeout = \"3m\"\n[agents.coder]\nstep_timeout = \"9m\"",
            "2m",
            "4m",
        ),
        (
            "[run]\nstep_timeout = \"3m\"\n[attempt]\nstep_timeout = \"30s\"",
            "30s",
            "2m 24s",
        ),
    ] {
        let config = read(&format!("preset = \"recommended\"\n{text}")).unwrap();
        let attempt = &config.to_toml().unwrap()["attempt"];
        let windows = ["step_timeout", "first_token_timeout"].map(|key| attempt[key].as_str());
        assert_eq!(windows, [Some(step), Some(first)], "{text}");
    }
}

#[test]
fn each_mistake_is_an_error_of_its_own() {
    let text = "[run]\nmax_turns = -1\nidle = \"soon\"\ncolour = 1";
    let error = read(text).unwrap_err().in_file("agent.toml");
    assert_eq!(
        (&*error.key(), error.position()),
        ("run.max_turns", Some((2, 13)))
    );
    let each: Vec<_> = error.each().collect();
    let keys: Vec<_> = each.iter().map(ConfigError::key).collect();
    assert_eq!(keys, ["run.max_turns", "run.idle", "run.colour"]);
    let lines: Vec<_> = each.iter().map(ConfigError::to_string).collect();
    assert_eq!(lines.join("\n"), error.to_string());
    assert!(error.concerns(&["run"]) && error.concerns(&["run", "idle"]));
    assert!(!error.concerns(&["run", "timeout"]) && !error.concerns(&["agents"]));
}

/// Each mistake costs a pass over the document.
#[test]
fn a_document_of_mistakes_is_read_in_a_moment() {
    let keys: String = (0..20_000)
        .map(|index| format!("key{index} = 1\n"))
        .collect();
    let error = read(&format!("[run]\n{keys}")).unwrap_err();
    assert_eq!(error.each().count(), 100);
}

#[test]
fn any_format_of_serde_names_the_key() {
    for (text, says) in [
        (
            r#"{"run": {"timeout": "soon"}}"#,
            "run.timeout: \"soon\" is not a duration",
        ),
        (
            r#"{"run": {"timeot": 1}}"#,
            "run.timeot: unknown key, did you mean `timeout`? expected one of",
        ),
        (
            r#"{"run": {"observe": true}}"#,
            "run.observe: has no effect",
        ),
    ] {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let error = serde_json::from_value::<AgentConfig>(json).unwrap_err();
        assert!(error.to_string().starts_with(says), "{error}");
    }
}

#[test]
fn a_key_in_place_of_a_variables_name_is_not_shown() {
    let text =
        "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://h\"\napi_key_env = \"sk-proj-1\"";
    let error = read(text)
        .unwrap()
        .candidates(|_| None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is not the name of an environment variable"),
        "{error}"
    );
    assert!(!error.contains("sk-proj"), "{error}");
}

type Set = fn(AgentStack<Server>) -> AgentStack<Server>;

/// Each key of the stack, and the setting that it stands for.
#[test]
fn each_key_is_a_setting_of_the_stack() {
    let keys: [(&str, Set); 50] = [
        ("[run]\nstep_timeout = 7", |stack| stack.run_step(secs(7))),
        ("[run]\nmax_turn_time = 7", |stack| {
            let half = Duration::from_millis(3_500);
            stack.ceiling(secs(7)).runs(|runs| runs.idle(half))
        }),
        ("[run]\ntimeout = 7", |stack| {
            let half = Duration::from_millis(3_500);
            stack
                .ceiling(HardCeilingLayer::optional(None).timeout(Some(secs(7))))
                .runs(|runs| runs.idle(half))
        }),
        ("[run]\ntimeout = 7\nobserve = true", |stack| {
            let ceiling = HardCeilingLayer::optional(None).timeout(Some(secs(7)));
            stack
                .ceiling(ceiling.observe())
                .run_step(StepTimeoutLayer::optional(None).observe())
        }),
        ("[run]\nmax_turns = 7", |stack| stack.max_turns(7)),
        ("[run]\nmax_turns = 7\nat_cap = \"pause\"", |stack| {
            let pause = PauseAtCap::new();
            let tokens = TokenCapLayer::new(TokenCaps::new()).pause(pause);
            let turns = TurnCapLayer::new(7).pause(pause);
            stack.max_turns(turns).token_caps(tokens)
        }),
        (
            "[run]\nmax_output_tokens = 7\nat_cap = \"pause\"\npause_wait = 0\npause_limit = 9",
            |stack| {
                let pause = PauseAtCap::new().wait(secs(0)).limit(secs(9));
                let caps = TokenCaps::new().max_output_tokens(7);
                let turns = TurnCapLayer::optional(None).pause(pause);
                let tokens = TokenCapLayer::new(caps).pause(pause);
                stack.max_turns(turns).token_caps(tokens)
            },
        ),
        ("[run]\nmax_output_tokens = 7", |stack| {
            stack.token_caps(TokenCaps::new().max_output_tokens(7))
        }),
        ("[run]\nmax_total_tokens = 7", |stack| {
            stack.token_caps(TokenCaps::new().max_total_tokens(7))
        }),
        (
            "[run]\nmax_total_tokens = 7\ncount_cached_input = true",
            |stack| {
                let caps = TokenCaps::new().max_total_tokens(7);
                stack.token_caps(caps.count_cached_input(true))
            },
        ),
        ("[run]\nmax_output_tokens = 7\nask_at = 0.5", |stack| {
            let caps = TokenCaps::new().max_output_tokens(7);
            stack.token_caps(TokenCapLayer::new(caps).ask_at(0.5))
        }),
        ("[run]\nmax_turns = 7\nnear_at = 0.5", |stack| {
            let tokens = TokenCapLayer::new(TokenCaps::new()).near_at(0.5);
            let turns = TurnCapLayer::new(7).near_at(0.5);
            stack.max_turns(turns).token_caps(tokens)
        }),
        ("[run]\nmax_output_tokens = 7\nnear_at = 1", |stack| {
            let caps = TokenCaps::new().max_output_tokens(7);
            let turns = TurnCapLayer::optional(None).near_at(1.0);
            let tokens = TokenCapLayer::new(caps).near_at(1.0);
            stack.max_turns(turns).token_caps(tokens)
        }),
        (
            "[run]\nmax_cost = 7\n[[candidates]]\nmodel = \"m\"\nbase_url = \"http://h\"\n\
             price = { input = 1, output = 2, cached_input = 0.5 }",
            |stack| {
                let candidate = Candidate::new("m").base_url("http://h").unwrap();
                let price = Price::per_million(1.0, 2.0).cached_input(0.5);
                stack
                    .fallback([candidate.price(price)])
                    .token_caps(TokenCaps::new().max_cost(7.0))
            },
        ),
        ("[run]\nidle = 7", |stack| {
            stack.runs(|layer| layer.idle(secs(7)))
        }),
        ("[run]\npartial = 7", |stack| {
            stack.runs(|layer| layer.keep_partial(7))
        }),
        ("[run]\nidle_breaker = 7", |stack| {
            stack.retry(once().idle_breaker(7, IdleBreaker::End))
        }),
        ("[run]\nidle_breaker = 7\nidle_fails_over = true", |stack| {
            stack.retry(once().idle_breaker(7, IdleBreaker::FailOver))
        }),
        ("[retry]\nmax_attempts_per_candidate = 7", |stack| {
            stack.retry(once().max_attempts_per_candidate(7))
        }),
        ("[retry]\nper_error_key = 7", |stack| {
            stack.retry(twice().per_error_key(Some(7)))
        }),
        ("[retry]\nper_run = 7", |stack| {
            stack.retry(twice().per_run(Some(7)))
        }),
        ("[retry]\nconsecutive_errors = 7", |stack| {
            stack.retry(twice().consecutive_errors(Some(7)))
        }),
        ("[retry]\nshared_ratio = 0.7\nshared_floor = 7", |stack| {
            stack.retry(twice().shared(0.7, 7))
        }),
        ("[retry]\nbase_delay = 1\nmax_delay = 7", |stack| {
            stack.retry(twice().delays(secs(1), secs(7)))
        }),
        ("[retry]\nmax_retry_after = 7", |stack| {
            stack.retry(twice().max_retry_after(secs(7)))
        }),
        ("[attempt]\nhold = 7", |stack| {
            stack.retry(tower_agent::RetryBudgetLayer::new(once()).hold(secs(7)))
        }),
        ("[attempt]\nmax_time = 7", |stack| {
            stack.attempt_ceiling(secs(7))
        }),
        ("[attempt]\nstep_timeout = 7", |stack| stack.step(secs(7))),
        (
            "[attempt]\nstep_timeout = 7\nfirst_token_timeout = 8",
            |stack| stack.step(StepTimeoutLayer::new(secs(7)).first(secs(8))),
        ),
        (
            "[attempt]\nstep_timeout = 7\nfirst_token_timeout = 0",
            |stack| stack.step(StepTimeoutLayer::new(secs(7)).first(Duration::MAX)),
        ),
        ("[attempt]\nstep_timeout = 7\nobserve = true", |stack| {
            stack
                .attempt_ceiling(HardCeilingLayer::optional(None).observe())
                .step(StepTimeoutLayer::new(secs(7)).observe())
        }),
        ("[attempt]\nmin_tokens_per_second = 7", |stack| {
            let step = StepTimeoutLayer::optional(None);
            stack.step(step.min_tokens_per_second(7.0, secs(30)))
        }),
        (
            "[attempt]\nmin_tokens_per_second = 0.5\nover = 9\nobserve = true",
            |stack| {
                let ceiling = HardCeilingLayer::optional(None).observe();
                let step = StepTimeoutLayer::optional(None).observe();
                let step = step.min_tokens_per_second(0.5, secs(9));
                stack.attempt_ceiling(ceiling).step(step)
            },
        ),
        ("[attempt]\nprofile = \"local\"\nheartbeat = 7", |stack| {
            stack.step(StepTimeoutLayer::local().heartbeat(secs(7)))
        }),
        (
            "[disconnect]\npolicy = \"drain\"\ndrain_limit = 7",
            |stack| stack.pump(|layer| layer.drain(Some(secs(7)))),
        ),
        ("[disconnect]\ncaller_deadline = true", |stack| {
            stack.ceiling(HardCeilingLayer::optional(None).caller_deadline(true))
        }),
        ("[stop]\nphrases = [\"/stop\"]", |stack| {
            stack.stop_phrases(["/stop"])
        }),
        ("[loops]", |stack| stack.loops(LoopGuardLayer::new())),
        (
            "[loops]\nwarn = 1\nstop = 2\nunknown_tool = 3\nany_tool = 4",
            |stack| {
                let guard = LoopGuardLayer::new().warn(1).stop(2);
                stack.loops(guard.unknown_tool(3).any_tool(4))
            },
        ),
        (
            "[loops]\nobserve = true\nexact_results = true\npolls = [\"wait\"]",
            |stack| {
                let guard = LoopGuardLayer::new().polls(["wait"]);
                stack.loops(guard.exact_results().observe())
            },
        ),
        (
            "[progress]\nkeep_alive = 7\nnotify_after = 8\ncomments = true",
            |stack| {
                let notices = ProgressNotices::new().after(secs(8));
                stack.responses(|layer| {
                    let layer = layer.keep_alive(Some(secs(7))).comments(true);
                    layer.notices(notices)
                })
            },
        ),
        ("[progress]\nearly_head = 9\nnotify_after = 8", |stack| {
            let notices = ProgressNotices::new().after(secs(8));
            let layer = |layer: TerminalResponseLayer| layer.keep_alive(Some(secs(15)));
            let stack = stack.responses(|it| layer(it).notices(notices));
            stack.early_head(secs(9))
        }),
        ("[fallback]\ncooldown = true", |stack| {
            let cooldowns = Cooldowns::new();
            stack.fallback(ModelFallbackLayer::new([]).cooldowns(cooldowns))
        }),
        ("[fallback]\nshare = false", |stack| {
            stack.fallback(ModelFallbackLayer::new([]).share(false))
        }),
        ("[fallback]\ndefault_model = true", |stack| {
            stack.fallback(ModelFallbackLayer::new([]).default_model(true))
        }),
        ("[fallback]\nafter_refusal = true", |stack| {
            let layer = ModelFallbackLayer::new([]);
            stack.fallback(layer.also_after(FailureClass::ContentFilter))
        }),
        (
            "[[signals]]\nname = \"spent\"\nclass = \"quota\"",
            |stack| {
                let signal = Signal::name("spent", FailureClass::Quota);
                let classifier = Classifier::new().signals([signal]);
                let layer = ModelFallbackLayer::new([]);
                let repeats = RetryBudgetLayer::new(once());
                stack
                    .fallback(layer.classifier(classifier.clone()))
                    .retry(repeats.classifier(classifier))
            },
        ),
        ("[fallback]\nsticky = true", |stack| {
            stack.fallback(ModelFallbackLayer::new([]).sticky(true))
        }),
        (
            "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://h/v1\"",
            |stack| stack.fallback([Candidate::new("m").base_url("http://h/v1").unwrap()]),
        ),
        (
            "[[candidates]]\nname = \"n\"\nmodel = \"m\"\nbase_url = \"http://h\"\n\
             dialect = \"anthropic\"\ncontext_window = 7\ntrusted = true\ntransport = \"websocket\"",
            |stack| {
                let candidate = Candidate::new("m").name("n").base_url("http://h").unwrap();
                let candidate = candidate.dialect(CandidateDialect::Anthropic);
                let candidate = candidate.context_window(7).trusted(true);
                stack.fallback([candidate.websocket(true)])
            },
        ),
    ];
    let unset = read("").unwrap();
    for (text, set) in keys {
        let registry = RunRegistry::new();
        let stack = || AgentStack::server(&registry);
        let configured = stack().configure(&read(text).unwrap()).unwrap();
        let plain = stack().configure(&unset).unwrap();
        let (configured, plain) = (format!("{configured:#?}"), set(plain));
        let plain = format!("{plain:#?}");
        let mut lines = configured.lines().zip(plain.lines());
        let differing = lines.find(|(one, other)| one != other);
        assert_eq!(differing, None, "{text}");
        assert_eq!(configured, plain, "{text}");
    }
}

/// The budget without `[retry]`.
fn once() -> RetryBudget {
    let budget = RetryBudget::new().max_attempts_per_candidate(1);
    budget.per_error_key(None).per_run(None).unshared()
}

/// The budget of `[retry]` alone.
fn twice() -> RetryBudget {
    once().max_attempts_per_candidate(2)
}

/// An agent's limits stand in place of those of all; what it leaves out is as for all.
#[test]
fn an_agents_stack_has_its_own_limits() {
    let config = read("[run]\ntimeout = 9\nmax_turns = 3\n[agents.coder]\nmax_turns = 7").unwrap();
    let all = AgentStack::<Server>::try_from(&config).unwrap();
    let printed = |stack: AgentStack<Server>| format!("{stack:#?}");
    let coder = printed(all.clone().for_agent(&config, "coder"));

    assert_eq!(coder, printed(all.clone().max_turns(7)));
    assert_ne!(coder, printed(all.clone()));
    let other = printed(all.clone().for_agent(&config, "other"));
    assert_eq!(other, printed(all));
}

/// A client's stack differs from a server's only in what concerns callers and the registry.
#[test]
fn a_clients_stack_has_the_limits_of_a_servers() {
    fn limits<Side: std::fmt::Debug>(stack: &AgentStack<Side>) -> String {
        let printed = format!("{stack:#?}");
        let (before, side) = printed.split_once("    side: ").unwrap();
        let (_, after) = side.split_once("\n    ceiling: ").unwrap();
        format!("{before}    ceiling: {after}")
    }

    let mut agents = 0;
    for (name, documents) in sections(SAME) {
        let config = read(documents.split("---\n").next().unwrap()).unwrap();
        let server = AgentStack::server(&RunRegistry::new());
        let server = server.configure(&config).unwrap();
        let client = AgentStack::client().configure(&config).unwrap();
        assert_eq!(limits(&client), limits(&server), "{name}");
        let made = AgentStack::<Client>::try_from(&config).unwrap();
        assert_eq!(limits(&made), limits(&client), "{name}");
        for agent in config.agents() {
            let server = server.clone().for_agent(&config, agent);
            let client = client.clone().for_agent(&config, agent);
            assert_eq!(limits(&client), limits(&server), "{name}, {agent}");
            agents += 1;
        }
    }
    assert!(agents > 3);
}

/// Zero switches off for one agent what the stack of all agents has on already.
#[test]
fn an_agents_zero_switches_a_limit_of_all_off() {
    for (all, agent, without) in [
        ("[run]\nidle_breaker = 3", "idle_breaker = 0", ""),
        (
            "[progress]",
            "notify_after = 0",
            "[progress]\nnotify_after = 0",
        ),
    ] {
        let registry = RunRegistry::new();
        let stack = |config| AgentStack::server(&registry).configure(config).unwrap();
        let config = read(&format!("{all}\n[agents.coder]\n{agent}")).unwrap();
        let coder = stack(&config).for_agent(&config, "coder");

        let off = stack(&read(without).unwrap());
        assert_eq!(format!("{coder:#?}"), format!("{off:#?}"), "{agent}");
    }
}

#[test]
fn the_key_that_asks_is_named_where_it_stands() {
    for (text, path) in [
        ("[run]\nmax_output_tokens = 9\nask_at = 0.5", "run.ask_at"),
        (
            "[run]\nmax_output_tokens = 9\n[agents.defaults]\nask_at = 0.5",
            "agents.defaults.ask_at",
        ),
        (
            "[agents.coder]\nmax_output_tokens = 9\nask_at = 0.5",
            "agents.coder.ask_at",
        ),
    ] {
        let asks = read(text).unwrap();
        assert_eq!(asks.ask_at().unwrap().join("."), path);
    }
}

/// A server that tells of a near cap needs a part of each cap, and no runs without caps.
#[test]
fn a_default_near_at_is_for_the_runs_that_have_a_cap_and_set_none() {
    let default = |text: &str| read(text).unwrap().default_near_at(0.8).to_toml().unwrap();
    let part = |table: &toml::Value| table.get("near_at").map(|it| it.as_float().unwrap());
    let of_agent = |text: &str| part(&default(text)["agents"]["coder"]);

    assert_eq!(
        part(&default("[run]\nmax_output_tokens = 2")["run"]),
        Some(0.8)
    );
    assert_eq!(
        part(&default("[run]\nmax_turns = 2\nnear_at = 0.5")["run"]),
        Some(0.5)
    );
    let own = "[agents.coder]\nmax_turns = 2";
    assert_eq!(part(&default(own)["run"]), None);
    assert_eq!(of_agent(own), Some(0.8));
    let none = "[run]\nmax_turns = 2\n[agents.coder]\nnear_at = 0";
    assert_eq!(of_agent(none), Some(0.0));
    let off = "[run]\nmax_turns = 2\n[agents.coder]\nmax_turns = 0";
    assert_eq!(of_agent(off), None);
}

/// A candidate's key is not in the document, and does not print.
#[test]
fn a_candidates_key_is_read_from_the_variable() {
    let text = "[[candidates]]\nname = \"main\"\nmodel = \"m\"\nbase_url = \"http://h\"\n\
                api_key_env = \"KEY\"";
    let config = read(text).unwrap();
    let candidates = |value: Option<&str>| config.candidates(|_| value.map(str::to_owned));

    let made = candidates(Some("sk-secret")).unwrap();
    let printed = format!("{made:?} {config:?}");
    assert!(!printed.contains("sk-"), "{printed}");
    for (value, why) in [
        (None, "is not set"),
        (Some(""), "is empty"),
        (
            Some("sk-\nsecret"),
            "holds characters that no header may carry, such as a line break",
        ),
    ] {
        let error = candidates(value).unwrap_err().in_toml(text).to_string();
        let says = "5:15: candidates[0].api_key_env: the environment variable KEY";
        assert_eq!(error, format!("{says} {why}"));
    }
}

/// An `@` in the path is no credential.
#[test]
fn a_url_may_have_an_at_sign_in_its_path() {
    let text = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://h/@v1\"";
    let candidates = read(text).unwrap().candidates(|_| None).unwrap();
    assert!(format!("{candidates:?}").contains("http://h/@v1"));
}

#[test]
fn an_error_in_a_part_of_a_document_has_the_place_in_the_whole() {
    let text = "[mine]\nport = 1\n[run]\ntimeout = \"soon\"\n";
    let mut table = tower_agent::config::parse_toml(text).unwrap();
    table.remove("mine");
    let error = AgentConfig::from_table(table).unwrap_err();
    assert_eq!(error.position(), None);
    let error = error.in_toml(text).in_file("agent.toml").to_string();
    assert!(
        error.starts_with("agent.toml:4:11: run.timeout: \"soon\""),
        "{error}"
    );
}

#[test]
fn a_printed_configuration_has_the_limits_of_loops_in_force() {
    let config = AgentConfig::from_toml("[loops]\nstop = 7").unwrap();

    let printed = config.to_toml().unwrap();

    let limits = ["warn", "stop", "unknown_tool", "any_tool"];
    let printed = limits.map(|key| printed["loops"][key].as_integer());
    assert_eq!(printed, [10, 7, 10, 30].map(Some));
}

/// The page's candidates are there to be copied.
#[test]
fn the_candidates_of_the_page_of_providers_are_read_without_a_warning() {
    let page = include_str!("../../crates/tower-agent-llm/docs/providers.md");
    let (_, block) = page.split_once("```toml\n").unwrap();
    let (text, _) = block.split_once("```").unwrap();
    let config = AgentConfig::from_toml(text).unwrap_or_else(|error| panic!("{error}"));
    assert!(config.warnings().is_none());
    let candidates = config.candidates(|_| Some("key".to_owned())).unwrap();
    assert!(candidates.len() > 10);
}
