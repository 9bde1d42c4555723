//! Questions of one replica to the programs of the others, and their answers.

use std::{
    collections::HashMap,
    error::Error,
    fmt,
    future::Future,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use redis::{FromRedisValue, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tower_agent::registry::store::StoreLost;

use crate::{
    RedisRunStore, link::Trouble, lock, scripts::Commands, shared::Shared, window::StoreClock,
    wire::Damaged,
};

/// How long a command of a question or an answer may take.
const ANSWER: Duration = Duration::from_secs(1);

/// How long the last look for answers may take, which begins when the wait is over.
const LAST_LOOK: Duration = Duration::from_millis(50);

/// The time between two looks for answers: at first, and at most. Each is a half longer than the one
/// before.
const FIRST_POLL: Duration = Duration::from_millis(2);
const LONGEST_POLL: Duration = Duration::from_millis(20);

/// The longest wait that a question may have.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The number of questions that are answered at a time, and of those that wait for it.
const AT_A_TIME: usize = 64;
const QUEUED: usize = 1024;

/// How long the questions are kept that came last, in ms.
const KEPT: u32 = 60_000;

/// How long answers are kept that nobody reads, in ms.
const ANSWER_KEPT: u32 = 5000;

/// The marks of an answer: with its text, and without, as that is too long.
const WHOLE: &str = "whole";
const TOO_LONG: &str = "long";

/// The number of hexadecimal digits behind the name in the id of a replica.
const DIGITS: usize = 16;

/// The name of a replica that was given none.
pub(crate) const UNNAMED: &str = "r";

/// What the other replicas answered: see [`RedisRunStore::ask_replicas`].
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaAnswers {
    /// The replica that asked, by the name that tells it from the others.
    pub asked_by: String,
    /// The answers, by the names of their replicas.
    pub answers: Vec<ReplicaAnswer>,
    /// The names of the replicas that live, or have lived in the last minute, and were silent.
    pub missing: Vec<String>,
}

/// The answer of a replica.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaAnswer {
    /// The name of the replica; its id if another one has the same name, or it has none.
    pub replica: String,
    /// The id of the replica, which no other process has or will have.
    pub id: String,
    /// The answer; `None` if it is longer than [`RedisRunStore::LONGEST_ANSWER`].
    pub text: Option<String>,
}

/// The error of [`RedisRunStore::ask_replicas`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskError {
    /// The store does not answer.
    Lost(StoreLost),
    /// The question is longer than [`RedisRunStore::LONGEST_QUESTION`].
    TooLong,
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(lost) => lost.fmt(f),
            Self::TooLong => f.write_str("the question to the replicas is too long"),
        }
    }
}

impl Error for AskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost(lost) => Some(lost),
            Self::TooLong => None,
        }
    }
}

impl RedisRunStore {
    /// The most bytes of a question to other replicas.
    pub const LONGEST_QUESTION: usize = 16 * 1024;

    /// The most bytes of an answer to another replica.
    pub const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

    /// The id of this replica in the store: its [name](crate::RedisOptions::replica) and a number,
    /// which no other process has.
    #[must_use]
    pub fn replica_id(&self) -> &str {
        &self.shared.commands.replica
    }

    /// The name of this replica; its id if it was given none.
    #[must_use]
    pub fn replica(&self) -> &str {
        name_of(self.replica_id())
    }

    /// Asks the programs of the other replicas, which [answer](Self::answer) a text with a text.
    ///
    /// Resolves once all replicas that live have answered, or after `wait` and at most 50 ms more. A
    /// replica lives if it said so in the last three seconds, which each does every second. One that
    /// did not, and not [leave](Self::leave), is not waited for, and is missing for a minute; unless
    /// another one has its name by then.
    ///
    /// The question goes to each replica at most once. One that gets it after `wait` does not answer
    /// it, and neither does one without [`answer`](Self::answer), or of an earlier version.
    ///
    /// Questions have a connection of their own, and hold up no other.
    ///
    /// # Errors
    ///
    /// The store does not answer, or the question is too long.
    ///
    /// # Cancel safety
    ///
    /// The question may have been asked when the future is dropped; the answers expire after five
    /// seconds.
    pub async fn ask_replicas(
        &self,
        question: &str,
        wait: Duration,
    ) -> Result<ReplicaAnswers, AskError> {
        if question.len() > Self::LONGEST_QUESTION {
            return Err(AskError::TooLong);
        }
        let asked = self.shared.ask_replicas(question, wait.min(LONGEST_WAIT));
        asked.await.map_err(AskError::Lost)
    }

