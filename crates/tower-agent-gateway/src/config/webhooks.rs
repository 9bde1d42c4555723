//! `[[webhooks]]`: receivers of what ended and of what needs a person.

use std::{collections::HashMap, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use ring::hmac;
use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::{
    TerminalReason,
    config::{ConfigError, KeyPart},
};

use super::secret::variable_of;

/// The beginning of a secret of the Standard Webhooks specification.
const PREFIX: &str = "whsec_";

/// The bytes that the specification allows in a secret.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The part of a cap at which a run is near it, if the configuration sets none and a receiver wants to
/// know.
pub(super) const NEAR_AT: f64 = 0.8;

/// A receiver of webhooks.
#[derive(Clone, Debug)]
pub(crate) struct Webhook {
    pub(crate) url: Uri,
    pub(crate) key: SigningKey,
    /// What the receiver wants; at least one.
    pub(crate) on: Vec<WebhookKind>,
    /// The reasons of the ends that the receiver wants; `None` stands for all.
    pub(crate) reasons: Option<Vec<String>>,
}

/// What a webhook is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WebhookKind {
    /// A run ended.
    Ended,
    /// A run has used a set part of one of its caps.
    NearCap,
    /// A run is paused.
    Paused,
    /// A run looks stuck, or repeats its tool calls.
    Stuck,
    /// A cooldown of a candidate began.
    CandidateDown,
    /// The operator keeps new runs out.
    Frozen,
}

/// The key of the signatures for one receiver.
#[derive(Clone)]
pub(crate) struct SigningKey(hmac::Key);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct WebhookTable {
    /// The http or https URL of the receiver, without credentials and fragment.
    #[schemars(regex(pattern = r"^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\s]+([/?][^#\s]*)?$"))]
    url: String,
    /// The environment variable that holds the secret: `whsec_` and base64.
    secret_env: String,
    /// The events that the receiver gets. All by default.
    #[schemars(length(min = 1))]
    on: Option<Vec<WebhookKind>>,
    /// The reasons of the ends that the receiver gets. All by default; only with "ended".
    #[schemars(length(min = 1))]
    reasons: Option<Vec<String>>,
}

/// Resolves the tables, and reads the secrets from their environment variables.
pub(super) fn webhooks(
    tables: &[WebhookTable],
    env: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Webhook>, ConfigError> {
    let mut errors = Vec::new();
    let mut earlier = HashMap::new();
    let mut resolved = Vec::new();
    for (index, table) in tables.iter().enumerate() {
        let url = receiver_url(&table.url);
        let url = url.map_err(|why| errors.push(wrong(index, &["url".into()], why)));
        let first = url
            .as_ref()
            .ok()
            .and_then(|url| earlier.insert(url.clone(), index));
        if let Some(first) = first {
            let message = format!("is that of webhooks[{first}]: write one table for a receiver");
            errors.push(wrong(index, &["url".into()], message));
        }
        let on = table.on.clone().unwrap_or_else(|| WebhookKind::ALL.into());
        if on.is_empty() {
            let message = "is empty: the receiver would get nothing";
            errors.push(wrong(index, &["on".into()], message));
        }
        errors.extend(table.wrong_reasons(index, &on));
        let key = SigningKey::of_variable(&table.secret_env, &env);
        let key = key.map_err(|why| errors.push(wrong(index, &["secret_env".into()], why)));
        if let (Ok(url), Ok(key)) = (url, key) {
            resolved.push(Webhook {
                url,
                key,
                on,
                reasons: table.reasons.clone(),
            });
        }
    }
    ConfigError::join(errors).map_or(Ok(resolved), Err)
}

/// Reads the URL of a receiver, of which a query may be a part.
fn receiver_url(text: &str) -> Result<Uri, String> {
    // The text is not shown: its path or its query may be a secret of the receiver's.
    let wrong = |why: &str| format!("must be an absolute http or https URL: {why}");
    let url = text.parse::<Uri>();
    let url = url.map_err(|error| wrong(&error.to_string()))?;
    let (Some("http" | "https"), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return Err(wrong("it has no such scheme, or no host"));
    };
    let has_port = authority.port_u16().is_some() || authority.as_str() == authority.host();
    if authority.as_str().contains('@') {
        return Err(wrong("it holds credentials"));
    }
    if authority.host().is_empty() || !has_port {
        return Err(wrong("it names no host, or no port from 0 to 65535"));
    }
    if text.contains('#') {
        return Err(wrong("it has a fragment"));
    }
    Ok(url)
}

fn wrong(index: usize, key: &[KeyPart], message: impl Into<String>) -> ConfigError {
    let table = [KeyPart::from("webhooks"), KeyPart::Index(index)];
    ConfigError::new(table.into_iter().chain(key.iter().cloned()), message)
}

impl WebhookTable {
    fn wrong_reasons(&self, index: usize, on: &[WebhookKind]) -> Vec<ConfigError> {
        let key = KeyPart::from("reasons");
        let Some(reasons) = &self.reasons else {
            return Vec::new();
        };
        if !on.contains(&WebhookKind::Ended) {
            let message = "has no effect: `on` has no \"ended\"";
            return vec![wrong(index, &[key], message)];
        }
        if reasons.is_empty() {
            let message = "is empty: the receiver would get no end";
            return vec![wrong(index, &[key], message)];
        }
        let unknown = reasons.iter().enumerate().filter(|(_, it)| !is_reason(it));
        let error = |(at, name): (usize, &String)| {
            let message = format!(
                "{name:?} is not a reason of an end: docs/gateway.md, \"Answers\", lists them"
            );
            wrong(index, &[key.clone(), KeyPart::Index(at)], message)
        };
        unknown.map(error).collect()
    }
}

fn is_reason(name: &str) -> bool {
    // These two are outcomes, and no cuts.
    ["completed", "upstream_failed"].contains(&name) || name.parse::<TerminalReason>().is_ok()
}

impl WebhookKind {
    const ALL: [Self; 6] = [
        Self::Ended,
        Self::NearCap,
        Self::Paused,
        Self::Stuck,
        Self::CandidateDown,
        Self::Frozen,
    ];
}

impl Webhook {
    /// Whether the receiver wants this; `reason` is that of an end.
    pub(crate) fn wants(&self, kind: WebhookKind, reason: Option<&str>) -> bool {
        let has = |reason: &str| {
            let wanted = self.reasons.as_ref();
            wanted.is_none_or(|wanted| wanted.iter().any(|it| it == reason))
        };
        self.on.contains(&kind) && reason.is_none_or(has)
    }
}

impl SigningKey {
    fn of_variable(variable: &str, env: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let value = variable_of(&[], variable, env).map_err(|error| error.message().to_owned())?;
        Self::parse(&value).ok_or_else(|| {
            format!(
                "the environment variable {variable} holds no secret of the Standard Webhooks \
                 specification: write `{PREFIX}` and the base64 of {} to {} random bytes",
                BYTES.start(),
                BYTES.end()
            )
        })
    }

    fn parse(secret: &str) -> Option<Self> {
        let bytes = STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
        let is_right = BYTES.contains(&bytes.len());
        is_right.then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The value of `webhook-signature` for a message with this id, at this time in Unix seconds.
    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's reference implementations.
    ///
    /// covers: H12
    #[test]
    fn a_signature_is_that_of_the_specification() {
        let key = SigningKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = key.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
