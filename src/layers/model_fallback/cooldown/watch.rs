use std::time::Duration;

use super::{handle::Cooldowns, keys::Keys};
use crate::{attempt::Serving, llm::failure::FailureClass, run::TerminalReason};

/// Waits for what a try comes to that serves a call.
#[derive(Debug)]
pub(crate) struct CooldownWatch {
    cooldowns: Cooldowns,
    keys: Keys,
    began: Duration,
}

impl CooldownWatch {
    /// The try that serves began so long ago.
    pub(crate) fn new(cooldowns: Cooldowns, keys: Keys, ago: Duration) -> Self {
        let began = cooldowns.now().saturating_sub(ago);
        cooldowns.lift(&keys, began);
        Self {
            cooldowns,
            keys,
            began,
        }
    }
}

impl Serving for CooldownWatch {
    fn over(self: Box<Self>, reason: &TerminalReason) {
        let class = match reason {
            TerminalReason::Completed => return self.cooldowns.succeed(&self.keys, self.began),
            TerminalReason::Failed(class) => *class,
            TerminalReason::StepTimeout => FailureClass::Silence,
            // Cut by somebody else, or at a limit: it says nothing about the next.
            _ => return,
        };
        self.cooldowns.note(&self.keys, class, None);
    }
}
