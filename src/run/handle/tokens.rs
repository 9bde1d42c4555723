//! The tokens of a run: their count, the caps on them, and the notice that a cap is near.

use std::{sync::Arc, time::Duration};

use super::{Run, TurnRefused};
use crate::run::{
    limit_kind::{LimitHit, LimitKind, TokenLimit},
    limits::{
        CountedRun, PauseAtCap, Raised, RunExtension, RunTokenCaps, Spending, TokenAccount,
        TokenCaps, TokenLedger, TokenMeter, TokensSpent,
    },
    reason::TerminalReason,
    report::{Hold, RunCap, RunNotice},
    state::{HeldBy, NodeState},
    tree::{Node, NodeKind},
};

/// The tokens of the run at or above a node, and of the runs above that.
#[derive(Clone, Copy)]
pub(crate) struct RunTokens<'a>(&'a Run);

impl<'a> RunTokens<'a> {
    #[inline]
    pub(super) const fn of(run: &'a Run) -> Self {
        Self(run)
    }

    /// Whether the notice about the caps that hold for the nearest run now was claimed.
    pub(crate) fn is_notice_claimed(self) -> bool {
        let tokens = self.0.nearest().tokens_if_any();
        tokens.is_some_and(|tokens| tokens.is_notice_claimed())
    }

    /// The message about the cap that the nearest run is near; `None` if its layer sends no notices
    /// or no cap is near.
    pub(crate) fn near_cap(self) -> Option<String> {
        let run = self.0.nearest();
        let tokens = run.tokens_if_any()?;
        let near = tokens
            .caps()?
            .near(&run.spent_by_all(tokens), &tokens.raised());
        Some(near_message(near?))
    }

    /// Counts the tokens of the nearest run, and of the runs above it, from now on.
    pub(crate) fn count(self) {
        for run in self.0.node().path().filter_map(|node| node.payload.run()) {
            run.rare().tokens();
        }
    }

    /// Counts the tokens of the nearest run in the account of its owner, too.
    pub(crate) fn count_in(self, account: Arc<dyn TokenAccount>) {
        self.count();
        self.0.run_state().rare().tokens().count_in(account);
    }

    /// Makes the meter of this attempt's answer; `None` if no run at or above it counts tokens.
    #[inline]
    pub(crate) fn meter(self) -> Option<TokenMeter> {
        // Every answer takes this walk, and mostly no run counts tokens: the walk is inlined, and
        // the rest is cold.
        let mut node = &**self.0.node();
        while node.tokens_if_any().is_none() {
            node = node.parent()?;
        }
        Some(self.make_meter())
    }

    /// Whether a run at or above this node counts tokens.
    #[inline]
    pub(crate) fn are_counted(self) -> bool {
        let mut nodes = self.0.node().path();
        nodes.any(|node| node.tokens_if_any().is_some())
    }

    #[cold]
    fn make_meter(self) -> TokenMeter {
        let runs = self.ledgers().map(|(run, ledger)| CountedRun {
            ledger: Arc::clone(ledger),
            part: run.shared().cloned(),
        });
        TokenMeter::new(runs.collect(), self.0.attempts().price())
    }

    /// Counts the tokens of the nearest run against `caps`, and ends or pauses the outermost run at or
    /// above this node that has used up one of its caps. Else sends the notices of
    /// [`ask_at_cap`](Self::ask_at_cap). `ticket` is that of a request which is held already.
    ///
    /// # Errors
    ///
    /// The method fails if this node is over or closing; passed clocks are checked first. It also fails
    /// if a pause holds the request.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn admit(self, caps: &RunTokenCaps, ticket: Option<u64>) -> Result<(), TurnRefused> {
        self.count();
        self.0.run_state().rare().tokens().set_caps(*caps);
        self.0.check()?;
        if let Some(hold) = self.0.holds_turn(HeldBy::TokenCap, ticket) {
            return Err(TurnRefused::Held(hold));
        }
        let spent = || self.spent_up(caps, |caps, spent, by| caps.reached(spent, by, 1.0));
        if let Some((run, limit, pause)) = spent() {
            let Some(pause) = pause.filter(|_| run.is_of_many()) else {
                end_at(run, limit, self.0.now());
                self.0.check()?;
                return Ok(());
            };
            // The caps may have been raised before this pause.
            if !pause_at(run, limit, pause, self.0.now()) || spent().is_some() {
                let is_above = run.number() != self.0.nearest().number();
                let limit = Some(limit_hit(limit));
                return Err(TurnRefused::Held(Hold { limit, is_above }));
            }
            run.go_on_with_tokens();
        }
        self.0.nearest().go_on_with_tokens();
        self.ask_at_cap(caps);
        Ok(())
    }

    /// Ends the outermost run at or above this node that has exceeded one of its caps; `caps` are
    /// those of the nearest run. A run that pauses at its caps is paused, and this call ends alone.
    /// Then the method sends the notices of [`ask_at_cap`](Self::ask_at_cap).
    pub(crate) fn cap(self, caps: &RunTokenCaps) {
        if let Some((run, limit, pause)) = self.spent_up(caps, TokenCaps::exceeded) {
            let call = self.0.node().call_node();
            let is_call = call.kind() == NodeKind::Call && run.is_of_many();
            let now = self.0.now();
            match pause.filter(|_| is_call) {
                Some(pause) => {
                    pause_at(run, limit, pause, now);
                    end_at(call, limit, now);
                }
                None => end_at(run, limit, now),
            }
        }
        self.ask_at_cap(caps);
    }

    /// Sends a notice about each live run at or above this node that has used its layer's `ask_at`
    /// part of a cap; `caps` are those of the nearest run.
    ///
    /// A run sends at most one notice, and at most one more after each
    /// [extension](Run::extend).
    pub(crate) fn ask_at_cap(self, caps: &RunTokenCaps) {
        for (run, ledger, caps) in self.capped(caps) {
            if caps.near_at.is_some() {
                run.tell_near_caps(ledger, caps);
            }
            let near = caps.near(&run.spent_by_all(ledger), &ledger.raised());
            let near = near.filter(|_| !run.is_over());
            if let Some(limit) = near.filter(|_| ledger.claim_notice()) {
                let (message, estimated) = (near_message(limit), limit.estimated);
                run.publish(&RunNotice::NearTokenCap { message, estimated }, false);
            }
        }
    }

    /// The outermost run at or above this node of which `limit` finds a cap, the cap, and how the run
    /// waits there.
    fn spent_up(
        self,
        caps: &'a RunTokenCaps,
        limit: impl Fn(&TokenCaps, &Spending, &Raised) -> Option<TokenLimit>,
    ) -> Option<(&'a Node<NodeState>, TokenLimit, Option<PauseAtCap>)> {
        let runs = self.capped(caps);
        let spent = runs.filter_map(|(run, ledger, of)| {
            let spent = run.spent_by_all(ledger);
            Some((run, limit(&of.caps, &spent, &ledger.raised())?, of.pause))
        });
        spent.last()
    }

    /// The capped runs from here to the root. `caps` applies to the nearest; the others use the caps
    /// of their own layer.
    fn capped(
        self,
        caps: &'a RunTokenCaps,
    ) -> impl Iterator<Item = (&'a Node<NodeState>, &'a TokenLedger, &'a RunTokenCaps)> {
        let nearest = self.0.nearest().number();
        self.ledgers().filter_map(move |(run, ledger)| {
            let is_nearest = run.number() == nearest;
            let caps = is_nearest.then_some(caps).or_else(|| ledger.caps());
            Some((run, &**ledger, caps?))
        })
    }

    /// Ends this node because the owner of its run has used up this cap.
    pub(crate) fn end_for_owner(self, limit: TokenLimit) {
        end_at(self.0.node(), limit, self.0.now());
    }

    /// The runs at or above this node that count their tokens, the nearest first.
    fn ledgers(self) -> impl Iterator<Item = (&'a Node<NodeState>, &'a Arc<TokenLedger>)> {
        let runs = self.0.node().path();
        runs.filter_map(|run| Some((run, run.tokens_if_any()?)))
    }
}

