//! The check of a caller's key.

use std::{collections::HashSet, sync::Arc};

use axum::{
    extract::Request,
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use tower_agent::Owner;

use super::{api, check_layer::Check};
use crate::config::{Auth, Key};

/// The keys of `[auth]`, each with the name of its caller.
#[derive(Clone, Debug)]
pub(crate) struct Callers(Arc<[Key]>);

/// The caller that a request's key identifies, as an extension of the request, which no client can
/// set.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The name of the key, and of its `[agents.NAME]` table.
    pub(crate) name: Arc<str>,
    pub(crate) owner: Owner,
}

/// The headers in which SDKs send a key without the `Bearer` scheme.
static PLAIN: [HeaderName; 2] = [
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
];

impl Callers {
    /// Takes the keys, and logs each name with its owner. Records name only the owner.
    pub(crate) fn new(auth: &Auth) -> Self {
        let mut named = HashSet::new();
        for key in auth.keys.iter().filter(|key| named.insert(&key.name)) {
            tracing::info!(name = %key.name, owner = %owner_of_name(&key.name), "caller configured");
        }
        Self(auth.keys.clone().into())
    }

    /// Finds the caller by the keys in the headers.
    fn find(&self, headers: &HeaderMap) -> Option<Caller> {
        let plain = PLAIN.iter().flat_map(|name| headers.get_all(name));
        let plain = plain.filter_map(|value| value.to_str().ok());
        bearers(headers)
            .chain(plain)
            .find_map(|given| self.of_key(given))
    }

    fn of_key(&self, given: &str) -> Option<Caller> {
        // Compares with every key, so that the time does not tell which key matched.
        let keys = self.0.iter();
        let found = keys.fold(None, |found, key| {
            key.secret.is(given).then_some(key).or(found)
        });
        found.map(|key| Caller {
            name: Arc::clone(&key.name),
            owner: owner_of_name(&key.name),
        })
    }
}

/// The owner of a key's name.
///
/// No header can hold the NUL. Otherwise a caller of a gateway without `[auth]`, which chooses its
/// credential, could send a name, and its runs would be those of that key once `[auth]` is loaded.
pub(crate) fn owner_of_name(name: &str) -> Owner {
    Owner::of(&[b"\0", name.as_bytes()].concat())
}

/// The owner of a request's run: the caller that its key identified, else its credential.
///
/// The caller alone decides, and not the configuration that serves the request, because a request
/// may be served by an earlier configuration than the one that checked its key.
pub(crate) fn owner_of(extensions: &Extensions, headers: &HeaderMap) -> Owner {
    let caller = extensions.get::<Caller>();
    caller.map_or_else(|| Owner::of_headers(headers), |caller| caller.owner)
}

/// Admits requests with a known key, and inserts its [`Caller`] into the extensions.
impl Check for Callers {
    fn check(&self, request: &mut Request) -> Result<(), Box<Response>> {
        let Some(caller) = self.find(request.headers()) else {
            return Err(Box::new(refuse(request)));
        };
        // Only the gateway may see its own keys: a candidate's upstream must not.
        let headers = request.headers_mut();
        headers.remove(header::AUTHORIZATION);
        for name in &PLAIN {
            headers.remove(name);
        }
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

/// The tokens that are presented as `authorization: Bearer TOKEN`.
pub(super) fn bearers(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::AUTHORIZATION).into_iter();
    values.filter_map(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    })
}

/// The 401 answer, in the shape of the API of the request.
///
/// A repeat would fail again, so `x-should-retry` tells SDKs not to try.
fn refuse(request: &Request) -> Response {
    let mut answer = api::error(
        (request.uri(), request.headers()),
        StatusCode::UNAUTHORIZED,
        "authentication_error",
        "This gateway needs a key of its own: none that it knows was sent.",
    );
    let headers = answer.headers_mut();
    headers.insert("x-should-retry", HeaderValue::from_static("false"));
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}
