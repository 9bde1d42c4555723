//! How ends and news are written in the store.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use http::StatusCode;
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult, Value};
use serde::{Deserialize, Serialize};
use tower_agent::{
    FailureClass, ReasonClass, RunId, TerminalReason,
    registry::store::{
        AbortTarget, Heard, OwnerElsewhere, OwnerPeriod, PeriodElsewhere, RunEnd, RunKey,
        TokenCapReached,
    },
    run::{RunAdjustments, TokenMeasure, TokensSpent},
};

use crate::keys::{TAGS, owner_of};

/// The end of a run as JSON.
#[derive(Serialize, Deserialize)]
struct EndText<'a> {
    reason: Cow<'a, str>,
    /// The class of the failure, if the upstream failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Cow<'a, str>>,
    /// The class and the status of a reason that the program defines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    elapsed_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_turn: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_tokens: Option<TokensText<'a>>,
    #[serde(default)]
    at_cap: bool,
}

/// The cap on tokens that was reached.
#[derive(Serialize, Deserialize)]
struct TokensText<'a> {
    measure: Cow<'a, str>,
    cap: f64,
    #[serde(default)]
    estimated: bool,
}

/// What a part has spent: five whole numbers and the cost, by spaces.
pub(crate) fn encode_spent(spent: &TokensSpent) -> String {
    format!(
        "{} {} {} {} {} {:.12}",
        spent.input_tokens,
        spent.cached_input_tokens,
        spent.output_tokens,
        spent.estimated_tokens,
        spent.estimated_input_tokens,
        spent.cost
    )
}

/// What [`encode_spent`] or a script wrote; `None` for any other text.
pub(crate) fn decode_spent(text: &str) -> Option<TokensSpent> {
    let mut texts = text.split(' ');
    let mut spent = TokensSpent::default();
    for number in [
        &mut spent.input_tokens,
        &mut spent.cached_input_tokens,
        &mut spent.output_tokens,
        &mut spent.estimated_tokens,
        &mut spent.estimated_input_tokens,
    ] {
        *number = texts.next()?.parse().ok()?;
    }
    let cost = texts.next()?.parse().ok();
    spent.cost = cost.filter(|cost: &f64| cost.is_finite() && *cost >= 0.0)?;
    texts.next().is_none().then_some(spent)
}

/// The greatest number that a script reads and writes as it is.
const MOST: u64 = 1 << 53;

/// What was added to the limits of a run: turns, output and total tokens, the cost, and the time in
/// microseconds, by spaces.
pub(crate) fn encode_added(adjusted: &RunAdjustments) -> String {
    let micros = u64::try_from(adjusted.time.as_micros()).unwrap_or(u64::MAX);
    let cost = adjusted.cost.clamp(0.0, MOST as f64);
    format!(
        "{} {} {} {cost:.12} {}",
        adjusted.turns,
        adjusted.output_tokens.min(MOST),
        adjusted.total_tokens.min(MOST),
        micros.min(MOST),
    )
}

/// What [`encode_added`] or a script wrote; `None` for any other text. An empty one is of nothing.
pub(crate) fn decode_added(text: &str) -> Option<RunAdjustments> {
    let mut adjusted = RunAdjustments::default();
    if text.is_empty() {
        return Some(adjusted);
    }
    let mut texts = text.split(' ');
    adjusted.turns = texts.next()?.parse().ok()?;
    adjusted.output_tokens = texts.next()?.parse().ok()?;
    adjusted.total_tokens = texts.next()?.parse().ok()?;
    let cost = texts.next()?.parse().ok();
    adjusted.cost = cost.filter(|cost: &f64| cost.is_finite() && *cost >= 0.0)?;
    adjusted.time = Duration::from_micros(texts.next()?.parse().ok()?);
    texts.next().is_none().then_some(adjusted)
}

/// What the other replicas have counted for an owner, as the script answers.
///
/// The answer is about counts of these periods.
pub(crate) fn decode_owner(reply: &Value, periods: &[OwnerPeriod]) -> RedisResult<OwnerElsewhere> {
    let count = |count: i64| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
    let damaged = || {
        RedisError::from((
            ErrorKind::UnexpectedReturnType,
            "what was spent is not a count",
        ))
    };
    let mut elsewhere = OwnerElsewhere::default();
    let Value::Array(values) = reply else {
        return Err(damaged());
    };
    let number = |at: usize| i64::from_redis_value_ref(values.get(at).unwrap_or(&Value::Nil));
    let spent = |at: usize| {
        let text = String::from_redis_value_ref(values.get(at).unwrap_or(&Value::Nil))?;
        decode_spent(&text).ok_or_else(damaged)
    };
    elsewhere.open_runs = count(number(0)?);
    elsewhere.turns = count(number(1)?);
    elsewhere.spent = spent(2)?;
    for (at, period) in periods.iter().enumerate() {
        let mut others = PeriodElsewhere::new(period.began);
        others.turns = count(number(3 + 2 * at)?);
        others.spent = spent(4 + 2 * at)?;
        elsewhere.periods[period.period as usize] = Some(others);
    }
    Ok(elsewhere)
}

