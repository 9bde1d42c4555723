//! What a node's holders register on it, and give back before they let go.

use std::sync::Arc;

use super::{
    compare::Compared,
    event::{TASKS, WAKERS},
    model::{Calls, Quiet, Wait},
    tree::Tree,
};
use crate::run::tree::{
    NodeKind,
    idle_window::{IdleWindow, TaskId},
};

impl Tree {
    pub(super) fn open(&mut self, under: u8, kind: NodeKind) {
        let (id, under) = self.pick(under);
        self.model.open(Some(id), kind);
        let log = self.journal.next();
        let number = log.id as u64;
        let node = under.child(kind, number, log, self.model.now);
        self.journal.watch(&node);
        self.nodes.push(Arc::downgrade(&node));
        self.handles.push(Some(node));
    }

    pub(super) fn window(
        &mut self,
        choice: u8,
        task: u8,
    ) -> Option<(&mut Quiet, &IdleWindow, TaskId)> {
        let slot = slot(&self.model.windows, choice)?;
        let spec = self.model.windows[slot].as_mut()?;
        let task = usize::from(task % TASKS);
        spec.task = Some(task);
        Some((spec, &self.windows[slot], TaskId::of(&self.wakers[task])))
    }

    pub(super) fn remove_window(&mut self, slot: usize) {
        if let Some(spec) = self.model.windows[slot].take() {
            self.handle(spec.node).remove_window(&self.windows[slot]);
        }
    }

    pub(super) fn wait(&mut self, slot: usize, node: usize, waker: u8, below: bool) {
        let waker = usize::from(waker % WAKERS);
        self.model.waits[slot] = Some(Wait { node, waker, below });
        let node = self.handle(node);
        node.register_waker(&mut self.waits[slot], &self.wakers[waker], below);
    }

    pub(super) fn unwait(&mut self, slot: usize) {
        if let Some(wait) = self.model.waits[slot].take() {
            let key = self.waits[slot].take();
            self.handle(wait.node).deregister_waker(key.unwrap());
        }
    }

    /// Drops a handle, as its holders do: whoever waits, works or pauses there
    /// stops doing so first.
    pub(super) fn release(&mut self, id: usize) -> Compared {
        let Some(node) = self.handles[id].clone() else {
            return Ok(());
        };
        for slot in 0..self.waits.len() {
            if self.model.waits[slot].is_some_and(|wait| wait.node == id) {
                self.unwait(slot);
            }
        }
        for slot in 0..self.windows.len() {
            if self.model.windows[slot].is_some_and(|window| window.node == id) {
                self.remove_window(slot);
            }
        }
        while self.model.nodes[id].pauses > 0 {
            self.model.pause(id, false);
            node.resume(self.model.now);
        }
        while self.model.nodes[id].work > 0 {
            // The last one may end it, and what was called before did not know.
            self.compare()?;
            self.model.calls = Calls::default();
            self.model.leave(id);
            node.end_work(self.model.now);
        }
        self.compare()?;
        self.model.calls = Calls::default();
        self.model.drop_handle(id);
        self.handles[id] = None;
        Ok(())
    }
}

/// One of the slots that are in use.
pub(super) fn slot<T>(slots: &[Option<T>], choice: u8) -> Option<usize> {
    let used = slots.iter().enumerate();
    let used: Vec<_> = used.filter(|(_, slot)| slot.is_some()).collect();
    let choice = usize::from(choice).checked_rem(used.len())?;
    Some(used[choice].0)
}
