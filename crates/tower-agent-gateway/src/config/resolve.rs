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
use super::file::{AttemptTable, File, Profile};
use super::health::health;
use super::limit::{Limit, observe};
use super::loops::loops;
use super::progress::progress;
use super::retry::{self, retry};
use super::run::{PRESET_TURNS, run};
use super::secret::secret;
use super::server::server;
use super::stop::phrases;
use super::watchdog::watchdog;
use super::{AttemptLimits, Config, RunLimits};

/// The interval of a local model's heartbeats, unless the file sets one.
const HEARTBEAT: Duration = Duration::from_secs(10);

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

    let agents = agents(file.agents, auth.as_ref(), run, retry)?;
    let observes = run.observe || agents.iter().any(|agent| agent.run.observe);
    let loops = loops(file.loops, recommended)?;
    let candidates = candidates(file.candidates, &env)?;
    Ok(Config {
        agents,
        watchdog: file
            .watchdog
            .map(|table| watchdog(table, loops.is_some()))
            .transpose()?,
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
        loops,
        progress: progress(file.progress)?,
        attempt: attempt(file.attempt, preset.attempt)?,
        // A preset sets only numbers, so none turns this on.
        caller_deadline: caller_deadline(file.disconnect.caller_deadline, observes)?,
        drain: drain(file.disconnect.policy.as_ref(), file.disconnect.drain_limit)?,
        fallback: fallback(file.fallback, recommended),
        health: file
            .health
            .map(|table| health(table, &candidates))
            .transpose()?,
        candidates,
    })
}

/// Resolves `caller_deadline`. It ends the calls that a run in shadow mode must not end.
fn caller_deadline(value: Option<Spanned<bool>>, observes: bool) -> Result<bool, Problem> {
    match value {
        Some(value) if *value.get_ref() && observes => Err(Problem::new(
            "disconnect.caller_deadline is of no use beside observe of a run's limits",
        )
        .at(value.span())),
        value => Ok(value.is_some_and(Spanned::into_inner)),
    }
}

fn attempt(table: AttemptTable, mut absent: AttemptLimits) -> Result<AttemptLimits, Problem> {
    let span = table.heartbeat.as_ref().map(Spanned::span);
    let heartbeat = Limit::above_zero("attempt.heartbeat", table.heartbeat)?;
    if table.profile == Profile::Local {
        let windows = [
            ("step_timeout", &table.step_timeout),
            ("first_token_timeout", &table.first_token_timeout),
        ];
        for (key, window) in windows {
            if let Some(window) = window {
                let message =
                    format!("attempt.{key} is of no use with attempt.profile = \"local\"");
                return Err(Problem::new(message).at(window.span()));
            }
        }
        (absent.step_timeout, absent.first_token_timeout) = (None, None);
        absent.heartbeat = Some(heartbeat.unwrap_or(HEARTBEAT));
    } else if let Some(span) = span {
        let message = "attempt.heartbeat is of no use without attempt.profile = \"local\"";
        return Err(Problem::new(message).at(span));
    }
    let limit = |key: &str, value, absent| {
        let limit = Limit::read(&format!("attempt.{key}"), value)?;
        Ok::<_, Problem>(limit.or(absent))
    };
    let step_timeout = limit("step_timeout", table.step_timeout, absent.step_timeout)?;
    let first_token_timeout = limit(
        "first_token_timeout",
        table.first_token_timeout,
        absent.first_token_timeout,
    )?;
    let max_time = limit("max_time", table.max_time, absent.max_time)?;
    let times = [
        step_timeout,
        first_token_timeout,
        max_time,
        absent.heartbeat,
    ];
    Ok(AttemptLimits {
        step_timeout,
        first_token_timeout,
        max_time,
        hold: limit("hold", table.hold, absent.hold)?,
        heartbeat: absent.heartbeat,
        observe: observe(table.observe, "attempt", &times, false)?,
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
            ..AttemptLimits::default()
        },
    })
}