pub(crate) fn encode_end(end: &RunEnd) -> String {
    let micros = |it: Duration| u64::try_from(it.as_micros()).unwrap_or(u64::MAX);
    let (failure, custom) = match &end.reason {
        TerminalReason::Failed(class) => (Some(class.as_str().into()), None),
        TerminalReason::Custom(custom) => (None, Some(custom)),
        _ => (None, None),
    };
    let text = EndText {
        reason: end.reason.as_str().into(),
        failure,
        class: custom.map(|it| it.class.as_str().into()),
        status: custom.map(|it| it.status.as_u16()),
        elapsed_us: micros(end.elapsed),
        limit_us: end.limit.map(micros),
        at_turn: end.at_turn,
        at_tokens: end.at_tokens.map(|reached| TokensText {
            measure: reached.measure.as_str().into(),
            cap: reached.cap,
            estimated: reached.estimated,
        }),
        at_cap: end.at_cap,
    };
    // A struct of texts and numbers always serializes.
    serde_json::to_string(&text).unwrap_or_default()
}

/// The end that [`encode_end`] wrote; `None` for any other text.
pub(crate) fn decode_end(text: &str) -> Option<RunEnd> {
    let text: EndText<'_> = serde_json::from_str(text).ok()?;
    let reason = match (&*text.reason, &text.failure, &text.class, text.status) {
        (_, Some(failure), _, _) => {
            let mut all = FailureClass::ALL.into_iter();
            TerminalReason::Failed(all.find(|class| class.as_str() == failure)?)
        }
        (name, _, Some(class), Some(status)) => {
            let mut all = ReasonClass::ALL.into_iter();
            let class = all.find(|it| it.as_str() == class)?;
            TerminalReason::custom(name, class, StatusCode::from_u16(status).ok()?)
        }
        ("completed", _, _, _) => TerminalReason::Completed,
        (name, _, _, _) => name.parse().ok()?,
    };
    let mut end = RunEnd::new(reason);
    end.elapsed = Duration::from_micros(text.elapsed_us);
    end.limit = text.limit_us.map(Duration::from_micros);
    end.at_turn = text.at_turn;
    end.at_cap = text.at_cap;
    if let Some(reached) = text.at_tokens {
        let mut all = TokenMeasure::ALL.into_iter();
        end.at_tokens = Some(TokenCapReached {
            measure: all.find(|it| it.as_str() == reached.measure)?,
            cap: reached.cap,
            estimated: reached.estimated,
        });
    }
    Some(end)
}

/// Reads an entry of a log. `Ok(None)` for one that this replica has written itself, or of a kind
/// that a later version tells.
///
/// # Errors
///
/// The entry is damaged.
pub(crate) fn heard(
    fields: &HashMap<String, Value>,
    replica: &str,
) -> Result<Option<Heard>, Damaged> {
    let text = |name: &str| {
        let value = fields.get(name).ok_or(Damaged)?;
        String::from_redis_value_ref(value).map_err(|_| Damaged)
    };
    let kind = text("k")?;
    if text("r")? == replica {
        return Ok(None);
    }
    if kind == "bar" {
        let barrier = text("b")?;
        let is_barrier = barrier.len() == 18 && barrier.bytes().all(|b| b.is_ascii_hexdigit());
        let tag = barrier.get(..2).and_then(|tag| tag.parse::<u8>().ok());
        tag.filter(|tag| is_barrier && *tag < TAGS).ok_or(Damaged)?;
        let barrier = barrier.into();
        return Ok(Some(Heard::Barrier { barrier }));
    }
    if matches!(&*kind, "cool" | "unc" | "sti") {
        return Ok(None);
    }
    let id_of = |text: String| text.parse::<RunId>().map_err(|_| Damaged);
    let target = match &*kind {
        "all" => Some(AbortTarget::Run(id_of(text("i")?)?)),
        "alls" => Some(AbortTarget::Session(Arc::from(text("s")?))),
        _ => None,
    };
    if let Some(target) = target {
        return Ok(Some(Heard::AbortedForAll(target)));
    }
    let owner = owner_of(&text("o")?).ok_or(Damaged)?;
    Ok(match &*kind {
        "end" => Some(Heard::Ended {
            run: RunKey {
                owner,
                id: id_of(text("i")?)?,
            },
            incarnation: text("n")?.parse().map_err(|_| Damaged)?,
            end: decode_end(&text("e")?).ok_or(Damaged)?,
        }),
        "ses" => Some(Heard::SessionEnded {
            owner,
            session: Arc::from(text("s")?),
            spared: match text("x")? {
                none if none.is_empty() => None,
                id => Some(id_of(id)?),
            },
        }),
        _ => None,
    })
}

