//! The scripts, and the commands that run them.

use std::{sync::LazyLock, time::Duration};

use redis::{Cmd, RedisResult, Script, aio::MultiplexedConnection};
use tower_agent::registry::{
    SharedSecret,
    store::{OwnerCounts, OwnerPeriod, OwnerQuestion, RunKey, RunNews, RunQuestion, TurnsAsked},
};

use crate::{
    keys::{KeyNames, hex, tag_of_run},
    known::KnownPart,
    options::RedisOptions,
    questions::{OtherReplicas, UNNAMED},
    queue::QueuedNews,
    wire::{encode_added, encode_end, encode_spent},
};

pub(crate) struct Scripts {
    alive: (Script, &'static str),
    carried_out: (Script, &'static str),
    ask: (Script, &'static str),
    ended: (Script, &'static str),
    spent: (Script, &'static str),
    adjusted: (Script, &'static str),
    owner: (Script, &'static str),
    gave_back: (Script, &'static str),
    left: (Script, &'static str),
    reopened: (Script, &'static str),
    pub(crate) cooled: (Script, &'static str),
    pub(crate) uncooled: (Script, &'static str),
    pub(crate) cleared: (Script, &'static str),
    pub(crate) frozen: (Script, &'static str),
    pub(crate) served: (Script, &'static str),
}

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
    let script = |text: &'static str| (Script::new(text), text);
    Scripts {
        alive: script(include_str!("scripts/alive.lua")),
        carried_out: script(include_str!("scripts/carried_out.lua")),
        ask: script(include_str!("scripts/ask.lua")),
        ended: script(include_str!("scripts/ended.lua")),
        spent: script(include_str!("scripts/spent.lua")),
        adjusted: script(include_str!("scripts/adjusted.lua")),
        owner: script(include_str!("scripts/owner.lua")),
        gave_back: script(include_str!("scripts/gave_back.lua")),
        left: script(include_str!("scripts/left.lua")),
        reopened: script(include_str!("scripts/reopened.lua")),
        cooled: script(include_str!("scripts/cooled.lua")),
        uncooled: script(include_str!("scripts/uncooled.lua")),
        cleared: script(include_str!("scripts/cleared.lua")),
        frozen: script(include_str!("scripts/frozen.lua")),
        served: script(include_str!("scripts/served.lua")),
    }
});

/// Makes the scripts known to the server.
pub(crate) async fn load(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let all = &*SCRIPTS;
    let mut pipe = redis::pipe();
    for (_, text) in [
        &all.alive,
        &all.carried_out,
        &all.ask,
        &all.ended,
        &all.spent,
        &all.adjusted,
        &all.owner,
        &all.gave_back,
        &all.left,
        &all.reopened,
    ] {
        pipe.cmd("SCRIPT").arg("LOAD").arg(text);
    }
    for (_, text) in [
        &all.cooled,
        &all.uncooled,
        &all.cleared,
        &all.served,
        &all.frozen,
    ] {
        pipe.cmd("SCRIPT").arg("LOAD").arg(text);
    }
    pipe.exec_async(connection).await
}

pub(crate) fn run(script: &(Script, &str), keys: &[&str]) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(script.0.get_hash()).arg(keys.len()).arg(keys);
    cmd
}

/// How long the store keeps an end that nobody asks about, in ms.
fn end_ttl() -> u128 {
    tower_agent::RunRegistry::REMEMBERED.as_millis()
}

/// How long what was counted in a minute counts, from its beginning, in ms.
const HOUR: u64 = 61 * 60 * 1000;

/// How long the open runs of a replica count that gives no sign of life, in ms.
const ALIVE: u64 = 30_000;

/// How long the store keeps a period after its last news, in ms: as long as it lasts, and a day, in
/// which clocks may differ.
fn period_ttl(period: &OwnerPeriod) -> u128 {
    let lasts = period.ends.duration_since(period.began);
    (lasts.unwrap_or_default() + Duration::from_secs(24 * 3600)).as_millis()
}

/// What a command needs beside its subject.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(crate) keys: KeyNames,
    /// The name of this replica: no other one has it.
    pub(crate) replica: String,
    pub(crate) ttl_ms: u128,
    /// The fingerprint of the secret, as 32 hexadecimal digits.
    fingerprint: String,
}

impl Commands {
    pub(crate) fn new(secret: &SharedSecret, options: &RedisOptions) -> Self {
        let name = options.replica.as_deref().unwrap_or(UNNAMED);
        Self {
            keys: KeyNames::new(options.prefix.clone()),
            replica: format!("{name}-{:016x}", fastrand::u64(..)),
            ttl_ms: options.ttl.as_millis(),
            fingerprint: format!("{:032x}", secret.fingerprint()),
        }
    }

    /// Makes the scripts known to the server, and leaves this replica's fingerprint of the secret
    /// there, unless another replica has. Returns whether the server has the same one.
    pub(crate) async fn prepare(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<bool> {
        load(connection).await?;
        let mut cmd = redis::cmd("SET");
        cmd.arg(self.keys.secret())
            .arg(&self.fingerprint)
            .arg("NX")
            .arg("GET");
        let before: Option<String> = cmd.query_async(connection).await?;
        Ok(before.is_none_or(|before| before == self.fingerprint))
    }

    /// Asks about a run. `known` is what this replica had of it at the last answer, which a store
    /// that has lost the run takes over.
    pub(crate) fn ask(&self, question: &RunQuestion, known: Option<&KnownPart>) -> Cmd {
        let key = self.keys.run(&question.run);
        let session = question.session.as_deref().unwrap_or_default();
        let tag = tag_of_run(&question.run);
        let owners = self.keys.owners_of_id(tag, &question.run.id);
        let (index, owners_of_session) = match session {
            "" => (key.clone(), key.clone()),
            session => (
                self.keys.session(tag, question.run.owner, session),
                self.keys.owners_of_session(tag, session),
            ),
        };
        let turns = question.turns;
        let of_turns = |of: fn(&TurnsAsked) -> String| turns.as_ref().map(of).unwrap_or_default();
        let fresh = known.map_or_else(|| fastrand::u64(..), |known| known.incarnation);
        let mut cmd = run(&SCRIPTS.ask, &[&key, &index, &owners, &owners_of_session]);
        cmd.arg(fresh)
            .arg(known.map_or(0, |known| known.age_us()))
            .arg(self.part(question.part))
            .arg(known.map_or(0, |known| known.granted))
            .arg(known.map_or_else(String::new, |known| known.incarnation.to_string()))
            .arg(of_turns(|turns| turns.want.to_string()))
            .arg(of_turns(|turns| turns.cap.to_string()))
            .arg(self.ttl_ms.to_string())
            .arg(end_ttl().to_string())
            .arg(session)
            .arg(
                question
                    .parent
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string),
            )
            .arg(question.run.id.to_string())
            .arg(
                known
                    .and_then(|known| known.spent.as_ref())
                    .map_or_else(String::new, encode_spent),
            )
            .arg(hex(question.run.owner))
            .arg(of_turns(|turns| turns.number.to_string()))
            .arg(of_turns(|turns| turns.taken.to_string()))
            .arg(known.map_or(0, |known| known.elsewhere))
            .arg(of_turns(|turns| turns.added.to_string()));
        cmd
    }

    fn alive(&self) -> Cmd {
        let mut cmd = run(&SCRIPTS.alive, &[&self.keys.replicas()]);
        cmd.arg(&self.replica);
        cmd
    }

    /// Says that this replica lives, and lists the others.
    pub(crate) async fn live(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<OtherReplicas> {
        let alive = self.alive();
        let mut replicas: RedisResult<[Vec<String>; 2]> = alive.query_async(connection).await;
        if matches!(&replicas, Err(error) if error.code() == Some("NOSCRIPT")) {
            load(connection).await?;
            replicas = alive.query_async(connection).await;
        }
        Ok(OtherReplicas::read(replicas?, &self.replica))
    }

    /// Puts a barrier into the log of this tag.
    pub(crate) fn barrier(&self, tag: u8, barrier: &str) -> Cmd {
        let mut cmd = redis::cmd("XADD");
        cmd.arg(self.keys.log(tag));
        cmd.arg("MAXLEN").arg("~").arg(10_000).arg("*");
        cmd.arg("k").arg("bar").arg("r").arg(&self.replica);
        cmd.arg("b").arg(format!("{tag:02}{barrier}"));
        cmd
    }

    /// Tells what this replica has counted for an owner, and asks for the others' counts.
    pub(crate) fn ask_owner(&self, question: &OwnerQuestion) -> Cmd {
        let caps = [question.max_open_runs, question.turns_per_hour];
        self.count(&question.counts, caps, question.turns_per_period)
    }

    fn count(
        &self,
        counts: &OwnerCounts,
        [runs, turns]: [Option<u32>; 2],
        turns_per_period: [Option<u32>; 3],
    ) -> Cmd {
        let cap = |cap: Option<u32>| cap.map_or_else(String::new, |cap| cap.to_string());
        let key = self.keys.owner(counts.owner);
        let periods = counts.periods.iter();
        let periods = periods.map(|period| self.keys.period(counts.owner, period));
        let keys: Vec<String> = std::iter::once(key).chain(periods).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut cmd = run(&SCRIPTS.owner, &keys);
        cmd.arg(&self.replica)
            .arg(counts.number)
            .arg(counts.open_runs)
            .arg(counts.open_runs_asked)
            .arg(cap(runs))
            .arg(counts.turns_asked)
            .arg(cap(turns))
            .arg(counts.minute)
            .arg(HOUR)
            .arg(ALIVE)
            .arg(counts.periods.len());
        for period in &counts.periods {
            let spent = encode_spent(&period.spent);
            cmd.arg(period_ttl(period).to_string())
                .arg(period.turns_asked)
                .arg(cap(turns_per_period[period.period as usize]))
                .arg(period.turns)
                .arg(spent.split(' ').collect::<Vec<_>>());
        }
        for minute in &counts.minutes {
            cmd.arg(minute.number)
                .arg(minute.began.elapsed().as_millis().to_string())
                .arg(minute.turns);
            let spent = encode_spent(&minute.spent);
            cmd.arg(spent.split(' ').collect::<Vec<_>>());
        }
        cmd
    }

    /// Tells news; `None` for those of a session, which are several commands.
    pub(crate) fn tell(&self, item: &QueuedNews) -> Option<Cmd> {
        let index = |run: &RunKey| match item.session.as_deref() {
            Some(session) => self.keys.session(tag_of_run(run), run.owner, session),
            None => self.keys.run(run),
        };
        let session = item.session.as_deref().unwrap_or_default();
        Some(match &item.news {
            RunNews::Ended {
                run: ended,
                incarnation,
                if_known,
                end,
            } => {
                let (key, log) = (self.keys.run(ended), self.keys.log(tag_of_run(ended)));
                let mut cmd = run(&SCRIPTS.ended, &[&key, &log, &index(ended)]);
                cmd.arg(incarnation.map_or_else(String::new, |it| it.to_string()))
                    .arg(incarnation.unwrap_or(item.fresh))
                    .arg(u8::from(*if_known))
                    .arg(encode_end(end))
                    .arg(end_ttl().to_string())
                    .arg(&self.replica)
                    .arg(hex(ended.owner))
                    .arg(ended.id.to_string())
                    .arg(session);
                cmd
            }
            RunNews::Spent {
                run: spender,
                part,
                incarnation,
                spent,
            } => {
                let mut cmd = run(&SCRIPTS.spent, &[&self.keys.run(spender)]);
                cmd.arg(self.part(*part))
                    .arg(incarnation.map_or_else(String::new, |it| it.to_string()))
                    .arg(encode_spent(spent))
                    .arg(self.ttl_ms.to_string());
                cmd
            }
            RunNews::Adjusted {
                run: adjusted_run,
                incarnation,
                adjusted,
                suspension,
            } => {
                let mut cmd = run(&SCRIPTS.adjusted, &[&self.keys.run(adjusted_run)]);
                cmd.arg(incarnation.map_or_else(String::new, |it| it.to_string()))
                    .arg(encode_added(adjusted).split(' ').collect::<Vec<_>>())
                    .arg(match suspension {
                        None => "",
                        Some(false) => "0",
                        Some(true) => "1",
                    });
                cmd
            }
            RunNews::Counted(counts) => self.count(counts, [None; 2], [None; 3]),
            RunNews::GaveBack {
                run: giver,
                part,
                number,
                turns,
            } => {
                let mut cmd = run(&SCRIPTS.gave_back, &[&self.keys.run(giver)]);
                cmd.arg(self.part(*part));
                cmd.arg(number.to_string()).arg(turns.to_string());
                cmd
            }
            RunNews::Left {
                run: left,
                part,
                turns,
                completed,
            } => {
                let mut cmd = run(&SCRIPTS.left, &[&self.keys.run(left), &index(left)]);
                cmd.arg(self.part(*part))
                    .arg(session)
                    .arg(left.id.to_string())
                    .arg(u8::from(*completed))
                    .arg(turns.to_string());
                cmd
            }
            RunNews::CarriedOut { barrier } => {
                // `wire` has looked at the name.
                let (tag, barrier) = barrier.split_at_checked(2)?;
                let answers = self.keys.answers(tag.parse().ok()?, barrier);
                let mut cmd = run(&SCRIPTS.carried_out, &[&answers]);
                cmd.arg(&self.replica);
                cmd
            }
            RunNews::Reopened { run: reopened } => {
                let mut cmd = run(&SCRIPTS.reopened, &[&self.keys.run(reopened)]);
                cmd.arg(item.fresh).arg(self.ttl_ms.to_string());
                cmd
            }
            RunNews::Frozen { .. } => return self.tell_frozen(&item.news, item.fresh),
            news => return self.tell_of_candidates(news),
        })
    }

    fn part(&self, part: u64) -> String {
        format!("{}:{part}", self.replica)
    }
}
