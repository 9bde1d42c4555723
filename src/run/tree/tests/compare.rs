use std::{fmt::Debug, sync::Arc};

use super::{
    super::{end::End, node::Node},
    journal::{Entry, Log},
    model::ModelEnd,
    tree::Tree,
};
use crate::run::{step::ResetOn, tree::nanos::nanos};

/// Where tree and model differ.
pub(super) type Compared = Result<(), String>;

impl Tree {
    /// Everything that can be seen of the tree, against the model.
    pub(super) fn compare(&mut self) -> Compared {
        self.compare_calls()?;
        for (id, node) in self.nodes.iter().enumerate() {
            let node = node.upgrade();
            same("lives", node.is_some(), self.model.exists(id))?;
            if let Some(node) = node {
                let compared = self.compare_node(id, &node);
                compared.map_err(|why| format!("node {id}: {why}"))?;
            }
        }
        Ok(())
    }

    fn compare_node(&self, id: usize, node: &Arc<Node<Log>>) -> Compared {
        let (model, spec) = (&self.model, &self.model.nodes[id]);
        same_end("own end", node.own_end(), spec.end.as_ref())?;
        same_end("nearest end", node.nearest_end(), model.nearest_end(id))?;
        if !spec.also.is_empty() || node.own_end().is_some() {
            same("also", &node.also(), &spec.also)?;
        }
        same("paused", node.is_paused(), model.is_paused(id))?;
        if node.own_end().is_none() {
            let closing = spec.closing.as_ref().map(|closing| &closing.reason);
            same("closing", node.refusal(), closing)?;
        }
        same("active", node.active(), model.active(id))?;
        for sign in [ResetOn::Step, ResetOn::Content, ResetOn::AnyByte] {
            same("last", node.last(sign), nanos(model.last(id, sign)))?;
        }
        let next = node.next_deadline();
        same("next deadline", next, model.next_deadline(id).map(nanos))?;
        same("left", node.left(), model.left(id))
    }

    /// Who was called since the last event, and in which order.
    fn compare_calls(&mut self) -> Compared {
        let calls = self.model.calls;
        let (mut told, mut woken) = (0, 0);
        // The last piece of work may end two closed nodes, one after the other.
        let (mut origin, mut early) = (None, 0_u64);
        for entry in self.journal.take() {
            let seen = match entry {
                Entry::Told { node, ended } => {
                    same("told twice", self.told >> node & 1, 0)?;
                    self.told |= 1 << node;
                    told |= 1 << node;
                    if origin.replace(self.origin(node)) != Some(self.origin(node)) {
                        early = 0;
                    }
                    same("wakers called before a hook", early, 0)?;
                    ended
                }
                Entry::Woken { waker, ended } => {
                    woken |= 1_u64 << waker;
                    early |= 1_u64 << waker;
                    ended
                }
            };
            // The end stands in the whole subtree before anybody hears of it.
            let of_end = |node: &usize| origin.is_none_or(|origin| origin == self.origin(*node));
            let of_end = (0..self.nodes.len()).filter(of_end);
            let of_end = of_end.fold(0, |nodes, node| nodes | 1 << node);
            same(
                "stored too late",
                calls.told & of_end & self.living() & !seen,
                0,
            )?;
        }
        same("nodes told", told, calls.told)?;
        same("wakers not called", calls.must_wake & !woken, 0)?;
        let wrongly = woken & !calls.must_wake & !calls.may_wake;
        same("wakers called for nothing", wrongly, 0)
    }

    /// The node whose end this node has, by the model.
    fn origin(&self, node: usize) -> Option<usize> {
        self.model.nodes[node].end.as_ref().map(|end| end.origin)
    }

    fn living(&self) -> u64 {
        let nodes = self.nodes.iter().enumerate();
        nodes.fold(0, |living, (id, node)| {
            living | u64::from(node.strong_count() > 0) << id
        })
    }
}

/// The answer of the three that may say that a node is over.
pub(super) fn answer(real: Result<(), End>, model: Option<&ModelEnd>) -> Compared {
    same_end("answer", real.err().as_ref(), model)
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, real: T, model: T) -> Compared {
    if real == model {
        Ok(())
    } else {
        Err(format!("{what}: {real:?}, and by the model {model:?}"))
    }
}

fn same_end(what: &str, real: Option<&End>, model: Option<&ModelEnd>) -> Compared {
    let agree = match (real, model) {
        (None, None) => true,
        (Some(real), Some(model)) => {
            let limit = match (real.limit(), model.limits.is_empty()) {
                (Some(limit), false) => model.limits.contains(&limit),
                (limit, none) => limit.is_none() && none,
            };
            let origin = real.origin == model.origin as u64;
            let times = real.at() == model.at && real.lasted() == model.lasted;
            limit && origin && times && real.kind == model.kind && real.reason == model.reason
        }
        _ => false,
    };
    if agree {
        Ok(())
    } else {
        Err(format!("{what}: {real:?}, and by the model {model:?}"))
    }
}
