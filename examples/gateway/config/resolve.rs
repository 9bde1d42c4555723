//! From the file to usable values.

use std::num::NonZeroUsize;
use std::time::Duration;

use http::{HeaderValue, Uri};
use toml::Spanned;

use super::disconnect::drain;
use super::error::Problem;
use super::fallback::{fallback, idle_breaker};
use super::file::{self, File};
use super::limit::Limit;
use super::retry::retry;
use super::{AttemptLimits, Candidate, Config, RunLimits, Secret};

/// Frames are a few hundred bytes: enough to ride out a hiccup, little to hold per call.
const DEFAULT_PUMP_FRAMES: NonZeroUsize = NonZeroUsize::new(32).expect("32 is not zero");

/// A channel of more frames is a typing error, not a buffer.
const MOST_PUMP_FRAMES: usize = 65_536;

/// Limits where the file has none.
#[derive(Debug, Clone, Copy, Default)]
struct Preset {
    run: RunLimits,
    attempt: AttemptLimits,
}

/// Resolves a document; `env` looks up the variables that it names.
pub(super) fn config(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Config, Problem> {
    let file: File = toml::from_str(text)?;
    for (key, value) in file.later() {
        if let Some(value) = value {
            let message = format!("{key} is not supported by this version yet");
            return Err(Problem::new(message).at(value.span()));
        }
    }
    let recommended = file.preset.is_some();
    let preset = preset(file.preset)?;

    Ok(Config {
        run: RunLimits {
            step_timeout: Limit::read("run.step_timeout", file.run.step_timeout)?
                .or(preset.run.step_timeout),
            max_turn_time: Limit::read("run.max_turn_time", file.run.max_turn_time)?
                .or(preset.run.max_turn_time),
            timeout: Limit::read("run.timeout", file.run.timeout)?.or(preset.run.timeout),
            idle_breaker: idle_breaker(
                file.run.idle_breaker,
                file.run.idle_fails_over,
                recommended,
            )?,
        },
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
        // No number, so no preset turns it on.
        caller_deadline: file.disconnect.caller_deadline.unwrap_or(false),
        pump_frames: pump_frames(file.disconnect.pump_frames)?,
        drain: drain(file.disconnect.policy.as_ref(), file.disconnect.drain_limit)?,
        control_token: file
            .control
            .token_env
            .map(|variable| secret("[control]", variable, &env))
            .transpose()?,
        retry: retry(file.retry, recommended)?,
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
        // No ceiling: users' needs run from five minutes to an hour.
        run: RunLimits {
            step_timeout: Some(Duration::from_secs(300)),
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

fn pump_frames(frames: file::Number) -> Result<NonZeroUsize, Problem> {
    let Some(frames) = frames else {
        return Ok(DEFAULT_PUMP_FRAMES);
    };
    frames
        .get_ref()
        .as_integer()
        .and_then(|number| usize::try_from(number).ok())
        .filter(|frames| *frames <= MOST_PUMP_FRAMES)
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| {
            let message = format!(
                "disconnect.pump_frames = {} is not from 1 to {MOST_PUMP_FRAMES}",
                frames.get_ref()
            );
            Problem::new(message).at(frames.span())
        })
}

fn candidates(
    files: Vec<Spanned<file::Candidate>>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Candidate>, Problem> {
    if files.is_empty() {
        return Err(Problem::new(
            "no candidate: add one [[candidates]] with `model` and `base_url`",
        ));
    }
    let mut known: Vec<Candidate> = Vec::with_capacity(files.len());
    for file in files {
        let span = file.span();
        let candidate = candidate(file.into_inner(), &env)?;
        if known.iter().any(|other| other.name == candidate.name) {
            let message = format!(
                "a second candidate is named {:?}: give it another `name`",
                candidate.name
            );
            return Err(Problem::new(message).at(span));
        }
        known.push(candidate);
    }
    Ok(known)
}

fn candidate(
    file: file::Candidate,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Candidate, Problem> {
    if file.model.get_ref().is_empty() {
        return Err(Problem::new("candidates.model is empty").at(file.model.span()));
    }
    if let Some(name) = file.name.as_ref().filter(|name| name.get_ref().is_empty()) {
        return Err(Problem::new("candidates.name is empty").at(name.span()));
    }
    let model = file.model.into_inner();
    let name = file.name.map_or_else(|| model.clone(), Spanned::into_inner);
    let api_key = file
        .api_key_env
        .map(|variable| secret(&format!("candidate {name:?}"), variable, env))
        .transpose()?;
    Ok(Candidate {
        base_url: base_url(&file.base_url)?,
        dialect: file.dialect,
        context_window: file.context_window,
        trusted: file.trusted,
        name,
        model,
        api_key,
    })
}

fn base_url(text: &Spanned<String>) -> Result<Uri, Problem> {
    let url = text.get_ref();
    // What is in a URL ends up in logs, so one that may hold a password is not repeated.
    let shown = if url.contains('@') { "[hidden]" } else { url };
    let wrong = |why: &str| {
        let message = format!("candidates.base_url = {shown:?} {why}, as in \"https://host/v1\"");
        Problem::new(message).at(text.span())
    };

    let uri: Uri = url
        .trim_end_matches('/')
        .parse()
        .map_err(|error| wrong(&format!("is not a URL ({error}): it must be absolute")))?;
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong("must be an absolute http or https URL"));
    };
    if url.contains('@') {
        return Err(wrong("must not hold credentials: use api_key_env"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(wrong("must have no query and no fragment"));
    }
    if authority.host().is_empty()
        || (authority.port_u16().is_none() && authority.as_str() != authority.host())
    {
        return Err(wrong("must name a host, and a port only from 0 to 65535"));
    }
    Ok(uri)
}

/// Reads `variable` for `owner`; what it holds must fit into a header.
fn secret(
    owner: &str,
    variable: Spanned<String>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Secret, Problem> {
    let wrong = |why: &str| {
        let message = format!(
            "the environment variable {} of {owner} {why}",
            variable.get_ref()
        );
        Problem::new(message).at(variable.span())
    };

    let value = env(variable.get_ref()).ok_or_else(|| wrong("is not set"))?;
    if value.is_empty() {
        return Err(wrong("is empty"));
    }
    if HeaderValue::from_str(&value).is_err() {
        return Err(wrong(
            "holds characters that no header may carry, such as a line break",
        ));
    }
    Ok(Secret(value))
}
