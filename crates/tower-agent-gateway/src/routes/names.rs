//! The names of owners: those of their keys.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;
use tower_agent::{Owner, RunSnapshot};

use crate::{config::Auth, http::owner_of_name};

/// The names of the owners that have keys; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnerNames(Arc<Names>);

#[derive(Debug, Default)]
struct Names {
    by_owner: HashMap<Owner, Arc<str>>,
    /// By the text that the library prints of an owner.
    by_text: HashMap<String, Arc<str>>,
}

impl OwnerNames {
    pub(crate) fn of(auth: Option<&Auth>) -> Self {
        let mut names = Names::default();
        for key in auth.iter().flat_map(|auth| &auth.keys) {
            let owner = owner_of_name(&key.name);
            names.by_owner.insert(owner, Arc::clone(&key.name));
            names
                .by_text
                .insert(owner.to_string(), Arc::clone(&key.name));
        }
        Self(Arc::new(names))
    }

    /// The owner as the operator's routes show it: the name of its key, else what the log prints.
    pub(crate) fn show(&self, owner: Owner) -> String {
        let name = self.0.by_owner.get(&owner);
        name.map_or_else(|| owner.to_string(), ToString::to_string)
    }

    /// The text that the library prints of the owner that an operator means: by the name of its key, or
    /// by that text.
    pub(crate) fn printed(&self, text: &str) -> String {
        let named = self.0.by_owner.iter().find(|(_, name)| ***name == *text);
        named.map_or_else(|| text.to_owned(), |(owner, _)| owner.to_string())
    }

    /// The owner that an operator means, if its name is that of a key, or the owner is known by itself.
    pub(crate) fn find(&self, text: &str) -> Option<Owner> {
        let named = self.0.by_owner.iter().find(|(_, name)| ***name == *text);
        let alone = [Owner::default(), Owner::anonymous()];
        let printed = || {
            self.0
                .by_owner
                .keys()
                .copied()
                .chain(alone)
                .find(|owner| owner.to_string() == text)
        };
        named.map(|(owner, _)| *owner).or_else(printed)
    }

    /// The row of a run as JSON, with the name of its owner.
    pub(crate) fn row(&self, run: &RunSnapshot) -> Value {
        self.named(serde_json::to_value(run).unwrap_or_default())
    }

    /// Puts the name instead of the printed owner of a row.
    pub(crate) fn named(&self, mut row: Value) -> Value {
        let printed = row.get("owner").and_then(Value::as_str);
        if let Some(name) = printed.and_then(|text| self.0.by_text.get(text)) {
            row["owner"] = Value::from(&**name);
        }
        row
    }
}
