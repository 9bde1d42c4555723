//! Makes a configuration of what was read: checks its tables, each alone and against others.

use std::{num::NonZeroU32, time::Duration};

use http::HeaderName;

use super::{
    AgentConfig, ConfigError, KeyPart, base_url,
    document::Reading,
    error::{Mistakes, error},
    limits::{AgentLimits, DEFAULTS, FileLimits, check_costs},
    presets::{
        DRAIN_LIMIT, EARLY_HEAD, FIRST_TOKEN_TIMEOUT, HEARTBEAT, KEEP_ALIVE, NOTIFY_AFTER, OVER,
        RUN_STEP_TIMEOUT, STEP_TIMEOUT,
    },
    tables::{
        AttemptTable, CandidateTable, DisconnectPolicy, DisconnectTable, FallbackTable, File,
        LoopsTable, Profile, ProgressTable, SignalTable, StopTable,
    },
    values::{BoundedCount, Span, limits_anything},
};
use crate::{
    llm::{FIELDS, failure::SignalPlace},
    run::LoopLimits,
};

impl AgentConfig {
    /// Makes the configuration of what was read, and returns all mistakes with it.
    ///
    /// Keys are checked against others only if both were read: otherwise a mistake could follow from
    /// the one that is named already.
    pub(super) fn check(reading: Reading<File>) -> (Self, Vec<ConfigError>) {
        let Reading {
            value,
            mut errors,
            removed,
        } = reading;
        let mut file = value.unwrap_or_default();
        for (index, candidate) in file.candidates.iter_mut().enumerate() {
            candidate.index = removed.index(&["candidates".into()], index);
        }
        for (index, signal) in file.signals.iter_mut().enumerate() {
            signal.index = removed.index(&["signals".into()], index);
        }
        let knows = |tables: &[&str]| tables.iter().all(|table| !removed.concerns(&[*table]));
        let recommended = file.preset.is_some();
        let detection = file.tools.loop_detection;

        let knows_limits =
            knows(&["preset", "run", "retry", "tools"]) && !removed.concerns(&["agents", DEFAULTS]);
        let mut found = Mistakes::new();
        let limits = FileLimits::of(&mut file, &mut found);
        // A mistake in a table does not hide those that stand in another one.
        found.retain(|error| {
            let mut parts = error.parts().iter();
            let of_agent = parts.next() == Some(&"agents".into());
            let agent = match parts.next() {
                Some(KeyPart::Name(name)) if of_agent => name,
                _ => DEFAULTS,
            };
            knows_limits && !removed.concerns(&["agents", agent])
        });
        errors.extend(found);

        let FileLimits {
            defaults,
            defaults_ask,
            agents,
            windows,
        } = limits;
        let observes = |limits: &AgentLimits| limits.run.observe == Some(true);
        let knows_runs = knows_limits && knows(&["agents"]);
        if knows_runs
            && file.disconnect.caller_deadline
            && (observes(&defaults) || agents.values().any(observes))
        {
            let message = "has no effect beside observe of a run's limits";
            errors.push(ConfigError::new(["disconnect", "caller_deadline"], message));
        }
        check_candidates(&file.candidates, &mut errors);
        check_signals(&file.signals, &mut errors);
        let has_price = file.candidates.iter().any(|it| it.price.is_some());
        if knows_runs && knows(&["candidates"]) && !has_price {
            check_costs(&defaults, &agents, &mut errors);
        }
        // Keeps what a check of these tables has found, if all of them were read.
        let mut checked = |tables: &[&str], found: Mistakes| {
            if knows(tables) {
                errors.extend(found);
            }
        };
        let mut found = Mistakes::new();
        let longest = windows.longest;
        let set = file.attempt;
        let attempt = attempt(set, recommended, longest, &mut found);
        checked(&["preset", "attempt"], std::mem::take(&mut found));
        if knows_limits {
            windows.check(&attempt, &set, &removed, &mut found);
            checked(&["attempt"], std::mem::take(&mut found));
        }
        let disconnect = disconnect(file.disconnect, &mut found);
        checked(&["disconnect"], std::mem::take(&mut found));
        let loops = loops(file.loops, detection.enabled, recommended, &mut found);
        checked(&["loops", "tools"], std::mem::take(&mut found));
        let stop = file.stop.map(|table| phrases(table, &mut found));
        checked(&["stop"], std::mem::take(&mut found));
        let progress = progress(file.progress, recommended, &mut found);
        checked(&["progress"], found);
        let config = Self {
            attempt,
            disconnect,
            fallback: FallbackTable {
                cooldown: Some(file.fallback.cooldown.unwrap_or(recommended)),
                sticky: Some(file.fallback.sticky.unwrap_or(recommended)),
                share: Some(file.fallback.share.unwrap_or(true)),
                default_model: Some(file.fallback.default_model.unwrap_or(false)),
                after_refusal: Some(file.fallback.after_refusal.unwrap_or(false)),
            },
            stop: stop.unwrap_or_default(),
            loops,
            progress,
            candidates: file.candidates,
            signals: file.signals,
            agents,
            defaults,
            defaults_ask,
        };
        (config, errors)
    }
}

