use crate::llm::failure::FailureClass;

/// What can be left alone, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CooldownKey {
    pub(crate) digest: u64,
    /// It is about a caller's account, of which there may be any number.
    pub(crate) is_callers: bool,
}

/// All that a try of one candidate depends on.
///
/// What befalls one caller's account must not take the candidate from the
/// others, and what befalls the account must not be tried again with another
/// model of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// The model at its upstream, whoever asks.
    pub(crate) model: CooldownKey,
    /// The model, on one account.
    pub(crate) model_of_account: CooldownKey,
    /// The account.
    pub(crate) account: CooldownKey,
    /// The upstream's host.
    pub(crate) provider: CooldownKey,
}

impl Keys {
    /// What a failure of this class is about.
    pub(super) const fn of(&self, class: FailureClass) -> CooldownKey {
        match class {
            FailureClass::RateLimit | FailureClass::ModelGone => self.model_of_account,
            FailureClass::Quota | FailureClass::Auth => self.account,
            FailureClass::Certificate | FailureClass::Region => self.provider,
            _ => self.model,
        }
    }

    pub(super) const fn all(&self) -> [CooldownKey; 4] {
        [
            self.model,
            self.model_of_account,
            self.account,
            self.provider,
        ]
    }
}
