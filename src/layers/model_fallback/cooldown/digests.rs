//! The digests of models, hosts, accounts and callers. With a shared secret they are the same in
//! each process.

use http::{HeaderMap, HeaderValue};

use crate::{
    attempt::{Candidate, WITHIN_ACCOUNT},
    headers::CREDENTIALS,
    registry::{DigestKeys, Purpose},
};

/// The values of the headers that name an account: credentials, then organization and project.
pub(super) type AccountHeaders<'a> = [Option<&'a [u8]>; 6];

pub(super) fn account_headers(headers: &HeaderMap) -> AccountHeaders<'_> {
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    let [bearer, key, plain, google] = CREDENTIALS.each_ref().map(value);
    let [organization, project] = WITHIN_ACCOUNT.each_ref().map(value);
    [bearer, key, plain, google, organization, project]
}

pub(super) fn model(candidate: &Candidate) -> u64 {
    let base_url = candidate.base_url.as_ref().map(ToString::to_string);
    digest([
        Some(b"model"),
        Some(candidate.label().as_bytes()),
        Some(candidate.model().as_bytes()),
        base_url.as_ref().map(String::as_bytes),
    ])
}

pub(super) fn provider(candidate: &Candidate) -> u64 {
    let host = candidate.base_url.as_ref().map(|url| url.authority());
    digest([Some(b"provider"), host.map(str::as_bytes)])
}

/// The account that the program named by this id.
pub(super) fn named_account(id: &str) -> u64 {
    digest([Some(b"named account"), Some(id.as_bytes())])
}

/// The account of a candidate's own key and headers.
pub(super) fn own_account(candidate: &Candidate) -> u64 {
    let origin = candidate.base_url.as_ref().map(|url| url.origin());
    let (scheme, host) = origin.unzip();
    let key = candidate.api_key.as_ref().map(|key| key.as_bytes());
    let own = [scheme.map(str::as_bytes), host.map(str::as_bytes), key];
    digest_account(b"own account", own, account_headers(&candidate.headers))
}

/// A candidate's account for one caller, whose headers or query go on to the upstream.
pub(super) fn forwarded_account(
    own: u64,
    query: Option<&str>,
    forwarded: AccountHeaders<'_>,
) -> u64 {
    let own = own.to_le_bytes();
    let values = [Some(own.as_slice()), query.map(str::as_bytes), None];
    digest_account(b"forwarded account", values, forwarded)
}

/// A caller's own account at a provider.
pub(super) fn callers_account(
    provider: u64,
    query: Option<&str>,
    caller: AccountHeaders<'_>,
) -> u64 {
    let provider = provider.to_le_bytes();
    let values = [Some(provider.as_slice()), query.map(str::as_bytes), None];
    digest_account(b"caller's account", values, caller)
}

pub(super) fn model_of_account(model: u64, account: u64) -> u64 {
    let (model, account) = (model.to_le_bytes(), account.to_le_bytes());
    digest([Some(b"model of account"), Some(&model), Some(&account)])
}

pub(super) fn candidate(model: u64, account: Option<u64>, dialect: &str) -> u64 {
    let (model, account) = (model.to_le_bytes(), account.map(u64::to_le_bytes));
    digest([
        Some(b"candidate"),
        Some(&model),
        account.as_ref().map(|it| it.as_slice()),
        Some(dialect.as_bytes()),
    ])
}

/// What stands for the owner of a caller's credentials.
pub(crate) fn digest_owner(caller: &HeaderMap) -> u64 {
    digest_account(b"owner", [None; 3], account_headers(caller))
}

pub(crate) fn digest_prompt(body: &[u8]) -> u64 {
    digest([Some(b"prompt"), Some(body)])
}

fn digest_account(kind: &[u8], values: [Option<&[u8]>; 3], headers: AccountHeaders<'_>) -> u64 {
    let [one, two, three] = values;
    let [bearer, key, plain, google, organization, project] = headers;
    digest([
        Some(kind),
        one,
        two,
        three,
        bearer,
        key,
        plain,
        google,
        organization,
        project,
    ])
}

/// The first value says what the digest is of.
fn digest<const N: usize>(values: [Option<&[u8]>; N]) -> u64 {
    DigestKeys::in_use().digest_all(Purpose::Cooldown, values)
}
