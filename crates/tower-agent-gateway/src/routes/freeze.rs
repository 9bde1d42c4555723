//! The routes that keep new runs out.

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tower_agent::{Owner, RunRegistry};

use super::{Watched, names::OwnerNames, runs::refusal};

/// Shows whose new runs are refused.
pub(crate) async fn show(State(watched): State<Watched>) -> Response {
    Json(frozen(&watched.registry, &watched.names)).into_response()
}

/// Admits no new runs of anybody.
pub(crate) async fn freeze(State(watched): State<Watched>) -> Response {
    set(&watched, None, true)
}

/// Admits new runs again; owners that were frozen by themselves stay so.
pub(crate) async fn thaw(State(watched): State<Watched>) -> Response {
    set(&watched, None, false)
}

/// Admits no new runs of this owner; 404 for a name that no key has.
pub(crate) async fn freeze_owner(
    State(watched): State<Watched>,
    Path(owner): Path<String>,
) -> Response {
    of_owner(&watched, &owner, true)
}

/// Admits new runs of this owner again; 404 for a name that no key has.
pub(crate) async fn thaw_owner(
    State(watched): State<Watched>,
    Path(owner): Path<String>,
) -> Response {
    of_owner(&watched, &owner, false)
}

fn of_owner(watched: &Watched, name: &str, is_frozen: bool) -> Response {
    if let Some(owner) = watched.names.find(name) {
        return set(watched, Some(owner), is_frozen);
    }
    // A key may be gone from the configuration while its owner is frozen.
    let mut known = watched.registry.frozen().owners.into_iter();
    if let Some(owner) = known.find(|owner| owner.to_string() == name) {
        return set(watched, Some(owner), is_frozen);
    }
    let message = format!("no owner {name} is known: name a key of [auth], or `anonymous`");
    refusal(StatusCode::NOT_FOUND, "owner_not_found", &message).into_response()
}

fn set(watched: &Watched, whose: Option<Owner>, is_frozen: bool) -> Response {
    let registry = &watched.registry;
    let is_news = match is_frozen {
        true => registry.freeze(whose),
        false => registry.thaw(whose),
    };
    if is_news {
        if is_frozen {
            watched.webhooks.dispatcher().frozen(whose);
        }
        let whose = whose.map_or_else(|| "all".to_owned(), |owner| watched.names.show(owner));
        match is_frozen {
            true => tracing::warn!(owner = whose, "new runs frozen by the operator"),
            false => tracing::warn!(owner = whose, "new runs admitted again"),
        }
    }
    Json(frozen(registry, &watched.names)).into_response()
}

/// Whose new runs are refused, as JSON.
fn frozen(registry: &RunRegistry, names: &OwnerNames) -> Value {
    let frozen = registry.frozen();
    let mut owners: Vec<_> = frozen
        .owners
        .iter()
        .map(|owner| names.show(*owner))
        .collect();
    owners.sort_unstable();
    json!({ "all": frozen.all, "owners": owners })
}
