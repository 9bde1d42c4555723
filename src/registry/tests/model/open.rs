use std::{sync::Arc, time::Duration};

use super::{Known, Model, SESSIONS};
use crate::{
    registry::{Finder, RunRegistry},
    run::{Clock, TerminalReason},
};

const LIMITS: [u64; 4] = [30, 90, 700, 1800];

impl Model {
    pub(super) fn find(&mut self, enters: bool) {
        let (name, session) = (self.any_name(), self.any_session());
        let limit = match enters {
            true => Duration::from_secs(LIMITS[self.random.usize(..LIMITS.len())]),
            false => RunRegistry::IDLE,
        };
        let (owner, id) = (self.owners[name.0], name.1.clone());
        let run = match enters {
            true => {
                let named = session.map(|session| Arc::from(SESSIONS[session]));
                self.registry
                    .find_with(owner, id, named, limit, Finder::Request, None)
            }
            false => self.registry.open(owner, id),
        };
        run.heartbeat();
        // A request that is refused, or one that is served; or it is the program.
        let uses = !enters || self.random.u8(..4) > 0;
        if uses {
            run.run_state().set_used();
        }
        let found = self.hit(&name).filter(|n| !self.is_completed(*n));
        let is_new = found.is_none();
        let n = match found {
            Some(n) => n,
            None => {
                let session = session.filter(|_| enters);
                self.opened(run.clone(), name, session, limit)
            }
        };
        let known = &mut self.all[n];
        assert_eq!(known.run.node().number(), run.node().number());
        known.used = uses || (!is_new && known.used);
        known.idle = known.idle.min(limit);
        known.last = self.now;
        known.active += usize::from(enters);
        let has_passed = known.ceiling.is_some_and(|at| at <= self.now);
        if !enters && has_passed && known.reason.is_none() {
            // The program is about to work on it.
            self.ended(n, TerminalReason::HardCeiling);
        }
    }

    pub(super) fn leave(&mut self) {
        let working = |known: &Known| known.active > 0;
        let working = self
            .all
            .iter_mut()
            .enumerate()
            .filter(|(_, it)| working(it));
        let Some((n, known)) = self.random.choice(working.collect::<Vec<_>>()) else {
            return;
        };
        known.run.heartbeat();
        known.run.node().end_work(known.run.now());
        known.last = self.now;
        known.active -= 1;
        if known.active == 0 && !known.used && known.reason.is_none() {
            self.ended(n, TerminalReason::Completed);
        }
    }

    pub(super) fn limit(&mut self) {
        let seconds = Duration::from_secs(self.random.u64(1..400));
        if let Some(n) = self.any_live() {
            let known = &mut self.all[n];
            let at = known.run.now() + seconds;
            known.run.node().tighten(Clock::Ceiling, at);
            let at = self.now + seconds;
            known.ceiling = Some(known.ceiling.map_or(at, |ceiling| ceiling.min(at)));
        }
    }

    pub(super) fn supersede(&mut self) {
        let (old, mut new) = (self.any_name(), self.any_name());
        new.0 = old.0;
        let owner = self.owners[old.0];
        let run = self.registry.supersede(owner, &old.1, new.1.clone());
        let before = self.hit(&old);
        let may = self.hit(&new).is_none_or(|n| self.is_completed(n));
        assert_eq!(run.is_some(), may);
        let Some(run) = run else { return };
        let session = before.and_then(|n| self.all[n].session);
        let idle = before.map_or(RunRegistry::IDLE, |n| self.all[n].idle);
        self.opened(run, new, session, idle);
        if let Some(n) = before.filter(|n| self.all[*n].reason.is_none()) {
            self.ended(n, TerminalReason::Superseded);
        }
    }

    pub(super) fn reopen(&mut self) {
        let name = self.any_name();
        let run = self.registry.reopen(self.owners[name.0], &name.1);
        let ended = self.hit(&name).filter(|n| self.all[*n].reason.is_some());
        assert_eq!(run.is_some(), ended.is_some());
        if let (Some(run), Some(n)) = (run, ended) {
            let (session, idle) = (self.all[n].session, self.all[n].idle);
            self.opened(run, name, session, idle);
        }
    }

    /// Under an id that is made up.
    pub(super) fn detach(&mut self) {
        if let Some(n) = self.any_live() {
            self.all[n].used = true;
            let known = &self.all[n];
            let child = known.run.child_detached();
            let (name, session) = ((known.name.0, child.id()), known.session);
            self.opened(child, name, session, known.idle);
        }
    }
}
