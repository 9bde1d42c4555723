//! Makes the candidates of a configuration, with their prices, and the classifier of their failures.

use super::{
    AgentConfig, ConfigError,
    tables::{CandidateTable, ConcernName, PriceTable, Transport},
    values::Amount,
};
use crate::{
    attempt::Candidate,
    llm::failure::{Classifier, Concern, Signal, SignalUntil},
    run::Price,
};

impl AgentConfig {
    /// Makes the candidates; `env` looks up the variables that hold their keys.
    ///
    /// # Errors
    ///
    /// If variables are not set, are empty, or hold characters that no header may carry, or if
    /// [`Candidate::base_url`] refuses a URL.
    pub fn candidates(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Candidate>, ConfigError> {
        let mut errors = Vec::new();
        let mut candidates = Vec::new();
        for table in &self.candidates {
            match candidate(table, &env) {
                Ok(made) => candidates.push(made),
                Err(error) => errors.push(error),
            }
        }
        match ConfigError::join(errors) {
            None => Ok(candidates),
            Some(error) => Err(error),
        }
    }

    /// Makes the classifier that knows the configuration's own signals.
    ///
    /// Every layer that makes further attempts needs it; those of this configuration have it.
    #[must_use]
    pub fn classifier(&self) -> Classifier {
        if self.signals.is_empty() {
            return Classifier::new();
        }
        let signals = self.signals.iter().filter_map(|table| {
            let (_, place, what) = *table.places().first()?;
            let signal = Signal::new(place, what, table.class.0).under(table.status.clone());
            let signal = with(signal, table.beside.clone(), Signal::beside);
            let signal = with(signal, table.concerns, |signal, concern| {
                signal.concerns(concern.into())
            });
            let signal = match table.renewed {
                true => signal.until(SignalUntil::Renewed),
                false => signal,
            };
            Some(match table.quoted {
                true => signal.quoted(),
                false => signal,
            })
        });
        Classifier::new().signals(signals)
    }
}

/// Makes one candidate; `env` looks up the variable that holds its key.
fn candidate(
    table: &CandidateTable,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Candidate, ConfigError> {
    let wrong = |key: &str, message: String| ConfigError::new(table.path(key), message);
    let candidate = Candidate::new(&table.model)
        .name(table.label())
        .dialect(table.dialect)
        .trusted(table.trusted)
        .websocket(table.transport == Transport::WebSocket)
        .base_url(table.base_url.get().clone())
        .map_err(|error| wrong("base_url", error.to_string()))?;
    let candidate = with(candidate, table.price, |it, price| it.price(price.into()));
    let candidate = with(candidate, table.context_window, |it, tokens| {
        it.context_window(tokens.get())
    });
    let Some(variable) = &table.api_key_env else {
        return Ok(candidate);
    };
    let of_variable =
        |why: &str| ConfigError::of_variable(table.path("api_key_env"), variable, why);
    let key = env(variable).ok_or_else(|| of_variable("is not set"))?;
    if key.is_empty() {
        return Err(of_variable("is empty"));
    }
    let forbidden = "holds characters that no header may carry, such as a line break";
    let candidate = candidate
        .api_key(&key)
        .map_err(|_| of_variable(forbidden))?;
    if key.trim() != key {
        return Err(of_variable("begins or ends with a space"));
    }
    if is_quoted(&key) {
        return Err(of_variable(
            "stands in quotes, which are a part of it, as `docker --env-file` leaves them",
        ));
    }
    Ok(candidate)
}

/// Whether a text begins and ends with the same quote.
fn is_quoted(text: &str) -> bool {
    let is_within =
        |quote: char| text.len() > 1 && text.starts_with(quote) && text.ends_with(quote);
    is_within('"') || is_within('\'')
}

impl From<ConcernName> for Concern {
    fn from(name: ConcernName) -> Self {
        match name {
            ConcernName::Request => Self::Request,
            ConcernName::Model => Self::Model,
            ConcernName::ModelOfAccount => Self::ModelOfAccount,
            ConcernName::Account => Self::Account,
            ConcernName::Host => Self::Host,
        }
    }
}

impl From<PriceTable> for Price {
    fn from(table: PriceTable) -> Self {
        let price = Self::per_million(table.input.get(), table.output.get());
        with(
            price,
            table.cached_input.map(Amount::get),
            Self::cached_input,
        )
    }
}

/// Makes the setting `set` of `built`, if there is a value.
pub(super) fn with<L, V>(built: L, value: Option<V>, set: impl FnOnce(L, V) -> L) -> L {
    match value {
        Some(value) => set(built, value),
        None => built,
    }
}
