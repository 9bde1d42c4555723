use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{Candidate, WITHIN_ACCOUNT, operation::Operation};
use crate::{
    body::unframe,
    headers::{CREDENTIALS, X_ATTEMPT, X_RUN_ID},
};

/// Removes the hop-by-hop headers and `expect` from the caller's headers, and sets
/// `accept-encoding: identity`.
pub(crate) fn strip_request_headers(headers: &mut HeaderMap) {
    // This step is first: a caller may name any header in `connection`, also one that is set
    // below. Mostly there is no header to remove, and one scan is cheaper than the removals.
    if headers
        .keys()
        .any(|name| is_hop(name) || *name == header::EXPECT)
    {
        strip_hop(headers);
        // The whole body is buffered: no upstream needs to ask for it by a status 100.
        headers.remove(header::EXPECT);
    }
    // A compressed answer can be classified by its head only.
    let identity = HeaderValue::from_static("identity");
    headers.insert(header::ACCEPT_ENCODING, identity);
}

/// Removes the headers that hold for one connection only, and those that `connection` names.
///
/// If there is a `transfer-encoding`, this function removes `content-length` as well.
pub(crate) fn strip_hop(headers: &mut HeaderMap) {
    // Mostly there is no such header, and one scan is cheaper than nine removals.
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

/// Whether a header belongs to one connection, and is never forwarded.
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

/// Whether the value `said` of a `content-length` is `length`, in plain digits.
fn announces_length(said: &HeaderValue, length: usize) -> bool {
    let digits = said.to_str().unwrap_or_default();
    let plain = digits.len() == 1 || !digits.starts_with(['0', '+']);
    plain && digits.parse() == Ok(length)
}

/// Whether a response header makes a statement about its server, to browsers or another
/// tower-agent.
///
/// From an upstream that is not trusted the caller must not get such a header, which would count as
/// the program's own: a cookie, for example, or a terminal reason.
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
    /// Removes the hop-by-hop headers from the candidate's answer. If the candidate is not trusted,
    /// also removes those that speak for its server.
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

    /// Turns the caller's headers into those of a request to this candidate, with a body of
    /// `length` bytes.
    pub(crate) fn write_request_headers(
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
        // The candidate's own headers do not replace the number of the attempt.
        let own = self.headers.iter().filter(|(name, _)| *name != X_ATTEMPT);
        for (name, value) in own {
            headers.insert(name, value.clone());
        }
        // This step is last: two headers that disagree on the end of the body allow request
        // smuggling.
        if self.headers.contains_key(header::TRANSFER_ENCODING) {
            headers.remove(header::TRANSFER_ENCODING);
        }
        let said = headers.get(header::CONTENT_LENGTH);
        let is_right = said.map_or(length == 0, |said| announces_length(said, length));
        // Mostly no header has two values, and the count of them costs less than another look-up.
        let repeats = headers.len() > headers.keys_len();
        let is_repeated = || headers.get_all(header::CONTENT_LENGTH).iter().nth(1);
        if !is_right || repeats && is_repeated().is_some() {
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
    }

    /// Removes from the caller's headers those that this candidate's upstream must not get.
    ///
    /// Callers send few of them: one scan is cheaper than a removal of each.
    fn hide(&self, headers: &mut HeaderMap) {
        // Then the run's id is the only one: see `hides`.
        if self.base_url.is_none() && !self.has_own_account() {
            headers.remove(X_RUN_ID);
            return;
        }
        let hidden = headers.keys().filter(|name| self.hides(name));
        for name in hidden.cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
    }

    fn hides(&self, name: &HeaderName) -> bool {
        let elsewhere = self.base_url.is_some();
        match name.as_str() {
            // `write_request_headers` sets the run's id again for a trusted candidate.
            "x-run-id" => true,
            "host" | "x-session-id" => elsewhere,
            _ if self.forward_credentials => false,
            // The second is the session of a signed request at a cloud provider.
            "cookie" | "x-amz-security-token" => elsewhere,
            // A caller's credential goes neither to another upstream nor beside the candidate's own
            // key, which it would contradict.
            _ => {
                let is_credential = CREDENTIALS.contains(name) || WITHIN_ACCOUNT.contains(name);
                is_credential && (elsewhere || self.has_own_account())
            }
        }
    }
}
