use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{
    candidate::Candidate,
    credential::{ACCOUNT, SESSION_TOKEN, WITHIN_ACCOUNT},
    operation::Operation,
};
use crate::body::unframe;

const X_RUN_ID: HeaderName = HeaderName::from_static("x-run-id");
const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// Makes the caller's headers those that any candidate may start from.
pub(crate) fn undress(headers: &mut HeaderMap) {
    // A caller may call any header one of its connection, so this is first.
    strip_hop(headers);
    // The body is here already: nothing is left to wait for.
    headers.remove(header::EXPECT);
    // A compressed answer could not be judged.
    let identity = HeaderValue::from_static("identity");
    headers.insert(header::ACCEPT_ENCODING, identity);
}

/// Removes what belongs to one connection, and what `connection` names; with the
/// framing of a chunked message, a length beside it.
pub(crate) fn strip_hop(headers: &mut HeaderMap) {
    // Mostly there is none, and to look once is cheaper than to remove nine.
    if !headers.keys().any(is_hop) {
        return;
    }
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let hops: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_hop(name))
        .cloned()
        .collect();
    unframe(headers);
    for name in named.iter().chain(&hops) {
        headers.remove(name);
    }
}

/// Headers of one connection, which are never handed on.
fn is_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Whether a length is told already, in digits and nothing else.
fn says(said: &HeaderValue, length: usize) -> bool {
    let digits = said.to_str().unwrap_or_default();
    let plain = digits.len() == 1 || !digits.starts_with(['0', '+']);
    plain && digits.parse() == Ok(length)
}

/// What an answer says for the server that it comes from, to browsers or to
/// another tower-agent: an upstream does not speak for the program.
fn speaks_for_its_server(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "x-terminal-reason"
            | "x-run-id"
            | "x-attempt"
            | "set-cookie"
            | "set-cookie2"
            | "alt-svc"
            | "strict-transport-security"
            | "clear-site-data"
            | "nel"
            | "report-to"
            | "reporting-endpoints"
    )
}

impl Candidate {
    /// Makes the headers of its answer those that a caller may see.
    pub(crate) fn strip_answer(&self, headers: &mut HeaderMap) {
        strip_hop(headers);
        if self.trusted || !headers.keys().any(speaks_for_its_server) {
            return;
        }
        let spoken = headers.keys().filter(|name| speaks_for_its_server(name));
        for name in spoken.cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
    }

    /// Makes the caller's headers those of an attempt with a body of `length`.
    pub(crate) fn dress(
        &self,
        headers: &mut HeaderMap,
        operation: Option<Operation>,
        run_id: Option<HeaderValue>,
        length: usize,
    ) {
        self.hide(headers);
        if let (true, Some(id)) = (self.trusted, run_id) {
            headers.insert(X_RUN_ID, id);
        }
        if let Some(key) = &self.api_key {
            let (name, value) = key.header(operation);
            headers.insert(name, value);
        }
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        // Last: two opinions on where the body ends are a hole.
        if self.headers.contains_key(header::TRANSFER_ENCODING) {
            headers.remove(header::TRANSFER_ENCODING);
        }
        let said = headers.get(header::CONTENT_LENGTH);
        if said.map_or(length > 0, |said| !says(said, length)) {
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
    }

    /// Removes what is not for this upstream.
    fn hide(&self, headers: &mut HeaderMap) {
        // Ours, which is for those alone who are trusted.
        headers.remove(X_RUN_ID);
        let elsewhere = self.base_url.is_some();
        if elsewhere {
            headers.remove(header::HOST);
            headers.remove(X_SESSION_ID);
        }
        if self.forward_credentials {
            return;
        }
        if elsewhere {
            headers.remove(header::COOKIE);
            headers.remove(SESSION_TOKEN);
        }
        // With a key of its own, the caller's beside it would be a second opinion.
        if elsewhere || self.has_own_account() {
            for name in ACCOUNT.iter().chain(&WITHIN_ACCOUNT) {
                headers.remove(name);
            }
        }
    }
}
