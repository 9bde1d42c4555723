//! Admits runs against the caps of their owner, or refuses them.

use std::sync::Arc;

use super::{
    RunRegistry,
    entries::Entries,
    owner_caps::{Owner, OwnerAsk, OwnerCaps, OwnerTokens},
};
use crate::run::{Identity, Run, RunNotice};

/// A request's extension: no cap has counted the call that a layer opened for it.
///
/// Calls that the program attached to a run lack the extension, and are not counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncounted;

/// A further extension of an [`Uncounted`] request: the caps have admitted it before it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmittedUnread;

/// The side that looks a run up, and may open it: the program or a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finder {
    /// The program looks the run up, and may use it at any time. So the run counts as used. No cap
    /// applies to the program.
    Program,
    /// A request looks the run up, and enters it for the request's call.
    Request,
    /// As a request; a run that is opened here ends at once with its parent, which is over.
    LateRequest,
}

impl RunRegistry {
    /// Counts the request of `call` for its owner. A run that is not admitted yet counts as a new
    /// run, and is then admitted; if `is_turn`, the request also counts as a turn. `asked` is what
    /// the request asked a store about its owner.
    ///
    /// If the request is over a cap, the call ends. If the run is not admitted yet, it ends too and
    /// leaves no trace, unless observers know it or another call of it is live. Runs of other
    /// registries are not counted.
    ///
    /// Count and admission are one step under the lock of the entry: of several requests with one
    /// new id, one counts as the run, and the others as further requests of it.
    pub(crate) fn admit(
        &self,
        call: &Run,
        caps: OwnerCaps,
        is_turn: bool,
        mut asked: Option<OwnerAsk>,
    ) {
        let run = call.run();
        let identity = self.identity_of(&run);
        let Some(identity) = identity.filter(|_| call.terminal_reason().is_none()) else {
            return;
        };
        let (owner, owners) = (Owner(identity.owner), self.count_owners());
        if is_turn && caps.caps_turns() {
            // A call that a cap refuses ends: its mark means nothing.
            call.node().set_owners_turn();
        }
        let (admission, place) = (&identity.admission, identity.place);
        let open = || {
            self.state.with_entry(place, |entries| {
                let is_new = !admission.is_admitted();
                is_new.then(|| match owners.open(owner, caps, is_turn, asked.as_mut()) {
                    Ok(open) => Ok((open, admission.admit())),
                    Err(cap) => Err((cap, entries.withdraw(place))),
                })
            })
        };
        // A run that was admitted before takes no lock of a shard.
        let is_pending = !admission.is_admitted();
        let opened = is_pending.then(open).flatten();
        let (cap, ended, known) = match opened {
            Some(Ok((open, is_first))) => {
                run.node().count_as(Box::new(open));
                if is_first {
                    run.notify(&RunNotice::Opened);
                }
                return;
            }
            Some(Err((cap, true))) => {
                self.state.leave_session(identity, false);
                (cap, &run, None)
            }
            Some(Err((cap, false))) => (cap, call, Some(call)),
            None => match owners.request(owner, caps, is_turn, asked.as_mut()) {
                Err(cap) => (cap, call, Some(call)),
                Ok(()) => return,
            },
        };
        drop(ended.node().end(cap.owner_reason(), Some(cap), ended.now()));
        self.report_refused(owner, cap, known);
    }

    /// Whether [`admit`](Self::admit) would refuse this request now. Nothing is counted.
    pub(crate) fn is_at_cap(&self, call: &Run, caps: OwnerCaps, is_turn: bool) -> bool {
        let run = call.run();
        self.identity_of(&run).is_some_and(|identity| {
            let is_new = !identity.admission.is_admitted();
            let owner = Owner(identity.owner);
            self.count_owners().is_at_cap(owner, caps, is_new, is_turn)
        })
    }

    /// Counts the tokens of this call's run for the run's owner from now on. Returns the owner's
    /// count; `None` for a run of another registry.
    pub(crate) fn owner_tokens(&self, call: &Run) -> Option<Arc<OwnerTokens>> {
        let run = call.run();
        let owner = Owner(self.identity_of(&run)?.owner);
        let tokens = self.count_owners().tokens(owner);
        run.tokens().count_in(tokens.clone());
        Some(tokens)
    }

    /// Takes the run of `call` out of the registry without a trace. The run stays if it has ended,
    /// a cap has admitted it, observers know it, or another call of it is live.
    pub(crate) fn withdraw(&self, call: &Run) {
        let run = call.run();
        let Some(identity) = self.identity_of(&run) else {
            return;
        };
        let withdraw = |entries: &mut Entries| entries.withdraw(identity.place);
        if self.state.with_entry(identity.place, withdraw) {
            self.state.leave_session(identity, false);
        } else if run.run_state().is_unused() {
            // The request was not a turn: sub-agents belong to the run before.
            self.state.forget_in_session(&run);
        }
    }

    /// The run's identity, if this registry gave it.
    fn identity_of<'a>(&self, run: &'a Run) -> Option<&'a Identity> {
        let identity = run.node().identity()?;
        let registry = identity.registration.as_ptr();
        std::ptr::addr_eq(registry, Arc::as_ptr(&self.state)).then_some(identity)
    }
}
