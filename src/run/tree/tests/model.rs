//! What a tree does, said slowly: every answer is worked out from the parents,
//! nothing is spread or cached but the ends themselves.

use std::time::Duration;

use crate::run::{reason::TerminalReason, step::ResetOn, tree::NodeKind};

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) now: Duration,
    pub(super) nodes: Vec<Spec>,
    /// Who follows whom.
    pub(super) follows: Vec<(usize, usize)>,
    pub(super) waits: Vec<Option<Wait>>,
    pub(super) windows: Vec<Option<Quiet>>,
    pub(super) calls: Calls,
}

#[derive(Debug)]
pub(super) struct Spec {
    /// A bit for this node and for each above it.
    pub(super) path: u64,
    pub(super) parent: Option<usize>,
    pub(super) kind: NodeKind,
    pub(super) opened: Duration,
    pub(super) ceiling: Option<Duration>,
    pub(super) share: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) announced: Option<Duration>,
    /// Whether it was itself closed, and until when it goes on, if that has a limit.
    pub(super) closed: bool,
    pub(super) drain: Option<Duration>,
    /// Why the limit ends it, if not for the closing below.
    pub(super) cut_for: Option<TerminalReason>,
    /// Whether nothing may be opened below it.
    pub(super) closing: Option<Closing>,
    pub(super) signs: Vec<(ResetOn, Duration)>,
    pub(super) end: Option<ModelEnd>,
    pub(super) also: Vec<TerminalReason>,
    pub(super) pauses: usize,
    pub(super) work: usize,
    /// Whether somebody still has a handle on it.
    pub(super) held: bool,
}

/// Why a node refuses what is new.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Closing {
    pub(super) reason: TerminalReason,
    /// Whether it leaves alone the calls that are open, and all below them.
    pub(super) spares_calls: bool,
}

impl Closing {
    pub(super) fn of_all(reason: &TerminalReason) -> Self {
        Self {
            reason: reason.clone(),
            spares_calls: false,
        }
    }

    pub(super) const fn at_cap() -> Self {
        Self {
            reason: TerminalReason::TurnCap,
            spares_calls: true,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ModelEnd {
    pub(super) reason: TerminalReason,
    pub(super) origin: usize,
    pub(super) kind: NodeKind,
    pub(super) at: Duration,
    pub(super) lasted: Duration,
    /// One of these; several only if windows passed at one instant.
    pub(super) limits: Vec<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) node: usize,
    pub(super) waker: usize,
    pub(super) below: bool,
}

/// A window of silence: since when, how long, and which task may call it passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiet {
    pub(super) node: usize,
    /// None if it is a caller's.
    pub(super) resets_on: Option<ResetOn>,
    pub(super) running: Option<(Duration, Duration)>,
    pub(super) task: Option<usize>,
}

/// Whom an event has to reach; a bit per node or waker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) told: u64,
    pub(super) must_wake: u64,
    pub(super) may_wake: u64,
}

impl Model {
    /// The node, its parent, and so on to the root: a parent is older.
    pub(super) fn path(&self, node: usize) -> impl DoubleEndedIterator<Item = usize> {
        let path = self.nodes[node].path;
        (0..=node).rev().filter(move |n| path >> n & 1 == 1)
    }

    /// Whether `node` is `top`, or below it.
    pub(super) fn is_at_or_below(&self, node: usize, top: usize) -> bool {
        self.nodes[node].path >> top & 1 == 1
    }

    pub(super) fn below(&self, top: usize) -> impl Iterator<Item = usize> {
        (top..self.nodes.len()).filter(move |&node| self.is_at_or_below(node, top))
    }

    /// A node lives as long as a handle on it or on anything below it.
    pub(super) fn exists(&self, node: usize) -> bool {
        self.below(node).any(|node| self.nodes[node].held)
    }

    pub(super) fn nearest_end(&self, node: usize) -> Option<&ModelEnd> {
        self.path(node)
            .find_map(|node| self.nodes[node].end.as_ref())
    }

    pub(super) fn is_paused(&self, node: usize) -> bool {
        let paused = (0..self.nodes.len()).filter(|&n| self.nodes[n].pauses > 0);
        let mut near =
            paused.filter(|&n| self.is_at_or_below(n, node) || self.is_at_or_below(node, n));
        near.next().is_some()
    }

    pub(super) fn active(&self, node: usize) -> usize {
        self.below(node).map(|node| self.nodes[node].work).sum()
    }

