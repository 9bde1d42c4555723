//! Cooldowns and the candidates of sticky sessions: how they are told, stored and read.

use std::{collections::HashMap, time::Duration};

use redis::{Cmd, FromRedisValue, Pipeline, RedisResult, Value, from_redis_value};
use tokio::time::Instant;
use tower_agent::{
    Owner,
    registry::store::{Heard, RunNews, RunQuestion, StickyCandidate, StoreLost, StoredCooldowns},
};

use crate::{
    keys::tag_of,
    link::Trouble,
    scripts::{self, Commands, SCRIPTS},
    shared::Shared,
    window::{StoreClock, Window, digest, rest},
    wire::Damaged,
};

/// How long the server may take to list the cooldowns.
const ANSWER: Duration = Duration::from_secs(1);

/// The texts of an entry of a log.
type Fields = HashMap<String, Value>;

/// Whether an entry of a log is about a cooldown, whose times are the server's.
pub(crate) fn has_times(fields: &Fields) -> bool {
    text(fields, "k").is_ok_and(|kind| kind == "cool")
}

/// Reads an entry of a log that is about candidates. `Ok(None)` for any other, and for what this
/// replica has told of a session.
///
/// # Errors
///
/// The entry is damaged.
pub(crate) fn heard(
    fields: &Fields,
    replica: &str,
    clock: Option<StoreClock>,
) -> Result<Option<Heard>, Damaged> {
    Ok(match (&*text(fields, "k")?, clock) {
        ("cool", Some(clock)) => {
            let key = digest(&text(fields, "d")?).ok_or(Damaged)?;
            let window = Window::parse(&text(fields, "v")?).ok_or(Damaged)?;
            Some(Heard::CooldownBegan(
                window.share(key, clock).ok_or(Damaged)?,
            ))
        }
        ("unc", _) => Some(Heard::CooldownEnded {
            key: digest(&text(fields, "d")?).ok_or(Damaged)?,
            window: text(fields, "n")?.parse().map_err(|_| Damaged)?,
        }),
        ("sti", _) if text(fields, "r")? != replica => Some(Heard::SessionServed(
            sticky(&text(fields, "d")?, &text(fields, "c")?).ok_or(Damaged)?,
        )),
        _ => None,
    })
}

fn text(fields: &Fields, name: &str) -> Result<String, Damaged> {
    let value = fields.get(name).ok_or(Damaged)?;
    String::from_redis_value_ref(value).map_err(|_| Damaged)
}

fn sticky(session: &str, candidate: &str) -> Option<StickyCandidate> {
    Some(StickyCandidate::new(digest(session)?, digest(candidate)?))
}

impl Commands {
    /// Tells news about candidates; `None` for all others.
    pub(crate) fn tell_of_candidates(&self, news: &RunNews) -> Option<Cmd> {
        let keys = &self.keys;
        let of_cooldowns = |script| scripts::run(script, &[&keys.cooldowns(), &keys.log(0)]);
        Some(match news {
            RunNews::CooldownBegan(cooldown) => {
                let now = Instant::now();
                let mut cmd = of_cooldowns(&SCRIPTS.cooled);
                let left = cooldown.until.saturating_duration_since(now);
                let ago = now.saturating_duration_since(cooldown.began);
                cmd.arg(format!("{:016x}", cooldown.key))
                    .arg(cooldown.window)
                    .arg(left.as_micros().to_string())
                    .arg(ago.as_micros().to_string())
                    .arg(cooldown.class.as_str())
                    .arg(rest(cooldown))
                    .arg(u8::from(cooldown.is_callers))
                    .arg(u8::from(cooldown.key == cooldown.account))
                    .arg(&self.replica);
                cmd
            }
            RunNews::CooldownEnded { key, window } => {
                let mut cmd = of_cooldowns(&SCRIPTS.uncooled);
                cmd.arg(format!("{key:016x}"))
                    .arg(*window)
                    .arg(&self.replica);
                cmd
            }
            RunNews::CooldownsCleared {
                candidate,
                keys,
                at,
            } => {
                let mut cmd = of_cooldowns(&SCRIPTS.cleared);
                cmd.arg(&**candidate)
                    .arg(at.elapsed().as_micros().to_string())
                    .arg(&self.replica);
                keys.iter().for_each(|key| {
                    cmd.arg(format!("{key:016x}"));
                });
                cmd
            }
            RunNews::SessionServed {
                owner,
                session,
                served,
            } => {
                let log = keys.log(tag_of(*owner, session.as_bytes()));
                let key = keys.candidates(*owner, session);
                let mut cmd = scripts::run(&SCRIPTS.served, &[&key, &log]);
                cmd.arg(format!("{:016x}", served.session))
                    .arg(format!("{:016x}", served.candidate))
                    .arg(self.ttl_ms.to_string())
                    .arg(&self.replica);
                cmd
            }
            _ => return None,
        })
    }

