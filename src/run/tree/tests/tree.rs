//! The tree under test and its model, side by side.

use std::{
    sync::{Arc, Weak},
    task::Waker,
    time::Duration,
};

use super::{
    super::node::Node,
    callers_window,
    compare::{Compared, answer, same},
    event::{Event, TASKS, WAKERS},
    journal::{Journal, Log},
    model::{Calls, Closing, Model, Quiet},
    ms,
    registrations::slot,
    run, window,
};
use crate::run::{
    limit_kind::{LimitHit, LimitKind},
    reason::TerminalReason,
    tree::{
        NodeKind,
        idle_window::{IdleWindow, TaskId},
    },
};

const STEP: u64 = 10;

pub(super) struct Tree {
    pub(super) journal: Arc<Journal>,
    pub(super) model: Model,
    pub(super) handles: Vec<Option<Arc<Node<Log>>>>,
    pub(super) nodes: Vec<Weak<Node<Log>>>,
    pub(super) windows: Vec<Arc<IdleWindow>>,
    pub(super) waits: Vec<Option<usize>>,
    pub(super) wakers: Vec<Waker>,
    /// Nodes told so far, ever.
    pub(super) told: u64,
}

impl Tree {
    pub(super) fn new() -> Self {
        let journal = Arc::new(Journal::default());
        let root = Node::root(NodeKind::Run, 0, journal.next());
        journal.watch(&root);
        let mut model = Model::default();
        model.open(None, NodeKind::Run);
        Self {
            model,
            nodes: vec![Arc::downgrade(&root)],
            handles: vec![Some(root)],
            windows: Vec::new(),
            waits: Vec::new(),
            wakers: (0..WAKERS.max(TASKS))
                .map(|id| journal.waker(id.into()))
                .collect(),
            journal,
            told: 0,
        }
    }

    /// Lets `events` happen, compares after each, then lets go of everything.
    pub(super) fn run(mut self, events: &[Event]) -> Compared {
        for (number, event) in events.iter().enumerate() {
            let happened = self.happen(event).and_then(|()| self.compare());
            happened.map_err(|why| format!("event {number}, {event:?}: {why}"))?;
        }
        // The root last: it must have forgotten all that was ever below it.
        for node in (0..self.handles.len()).rev() {
            self.model.calls = Calls::default();
            let released = self.release(node).and_then(|()| self.compare());
            released.map_err(|why| format!("releasing {node}: {why}"))?;
        }
        let alive = self.nodes.iter().filter(|node| node.strong_count() > 0);
        same("nodes left", alive.count(), 0)
    }