    /// A step is also content, and content is also bytes.
    pub(super) fn last(&self, node: usize, resets_on: ResetOn) -> Duration {
        let counts = |sign: ResetOn| match resets_on {
            ResetOn::Step => sign == ResetOn::Step,
            ResetOn::Content => sign != ResetOn::AnyByte,
            ResetOn::AnyByte => true,
        };
        let signs = self.below(node).flat_map(|node| &self.nodes[node].signs);
        let counted = signs.filter(|(sign, _)| counts(*sign)).map(|(_, at)| *at);
        counted.max().unwrap_or_default()
    }

    pub(super) fn next_deadline(&self, node: usize) -> Option<Duration> {
        let path = self.path(node).map(|node| &self.nodes[node]);
        let clocks = |node: &Spec| {
            [
                node.ceiling,
                node.timeout,
                node.share,
                node.announced,
                node.drain,
            ]
        };
        path.flat_map(clocks).flatten().min()
    }

    /// What is registered: children and followers, waiters, windows.
    pub(super) fn left(&self, node: usize) -> [usize; 3] {
        let mut children = self.follows.iter().filter(|(_, to)| *to == node).count();
        for (child, spec) in self.nodes.iter().enumerate() {
            children += usize::from(spec.parent == Some(node) && self.exists(child));
        }
        let waits = self.waits.iter().flatten().filter(|w| w.node == node);
        let windows = self.windows.iter().flatten().filter(|w| w.node == node);
        [children, waits.count(), windows.count()]
    }

    pub(super) fn passed(
        &self,
        node: usize,
        task: Option<usize>,
    ) -> Option<(TerminalReason, Vec<Duration>, Duration)> {
        let spec = &self.nodes[node];
        let limit = |at: Duration| vec![at.saturating_sub(spec.opened)];
        if let Some(at) = spec.ceiling.filter(|at| self.now >= *at) {
            return Some((TerminalReason::HardCeiling, limit(at), at));
        }
        if let Some(at) = spec.share.filter(|at| self.now >= *at) {
            return Some((TerminalReason::HardCeiling, limit(at), at));
        }
        let silent = match self.is_paused(node) {
            true => None,
            false => self.silent(node, task, false),
        };
        if let Some((_, limits)) = silent {
            return Some((TerminalReason::StepTimeout, limits, self.now));
        }
        let clocks = [spec.timeout, spec.announced].into_iter().flatten();
        let clocks = clocks.filter(|at| self.now >= *at);
        let callers = clocks.map(|at| (at, limit(at)));
        let callers: Vec<_> = callers.chain(self.silent(node, task, true)).collect();
        // The earliest wins.
        if let Some(first) = callers.iter().map(|(at, _)| *at).min() {
            // A silence is found by the task that waits, a deadline by any check, perhaps late.
            let is_deadline = [spec.timeout, spec.announced].contains(&Some(first));
            let first_ones = callers.into_iter().filter(|(at, _)| *at == first);
            let limits = first_ones.flat_map(|(_, limits)| limits).collect();
            let until = if is_deadline { first } else { self.now };
            return Some((TerminalReason::CallerDeadline, limits, until));
        }
        spec.drain.filter(|at| self.now >= *at)?;
        let closing = || Some(spec.closing.as_ref()?.reason.clone());
        let reason = spec.cut_for.clone().or_else(closing)?;
        Some((reason, Vec::new(), self.now))
    }

    /// When the earliest of the step windows, or of the callers', passed, and
    /// the lengths of those that passed then.
    fn silent(
        &self,
        node: usize,
        task: Option<usize>,
        callers: bool,
    ) -> Option<(Duration, Vec<Duration>)> {
        task?;
        let windows = self.windows.iter().flatten();
        let ours = windows
            .filter(|w| w.node == node && w.task == task && w.resets_on.is_none() == callers);
        let deadlines = ours.filter_map(|window| {
            let (since, length) = window.running?;
            let last = window.resets_on.map(|resets_on| self.last(node, resets_on));
            Some((since.max(last.unwrap_or_default()) + length, length))
        });
        let passed: Vec<_> = deadlines.filter(|(at, _)| self.now >= *at).collect();
        // The earliest wins.
        let first = passed.iter().map(|(at, _)| *at).min()?;
        let lengths = passed.iter().filter(|(at, _)| *at == first);
        Some((first, lengths.map(|(_, length)| *length).collect()))
    }

    pub(super) fn wakers(&self, wanted: impl Fn(&Wait) -> bool) -> u64 {
        let waits = self.waits.iter().flatten().filter(|wait| wanted(wait));
        waits.fold(0, |wakers, wait| wakers | 1 << wait.waker)
    }
}
