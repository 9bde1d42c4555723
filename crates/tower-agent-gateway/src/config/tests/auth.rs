//! covers: D6

use std::fs;

use tower_agent::{OwnerCaps, TokenCaps};

use super::{CANDIDATE, Config, ConfigError, message, resolve, with_candidate};

/// What comes of a variable that holds `keys`.
fn with_keys(keys: &str, more: &str) -> Result<Config, ConfigError> {
    with_candidate_of(keys, more, "")
}

/// The same, with a candidate that has a price.
fn with_prices(keys: &str, more: &str) -> Result<Config, ConfigError> {
    with_candidate_of(keys, more, "price = { input = 1, output = 2 }\n")
}

fn with_candidate_of(keys: &str, more: &str, candidate: &str) -> Result<Config, ConfigError> {
    let text = format!("[auth]\nkeys_env = \"KEYS\"\n{more}{CANDIDATE}{candidate}");
    let env = |variable: &str| match variable {
        "KEYS" => Some(keys.to_owned()),
        "TOKEN" => Some("t0ken".to_owned()),
        _ => None,
    };
    resolve(&text, env)
}

#[test]
fn keys_are_read_with_their_names() {
    let auth = with_keys(" coder:sk-1 ,\nlook.up_2:a:b=c", "")
        .unwrap()
        .auth
        .unwrap();

    let keys: Vec<_> = auth.keys.iter().map(|key| &*key.name).collect();
    assert_eq!(keys, ["coder", "look.up_2"]);
    assert!(auth.keys[0].secret.is("sk-1") && auth.keys[1].secret.is("a:b=c"));
    let printed = format!("{auth:?}");
    assert!(
        !printed.contains("sk-1") && printed.contains("coder"),
        "{printed}"
    );
}

/// While one is replaced by the other.
#[test]
fn a_name_may_have_several_keys() {
    let auth = with_keys("coder:old,look-up:k,coder:new", "[agents.coder]\n")
        .unwrap()
        .auth
        .unwrap();

    let names: Vec<_> = auth.keys.iter().map(|key| &*key.name).collect();
    assert_eq!(names, ["coder", "look-up", "coder"]);
}

#[test]
fn what_is_wrong_is_told_by_its_number_and_without_the_key() {
    let secret = "s3cr3t";
    for (keys, number, why) in [
        ("s3cr3t", 1, "it is not NAME:KEY"),
        ("a:s3cr3t,s3cr3t2", 2, "it is not NAME:KEY"),
        ("a:s3cr3t,", 2, "it is not NAME:KEY"),
        (":s3cr3t", 1, "its name is empty"),
        ("a:1,b:", 2, "its key is empty"),
        ("a:s3cr3t,b:s3cr3t", 2, "its key is that of an earlier one"),
        ("a:s3cr3t,a:s3cr3t", 2, "its key is that of an earlier one"),
        (
            "defaults:s3cr3t",
            1,
            "its name is `defaults`: [agents.defaults] means all agents",
        ),
        (
            "s3cr3t/:a",
            1,
            "its name is not of letters, digits, `.`, `_` and `-`",
        ),
        (
            "a:s3cr 3t",
            1,
            "its key holds a space or a character beyond ASCII",
        ),
        (
            "a:s3cr3t\u{e9}",
            1,
            "its key holds a space or a character beyond ASCII",
        ),
        (
            "a:s3c\nr3t",
            1,
            "its key holds a space or a character beyond ASCII",
        ),
    ] {
        let message = message(with_keys(keys, ""));

        let wanted = format!(
            "gateway.toml:2:12: auth.keys_env: the environment variable KEYS has a bad entry {number}: {why}"
        );
        assert_eq!(message, wanted, "{keys:?}");
        assert!(!message.contains(secret), "{message}");
    }
}

#[test]
fn a_variable_that_is_missing_or_empty_is_named() {
    let missing = message(with_candidate("[auth]\nkeys_env = \"NOT_SET\""));
    let empty = message(with_keys("", ""));
    let no_key = message(with_candidate("[auth]\n"));

    assert_eq!(
        missing,
        "gateway.toml:2:12: auth.keys_env: the environment variable NOT_SET is not set"
    );
    assert_eq!(
        empty,
        "gateway.toml:2:12: auth.keys_env: the environment variable KEYS is empty"
    );
    assert!(
        no_key.contains("auth: missing key `keys_env` or `keys_file`"),
        "{no_key}"
    );
}

#[test]
fn keys_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let text = format!("[auth]\nkeys_file = \"{}\"\n", path.display());
    let read = |keys: &str| {
        fs::write(&path, keys).unwrap();
        with_candidate(&text)
    };

    let auth = read("# rolled out in May, by hand\na:s3cr3t, b:t0ps3cret\r\n\na:0ther\n")
        .unwrap()
        .auth;
    let names: Vec<_> = auth
        .iter()
        .flat_map(|it| &it.keys)
        .map(|key| &*key.name)
        .collect();
    assert_eq!(names, ["a", "b", "a"]);
    for (keys, why) in [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("# none, as of today\n", "has no entry NAME:KEY"),
        (
            "# May, and later\n\na:s3cr3t\ns3cr3t2\n",
            "has a bad entry in line 4: it is not NAME:KEY",
        ),
        (
            "a:s3cr3t\nb:s3cr3t",
            "has a bad entry in line 2: its key is that of an earlier one",
        ),
    ] {
        let message = message(read(keys));
        let wanted = format!(
            "gateway.toml:2:13: auth.keys_file: the file {} {why}",
            path.display()
        );
        assert_eq!(message, wanted);
    }
    fs::remove_file(&path).unwrap();
    let gone = message(with_candidate(&text));
    assert!(gone.contains("cannot be read: No such file"), "{gone}");
}