    fn happen(&mut self, event: &Event) -> Compared {
        self.model.calls = Calls::default();
        let now = self.model.now;
        match *event {
            Event::Open { under, kind } => self.open(under, kind),
            Event::End { node, ref reason } => {
                let (id, node) = self.pick(node);
                let was = self.model.nearest_end(id).cloned();
                self.model.end(id, reason.clone(), Vec::new(), false);
                answer(node.end(reason.clone(), None, now), was.as_ref())?;
            }
            Event::Settle { node, ref reason } => {
                let (id, node) = self.pick(node);
                let was = self.model.nearest_end(id).cloned();
                self.model.end(id, reason.clone(), Vec::new(), true);
                answer(node.settle(reason.clone(), now), was.as_ref())?;
            }
            Event::SettleAs { node, other } => {
                let [(id, node), (other, call)] = [self.pick(node), self.pick(other)];
                if let Some(end) = self.model.nearest_end(other).cloned() {
                    self.model.end(id, end.reason, end.limits, true);
                    node.settle_as(call.own_end().unwrap(), now);
                }
            }
            Event::Follow { node, other } => {
                let [(a, _), (b, _)] = [self.pick(node), self.pick(other)];
                // A follower is younger than what it follows: no circles.
                if a != b {
                    let (id, to) = (a.max(b), a.min(b));
                    self.model.follow(id, to);
                    self.handle(id).follow(&self.handle(to));
                }
            }
            Event::Tighten { node, clock, ahead } => {
                let (id, node) = self.pick(node);
                let ahead = i64::from(ahead) * i64::try_from(STEP).unwrap();
                let at = u64::try_from(now.as_millis())
                    .unwrap()
                    .saturating_add_signed(ahead);
                self.model.tighten(id, clock, ms(at));
                node.clocks.tighten(clock, ms(at));
            }
            Event::Lapse { node } => {
                let (id, node) = self.pick(node);
                self.model.lapse(id);
                node.clocks.lapse();
            }
            Event::Record { node, sign, ago } => {
                let (id, node) = self.pick(node);
                let at = earlier(now, ago);
                self.model.record(id, sign, at);
                node.record(sign, at);
            }
            Event::Check { node, task, after } => {
                self.model.now += ms(STEP * u64::from(after));
                let (id, node) = self.pick(node);
                let task = task.map(|task| usize::from(task % TASKS));
                self.model.check(id, task);
                let id_of = |task: usize| TaskId::of(&self.wakers[task]);
                let checked = node.check(self.model.now, task.map_or(TaskId::NONE, id_of));
                answer(checked, self.model.nearest_end(id))?;
            }
            Event::Advance { by } => self.model.now += ms(STEP * u64::from(by)),
            Event::Pause { node } => {
                let (id, node) = self.pick(node);
                self.model.pause(id, true);
                node.pause(self.model.now);
            }
            Event::Resume { node } => {
                let (id, node) = self.pick(node);
                if self.model.nodes[id].pauses > 0 {
                    self.model.pause(id, false);
                    node.resume(self.model.now);
                }
            }
            Event::Enter { node } => {
                let (id, node) = self.pick(node);
                self.model.nodes[id].work += 1;
                node.begin_work();
            }
            Event::Leave { node } => {
                let (id, node) = self.pick(node);
                if self.model.nodes[id].work > 0 {
                    self.model.leave(id);
                    node.end_work(now);
                }
            }
            Event::Close {
                node,
                ref reason,
                ahead,
            } => {
                let (id, node) = self.pick(node);
                let until = now + ms(STEP * u64::from(ahead));
                self.model.close(id, &Closing::of_all(reason), Some(until));
                node.close(reason, until, now);
            }
            Event::CloseAtCap { node, ahead } => {
                let (id, node) = self.pick(node);
                let until = (ahead > 0).then(|| now + ms(STEP * u64::from(ahead)));
                let passed = LimitHit {
                    limit: None,
                    kind: LimitKind::Turns(1),
                };
                self.model.close(id, &Closing::at_cap(), until);
                node.close_at_cap(&TerminalReason::TurnCap, passed, until, now);
            }
            Event::AddWindow {
                node,
                resets_on,
                length,
                task,
            } => {
                let (id, node) = self.pick(node);
                let length = ms(STEP * u64::from(length));
                let task = usize::from(task % TASKS);
                self.model.windows.push(Some(Quiet {
                    node: id,
                    resets_on,
                    running: Some((now, length)),
                    task: Some(task),
                }));
                let window = match resets_on {
                    Some(resets_on) => window(&node, resets_on),
                    None => callers_window(&node),
                };
                run(&window, now, length, TaskId::of(&self.wakers[task]));
                self.windows.push(window);
            }
            Event::RunWindow {
                window,
                ago,
                length,
                task,
            } => {
                let since = earlier(now, ago);
                let length = ms(STEP * u64::from(length));
                if let Some((spec, window, task)) = self.window(window, task) {
                    spec.running = Some((since, length));
                    run(window, since, length, task);
                }
            }
            Event::MoveWindow { window, task } => {
                if let Some((_, window, task)) = self.window(window, task) {
                    window.set_task(task);
                }
            }
            Event::StopWindow { window } => {
                if let Some(slot) = slot(&self.model.windows, window) {
                    self.model.windows[slot].as_mut().unwrap().running = None;
                    self.windows[slot].stop();
                }
            }
            Event::RemoveWindow { window } => {
                if let Some(slot) = slot(&self.model.windows, window) {
                    self.remove_window(slot);
                }
            }
            Event::Wait { node, waker, below } => {
                let (node, _) = self.pick(node);
                self.waits.push(None);
                self.model.waits.push(None);
                self.wait(self.waits.len() - 1, node, waker, below);
            }
            Event::Rewait { wait, waker, below } => {
                if let Some(slot) = slot(&self.model.waits, wait) {
                    let node = self.model.waits[slot].unwrap().node;
                    self.wait(slot, node, waker, below);
                }
            }
            Event::Unwait { wait } => {
                if let Some(slot) = slot(&self.model.waits, wait) {
                    self.unwait(slot);
                }
            }
            Event::Drop { node } => {
                let held = self.handles.iter().flatten().count();
                if held > 1 {
                    let (id, _) = self.pick(node);
                    self.release(id)?;
                }
            }
        }
        Ok(())
    }

    /// One of the nodes that somebody has a handle on.
    pub(super) fn pick(&self, choice: u8) -> (usize, Arc<Node<Log>>) {
        let held = self.handles.iter().enumerate();
        let held: Vec<_> = held.filter(|(_, handle)| handle.is_some()).collect();
        let (id, handle) = held[usize::from(choice) % held.len()];
        (id, handle.clone().unwrap())
    }

    pub(super) fn handle(&self, id: usize) -> Arc<Node<Log>> {
        self.handles[id].clone().unwrap()
    }
}

fn earlier(now: Duration, steps: u8) -> Duration {
    now.saturating_sub(ms(STEP * u64::from(steps)))
}