/// What was read is not what a replica writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Damaged;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_comes_back_as_it_was() {
        let custom = |name: &str, class| TerminalReason::custom(name, class, StatusCode::CONFLICT);
        let cuts = "step_timeout slow max_turn_time timeout client_disconnect aborted superseded \
                    shutdown turn_cap_reached token_cap_reached retry_budget_exceeded \
                    per_dispatch_errors_exceeded consecutive_errors loop_detected stuck \
                    idle_circuit_open";
        let mut reasons: Vec<_> = cuts.split(' ').map(|it| it.parse().unwrap()).collect();
        reasons.extend(FailureClass::ALL.map(TerminalReason::Failed));
        reasons.extend(ReasonClass::ALL.map(|class| custom("out_of_money", class)));
        // The name of a reason of the crate, and one that has to be escaped.
        reasons.push(custom("aborted", ReasonClass::Failure));
        reasons.push(custom("a \"name\"\n", ReasonClass::Limit));
        reasons.push(TerminalReason::Completed);
        for reason in reasons {
            let mut end = RunEnd::new(reason);
            assert_eq!(decode_end(&encode_end(&end)), Some(end.clone()));
            end.elapsed = Duration::from_micros(1_234_567);
            end.limit = Some(Duration::from_secs(60));
            end.at_turn = Some(u32::MAX);
            end.at_cap = true;
            for measure in TokenMeasure::ALL {
                end.at_tokens = Some(TokenCapReached {
                    measure,
                    cap: 0.1,
                    estimated: true,
                });
                assert_eq!(decode_end(&encode_end(&end)), Some(end.clone()));
            }
        }
    }

    #[test]
    fn what_was_spent_comes_back_as_it_was() {
        let mut spent = TokensSpent::default();
        assert_eq!(decode_spent(&encode_spent(&spent)), Some(spent));
        spent.input_tokens = 1;
        spent.cached_input_tokens = 2;
        spent.output_tokens = 3_000_000_000_000;
        spent.estimated_tokens = 4;
        spent.estimated_input_tokens = 5;
        spent.cost = 123.000_000_000_001;
        assert_eq!(decode_spent(&encode_spent(&spent)), Some(spent));
        for text in [
            "",
            "1 2 3 4 5",
            "1 2 3 4 5 -1",
            "1 2 3 4 5 nan",
            "1 2 3 4 -5 6",
            "1 2 3 4 5 6 7",
        ] {
            assert_eq!(decode_spent(text), None, "{text}");
        }
    }

    #[test]
    fn what_was_added_comes_back_as_it_was() {
        let mut added = RunAdjustments::default();
        assert_eq!(decode_added(""), Some(added));
        assert_eq!(decode_added(&encode_added(&added)), Some(added));
        added.turns = u32::MAX;
        added.output_tokens = 3_000_000_000_000;
        added.total_tokens = 2;
        added.cost = 0.1;
        added.time = Duration::from_secs(3600);
        assert_eq!(decode_added(&encode_added(&added)), Some(added));
        for text in [
            "1",
            "1 2 3 4",
            "1 2 3 -4 5",
            "1 2 3 inf 5",
            "-1 2 3 4 5",
            "1 2 3 4 5 6",
        ] {
            assert_eq!(decode_added(text), None, "{text}");
        }
    }

    #[test]
    fn what_no_replica_wrote_is_no_end() {
        for text in [
            "",
            "{}",
            "aborted",
            r#"{"reason":"no_such_reason","elapsed_us":0}"#,
            r#"{"reason":"upstream_failed","elapsed_us":0}"#,
            r#"{"reason":"upstream_failed","failure":"no_such","elapsed_us":0}"#,
            r#"{"reason":"x","class":"limit","status":99,"elapsed_us":0}"#,
            r#"{"reason":"aborted","elapsed_us":-1}"#,
            r#"{"reason":"token_cap_reached","elapsed_us":0,"at_tokens":{"measure":"x","cap":1}}"#,
        ] {
            assert_eq!(decode_end(text), None, "{text}");
        }
    }
}