#[test]
fn keys_have_one_place() {
    let both = message(with_candidate(
        "[auth]\nkeys_env = \"KEYS\"\nkeys_file = \"/run/keys\"",
    ));
    let relative = message(with_candidate("[auth]\nkeys_file = \"keys\""));

    assert_eq!(
        both,
        "gateway.toml:3:13: auth.keys_file: `keys_env` is there, too: keep one of them"
    );
    assert_eq!(
        relative,
        "gateway.toml:2:13: auth.keys_file: keys is not an absolute path"
    );
}

/// Whoever has it would be the operator.
#[test]
fn a_callers_key_is_not_the_control_token() {
    let message = message(with_keys("a:t0ken", "[control]\ntoken_env = \"TOKEN\"\n"));

    assert!(
        message.contains("has a bad entry 1: its key is the control token"),
        "{message}"
    );
    assert!(!message.contains("t0ken"), "{message}");
}

/// It would never be met. A week may lie in two months.
#[test]
fn a_cap_above_that_of_a_longer_time_is_named() {
    let error = |caps: &str| match with_prices("a:1,b:2", caps) {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    for (caps, says) in [
        ("turns_per_hour = 5\nturns_per_day = 5\n", None),
        ("turns_per_hour = 5\nturns_per_day = 0\n", None),
        ("turns_per_week = 9\nturns_per_month = 5\n", None),
        ("turns_per_hour = 5\noutput_tokens_per_day = 4\n", None),
        ("turns_per_hour = 1\n[agents.b]\nturns_per_hour = 9\n", None),
        (
            "turns_per_hour = 9\nturns_per_day = 5\nturns_per_month = 4\n",
            Some(
                "3:18: auth.turns_per_hour: 9 is more than turns_per_month (4), which is met first\n",
            ),
        ),
        (
            "cost_per_day = 1.5\ncost_per_week = 1\n",
            Some("3:16: auth.cost_per_day: 1.5 is more than cost_per_week (1), which is met first"),
        ),
        (
            "turns_per_day = 5\n[agents.b]\nturns_per_hour = 6\n",
            Some("agents.b.turns_per_hour: 6 is more than turns_per_day (5), which is met first"),
        ),
    ] {
        let error = error(caps);
        match says {
            None => assert_eq!(error, None, "{caps}"),
            Some(says) => assert!(
                error.as_ref().is_some_and(|it| it.contains(says)),
                "{error:?}"
            ),
        }
    }
}

#[test]
fn the_caps_of_an_owner_are_read_and_zero_is_none() {
    let (none, tokens) = (OwnerCaps::new(), TokenCaps::new());
    for (key, caps) in [
        ("max_open_runs", none.max_open_runs(20)),
        ("turns_per_hour", none.turns_per_hour(20)),
        (
            "output_tokens_per_hour",
            none.tokens_per_hour(tokens.max_output_tokens(20)),
        ),
        (
            "total_tokens_per_hour",
            none.tokens_per_hour(tokens.max_total_tokens(20)),
        ),
        ("cost_per_hour", none.tokens_per_hour(tokens.max_cost(20.0))),
    ] {
        for (written, expected) in [("20", caps), ("0", none)] {
            let auth = with_prices("a:1", &format!("{key} = {written}\n"))
                .unwrap()
                .auth
                .unwrap();
            assert_eq!(auth.caps, expected, "{key} = {written}");
        }
    }
}

#[test]
fn a_cap_that_counts_nothing_is_an_error() {
    for (key, why) in [
        ("cost_per_hour = 2", "no candidate has a price"),
        ("count_cached_input = true", "without total_tokens_per_hour"),
    ] {
        let message = message(with_keys("a:1", &format!("{key}\n")));
        assert!(message.contains("gateway.toml:3:"), "{message}");
        assert!(message.contains(why), "{message}");
    }
}

/// The tokens that it does not count cost an owner nothing.
#[test]
fn a_cap_on_cost_beside_a_candidate_without_a_whole_price_is_a_warning() {
    let warnings = |more: &str| {
        let config = with_prices("a:1", more).unwrap();
        let warnings = config.warnings().map(|it| it.to_string());
        warnings.collect::<Vec<_>>()
    };
    for (more, expected) in [
        ("", 0),
        ("cost_per_day = 0\nturns_per_day = 3\n", 0),
        ("cost_per_day = 2\n", 1),
        ("[agents.a]\ncost_per_month = 2\n", 1),
        // Told once, whatever is capped.
        ("cost_per_hour = 2\n[run]\nmax_cost = 1\n", 1),
        ("[run]\nmax_cost = 1\n", 1),
    ] {
        let warnings = warnings(more);
        assert_eq!(warnings.len(), expected, "{more}: {warnings:?}");
        let says = "candidates[0].price: has no `cached_input`: ";
        assert!(
            warnings.iter().all(|it| it.starts_with(says)),
            "{warnings:?}"
        );
    }
    let other = "cost_per_day = 2\n[[candidates]]\nmodel = \"free\"\nbase_url = \"http://h/v1\"\n";
    let warnings = warnings(other);
    assert_eq!(warnings.len(), 2);
    assert!(
        warnings[0].starts_with("candidates[0]: has no `price`: "),
        "{warnings:?}"
    );
}

#[test]
fn a_cap_that_is_no_number_is_named() {
    for key in [
        "max_open_runs",
        "turns_per_hour",
        "output_tokens_per_hour",
        "total_tokens_per_hour",
        "cost_per_hour",
    ] {
        let message = message(with_keys("a:1", &format!("{key} = \"many\"\n")));

        let start = format!(
            "gateway.toml:3:{}: auth.{key}: \"many\" is not",
            key.len() + 4
        );
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn the_manuals_caps_for_a_team_are_read() {
    let manual = include_str!("../../../../../docs/gateway.md");
    let (_, section) = manual.split_once("### Caps for a team\n").unwrap();
    let (_, block) = section
        .split_once("[auth]\nkeys_env = \"AGENT_KEYS\"")
        .unwrap();
    let (text, _) = block.split_once("```").unwrap();

    let config = with_prices("coder:1,nightly:2,ana:3", text).unwrap();

    let auth = config.auth.unwrap();
    let cost = |cost: f64| TokenCaps::new().max_cost(cost);
    let of_all = OwnerCaps::new().max_open_runs(200);
    let of_all = of_all.tokens_per_month(cost(200.0));
    assert_eq!(auth.caps, of_all.tokens_per_day(cost(20.0)));
    let of_nightly = of_all.tokens_per_day(cost(60.0)).turns_per_hour(600);
    assert_eq!(auth.caps_of["nightly"], of_nightly);
    assert!(auth.uses_calendar);
}

#[test]
fn caps_of_days_weeks_and_months_are_read_and_an_agent_may_have_its_own() {
    let text = "output_tokens_per_day = 1\ntotal_tokens_per_week = 2\ncost_per_month = 3\n\
                turns_per_hour = 4\ntimezone = \"Europe/Berlin\"\n\
                [agents.a]\nturns_per_week = 5\ncost_per_month = 0\nmax_open_runs = 6\nmax_turns = 7\n";
    let config = with_prices("a:1,b:2", text).unwrap();
    let auth = config.auth.unwrap();
    let tokens = TokenCaps::new();
    let of_all = OwnerCaps::new()
        .tokens_per_day(tokens.max_output_tokens(1))
        .tokens_per_week(tokens.max_total_tokens(2))
        .turns_per_hour(4);
    assert_eq!(
        auth.caps,
        of_all.tokens_per_month(tokens.max_cost(3.0)),
        "those of b"
    );
    assert_eq!(auth.caps_of["a"], of_all.turns_per_week(5).max_open_runs(6));
    assert_eq!(auth.caps_of.len(), 1);
    assert!(auth.uses_calendar);
    let agents: Vec<_> = config.agent.agents().collect();
    assert_eq!(agents, ["a"], "it has limits of the stack, too");
}

#[test]
fn a_cap_that_cannot_be_meant_is_an_error_at_its_key() {
    for (text, wanted) in [
        (
            "[agents.defaults]\nturns_per_day = 1\n",
            "gateway.toml:4:17: agents.defaults.turns_per_day: stands in [auth] for all owners",
        ),
        (
            "[agents.nobody]\nturns_per_day = 1\n",
            "gateway.toml:3:9: agents.nobody: is nobody: no key of [auth] has this name",
        ),
        (
            "[agents.a]\ncost_per_week = 1\n",
            "gateway.toml:4:17: agents.a.cost_per_week: has no effect: no candidate has a price",
        ),
        (
            "[agents.a]\nturns_per_day = \"many\"\n",
            "gateway.toml:4:17: agents.a.turns_per_day: \"many\" is not",
        ),
        (
            "turns_per_day = 1\ntimezone = \"Mars/Olympus\"\n",
            "gateway.toml:4:12: auth.timezone: \"Mars/Olympus\" is not a time zone",
        ),
        (
            "turns_per_hour = 1\ntimezone = \"UTC\"\n",
            "gateway.toml:4:12: auth.timezone: has no effect: nothing is capped in a day",
        ),
        (
            "[agents.a]\nturns_per_year = 1\n",
            "gateway.toml:4:1: agents.a.turns_per_year: unknown key",
        ),
        ("[agents.a]\nturns_per_year = 1\n", "`turns_per_month`"),
    ] {
        let message = message(with_keys("a:1", text));
        assert!(message.contains(wanted), "{text}: {message}");
    }
}
