//! Resolves the file into usable values.

use std::time::Duration;

use toml::Spanned;

use super::agents::agents;
use super::auth::auth;
use super::candidates::candidates;
use super::cors::cors;
use super::disconnect::drain;
use super::error::Problem;
use super::fallback::{self, fallback};
use super::file::File;
use super::limit::Limit;
use super::loops::loops;
use super::progress::progress;
use super::retry::{self, retry};
use super::run::{PRESET_TURNS, run};
use super::secret::secret;
use super::server::server;
use super::stop::phrases;
use super::{AttemptLimits, Config, RunLimits};

/// The limits for keys that the file leaves out.
#[derive(Debug, Clone, Copy, Default)]
struct Preset {
    run: RunLimits,
    attempt: AttemptLimits,
}

/// Resolves a document; `env` looks up the variables that it names.
pub(super) fn config(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Config, Problem> {
    let file: File = toml::from_str(text)?;
    let recommended = file.preset.is_some();
    let preset = preset(file.preset)?;
    let run = run(file.run, "run", preset.run)?;
    let absent = retry::absent(file.retry.is_some(), recommended);
    let retry = retry(file.retry.unwrap_or_default(), "retry", absent)?;
    let control_token = file
        .control
        .token_env
        .map(|variable| secret("[control]", &variable, &env))
        .transpose()?;
    let auth = file
        .auth
        .map(|table| auth(table, control_token.as_ref(), &env))
        .transpose()?;

    Ok(Config {
        agents: agents(file.agents, auth.as_ref(), run, retry)?,
        cors: file
            .cors
            .map(|table| cors(table, auth.is_some()))
            .transpose()?,
        server: server(file.server)?,
        run,
        retry,
        control_token,
        auth,
        shutdown_drain: Limit::read("control.drain", file.control.drain)?.or(None),
        stop: file.stop.map(phrases).transpose()?,
        loops: loops(file.loops, recommended)?,
        progress: progress(file.progress)?,
        attempt: AttemptLimits {
            step_timeout: Limit::read("attempt.step_timeout", file.attempt.step_timeout)?
                .or(preset.attempt.step_timeout),
            first_token_timeout: Limit::read(
                "attempt.first_token_timeout",
                file.attempt.first_token_timeout,
            )?
            .or(preset.attempt.first_token_timeout),
            max_time: Limit::read("attempt.max_time", file.attempt.max_time)?
                .or(preset.attempt.max_time),
            hold: Limit::read("attempt.hold", file.attempt.hold)?.or(preset.attempt.hold),
        },
        // A preset sets only numbers, so none turns this on.
        caller_deadline: file.disconnect.caller_deadline.unwrap_or(false),
        drain: drain(file.disconnect.policy.as_ref(), file.disconnect.drain_limit)?,
        fallback: fallback(file.fallback, recommended),
        candidates: candidates(file.candidates, &env)?,
    })
}

fn preset(name: Option<Spanned<String>>) -> Result<Preset, Problem> {
    let Some(name) = name else {
        return Ok(Preset::default());
    };
    if name.get_ref() != "recommended" {
        let message = format!(
            "unknown preset {:?}: the only one is \"recommended\"",
            name.get_ref()
        );
        return Err(Problem::new(message).at(name.span()));
    }
    Ok(Preset {
        run: RunLimits {
            step_timeout: Some(Duration::from_secs(300)),
            // Users ask for five minutes to an hour; the longest of these, so that every run
            // has an end.
            max_turn_time: Some(Duration::from_secs(3600)),
            idle_breaker: Some(fallback::PRESET),
            max_turns: Some(PRESET_TURNS),
            ..RunLimits::default()
        },
        attempt: AttemptLimits {
            step_timeout: Some(Duration::from_secs(120)),
            first_token_timeout: Some(Duration::from_secs(240)),
            max_time: None,
            hold: None,
        },
    })
}
