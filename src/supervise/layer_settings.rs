//! The settings by which a layer's supervision of a call differs from another's.

use super::{
    layer_hooks::{LayerHooks, LayerPart},
    step_window::StepWindow,
    two_parts::TwoParts,
};
use crate::run::Scope;

/// The settings by which one layer's supervision of a call differs from another's.
#[derive(Debug)]
pub(crate) struct LayerSettings {
    pub(super) part: LayerPart,
    /// Whether the layer observes the response even if it does not settle the node. Set for a layer
    /// that needs to know which frames are progress, or whether the response is complete.
    pub(super) reads: bool,
    /// Whether the layer counts the tokens of an answer that is not a stream. If an inner layer
    /// counts them, this layer does not.
    pub(super) counts: bool,
    /// Whether the hooks get every frame, and not only the first one after a `Pending`.
    pub(super) frames: bool,
    /// Whether the layer puts its node into the response's extensions, provided it settles that
    /// node.
    pub(super) exposes_node: bool,
    /// Whether the layer settles the node not at the body's end, but when the body drops.
    ///
    /// An attempt is settled at the drop, because its complete answer may still be classified as a
    /// failure.
    pub(super) defers: bool,
    /// Whether the wrapper stands for a second layer, around the one of `part`, that reads a response
    /// only if it settles the node.
    pub(super) has_outer: bool,
}

impl LayerSettings {
    const fn new(part: LayerPart) -> Self {
        Self {
            part,
            reads: false,
            counts: false,
            frames: false,
            exposes_node: true,
            defers: false,
            has_outer: false,
        }
    }

    /// Creates the settings of a layer that measures nothing at a poll.
    pub(crate) const fn passive() -> Self {
        Self::new(LayerPart::Nothing)
    }

    /// Creates the settings of a layer that ends the node, or notifies observers, after `window`.
    pub(crate) const fn window(window: StepWindow) -> Self {
        Self::new(LayerPart::Window(window))
    }

    /// Creates the settings of a layer that ends the node in `scope` if the caller disconnects.
    ///
    /// A drop of the unfinished future or body is such a disconnect.
    pub(crate) const fn disconnect(scope: Scope) -> Self {
        Self::new(LayerPart::Disconnect(scope))
    }

    /// Creates settings with these hooks; a `Box` of hooks without fields allocates nothing.
    pub(crate) fn hooks(hooks: impl LayerHooks + 'static) -> Self {
        Self::new(LayerPart::Hooks(Box::new(hooks)))
    }

    /// Has the wrapper do the work of a second layer, which stands around this one on the same node
    /// and does not read responses.
    #[inline]
    pub(crate) fn within(self, outer: Self) -> Self {
        match (&self.part, outer.part) {
            (LayerPart::Nothing, part) => Self { part, ..self },
            (_, LayerPart::Nothing) => Self {
                has_outer: true,
                ..self
            },
            (_, outer) => self.beside(outer),
        }
    }

    #[cold]
    #[inline(never)]
    fn beside(self, outer: LayerPart) -> Self {
        let parts = TwoParts::new(self.part, outer, self.frames);
        let part = LayerPart::Hooks(Box::new(parts));
        Self {
            part,
            has_outer: true,
            ..self
        }
        .frames()
    }

    /// Has the layer read the response.
    pub(crate) const fn reading(mut self) -> Self {
        self.reads = true;
        self
    }

    /// Has the layer read the response, and count the tokens of an answer that is not a stream.
    pub(crate) const fn counting(mut self) -> Self {
        self.counts = true;
        self.reading()
    }

    /// Has the hooks get every frame.
    pub(crate) const fn frames(mut self) -> Self {
        self.frames = true;
        self
    }

    /// Keeps the layer's node out of the response's extensions.
    pub(crate) const fn hiding_node(mut self) -> Self {
        self.exposes_node = false;
        self
    }

    /// Has the layer settle the node when the body drops, not already at the body's end.
    pub(crate) const fn deferring(mut self) -> Self {
        self.defers = true;
        self
    }
}
