use std::sync::Arc;

use http::{HeaderMap, HeaderValue, request::Parts};

use super::{
    handle::Cooldowns,
    windows::{CooldownKey, Keys},
};
use crate::{
    attempt::{ApiKey, Candidate, WITHIN_ACCOUNT},
    headers::CREDENTIALS,
};

/// The cooldowns of a layer, with the keys of its candidates.
#[derive(Clone, Debug)]
pub(crate) struct CandidateCooldowns {
    pub(crate) handle: Cooldowns,
    identities: Vec<CooldownIdentity>,
}

/// The digests of one candidate that do not depend on a request.
#[derive(Clone, Copy, Debug)]
struct CooldownIdentity {
    model: u64,
    provider: u64,
    /// The digest of the candidate's account; `None` if the caller's account is used.
    account: Option<u64>,
    /// Whether the candidate also gets the caller's credentials.
    forwards: bool,
}

impl CandidateCooldowns {
    pub(crate) fn new(cooldowns: Cooldowns, candidates: &[Arc<Candidate>]) -> Self {
        let identities = candidates
            .iter()
            .map(|it| CooldownIdentity::of(it, &cooldowns));
        Self {
            identities: identities.collect(),
            handle: cooldowns,
        }
    }

    /// The cooldown keys of the candidate at `at`, for a caller with this head.
    pub(crate) fn keys(&self, at: usize, caller: &Parts) -> Option<Keys> {
        let identity = self.identities.get(at)?;
        Some(identity.keys(&self.handle, &caller.headers, caller.uri.query()))
    }
}

impl CooldownIdentity {
    fn of(candidate: &Candidate, cooldowns: &Cooldowns) -> Self {
        let origin = candidate.base_url.as_ref().map(|url| url.origin());
        let host = candidate.base_url.as_ref().map(|url| url.authority());
        let base_url = candidate.base_url.as_ref().map(ToString::to_string);
        let account = match &candidate.credential {
            Some(id) => Some(cooldowns.digest(("account", id))),
            // No caller's account is sent to its upstream, so all callers share one.
            None if candidate.has_own_account() || candidate.is_sent_no_account() => {
                let key = candidate.api_key.as_ref().map(ApiKey::as_bytes);
                Some(cooldowns.digest((origin, key, account(&candidate.headers))))
            }
            None => None,
        };
        Self {
            model: cooldowns.digest((candidate.label(), candidate.model(), base_url)),
            provider: cooldowns.digest(("provider", host)),
            account,
            forwards: candidate.forward_credentials,
        }
    }

    fn keys(&self, cooldowns: &Cooldowns, caller: &HeaderMap, query: Option<&str>) -> Keys {
        let forwarded = self.forwards.then(|| account(caller));
        let forwarded = forwarded.filter(|headers| headers.iter().any(Option::is_some));
        let (account, is_callers) = match self.account {
            // The upstream may refuse what the caller adds, on an account that is in order.
            Some(own) if forwarded.is_some() || query.is_some() => {
                (cooldowns.digest((own, forwarded, query)), true)
            }
            Some(own) => (own, false),
            None => (
                cooldowns.digest((self.provider, account(caller), query)),
                true,
            ),
        };
        let key = |digest, is_callers| CooldownKey { digest, is_callers };
        Keys {
            model: key(self.model, false),
            model_of_account: key(cooldowns.digest((self.model, account)), is_callers),
            account: key(account, is_callers),
            provider: key(self.provider, false),
        }
    }
}

/// The values of the headers that name the account of a call.
fn account(headers: &HeaderMap) -> [Option<&[u8]>; 6] {
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    let [bearer, key, plain, google] = CREDENTIALS.each_ref().map(value);
    let [organization, project] = WITHIN_ACCOUNT.each_ref().map(value);
    [bearer, key, plain, google, organization, project]
}