    /// Answers the questions of other replicas by `handler`, for as long as the store lives.
    ///
    /// Spawn the future; dropping it drops the answers under way. Up to 64 are made at a time, and
    /// 1,024 questions wait for it; of others the replica is silent. A handler that takes longer than
    /// its asker waits is dropped. A later call replaces this one, whose future then resolves.
    ///
    /// Whoever can write to the store can ask: a handler must not take a question for well formed.
    ///
    /// ```no_run
    /// # use std::{sync::Arc, time::Duration};
    /// # use tower_agent_redis::RedisRunStore;
    /// # async fn run(one: Arc<RedisRunStore>, two: Arc<RedisRunStore>) -> Result<(), tower_agent::BoxError> {
    /// tokio::spawn(two.answer(|question| async move { format!("{question}: fine") }));
    ///
    /// let answers = one.ask_replicas("how are you", Duration::from_millis(500)).await?;
    /// for answer in answers.answers {
    ///     println!("{}: {:?}", answer.replica, answer.text);
    /// }
    /// println!("silent: {:?}", answers.missing);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// The future panics outside of a Tokio runtime. A panic of `handler` leaves one question without an
    /// answer.
    pub fn answer<A>(
        &self,
        handler: impl Fn(String) -> A + Send + Sync + 'static,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        A: Future<Output = String> + Send + 'static,
    {
        let (sender, mut questions) = mpsc::channel::<HeardQuestion>(QUEUED);
        let handler = Arc::new(handler);
        *lock(&self.shared.asking.questions) = Some(sender);
        // The sender, which the store has, ends the loop at the drop of the store.
        let shared = Arc::downgrade(&self.shared);
        async move {
            let mut answers = JoinSet::new();
            while let Some(question) = questions.recv().await {
                while answers.try_join_next().is_some() {}
                if answers.len() >= AT_A_TIME {
                    answers.join_next().await;
                }
                let (handler, text) = (Arc::clone(&handler), question.text);
                let answer = async move { handler(text).await };
                let shared = Weak::clone(&shared);
                answers.spawn(reply(shared, question.nonce, question.until, answer));
            }
        }
    }

    /// Tells the other replicas that this one goes, so that none waits for it or misses it.
    ///
    /// The store tells and hears nothing from then on. What has not been told by then is lost: see
    /// [`RedisStats::waiting`](crate::RedisStats::waiting).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the others miss this replica for a minute.
    pub async fn leave(&self) {
        for task in &self.tasks {
            task.abort();
        }
        let Some((mut connection, _)) = self.shared.link.get() else {
            return;
        };
        connection.set_response_timeout(ANSWER);
        let commands = &self.shared.commands;
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(commands.keys.replicas()).arg(&commands.replica);
        // Without it the others miss this replica for a while.
        let _gone = cmd.exec_async(&mut connection).await;
    }
}

/// Makes an answer, and sends it, unless its asker has ceased to wait before.
async fn reply(
    shared: Weak<Shared>,
    nonce: String,
    until: Instant,
    answer: impl Future<Output = String>,
) {
    let sent = timeout_at(until, async {
        let text = answer.await;
        if let Some(shared) = shared.upgrade() {
            shared.reply(&nonce, &text).await;
        }
    });
    // The asker names this replica as silent.
    let _late = sent.await;
}

/// A question of another replica.
#[derive(Debug, PartialEq)]
pub(crate) struct HeardQuestion {
    nonce: String,
    text: String,
    /// When its asker ceases to wait.
    until: Instant,
}

/// The state of the questions in both directions.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    /// Where questions of other replicas go; `None` if the program answers none.
    questions: Mutex<Option<mpsc::Sender<HeardQuestion>>>,
    /// The connection of questions and answers, with the generation of the link at which it was
    /// made.
    connection: tokio::sync::Mutex<Option<(AskConnection, u64)>>,
}

#[derive(Clone)]
struct AskConnection(MultiplexedConnection);

impl fmt::Debug for AskConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskConnection")
    }
}

