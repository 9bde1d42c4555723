//! What each event does to the model, and whom it has to reach.

use std::time::Duration;

use super::model::{Closing, Model, ModelEnd, Spec};
use crate::run::{
    reason::TerminalReason,
    step::ResetOn,
    tree::{NodeKind, clocks::Clock},
};

impl Model {
    pub(super) fn open(&mut self, parent: Option<usize>, kind: NodeKind) {
        let end = parent.and_then(|parent| self.nearest_end(parent).cloned());
        let closing = parent.and_then(|parent| self.nodes[parent].closing.clone());
        let refused = closing.filter(|_| end.is_none());
        let stillborn =
            |closing: &Closing| stillborn(closing.reason.clone(), self.nodes.len(), kind, self.now);
        let end = end.or_else(|| refused.as_ref().map(stillborn));
        let born_ended = end.is_some();
        let node = self.nodes.len();
        let above = parent.map_or(0, |parent| self.nodes[parent].path);
        self.nodes.push(Spec {
            path: above | 1 << node,
            parent,
            kind,
            opened: self.now,
            ceiling: None,
            share: None,
            timeout: None,
            announced: None,
            closed: false,
            drain: None,
            cut_for: None,
            closing: refused,
            signs: Vec::new(),
            end,
            also: Vec::new(),
            pauses: 0,
            work: 0,
            held: true,
        });
        if born_ended {
            self.calls.told |= 1 << node;
            // Nobody can be waiting for it yet, and whoever waits for what is
            // below an ended node was called when that ended.
            self.calls.may_wake |= self.wakers(|w| w.below && self.is_at_or_below(node, w.node));
            self.calls.may_wake |= self.drivers_of_followed(node);
        }
    }

    /// By `end`, or by `settle` if it is the opener's word.
    pub(super) fn end(
        &mut self,
        node: usize,
        reason: TerminalReason,
        limits: Vec<Duration>,
        settled: bool,
    ) {
        self.end_of(node, reason, limits, settled, self.now);
    }

    /// The end of a node that lasted until `until`.
    fn end_of(
        &mut self,
        node: usize,
        reason: TerminalReason,
        limits: Vec<Duration>,
        settled: bool,
        until: Duration,
    ) {
        if self.nodes[node].end.is_some() {
            let also = &mut self.nodes[node].also;
            if !settled && also.len() < 8 && !also.contains(&reason) {
                also.push(reason);
            }
            return;
        }
        let end = ModelEnd {
            reason,
            origin: node,
            kind: self.nodes[node].kind,
            at: self.now,
            lasted: until.saturating_sub(self.nodes[node].opened),
            limits,
        };
        self.spread(node, &end, settled);
    }

    pub(super) fn follow(&mut self, node: usize, other: usize) {
        self.follows.push((node, other));
        let end = self.nearest_end(other).cloned();
        if let (Some(end), None) = (end, &self.nodes[node].end) {
            self.spread(node, &end, false);
        } else if let (Some(closing), None) =
            (self.nodes[other].closing.clone(), self.nearest_end(node))
        {
            let Spec { kind, opened, .. } = self.nodes[node];
            let end = stillborn(closing.reason.clone(), node, kind, opened);
            self.nodes[node].closing.get_or_insert(closing);
            self.spread(node, &end, false);
        }
    }

    /// Nothing is opened at or below `node`, nor below what follows one of
    /// those; it ends with the last one who works on it. At a cap the calls
    /// below it are left alone, with all that is below them.
    pub(super) fn close(&mut self, node: usize, closing: &Closing, until: Option<Duration>) {
        if self.nearest_end(node).is_some() {
            return;
        }
        let spec = &mut self.nodes[node];
        let sooner = until.filter(|until| spec.drain.is_none_or(|stored| *until < stored));
        spec.drain = sooner.or(spec.drain);
        spec.closed = true;
        let was_at_cap = spec.closing.as_ref().is_some_and(|it| it.spares_calls);
        if sooner.is_some() && was_at_cap && !closing.spares_calls {
            spec.cut_for.get_or_insert(closing.reason.clone());
        }
        let (reached, spared) = self.reached_by_closing(node, closing.spares_calls);
        for &node in reached.iter().chain(&spared) {
            let wakers = self.wakers(|w| w.node == node);
            // What is over has heard of that.
            self.calls.may_wake |= wakers;
            let spec = &mut self.nodes[node];
            let refuses = spec.closing.is_none() && !spared.contains(&node);
            if refuses {
                spec.closing = Some(closing.clone());
            }
            if (refuses || sooner.is_some()) && spec.end.is_none() {
                self.calls.must_wake |= wakers;
            }
        }
        if self.active(node) == 0 {
            self.drained(node);
        }
    }

    /// What a closing of `top` refuses work at, and what it leaves alone.
    fn reached_by_closing(&self, top: usize, spares_calls: bool) -> (Vec<usize>, Vec<usize>) {
        let next_to = |node: usize| {
            let below = (0..self.nodes.len()).filter(move |&n| self.nodes[n].parent == Some(node));
            let follows = self.follows.iter().filter(move |(_, to)| *to == node);
            below.chain(follows.map(|(from, _)| *from))
        };
        let (mut reached, mut spared) = (vec![top], Vec::new());
        let mut next = 0;
        while let Some(&node) = reached.get(next) {
            next += 1;
            for found in next_to(node) {
                if spares_calls && self.nodes[found].kind == NodeKind::Call {
                    spared.push(found);
                } else if !reached.contains(&found) {
                    reached.push(found);
                }
            }
        }
        next = 0;
        while let Some(&node) = spared.get(next) {
            next += 1;
            for found in next_to(node) {
                if !spared.contains(&found) {
                    spared.push(found);
                }
            }
        }
        spared.retain(|node| !reached.contains(node));
        (reached, spared)
    }

