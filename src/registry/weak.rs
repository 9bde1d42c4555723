use std::sync::{Arc, Weak};

use super::{RunRegistry, entries::Entries, shared::Shared};
use crate::run::Run;

/// A handle on a registry that does not keep the registry alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakRegistry(Weak<Shared>);

impl RunRegistry {
    pub(crate) fn downgrade(&self) -> WeakRegistry {
        WeakRegistry(Arc::downgrade(&self.shared))
    }

    /// All live and remembered runs of the registry, in no order.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let all = |entries: &mut Entries| entries.all().collect::<Vec<_>>();
        self.shared.collect(all)
    }
}

impl WeakRegistry {
    pub(crate) fn upgrade(&self) -> Option<RunRegistry> {
        let shared = self.0.upgrade()?;
        Some(RunRegistry { shared })
    }
}
