use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{Candidate, Operation, credential::ACCOUNT};

/// Headers of one connection, which are never handed on.
static HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

const X_RUN_ID: HeaderName = HeaderName::from_static("x-run-id");
const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// Removes what belongs to one connection, and what `connection` names.
pub(crate) fn strip_hop(headers: &mut HeaderMap) {
    // Of nothing, no list is allocated.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

impl Candidate {
    /// Makes the caller's headers those of an attempt with a body of `length`.
    pub(super) fn dress(
        &self,
        headers: &mut HeaderMap,
        operation: Option<Operation>,
        run_id: Option<HeaderValue>,
        length: usize,
    ) {
        // A caller may call any header one of its connection, so this is first.
        strip_hop(headers);
        self.hide(headers);
        // The body is here already: nothing is left to wait for.
        headers.remove(header::EXPECT);
        // A compressed answer could not be judged.
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
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
        headers.remove(header::TRANSFER_ENCODING);
        if length > 0 || headers.contains_key(header::CONTENT_LENGTH) {
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
    }

    /// Removes what is not for this upstream.
    fn hide(&self, headers: &mut HeaderMap) {
        let elsewhere = self.base_url.is_some();
        if elsewhere {
            headers.remove(header::HOST);
            headers.remove(X_RUN_ID);
            headers.remove(X_SESSION_ID);
        }
        if self.forward_credentials {
            return;
        }
        if elsewhere {
            headers.remove(header::COOKIE);
        }
        // With a key of its own, the caller's beside it would be a second opinion.
        if elsewhere || self.has_own_account() {
            for name in &ACCOUNT {
                headers.remove(name);
            }
        }
    }
}
