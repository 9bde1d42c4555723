//! Whose new runs are refused: how it is told, heard and read.

use std::collections::HashMap;

use redis::{Cmd, FromRedisValue, Value, from_redis_value};
use tower_agent::{
    Owner,
    registry::store::{Heard, RunNews, StoreLost, StoredFreezes},
};

use crate::{
    keys::{KeyNames, hex, owner_of},
    link::Trouble,
    scripts::{self, Commands, SCRIPTS},
    shared::Shared,
    tell::ANSWER,
    wire::Damaged,
};

/// The field of the freeze of all owners.
const ALL: &str = "all";

/// The field of the epoch.
const EPOCH: &str = "epoch";

/// Reads an entry of a log that is about a freeze. `Ok(None)` for any other.
///
/// # Errors
///
/// The entry is damaged.
pub(crate) fn heard(fields: &HashMap<String, Value>) -> Result<Option<Heard>, Damaged> {
    let text = |name: &str| {
        let value = fields.get(name).ok_or(Damaged)?;
        String::from_redis_value_ref(value).map_err(|_| Damaged)
    };
    if text("k")? != "frz" {
        return Ok(None);
    }
    let is_frozen = match &*text("f")? {
        "1" => true,
        "0" => false,
        _ => return Err(Damaged),
    };
    Ok(Some(Heard::Frozen {
        whose: whose(&text("o")?).ok_or(Damaged)?,
        is_frozen,
        epoch: text("e")?.parse().map_err(|_| Damaged)?,
    }))
}

/// Whose freeze a field is; `None` if it is no such field.
fn whose(field: &str) -> Option<Option<Owner>> {
    match field {
        ALL => Some(None),
        owner => owner_of(owner).map(Some),
    }
}

impl Commands {
    /// Tells a freeze; `None` for other news. The epoch is `fresh` if the store has none.
    pub(crate) fn tell_frozen(&self, news: &RunNews, fresh: u64) -> Option<Cmd> {
        let RunNews::Frozen { whose, is_frozen } = news else {
            return None;
        };
        let mut cmd = scripts::run(&SCRIPTS.frozen, &[&self.keys.frozen(), &self.keys.log(0)]);
        cmd.arg(whose.map_or_else(|| ALL.to_owned(), hex))
            .arg(u8::from(*is_frozen))
            .arg(fresh.to_string())
            .arg(&self.replica);
        Some(cmd)
    }
}

impl Shared {
    /// Reads all freezes.
    pub(crate) async fn frozen(&self) -> Result<StoredFreezes, StoreLost> {
        let (mut connection, generation) = self.link.get().ok_or_else(StoreLost::default)?;
        connection.set_response_timeout(ANSWER);
        let mut watch = self.link.watch(generation);
        let key = self.commands.keys.frozen();
        let mut read = redis::cmd("HGETALL");
        let read = read.arg(&key).query_async::<Value>(&mut connection);
        let fields = match read.await {
            Ok(fields) => fields,
            Err(error) => {
                match Trouble::of(&error) {
                    Trouble::Damaged(cause) => self.log_damage(&key, &cause),
                    trouble => watch.failed(&trouble),
                }
                return Err(StoreLost::default());
            }
        };
        watch.succeeded();
        let fields = from_redis_value::<Vec<(String, String)>>(fields);
        let mut stored = StoredFreezes::default();
        for (field, value) in fields.unwrap_or_default() {
            if field == EPOCH {
                stored.epoch = value.parse().ok();
                if stored.epoch.is_none() {
                    self.log_damage(&key, "its field \"epoch\"");
                }
            } else if let Some(whose) = whose(&field) {
                stored.frozen.set(whose, true);
            } else {
                self.log_damage(&key, &format!("its field {field:?}"));
            }
        }
        Ok(stored)
    }
}

impl KeyNames {
    /// The hash of all freezes.
    pub(crate) fn frozen(&self) -> String {
        self.tagged(0, "frozen")
    }
}