    /// The key that news about candidates are stored in; empty for all others.
    pub(crate) fn key_of_candidates(&self, news: &RunNews) -> String {
        match news {
            RunNews::CooldownBegan(_)
            | RunNews::CooldownEnded { .. }
            | RunNews::CooldownsCleared { .. } => self.keys.cooldowns(),
            RunNews::SessionServed { owner, session, .. } => self.keys.candidates(*owner, session),
            RunNews::Frozen { .. } => self.keys.frozen(),
            _ => String::new(),
        }
    }

    /// The key whose candidates a question asks for.
    fn asked(&self, question: &RunQuestion) -> Option<String> {
        let session = question.session.as_deref().filter(|_| question.is_sticky)?;
        Some(self.keys.candidates(question.run.owner, session))
    }
}

/// Whether the news are a hint, which nobody misses.
pub(crate) const fn is_hint(news: &RunNews) -> bool {
    matches!(news, RunNews::SessionServed { .. })
}

impl Shared {
    /// Adds the command for the candidates of the question's session, if it asks for them.
    pub(crate) fn ask_candidates(&self, question: &RunQuestion, pipe: &mut Pipeline) {
        if let Some(key) = self.commands.asked(question) {
            pipe.cmd("HGETALL").arg(key);
        }
    }

    /// Reads the reply to [`ask_candidates`](Self::ask_candidates).
    pub(crate) fn read_candidates(
        &self,
        question: &RunQuestion,
        reply: RedisResult<Value>,
    ) -> Vec<StickyCandidate> {
        let key = || self.commands.asked(question).unwrap_or_default();
        let fields = reply.and_then(|reply| Ok(from_redis_value::<Vec<(String, String)>>(reply)?));
        let Ok(fields) = fields else {
            self.log_damage(&key(), "it has no candidates");
            return Vec::new();
        };
        let known = fields.iter().filter_map(|(session, candidate)| {
            let known = sticky(session, candidate);
            if known.is_none() {
                self.log_damage(&key(), session);
            }
            known
        });
        known.collect()
    }

    /// Logs what a script said that tells of candidates.
    pub(crate) fn check_candidates(&self, news: &RunNews, reply: Value) {
        if self.commands.key_of_candidates(news).is_empty() {
            return;
        }
        match from_redis_value::<String>(reply) {
            Ok(key) if !key.is_empty() => self.log_damage(&key, "it is of another type"),
            _ => {}
        }
    }

    /// Lists the cooldowns.
    pub(crate) async fn cooldowns(&self) -> Result<StoredCooldowns, StoreLost> {
        let (mut connection, generation) = self.link.get().ok_or_else(StoreLost::default)?;
        connection.set_response_timeout(ANSWER);
        let mut watch = self.link.watch(generation);
        let key = self.commands.keys.cooldowns();
        let mut pipe = redis::pipe();
        pipe.ignore_errors().cmd("HGETALL").arg(&key).cmd("TIME");
        let replies = pipe.query_async::<(RedisResult<Value>, RedisResult<Value>)>(&mut connection);
        let read = replies.await.and_then(|(fields, time)| {
            let fields = match fields.map_err(|error| (Trouble::of(&error), error)) {
                Err((Trouble::Damaged(cause), _)) => {
                    self.log_damage(&key, &cause);
                    Vec::new()
                }
                Err((_, error)) => return Err(error),
                Ok(fields) => from_redis_value::<Vec<(Value, Value)>>(fields)?,
            };
            Ok((fields, StoreClock::read(time?)?))
        });
        let (fields, clock) = match read {
            Ok(read) => read,
            Err(error) => {
                watch.failed(&Trouble::of(&error));
                return Err(StoreLost::default());
            }
        };
        watch.succeeded();
        let mut stored = StoredCooldowns::default();
        for (field, value) in &fields {
            let text = |value| String::from_redis_value_ref(value).ok();
            let field = text(field).unwrap_or_default();
            let window = text(value).and_then(|value| Window::parse(&value));
            let known = digest(&field).zip(window);
            let known = known.and_then(|(key, window)| {
                let (number, is_over) = (window.number, window.is_over);
                let cooldown = window.share(key, clock)?;
                match is_over {
                    true => stored.ended.push((key, number)),
                    false if cooldown.until > clock.here => stored.running.push(cooldown),
                    false => {}
                }
                Some(())
            });
            if known.is_none() {
                self.log_damage(&key, &format!("its field {field:?}"));
            }
        }
        Ok(stored)
    }
}

impl crate::keys::KeyNames {
    /// The hash of all cooldowns.
    fn cooldowns(&self) -> String {
        self.tagged(0, "cool")
    }

    /// The hash of the candidates of a session.
    fn candidates(&self, owner: Owner, session: &str) -> String {
        let tag = tag_of(owner, session.as_bytes());
        let owner = crate::keys::hex(owner);
        self.tagged(tag, &format!("cand:{owner}:{session}"))
    }
}
