//! `[agents.NAME]`: the limits of single callers.

use std::collections::BTreeMap;

use toml::Spanned;

use super::error::Problem;
use super::retry::retry;
use super::run::run;
use super::{Auth, Retry, RunLimits, file};

/// The limits of the calls with one key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agent {
    /// The name of the key.
    pub(crate) name: String,
    pub(crate) run: RunLimits,
    pub(crate) retry: Retry,
}

/// Resolves the tables of the agents; `all_run` and `all_retry` fill in what a table leaves
/// out.
///
/// A table without a key of its name is an error: it could never apply, so the name is
/// mistyped.
pub(super) fn agents(
    tables: BTreeMap<Spanned<String>, file::AgentTable>,
    auth: Option<&Auth>,
    all_run: RunLimits,
    all_retry: Retry,
) -> Result<Vec<Agent>, Problem> {
    let known =
        |name: &str| auth.is_some_and(|auth| auth.keys.iter().any(|key| &*key.name == name));
    let agent = |(name, table): (Spanned<String>, file::AgentTable)| {
        let place = format!("agents.{}", name.get_ref());
        if !known(name.get_ref()) {
            let message = match auth {
                Some(_) => format!("[{place}] is nobody: no key of [auth] has this name"),
                None => format!("[{place}] is nobody: without [auth] no caller has a name"),
            };
            return Err(Problem::new(message).at(name.span()));
        }
        let (of_run, of_retry) = table.split();
        Ok(Agent {
            run: run(of_run, &place, all_run)?,
            retry: retry(of_retry, &place, all_retry)?,
            name: name.into_inner(),
        })
    };
    tables.into_iter().map(agent).collect()
}
