//! Admits runs against the caps of their owner, or refuses them.

use std::sync::Arc;

use super::{
    RunRegistry,
    entries::Entries,
    owner_caps::{Owner, OwnerCaps, OwnerTokens},
};
use crate::run::{Identity, Run, RunNotice};

/// A request's mark: a layer opened its call, and no cap has counted the request yet. Calls that
/// the program attached to a run carry no mark, and are not counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncounted;

/// The side that looks a run up, and may open it: the program or a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finder {
    /// The program looks the run up, and may use it freely. No cap applies to the program.
    Program,
    /// A request looks the run up, and enters it for the request's call.
    Request,
}

impl RunRegistry {
    /// Counts the request of `call` for its owner: as a new run, which is then admitted, or as a
    /// turn of an admitted run, if `is_turn`.
    ///
    /// If a cap is exceeded, the call ends. A run that the request has just opened then ends too,
    /// and leaves no trace. Runs of other registries are not counted.
    ///
    /// Count and admission are one step under the lock of the entry: of several requests with
    /// one new id, one counts as the run, and the others count as turns of it.
    pub(crate) fn admit(&self, call: &Run, caps: OwnerCaps, is_turn: bool) {
        let run = call.run();
        let identity = self.identity_of(&run);
        let Some(identity) = identity.filter(|_| call.terminal_reason().is_none()) else {
            return;
        };
        let (owner, owners) = (Owner(identity.owner), self.count_owners());
        let (admission, place) = (&identity.admission, identity.place);
        let open = || {
            self.shared.with_entry(place, |entries| {
                let is_new = !admission.is_admitted();
                is_new.then(|| match owners.open(owner, caps, is_turn) {
                    Ok(open) => Ok((open, admission.admit())),
                    Err(cap) => Err((cap, entries.withdraw(place))),
                })
            })
        };
        // A run that was admitted before takes no lock of the registry.
        let opened = if admission.is_admitted() {
            None
        } else {
            open()
        };
        let (cap, ended, known) = match opened {
            Some(Ok((open, is_first))) => {
                run.count_as(Box::new(open));
                if is_first {
                    run.notify(&RunNotice::Opened);
                }
                return;
            }
            Some(Err((cap, true))) => {
                self.shared.leave_session(identity);
                (cap, &run, None)
            }
            Some(Err((cap, false))) => (cap, call, Some(call)),
            None => match owners.request(owner, caps, is_turn) {
                Err(cap) => (cap, call, Some(call)),
                Ok(()) => return,
            },
        };
        drop(ended.node().end(cap.owner_reason(), Some(cap), ended.now()));
        self.report_refused(owner, cap, known);
    }

    /// The count of the tokens of the owner of this call's run, to which the run's tokens are added
    /// from now on; `None` for a run of another registry.
    pub(crate) fn owner_tokens(&self, call: &Run) -> Option<Arc<OwnerTokens>> {
        let run = call.run();
        let owner = Owner(self.identity_of(&run)?.owner);
        let tokens = self.count_owners().tokens(owner);
        run.count_tokens_in(tokens.clone());
        Some(tokens)
    }

    /// Takes the run of `call` out of the registry without a trace. The run stays if a cap has
    /// admitted it, observers know it, or another request works on it.
    pub(crate) fn withdraw(&self, call: &Run) {
        let run = call.run();
        let Some(identity) = self.identity_of(&run) else {
            return;
        };
        let withdraw = |entries: &mut Entries| entries.withdraw(identity.place);
        if self.shared.with_entry(identity.place, withdraw) {
            self.shared.leave_session(identity);
        }
    }

    /// The run's identity, if this registry gave it.
    fn identity_of<'a>(&self, run: &'a Run) -> Option<&'a Identity> {
        let identity = run.node().payload.identity()?;
        let registry = identity.registration.as_ptr();
        std::ptr::addr_eq(registry, Arc::as_ptr(&self.shared)).then_some(identity)
    }
}