fn near_message(limit: TokenLimit) -> String {
    format!("it has used most of its {limit}")
}

const fn limit_hit(limit: TokenLimit) -> LimitHit {
    LimitHit {
        limit: None,
        kind: LimitKind::Tokens(limit),
    }
}

fn end_at(node: &Node<NodeState>, limit: TokenLimit, now: Duration) {
    drop(node.end(TerminalReason::TokenCap, Some(limit_hit(limit)), now));
}

/// Pauses the run at this cap. Returns whether it was not paused at a cap before.
fn pause_at(run: &Node<NodeState>, limit: TokenLimit, pause: PauseAtCap, now: Duration) -> bool {
    let reason = TerminalReason::TokenCap;
    run.pause_at_cap(&reason, limit_hit(limit), pause.limit, now)
}

impl Node<NodeState> {
    /// The ledger of this node, if it is a run that counts its tokens.
    #[inline]
    pub(super) fn tokens_if_any(&self) -> Option<&Arc<TokenLedger>> {
        self.payload.rare_if_any()?.tokens_if_any()
    }

    /// Adds so much to the caps on the tokens of this run.
    pub(super) fn extend_tokens(&self, by: &RunExtension) {
        let ledger = self.run_state().rare().tokens();
        ledger.extend(by, &self.spent_by_all(ledger));
    }

    /// Sends a notice about each cap that this run is near, once for each.
    fn tell_near_caps(&self, ledger: &TokenLedger, caps: &RunTokenCaps) {
        let spent = self.spent_by_all(ledger);
        for limit in caps.all_near(&spent, &ledger.raised()) {
            if let Some(cap) = RunCap::of(limit_hit(limit)).filter(|_| ledger.claim_near(limit.of))
            {
                let message = near_message(limit);
                self.publish(&RunNotice::NearCap { cap, message }, false);
            }
        }
    }

    /// Lets this run go on that is paused at a cap on tokens, if it is below its caps now.
    pub(super) fn go_on_below_caps(&self) {
        let tokens = self.tokens_if_any();
        let caps = tokens.and_then(|tokens| Some((tokens, tokens.caps()?)));
        let reached = caps.and_then(|(tokens, of)| {
            let spent = self.spent_by_all(tokens);
            of.caps.reached(&spent, &tokens.raised(), 1.0)
        });
        if reached.is_none() {
            self.go_on_with_tokens();
        }
    }

    /// The tokens of all parts of this run, of which `ledger` counts those here.
    fn spent_by_all(&self, ledger: &TokenLedger) -> Spending {
        let here = ledger.spent();
        self.shared()
            .map_or(here, |part| here.plus(part.spent_elsewhere()))
    }

    /// The caps on the tokens of this run, as the program has extended them.
    pub(in crate::run) fn token_caps(&self) -> Option<TokenCaps> {
        let ledger = self.tokens_if_any()?;
        let caps = ledger.caps()?.caps.raised(&ledger.raised());
        caps.is_set().then_some(caps)
    }

    pub(in crate::run) fn tokens_spent(&self) -> Option<TokensSpent> {
        let run = self.nearest_run();
        Some(run.spent_by_all(run.tokens_if_any()?).into())
    }
}
