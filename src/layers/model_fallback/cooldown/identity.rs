use std::sync::Arc;

use http::{HeaderMap, HeaderValue, request::Parts};

use super::{
    handle::Cooldowns,
    windows::{CooldownKey, Keys},
};
use crate::attempt::{ACCOUNT, ApiKey, Candidate, WITHIN_ACCOUNT};

/// The cooldowns of a layer, and what its candidates are called in them.
#[derive(Clone, Debug)]
pub(crate) struct Cooled {
    pub(crate) cooldowns: Cooldowns,
    identities: Vec<CooldownIdentity>,
}

/// What is known of a candidate before anybody asks for it, as digests.
#[derive(Clone, Copy, Debug)]
struct CooldownIdentity {
    model: u64,
    provider: u64,
    /// None if it is sent the caller's.
    account: Option<u64>,
    /// Whether the caller's own goes along all the same.
    forwards: bool,
}

impl Cooled {
    pub(crate) fn new(cooldowns: Cooldowns, candidates: &[Arc<Candidate>]) -> Self {
        let identities = candidates
            .iter()
            .map(|it| CooldownIdentity::of(it, &cooldowns));
        Self {
            identities: identities.collect(),
            cooldowns,
        }
    }

    /// The candidate at `at`, for a caller with this head.
    pub(crate) fn keys(&self, at: usize, caller: &Parts) -> Option<Keys> {
        let identity = self.identities.get(at)?;
        Some(identity.keys(&self.cooldowns, &caller.headers, caller.uri.query()))
    }
}

impl CooldownIdentity {
    fn of(candidate: &Candidate, cooldowns: &Cooldowns) -> Self {
        let origin = candidate.base_url.as_ref().map(|url| url.origin());
        let host = candidate.base_url.as_ref().map(|url| url.authority());
        let base_url = candidate.base_url.as_ref().map(ToString::to_string);
        let account = match &candidate.credential {
            Some(id) => Some(cooldowns.digest(("account", id))),
            // Callers' accounts stay here: to its upstream, all are one.
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
            // What a caller adds may be refused on an account that is in order.
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

/// The headers that say on whose account a call is.
fn account(headers: &HeaderMap) -> [Option<&[u8]>; 6] {
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    let [bearer, key, plain, google] = ACCOUNT.each_ref().map(value);
    let [organization, project] = WITHIN_ACCOUNT.each_ref().map(value);
    [bearer, key, plain, google, organization, project]
}
