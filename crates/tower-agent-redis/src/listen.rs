//! The task that reads the logs.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{
    RedisError, RedisResult, Value,
    aio::MultiplexedConnection,
    from_redis_value,
    streams::{StreamId, StreamRangeReply, StreamReadReply},
};
use tokio::time::{Instant, sleep};
use tower_agent::registry::store::Heard;

use crate::{
    candidates, freezes,
    keys::TAGS,
    lock, questions,
    shared::Shared,
    tell::{FIRST_WAIT, LONGEST_WAIT},
    window::StoreClock,
    wire::heard,
};

/// How long a read waits for news, in ms.
const BLOCK: u32 = 400;

/// A socket that is silent for longer is dead.
const ANSWER: Duration = Duration::from_secs(2);

/// How often the logs are checked for news that were trimmed before they were read.
const CHECK: Duration = Duration::from_secs(1);

/// The number of entries in one read, of each log.
const ENTRIES: u32 = 1000;

/// Where the log of the questions stands, behind those of the news.
const QUESTIONS: usize = TAGS as usize;

/// How far the clock of the server may seem to be from ours: a run that was opened so short a time
/// after an abort was told does not count as a later one.
const LATE: Duration = Duration::from_millis(100);

/// A connection that reads, and how far it has read.
#[derive(Debug)]
pub(crate) struct Reader {
    connection: MultiplexedConnection,
    /// The logs of the news, and then that of the questions.
    logs: Vec<String>,
    /// The id of the last entry read of each log; `0-0` for a log that was empty.
    cursors: Vec<String>,
    /// The id of the first entry of each log of news when the reader was opened. What was lost before
    /// it is behind the hole that every new reader tells.
    begins: Vec<String>,
    /// The id of the last entry of each log when the reader was opened.
    ends: Vec<String>,
    /// The server's process.
    server: String,
    checked: Instant,
}

impl Reader {
    /// Begins behind the entries that were `read` before, or at the end of a log that does not come as
    /// far: it is another one. Without any the reader begins at the end of the logs.
    pub(crate) async fn open(shared: &Shared, read: &[String]) -> RedisResult<Self> {
        let connection = shared.address.open(ANSWER).await?;
        let keys = &shared.commands.keys;
        let mut reader = Self {
            connection,
            logs: (0..TAGS)
                .map(|tag| keys.log(tag))
                .chain([keys.questions()])
                .collect(),
            cursors: Vec::new(),
            begins: Vec::new(),
            ends: Vec::new(),
            server: String::new(),
            checked: Instant::now(),
        };
        reader.server = reader.server().await?;
        reader.begins = reader.begins().await?;
        let mut pipe = redis::pipe();
        for log in &reader.logs {
            pipe.cmd("XREVRANGE").arg(log).arg("+").arg("-");
            pipe.arg("COUNT").arg(1);
        }
        reader.ends = first_ids(pipe, &mut reader.connection).await?;
        let mut read = read.iter();
        let begin = |end: &String| match read.next() {
            Some(read) if number_of(read) <= number_of(end) => read.clone(),
            _ => end.clone(),
        };
        reader.cursors = reader.ends.iter().map(begin).collect();
        Ok(reader)
    }

    async fn server(&mut self) -> RedisResult<String> {
        let mut cmd = redis::cmd("INFO");
        let info: String = cmd.arg("server").query_async(&mut self.connection).await?;
        let id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        Ok(id.unwrap_or_default().trim().to_owned())
    }

    /// The id of the first entry of each log of news.
    async fn begins(&mut self) -> RedisResult<Vec<String>> {
        let mut pipe = redis::pipe();
        for log in &self.logs[..QUESTIONS] {
            pipe.cmd("XRANGE").arg(log).arg("-").arg("+");
            pipe.arg("COUNT").arg(1);
        }
        first_ids(pipe, &mut self.connection).await
    }

    /// Whether all news that were written since the reader was opened can still be read.
    async fn is_whole(&mut self) -> RedisResult<bool> {
        let first = self.begins().await?;
        let server = self.server().await?;
        self.checked = Instant::now();
        let is_whole =
            |((first, begin), cursor): ((&String, &String), &String)| match cursor.as_str() {
                NONE => true,
                _ if first == NONE => false,
                cursor => first == begin || number_of(first) <= number_of(cursor),
            };
        let mut logs = first.iter().zip(&self.begins).zip(&self.cursors);
        Ok(server == self.server && logs.all(is_whole))
    }

    /// Whether the entry was there when the reader was opened: it was told while nothing was read.
    fn is_missed(&self, log: usize, entry: &StreamId) -> bool {
        number_of(&entry.id) <= number_of(&self.ends[log])
    }

    async fn clock(&mut self) -> RedisResult<StoreClock> {
        let cmd = redis::cmd("TIME");
        StoreClock::read(cmd.query_async(&mut self.connection).await?)
    }

    /// Waits for entries, and reads them. The caller moves the cursors, once it has heard them.
    async fn read(&mut self) -> RedisResult<Vec<(usize, StreamId)>> {
        let mut cmd = redis::cmd("XREAD");
        cmd.arg("COUNT").arg(ENTRIES).arg("BLOCK").arg(BLOCK);
        cmd.arg("STREAMS").arg(&self.logs).arg(&self.cursors);
        let reply: Option<StreamReadReply> = cmd.query_async(&mut self.connection).await?;
        let mut entries = Vec::new();
        for stream in reply.into_iter().flat_map(|reply| reply.keys) {
            let Some(at) = self.logs.iter().position(|log| *log == stream.key) else {
                continue;
            };
            entries.extend(stream.ids.into_iter().map(|entry| (at, entry)));
        }
        Ok(entries)
    }
}