/// Reads a question. `Ok(None)` for one of this replica, or one that came too late.
///
/// # Errors
///
/// The entry is damaged.
pub(crate) fn read_question(
    id: &str,
    fields: &HashMap<String, Value>,
    replica: &str,
    clock: StoreClock,
) -> Result<Option<HeardQuestion>, Damaged> {
    let text = |name: &str| {
        let value = fields.get(name).ok_or(Damaged)?;
        String::from_redis_value_ref(value).map_err(|_| Damaged)
    };
    if text("r")? == replica {
        return Ok(None);
    }
    let (nonce, question) = (text("n")?, text("q")?);
    let is_nonce = nonce.len() == DIGITS && nonce.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_nonce || question.len() > RedisRunStore::LONGEST_QUESTION {
        return Err(Damaged);
    }
    let wait = text("w")?.parse().map_err(|_| Damaged)?;
    let wait = Duration::from_millis(wait).min(LONGEST_WAIT);
    let asked = id.split('-').next().and_then(|time| time.parse().ok());
    let asked = Duration::from_millis(asked.ok_or(Damaged)?);
    let left = wait.saturating_sub(clock.since(asked));
    Ok((!left.is_zero()).then(|| HeardQuestion {
        nonce,
        text: question,
        until: clock.here + left,
    }))
}

impl Shared {
    /// Hands a question to the program, if that answers any.
    pub(crate) fn hear_question(&self, question: HeardQuestion) {
        if let Some(questions) = &*lock(&self.asking.questions) {
            // Too many wait: the asker names this replica as silent.
            let _full = questions.try_send(question);
        }
    }