/// Fills in the preset's windows. To the `longest` of the runs' they have at most the ratio that the preset
/// gives them, so that a silent attempt ends before the run, and another can follow.
fn attempt(
    mut table: AttemptTable,
    recommended: bool,
    longest: Option<Duration>,
    errors: &mut Mistakes,
) -> AttemptTable {
    let mut wrong = |key, message| errors.push(error(&["attempt"], key, message));
    if table.profile == Profile::Local {
        let windows = [
            ("step_timeout", table.step_timeout),
            ("first_token_timeout", table.first_token_timeout),
        ];
        for (key, _) in windows.iter().filter(|(_, window)| window.is_some()) {
            wrong(key, "has no effect with profile = \"local\"");
        }
        if table.heartbeat.is_some_and(|every| every.limit().is_none()) {
            wrong("heartbeat", "must be longer than zero");
        }
        table.heartbeat = table.heartbeat.or(Some(HEARTBEAT));
    } else if table.heartbeat.is_some() {
        wrong("heartbeat", "has no effect without profile = \"local\"");
    } else if recommended {
        let fitting = |preset: Span| {
            let part = |most: Duration| most.mul_f64(preset.0.div_duration_f64(RUN_STEP_TIMEOUT.0));
            Span(longest.map_or(preset.0, |most| part(most).min(preset.0)))
        };
        table.step_timeout = table.step_timeout.or(Some(fitting(STEP_TIMEOUT)));
        let first = table.first_token_timeout;
        table.first_token_timeout = first.or(Some(fitting(FIRST_TOKEN_TIMEOUT)));
    }
    let windows = [table.step_timeout, table.first_token_timeout];
    let others = [table.max_time, table.heartbeat];
    let has_floor = table.min_tokens_per_second.is_some();
    if table.observe && !has_floor && !limits_anything(&windows) && !limits_anything(&others) {
        wrong("observe", "has no effect without a limit on time beside it");
    }
    floor(&mut table, errors);
    table
}

/// Fills in the time over which the speed of streams is measured, and checks the floor.
fn floor(table: &mut AttemptTable, errors: &mut Mistakes) {
    let mut wrong = |key, message: &str| errors.push(error(&["attempt"], key, message));
    let Some(floor) = table.min_tokens_per_second else {
        if table.over.is_some() {
            wrong("over", "has no effect without min_tokens_per_second");
        }
        return;
    };
    if floor.limit().is_none() {
        wrong(
            "min_tokens_per_second",
            "is zero: to set no floor, leave it out",
        );
    }
    let over = *table.over.get_or_insert(OVER);
    if over.limit().is_none() {
        wrong("over", "must be longer than zero");
        return;
    }
    let hold = table.hold.and_then(Span::limit);
    if hold.is_some_and(|hold| hold <= over.get()) && !table.observe {
        let message = format!(
            "is not longer than over ({:?}): the answer would be committed before it can be too slow",
            over.get()
        );
        wrong("hold", &message);
    }
}

fn disconnect(mut table: DisconnectTable, errors: &mut Mistakes) -> DisconnectTable {
    let drains = table.policy == DisconnectPolicy::Drain;
    let mut wrong = |message| errors.push(error(&["disconnect"], "drain_limit", message));
    match table.drain_limit {
        Some(_) if !drains => wrong("has no effect without policy = \"drain\""),
        Some(limit) if limit.limit().is_none() => {
            wrong("is zero: to drain nothing, write policy = \"cancel\"");
        }
        _ => {}
    }
    let limit = table.drain_limit.unwrap_or(DRAIN_LIMIT);
    table.drain_limit = drains.then_some(limit);
    table
}

/// Fills in the absent keys of a table; without one, the preset sends early heads and keeps streams
/// alive, and notifies nobody.
fn progress(
    table: Option<ProgressTable>,
    recommended: bool,
    errors: &mut Mistakes,
) -> Option<ProgressTable> {
    let notify_after = table.map_or(Span(Duration::ZERO), |_| NOTIFY_AFTER);
    let table = table.or_else(|| recommended.then(ProgressTable::default))?;
    let keeps_alive = table.keep_alive.is_none_or(|every| every.limit().is_some());
    if !keeps_alive
        && table
            .early_head
            .is_some_and(|after| after.limit().is_some())
    {
        let message = "has no effect with keep_alive = \"0s\": after the head, a proxy would cut a \
                       stream that is silent";
        errors.push(error(&["progress"], "early_head", message));
    }
    let preset = (recommended && keeps_alive).then_some(EARLY_HEAD);
    Some(ProgressTable {
        notify_after: table.notify_after.or(Some(notify_after)),
        keep_alive: table.keep_alive.or(Some(KEEP_ALIVE)),
        early_head: table.early_head.or(preset),
        comments: table.comments,
    })
}