    /// Ends `first`, then whatever is below or follows something that is over,
    /// until nothing more is found.
    fn spread(&mut self, first: usize, end: &ModelEnd, settled: bool) {
        let mut ended = Vec::new();
        let mut found = Some(first);
        while let Some(node) = found {
            self.nodes[node].end = Some(end.clone());
            ended.push(node);
            let is_over = |node: usize| self.nodes[node].end.is_some();
            let follows_one = |node: usize| {
                let mut follows = self.follows.iter().filter(|(from, _)| *from == node);
                follows.any(|(_, to)| is_over(*to))
            };
            found = (0..self.nodes.len()).find(|&node| {
                !is_over(node)
                    && self.exists(node)
                    && (self.nodes[node].parent.is_some_and(is_over) || follows_one(node))
            });
        }
        for node in ended {
            self.calls.told |= 1 << node;
            self.calls.must_wake |= self.wakers(|w| w.node == node);
            let drivers = self.wakers(|w| w.below && self.is_at_or_below(node, w.node));
            self.calls.may_wake |= self.drivers_of_followed(node);
            // Who settles has dropped what was below, and is being polled.
            if settled && self.is_at_or_below(node, first) {
                self.calls.may_wake |= drivers;
            } else {
                self.calls.must_wake |= drivers;
            }
        }
    }

    /// Those at and above what a node, or what is above it, follows: a call that
    /// follows the node of an outer layer is polled by that layer's task.
    fn drivers_of_followed(&self, node: usize) -> u64 {
        let mut reached: Vec<_> = self.path(node).collect();
        for _ in 0..self.follows.len() {
            for &(from, to) in &self.follows {
                if reached.contains(&from) && !reached.contains(&to) {
                    reached.extend(self.path(to));
                }
            }
        }
        self.wakers(|w| w.below && reached.contains(&w.node))
    }

    /// Ends the outermost node of the path that has passed, if none is over.
    pub(super) fn check(&mut self, node: usize, task: Option<usize>) {
        let path: Vec<_> = self.path(node).rev().collect();
        for node in path {
            if self.nodes[node].end.is_some() {
                return;
            }
            if let Some((reason, limits, until)) = self.passed(node, task) {
                return self.end_of(node, reason, limits, false, until);
            }
        }
    }

    pub(super) fn tighten(&mut self, node: usize, clock: Clock, at: Duration) {
        let spec = &mut self.nodes[node];
        let deadline = match clock {
            Clock::Ceiling => &mut spec.ceiling,
            Clock::Timeout => &mut spec.timeout,
            Clock::Share => &mut spec.share,
            Clock::Announced => &mut spec.announced,
            Clock::Drain => &mut spec.drain,
            Clock::Pause => unreachable!("no layer tightens the limit of a pause"),
        };
        *deadline = Some(deadline.map_or(at, |stored| stored.min(at)));
    }

    pub(super) fn lapse(&mut self, node: usize) {
        self.nodes[node].share = None;
    }

    pub(super) fn record(&mut self, node: usize, sign: ResetOn, at: Duration) {
        self.nodes[node].signs.push((sign, at));
    }

    /// A pause begins or ends at `node`: every driver near it has to look.
    pub(super) fn pause(&mut self, node: usize, pauses: bool) {
        if pauses {
            self.nodes[node].pauses += 1;
        } else {
            self.nodes[node].pauses -= 1;
            // Any task of the tree may wait in a window above the node.
            self.calls.may_wake |= self.wakers(|_| true);
        }
        let near = |n| self.is_at_or_below(n, node) || self.is_at_or_below(node, n);
        self.calls.must_wake |= self.wakers(|w| w.below && near(w.node));
        // Others at and below it, and whoever follows one of them, need not.
        let mut reached: Vec<_> = self.below(node).collect();
        for _ in 0..self.follows.len() {
            for &(from, to) in &self.follows {
                if reached.contains(&to) && !reached.contains(&from) {
                    reached.extend(self.below(from));
                }
            }
        }
        self.calls.may_wake |= self.wakers(|w| reached.contains(&w.node));
    }

    fn drained(&mut self, node: usize) {
        if let Some(closing) = self.nodes[node].closing.clone() {
            self.end(node, closing.reason, Vec::new(), false);
        }
    }

    /// The last one to leave an ended node is waited for.
    pub(super) fn leave(&mut self, node: usize) {
        self.nodes[node].work -= 1;
        for node in self.path(node).collect::<Vec<_>>() {
            let left = self.active(node) == 0;
            if left && self.nodes[node].closed && self.nodes[node].end.is_none() {
                self.drained(node);
            }
            if left && self.nodes[node].end.is_some() {
                self.calls.must_wake |= self.wakers(|w| w.node == node && !w.below);
                self.calls.may_wake |= self.wakers(|w| w.node == node);
            }
        }
    }

    /// The last handle is gone, and with it what it followed.
    pub(super) fn drop_handle(&mut self, node: usize) {
        self.nodes[node].held = false;
        let gone: Vec<_> = (0..self.nodes.len()).map(|n| !self.exists(n)).collect();
        self.follows.retain(|(from, to)| !gone[*from] && !gone[*to]);
    }
}

/// How a node ends that comes below one that is closing.
fn stillborn(reason: TerminalReason, node: usize, kind: NodeKind, at: Duration) -> ModelEnd {
    ModelEnd {
        reason,
        origin: node,
        kind,
        at,
        lasted: Duration::ZERO,
        limits: Vec::new(),
    }
}