    async fn ask_replicas(
        &self,
        question: &str,
        wait: Duration,
    ) -> Result<ReplicaAnswers, StoreLost> {
        let until = Instant::now() + wait;
        let begun = timeout_at(until, async {
            let mut connection = self.asking_connection().await?;
            let replicas = self.commands.live(&mut connection).await?;
            let nonce = format!("{:0DIGITS$x}", fastrand::u64(..));
            if !replicas.others.is_empty() {
                let ask = self.commands.question(&nonce, wait, question);
                ask.exec_async(&mut connection).await?;
            }
            RedisResult::Ok((connection, replicas, nonce))
        });
        let (mut connection, replicas, nonce) = self.checked(begun.await).await?;
        let mut answers = Vec::new();
        let is_answered = |answers: &[(String, Option<String>)]| {
            let has_answered = |id: &String| answers.iter().any(|(by, _)| by == id);
            replicas.others.iter().all(has_answered)
        };
        let (mut poll, mut read, mut has_looked) = (FIRST_POLL, 0, false);
        let key = self.commands.keys.answers(0, &nonce);
        while !is_answered(&answers) {
            let rest = until.saturating_duration_since(Instant::now());
            sleep(poll.min(rest)).await;
            poll = (poll + poll / 2).min(LONGEST_POLL);
            let mut look = redis::cmd("LRANGE");
            look.arg(&key).arg(read).arg(-1);
            let limit = rest.max(LAST_LOOK);
            let looked = timeout(limit, look.query_async::<Vec<Value>>(&mut connection)).await;
            if looked.is_err() && has_looked {
                // What came before counts, and the rest is silent.
                break;
            }
            let came = self.checked(looked).await?;
            has_looked = true;
            read += came.len();
            for answer in came.iter().filter_map(read_answer) {
                if !answers.iter().any(|(by, _)| *by == answer.0) {
                    answers.push(answer);
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        if read > 0 {
            let mut forget = redis::cmd("UNLINK");
            // The list expires by itself, too.
            let _gone = timeout(LAST_LOOK, forget.arg(key).exec_async(&mut connection)).await;
        }
        Ok(named(&self.commands.replica, answers, &replicas))
    }

    /// The connection of questions and answers, which is made if there is none.
    async fn asking_connection(&self) -> RedisResult<MultiplexedConnection> {
        let lost = || RedisError::from(std::io::Error::from(std::io::ErrorKind::NotConnected));
        let generation = match self.link.is_up() {
            true => self.link.generation(),
            false => return Err(lost()),
        };
        let mut kept = self.asking.connection.lock().await;
        if let Some((connection, made)) = &*kept {
            if *made == generation {
                return Ok(connection.0.clone());
            }
        }
        let opened = self.address.open(ANSWER).await?;
        *kept = Some((AskConnection(opened.clone()), generation));
        Ok(opened)
    }

    /// The outcome of commands about questions. After trouble the connection is made anew, and the
    /// store is probed.
    async fn checked<T>(
        &self,
        outcome: Result<RedisResult<T>, tokio::time::error::Elapsed>,
    ) -> Result<T, StoreLost> {
        let trouble = match outcome {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => Trouble::of(&error),
            Err(_) => Trouble::Failed("no answer in time".into()),
        };
        if let Trouble::Damaged(cause) = &trouble {
            self.log_damage(&self.commands.keys.questions(), cause);
        } else {
            tracing::debug!(target: "tower_agent", cause = %trouble, "the replicas cannot be asked");
            *self.asking.connection.lock().await = None;
            if self.link.is_up() {
                self.suspect();
            }
        }
        Err(StoreLost::default())
    }

    /// Sends an answer. One that is too long is replaced by a word about that.
    async fn reply(&self, nonce: &str, text: &str) {
        let sent = timeout(ANSWER, async {
            let mut connection = self.asking_connection().await?;
            let cmd = self.commands.answer(nonce, text);
            cmd.exec_async(&mut connection).await
        });
        // The asker names this replica as silent.
        let _lost = self.checked(sent.await).await;
    }
}

impl Commands {
    /// Puts a question into the log of questions.
    fn question(&self, nonce: &str, wait: Duration, text: &str) -> redis::Pipeline {
        let key = self.keys.questions();
        let mut pipe = redis::pipe();
        pipe.cmd("XADD").arg(&key);
        pipe.arg("MAXLEN").arg("~").arg(1000).arg("*");
        pipe.arg("r").arg(&self.replica).arg("n").arg(nonce);
        pipe.arg("w").arg(wait.as_millis().to_string());
        pipe.arg("q").arg(text);
        pipe.cmd("PEXPIRE").arg(key).arg(KEPT);
        pipe
    }

    fn answer(&self, nonce: &str, text: &str) -> redis::Pipeline {
        let (mark, text) = match text.len() > RedisRunStore::LONGEST_ANSWER {
            true => (TOO_LONG, ""),
            false => (WHOLE, text),
        };
        let key = self.keys.answers(0, nonce);
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("RPUSH").arg(&key);
        pipe.arg(format!("{} {mark}\n{text}", self.replica));
        pipe.cmd("PEXPIRE").arg(key).arg(ANSWER_KEPT);
        pipe
    }
}

/// Reads what [`Commands::answer`] wrote: the id of a replica, and its answer, if that is not too
/// long. `None` for anything else.
fn read_answer(value: &Value) -> Option<(String, Option<String>)> {
    let text = String::from_redis_value_ref(value).ok()?;
    let (head, text) = text.split_once('\n')?;
    let (id, mark) = head.split_once(' ')?;
    let is_short = text.len() <= RedisRunStore::LONGEST_ANSWER;
    let text = match mark {
        WHOLE if is_short => Some(text.to_owned()),
        TOO_LONG => None,
        _ => return None,
    };
    Some((id.to_owned(), text))
}

/// The replicas beside this one, by their ids.
#[derive(Debug, Default)]
pub(crate) struct OtherReplicas {
    /// Those that live.
    pub(crate) others: Vec<String>,
    /// Those that have lived in the last minute, and did not leave.
    gone: Vec<String>,
}

impl OtherReplicas {
    /// Reads the reply of the script `alive`.
    pub(crate) fn read(reply: [Vec<String>; 2], own: &str) -> Self {
        let [mut others, mut gone] = reply;
        others.retain(|id| id != own);
        gone.retain(|id| id != own);
        Self { others, gone }
    }
}

/// The answers and the silent replicas, each by its name.
fn named(
    own: &str,
    answers: Vec<(String, Option<String>)>,
    replicas: &OtherReplicas,
) -> ReplicaAnswers {
    let is_answered = |id: &&String| !answers.iter().any(|(by, _)| by == *id);
    let silent: Vec<_> = replicas.others.iter().filter(is_answered).collect();
    let present = || {
        let others = answers.iter().map(|(id, _)| id.as_str());
        let silent = silent.iter().map(|id| id.as_str());
        others.chain(silent).chain([own])
    };
    // One that came back under its name has another id than before.
    let has_name = |id: &str| {
        present()
            .filter(|other| name_of(other) == name_of(id))
            .count()
    };
    let gone = replicas.gone.iter().filter(is_answered);
    let gone: Vec<_> = gone.filter(|id| has_name(id) == 0).collect();
    let name = |id: &str| {
        let is_alone = has_name(id) <= 1;
        let name = if is_alone { name_of(id) } else { id };
        name.to_owned()
    };
    let mut missing: Vec<_> = silent.iter().chain(&gone).map(|id| name(id)).collect();
    missing.sort_unstable();
    missing.dedup();
    let asked_by = name(own);
    let answers = answers.iter().map(|(id, text)| ReplicaAnswer {
        replica: name(id),
        id: id.clone(),
        text: text.clone(),
    });
    let mut answers: Vec<_> = answers.collect();
    answers.sort_unstable_by(|a, b| (&a.replica, &a.id).cmp(&(&b.replica, &b.id)));
    ReplicaAnswers {
        asked_by,
        answers,
        missing,
    }
}

/// The name that a replica was given; its id if it was given none.
fn name_of(id: &str) -> &str {
    let name = id.rsplit_once('-').filter(|(name, number)| {
        let is_number = number.len() == DIGITS && number.bytes().all(|b| b.is_ascii_hexdigit());
        is_number && !name.is_empty() && *name != UNNAMED
    });
    name.map_or(id, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "one-00000000000000aa";
    const TWO: &str = "two-00000000000000bb";
    const OTHER_TWO: &str = "two-00000000000000cc";
    const NAMELESS: &str = "r-00000000000000dd";

    fn answered(ids: &[&str]) -> Vec<(String, Option<String>)> {
        let answers = ids.iter().map(|&id| (id.to_owned(), Some(String::new())));
        answers.collect()
    }

    fn replicas(others: &[&str], gone: &[&str]) -> OtherReplicas {
        let owned = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect();
        OtherReplicas {
            others: owned(others),
            gone: owned(gone),
        }
    }

    /// The names of those that answered, and of the silent ones.
    fn names(answers: &ReplicaAnswers) -> (Vec<&str>, Vec<&str>) {
        let answered = answers.answers.iter().map(|it| &*it.replica);
        let missing = answers.missing.iter().map(|name| &**name);
        (answered.collect(), missing.collect())
    }

    #[test]
    fn a_replica_has_its_name_and_without_one_its_id() {
        for (id, name) in [
            (ONE, "one"),
            ("a-b-00000000000000aa", "a-b"),
            (NAMELESS, NAMELESS),
            ("one", "one"),
            ("one-x", "one-x"),
            ("-00000000000000aa", "-00000000000000aa"),
        ] {
            assert_eq!(name_of(id), name);
        }
    }

    #[test]
    fn replicas_of_one_name_are_told_apart_by_their_ids() {
        let all = named(
            ONE,
            answered(&[TWO, NAMELESS]),
            &replicas(&[NAMELESS, TWO], &[]),
        );
        assert_eq!(all.asked_by, "one");
        assert_eq!(names(&all), (vec![NAMELESS, "two"], vec![]));

        let both = named(ONE, answered(&[TWO]), &replicas(&[TWO, OTHER_TWO], &[]));
        assert_eq!(names(&both), (vec![TWO], vec![OTHER_TWO]));
        let own = named(TWO, answered(&[OTHER_TWO]), &replicas(&[OTHER_TWO], &[]));
        assert_eq!((&*own.asked_by, names(&own).0), (TWO, vec![OTHER_TWO]));
    }

    #[test]
    fn a_replica_that_has_gone_is_missed_until_one_has_its_name() {
        let gone = named(ONE, vec![], &replicas(&[], &[TWO, NAMELESS]));
        assert_eq!(names(&gone), (vec![], vec![NAMELESS, "two"]));
        let back = named(ONE, answered(&[OTHER_TWO]), &replicas(&[], &[TWO]));
        assert_eq!(names(&back), (vec!["two"], vec![]));
        // It has answered after all.
        let slow = named(ONE, answered(&[TWO]), &replicas(&[], &[TWO]));
        assert_eq!(names(&slow), (vec!["two"], vec![]));
    }

    #[test]
    fn what_no_replica_wrote_is_no_answer() {
        let read = |text: &str| read_answer(&Value::BulkString(text.into()));
        let answer = read("a-1 whole\ntwo\nlines");
        assert_eq!(answer, Some(("a-1".into(), Some("two\nlines".into()))));
        assert_eq!(read("a-1 long\n"), Some(("a-1".into(), None)));
        for text in ["", "a-1", "a-1 whole", "a-1\ntext", "a-1 half\ntext"] {
            assert_eq!(read(text), None, "{text}");
        }
        let long = "x".repeat(RedisRunStore::LONGEST_ANSWER + 1);
        assert_eq!(read(&format!("a-1 whole\n{long}")), None);
        assert_eq!(read_answer(&Value::BulkString(vec![0xff])), None);
    }
}