/// Checks the phrases: each needs a letter or a digit, because a phrase without either never
/// matches.
fn phrases(StopTable { phrases }: StopTable, errors: &mut Mistakes) -> Vec<String> {
    let key = [KeyPart::from("stop"), KeyPart::from("phrases")];
    if phrases.is_empty() {
        let message = "is empty: to have none, leave [stop] out";
        errors.push(ConfigError::new(key.clone(), message));
    }
    for (index, phrase) in phrases.iter().enumerate() {
        if !phrase.contains(char::is_alphanumeric) {
            let path = key.clone().into_iter().chain([index.into()]);
            let message = format!("{phrase:?} has no letter and no digit");
            errors.push(ConfigError::new(path, message));
        }
    }
    phrases
}

/// The limits of the loop guard; `None` if the guard or each limit is off, so that the guard reads
/// no conversation.
fn loops(
    table: Option<LoopsTable>,
    enabled: Option<bool>,
    recommended: bool,
    errors: &mut Mistakes,
) -> Option<LoopsTable> {
    if let (Some(_), Some(false)) = (&table, enabled) {
        let key = ["tools", "loopDetection", "enabled"];
        let message = "is false beside [loops]: leave one of them out";
        errors.push(ConfigError::new(key, message));
    }
    let mut table = table.or_else(|| enabled.unwrap_or(recommended).then(LoopsTable::default))?;
    let absent = LoopLimits::DEFAULT;
    let mut is_on = false;
    for (number, absent) in [
        (&mut table.warn, absent.warn),
        (&mut table.stop, absent.stop),
        (&mut table.unknown_tool, absent.unknown_tool),
        (&mut table.any_tool, absent.any_tool),
    ] {
        let number = number.get_or_insert(BoundedCount(absent.map_or(0, NonZeroU32::get)));
        is_on |= number.0 > 0;
    }
    is_on.then_some(table)
}

fn check_signals(signals: &[SignalTable], errors: &mut Mistakes) {
    for (position, signal) in signals.iter().enumerate() {
        let mut wrong =
            |key, message: &str| errors.push(ConfigError::new(signal.path(key), message));
        let places = signal.places();
        if places.is_empty() {
            let why = "says not where to look: write `name`, `phrase`, `start`, `header`, `quota` \
                       or `field`";
            let [list, index, _] = signal.path("name");
            errors.push(ConfigError::new([list, index], why));
            continue;
        }
        for (key, _, _) in &places[1..] {
            let first = places[0].0;
            let why = format!("is a second place beside `{first}`: write another entry for it");
            wrong(key, &why);
        }
        let (key, place, what) = places[0];
        if what.trim().is_empty() {
            wrong(key, "is empty");
        } else if place == SignalPlace::Header {
            let name = what.split_once(':').map_or(what, |(name, _)| name).trim();
            if name.parse::<HeaderName>().is_err() {
                let why = "is not a header: write its name, or \"name: a part of its value\"";
                wrong(key, why);
            }
        } else if place == SignalPlace::Field && !FIELDS.contains(&what) {
            let why = format!(
                "is not a field that is read: write one of {}",
                FIELDS.join(", ")
            );
            wrong(key, &why);
        }
        if signal.quoted && !matches!(place, SignalPlace::Phrase | SignalPlace::Start) {
            wrong("quoted", "counts for a `phrase` or a `start` alone");
        }
        if let Some(status) = signal.status.iter().find(|it| !(200..=599).contains(*it)) {
            let why = format!("{status} is not a status of an answer");
            wrong("status", &why);
        }
        let is_same = |other: &&SignalTable| {
            other.places() == places
                && other.beside == signal.beside
                && (other.status == signal.status || other.status.is_empty())
        };
        if let Some(other) = signals[..position].iter().find(is_same) {
            let why = format!(
                "never decides: entry {} has the same signal",
                other.index + 1
            );
            wrong(key, &why);
        }
    }
}

fn check_candidates(candidates: &[CandidateTable], errors: &mut Mistakes) {
    for (position, candidate) in candidates.iter().enumerate() {
        let mut wrong =
            |key, message: &str| errors.push(ConfigError::new(candidate.path(key), message));
        if candidate.model.is_empty() {
            wrong("model", "is empty");
        }
        if candidate.name.as_deref() == Some("") {
            wrong("name", "is empty");
        }
        let url = candidate.base_url.get();
        if let Some(base) = base_url::without_operation(url) {
            let why = "ends in an operation, which each request adds";
            wrong("base_url", &format!("\"{url}\" {why}: write {base:?}"));
        }
        let name = candidate.label();
        let mut others = candidates[..position].iter();
        if !name.is_empty() && others.any(|other| other.label() == name) {
            let message = format!("a second candidate is named {name:?}: give it another `name`");
            let [list, index, _] = candidate.path("name");
            errors.push(ConfigError::new([list, index], message));
        }
    }
}