const NONE: &str = "0-0";

async fn first_ids(
    pipe: redis::Pipeline,
    connection: &mut MultiplexedConnection,
) -> RedisResult<Vec<String>> {
    let mut pipe = pipe;
    let replies: Vec<RedisResult<Value>> = pipe.ignore_errors().query_async(connection).await?;
    let id = |reply: RedisResult<Value>| {
        let reply: StreamRangeReply = from_redis_value(reply?)?;
        let first = reply.ids.into_iter().next();
        Ok(first.map_or_else(|| NONE.to_owned(), |entry| entry.id))
    };
    replies.into_iter().map(id).collect()
}

/// The two numbers of an entry's id.
fn number_of(id: &str) -> (u64, u64) {
    let (time, count) = id.split_once('-').unwrap_or((id, "0"));
    (time.parse().unwrap_or(0), count.parse().unwrap_or(0))
}

/// Reads the logs for as long as the store lives.
pub(crate) async fn listen(shared: Arc<Shared>, first: Option<Reader>) {
    let (mut opened, mut wait) = (first, FIRST_WAIT);
    let mut read = Vec::new();
    loop {
        let reader = match opened.take() {
            Some(reader) => Ok(reader),
            None => {
                let reader = Reader::open(&shared, &read).await;
                if reader.is_ok() {
                    shared.hear_hole();
                }
                reader
            }
        };
        let outcome = match reader {
            Ok(mut reader) => {
                let since = Instant::now();
                let outcome = read_on(&shared, &mut reader).await;
                if since.elapsed() > ANSWER {
                    wait = FIRST_WAIT;
                }
                read = reader.cursors;
                outcome
            }
            Err(error) => Err(error),
        };
        let Err(error) = outcome else { continue };
        shared.counts.listens.store(false, Ordering::Release);
        shared.suspect();
        report(&shared, &error);
        sleep(wait.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
        wait = (2 * wait).min(LONGEST_WAIT);
    }
}

/// Reads on until the connection fails, or is to be made anew.
async fn read_on(shared: &Shared, reader: &mut Reader) -> RedisResult<()> {
    let generation = shared.link.generation();
    loop {
        let late = lock(&shared.counts.read).elapsed();
        let is_due = reader.checked.elapsed() >= CHECK || late >= CHECK;
        if is_due && !reader.is_whole().await? {
            return Ok(());
        }
        let entries = reader.read().await?;
        *lock(&shared.counts.read) = Instant::now();
        shared.counts.listens.store(true, Ordering::Release);
        let has_times = |(at, entry): &(usize, StreamId)| {
            *at == QUESTIONS || candidates::has_times(&entry.map) || reader.is_missed(*at, entry)
        };
        let clock = match entries.iter().any(has_times) {
            true => Some(reader.clock().await?),
            false => None,
        };
        for (at, entry) in entries {
            reader.cursors[at].clone_from(&entry.id);
            if let (QUESTIONS, Some(clock)) = (at, clock) {
                let replica = &shared.commands.replica;
                match questions::read_question(&entry.id, &entry.map, replica, clock) {
                    Ok(Some(question)) => shared.hear_question(question),
                    Ok(None) => {}
                    Err(_) => shared.log_damage(&reader.logs[at], &entry.id),
                }
                continue;
            }
            let of_candidates = candidates::heard(&entry.map, &shared.commands.replica, clock);
            let heard = match of_candidates {
                Ok(None) => match freezes::heard(&entry.map) {
                    Ok(None) => heard(&entry.map, &shared.commands.replica),
                    of_freezes => of_freezes,
                },
                heard => heard,
            };
            match heard {
                Ok(Some(heard)) => match clock.filter(|_| reader.is_missed(at, &entry)) {
                    Some(clock) => shared.hear(missed(heard, &entry.id, clock)),
                    None => shared.hear(heard),
                },
                Ok(None) => {}
                Err(_) => shared.log_damage(&reader.logs[at], &entry.id),
            }
        }
        // The store was away: the server may be another one.
        if shared.link.generation() != generation {
            return Ok(());
        }
    }
}

/// The news of an entry that was told while nothing was read.
fn missed(news: Heard, id: &str, clock: StoreClock) -> Heard {
    match news {
        Heard::Ended { .. } | Heard::SessionEnded { .. } | Heard::AbortedForAll(_) => {
            let told = Duration::from_millis(number_of(id).0);
            let news = Box::new(news);
            let ago = clock.since(told).saturating_sub(LATE);
            Heard::Missed { ago, news }
        }
        news => news,
    }
}

fn report(shared: &Shared, error: &RedisError) {
    match crate::link::Trouble::of(error) {
        crate::link::Trouble::Damaged(cause) => {
            let keys = &shared.commands.keys;
            shared.log_damage(&keys.log(0).replace("{00}", "{*}"), &cause);
        }
        trouble => {
            tracing::debug!(target: "tower_agent", cause = %trouble, "the log of the store of runs is not read");
        }
    }
}
