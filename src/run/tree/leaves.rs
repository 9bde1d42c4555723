use super::{latch::EndHook, node::Node};

impl<P: EndHook> Node<P> {
    /// Whether some piece of work that is under way, and of which no part is a
    /// piece of its own, satisfies `test`.
    pub(crate) fn has_leaf(&self, test: &impl Fn(&P) -> bool) -> bool {
        if self.active() == 0 {
            return false;
        }
        let below: Vec<_> = self.lock().children.alive().collect();
        let parts = below.iter().filter(|node| node.active() > 0);
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return test(&self.payload);
        }
        parts.any(|node| node.has_leaf(test))
    }
}
