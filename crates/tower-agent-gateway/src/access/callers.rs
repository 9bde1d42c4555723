use std::{collections::HashSet, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower_agent::Owner;

use super::bearers;
use crate::config::{Auth, Key};

/// Everybody who has a key.
#[derive(Clone, Debug)]
pub(crate) struct Callers(Arc<[Key]>);

/// Whose key a request came with: in its extensions, where no client can put it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Which is its agent, too.
    pub(crate) name: Arc<str>,
    pub(crate) owner: Owner,
}

/// Where SDKs put a key that is no bearer's.
static PLAIN: [HeaderName; 2] = [
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
];

impl Callers {
    /// Logs under what name records know each of them.
    pub(crate) fn new(auth: &Auth) -> Self {
        let mut named = HashSet::new();
        for key in auth.keys.iter().filter(|key| named.insert(&key.name)) {
            tracing::info!(name = %key.name, owner = %owner(key), "has a key");
        }
        Self(auth.keys.clone().into())
    }

    /// Whose key is among the headers.
    fn find(&self, headers: &HeaderMap) -> Option<Caller> {
        let plain = PLAIN.iter().flat_map(|name| headers.get_all(name));
        let plain = plain.filter_map(|value| value.to_str().ok());
        bearers(headers)
            .chain(plain)
            .find_map(|given| self.of_key(given))
    }

    fn of_key(&self, given: &str) -> Option<Caller> {
        // All are compared, so that the time says nothing of where it stands.
        let found = self.0.iter().fold(None, |found, key| {
            if key.secret.is(given) {
                Some(key)
            } else {
                found
            }
        });
        found.map(|key| Caller {
            name: Arc::clone(&key.name),
            owner: owner(key),
        })
    }
}

fn owner(key: &Key) -> Owner {
    Owner::of(key.name.as_bytes())
}

/// Lets only callers with a key through, and says who they are.
pub(crate) async fn identify(
    State(callers): State<Callers>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(caller) = callers.find(request.headers()) else {
        return refuse(request.uri().path());
    };
    // It is for this gateway, and for nobody further on.
    let headers = request.headers_mut();
    headers.remove(header::AUTHORIZATION);
    for name in &PLAIN {
        headers.remove(name);
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// As the API of `path` says it; and no SDK tries again what cannot become right.
fn refuse(path: &str) -> Response {
    let message = "This gateway needs a key of its own: none that it knows was sent.";
    let kind = "authentication_error";
    let body = if path.starts_with("/v1/messages") {
        json!({"type": "error", "error": {"type": kind, "message": message}})
    } else {
        json!({"error": {"message": message, "type": kind, "code": kind, "param": null}})
    };
    let headers = [("x-should-retry", "false"), ("www-authenticate", "Bearer")];
    (StatusCode::UNAUTHORIZED, headers, Json(body)).into_response()
}
