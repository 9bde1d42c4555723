//! Cooldowns and the candidates of sticky sessions: how they are told, stored and read.

use std::{collections::HashMap, sync::Arc, time::Duration};

use redis::{Cmd, FromRedisValue, Pipeline, RedisResult, Value, from_redis_value};
use tokio::time::Instant;
use tower_agent::{
    FailureClass, Owner,
    registry::store::{
        Heard, RunNews, RunQuestion, SharedCooldown, StickyCandidate, StoreLost, StoredCooldowns,
    },
};

use crate::{
    keys::tag_of,
    link::Trouble,
    scripts::{self, Commands, SCRIPTS},
    shared::Shared,
    wire::Damaged,
};

/// The longest window that is believed.
const LONGEST: Duration = Duration::from_secs(400 * 24 * 3600);

/// How long the server may take to list the cooldowns.
const ANSWER: Duration = Duration::from_secs(1);

/// What the clock of the server said, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreClock {
    server: Duration,
    here: Instant,
}

impl StoreClock {
    /// Reads the reply to `TIME`.
    pub(crate) fn read(reply: Value) -> RedisResult<Self> {
        let (seconds, micros): (u64, u64) = from_redis_value(reply)?;
        Ok(Self {
            server: Duration::from_secs(seconds) + Duration::from_micros(micros),
            here: Instant::now(),
        })
    }

    /// When it is this time at the server; `None` if that is years away.
    fn instant(&self, server: Duration) -> Option<Instant> {
        match server.checked_sub(self.server) {
            Some(left) if left > LONGEST => None,
            Some(left) => Some(self.here + left),
            None => {
                let ago = self.server.saturating_sub(server);
                // A process may be younger than the window, and its clock have no earlier time.
                Some(self.here.checked_sub(ago).unwrap_or(self.here))
            }
        }
    }
}

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

fn digest(hex: &str) -> Option<u64> {
    let is_hex = hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

fn sticky(session: &str, candidate: &str) -> Option<StickyCandidate> {
    Some(StickyCandidate::new(digest(session)?, digest(candidate)?))
}

/// A stored window.
#[derive(Debug, PartialEq)]
struct Window {
    number: u64,
    is_over: bool,
    until: Duration,
    began: Duration,
    class: FailureClass,
    row: u32,
    is_callers: bool,
    /// The digests of the model, the account and the host.
    digests: [u64; 3],
    candidate: Arc<str>,
}

impl Window {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(11, ' ');
        let mut next = || words.next();
        let number = next()?.parse().ok()?;
        let is_over = match next()? {
            "r" => false,
            "e" => true,
            _ => return None,
        };
        let until = Duration::from_micros(next()?.parse().ok()?);
        let began = Duration::from_micros(next()?.parse().ok()?);
        let class = next()?;
        let class = FailureClass::ALL
            .into_iter()
            .find(|it| it.as_str() == class)?;
        let row = next()?.parse().ok()?;
        let is_callers = match next()? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let digests = [digest(next()?)?, digest(next()?)?, digest(next()?)?];
        let candidate = next()?.into();
        (began <= until).then_some(Self {
            number,
            is_over,
            until,
            began,
            class,
            row,
            is_callers,
            digests,
            candidate,
        })
    }

    fn share(self, key: u64, clock: StoreClock) -> Option<SharedCooldown> {
        let times = [clock.instant(self.began)?, clock.instant(self.until)?];
        let mut shared = SharedCooldown::new(key, self.number, self.candidate, self.class, times);
        [shared.model, shared.account, shared.host] = self.digests;
        shared.row = self.row;
        shared.is_callers = self.is_callers;
        Some(shared)
    }
}

/// What a script reads that follows the class: see [`Window::parse`].
fn rest(cooldown: &SharedCooldown) -> String {
    let SharedCooldown {
        row,
        is_callers,
        model,
        account,
        host,
        candidate,
        ..
    } = cooldown;
    let is_callers = u8::from(*is_callers);
    format!("{row} {is_callers} {model:016x} {account:016x} {host:016x} {candidate}")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cooldown(now: Instant) -> SharedCooldown {
        let times = [now, now + Duration::from_secs(30)];
        let mut shared = SharedCooldown::new(1, 2, "a b".into(), FailureClass::Server, times);
        [shared.model, shared.account, shared.host] = [3, 4, u64::MAX];
        (shared.row, shared.is_callers) = (5, true);
        shared
    }

    #[tokio::test]
    async fn a_window_comes_back_as_it_was() {
        let here = Instant::now();
        let server = Duration::from_secs(1_700_000_000);
        let clock = StoreClock { server, here };
        let told = cooldown(here);
        let [began, until] = [0, 30].map(|later| (server.as_secs() + later) * 1_000_000);
        let value = format!("2 r {until} {began} server {}", rest(&told));
        let window = Window::parse(&value).unwrap();
        assert!(!window.is_over);
        assert_eq!(window.share(1, clock), Some(told));
        let ended = Window::parse(&value.replace(" r ", " e ")).unwrap();
        assert!(ended.is_over);
    }

    #[test]
    fn what_no_replica_wrote_is_no_window() {
        let good = "2 r 30 20 server 5 1 0000000000000003 0000000000000004 ffffffffffffffff a";
        assert!(Window::parse(good).is_some());
        for (from, to) in [
            ("2 r", "-2 r"),
            (" r ", " x "),
            ("30 20", "20 30"),
            ("30 20", "1e3 20"),
            ("server", "serverless"),
            (" 5 1 ", " -5 1 "),
            (" 5 1 ", " 5 2 "),
            ("0000000000000003", "3"),
            ("0000000000000003", "+000000000000003"),
            (" a", ""),
            (good, ""),
        ] {
            assert_eq!(
                Window::parse(&good.replacen(from, to, 1)),
                None,
                "{from}: {to}"
            );
        }
    }
}
