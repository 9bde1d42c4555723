//! What the store and its tasks share: the questions, the news, and what was heard.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Pipeline, RedisResult, Value, from_redis_value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tower_agent::{
    RunId, RunRegistry,
    registry::{
        SharedSecret,
        store::{
            Heard, NewsSubject, OwnerCounts, OwnerElsewhere, OwnerQuestion, Reach, Recalled,
            RunKey, RunNews, RunQuestion, StoreLost,
        },
    },
};

use crate::{
    address::Address,
    candidates::is_hint,
    keys::{tag_of, tag_of_run},
    known::Known,
    link::{Link, Trouble},
    lock,
    options::RedisOptions,
    owners::OwnerNews,
    questions::Asking,
    queue::{NewsQueue, QueuedNews},
    scripts::{self, Commands},
    unsaid::{Pushed, UnsaidSpending},
    wire::{decode_added, decode_end, decode_owner, decode_spent},
};

/// The longest that a question waits whose caller does not limit it.
const ANSWER: Duration = Duration::from_secs(1);

/// The time between two looks for other replicas' answers.
const POLL: Duration = Duration::from_millis(2);

/// The least time between two log lines about keys that are damaged.
const DAMAGE_LOG: Duration = Duration::from_secs(10);

/// The state of a [`RedisRunStore`](crate::RedisRunStore).
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) address: Address,
    pub(crate) commands: Commands,
    pub(crate) ttl: Duration,
    pub(crate) link: Link,
    pub(crate) queue: Mutex<NewsQueue>,
    pub(crate) unsaid: Mutex<UnsaidSpending>,
    pub(crate) owners: Mutex<OwnerNews>,
    pub(crate) known: Mutex<Known>,
    pub(crate) asking: Asking,
    /// Whether the ends of the last minute are to be told again.
    pub(crate) retells: AtomicBool,
    /// Whether the store is to be probed now.
    pub(crate) suspected: AtomicBool,
    inbox: Mutex<VecDeque<Heard>>,
    arrived: Notify,
    pub(crate) counts: StoreCounts,
    damage_logged: Mutex<Option<Instant>>,
}

#[derive(Debug)]
pub(crate) struct StoreCounts {
    pub(crate) questions: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Whether the log is being read.
    pub(crate) listens: AtomicBool,
    /// When the log was read last.
    pub(crate) read: Mutex<Instant>,
}

impl Shared {
    pub(crate) fn new(address: Address, secret: &SharedSecret, options: &RedisOptions) -> Self {
        Self {
            address,
            commands: Commands::new(secret, options),
            ttl: options.ttl,
            link: Link::default(),
            queue: Mutex::default(),
            unsaid: Mutex::default(),
            owners: Mutex::default(),
            known: Mutex::default(),
            asking: Asking::default(),
            retells: AtomicBool::new(false),
            suspected: AtomicBool::new(false),
            inbox: Mutex::default(),
            arrived: Notify::new(),
            counts: StoreCounts {
                questions: AtomicU64::new(0),
                lost: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
                listens: AtomicBool::new(false),
                read: Mutex::new(Instant::now()),
            },
            damage_logged: Mutex::default(),
        }
    }

    pub(crate) async fn answer(&self, question: RunQuestion) -> Result<Recalled, StoreLost> {
        self.counts.questions.fetch_add(1, Ordering::Relaxed);
        let mut unanswered = Unanswered(Some(&self.counts.lost));
        let recalled = self.ask(&question).await?;
        unanswered.0 = None;
        Ok(recalled)
    }

    pub(crate) async fn answer_owner(
        &self,
        question: OwnerQuestion,
    ) -> Result<OwnerElsewhere, StoreLost> {
        self.counts.questions.fetch_add(1, Ordering::Relaxed);
        let mut unanswered = Unanswered(Some(&self.counts.lost));
        let elsewhere = self.ask_owner(&question).await?;
        unanswered.0 = None;
        Ok(elsewhere)
    }

    async fn ask_owner(&self, question: &OwnerQuestion) -> Result<OwnerElsewhere, StoreLost> {
        let (mut connection, generation) = self.link.get().ok_or_else(StoreLost::default)?;
        connection.set_response_timeout(ANSWER);
        let mut watch = self.link.watch(generation);
        lock(&self.owners).saw(&question.counts);
        let mut pipe = Pipeline::new();
        pipe.ignore_errors();
        pipe.add_command(self.commands.ask_owner(question));
        let answered = async {
            let mut replies = self.send(&mut connection, &pipe).await?;
            if is_unknown_script(&replies[0]) {
                let loaded = scripts::load(&mut connection).await;
                loaded.map_err(|error| About(String::new(), Trouble::of(&error)))?;
                replies = self.send(&mut connection, &pipe).await?;
            }
            let reply = replies.into_iter().next().unwrap_or(Ok(Value::Nil));
            self.read_owner(question, reply)
        };
        match answered.await {
            Ok(elsewhere) => {
                watch.succeeded();
                Ok(elsewhere)
            }
            Err(About(key, trouble)) => {
                watch.failed(&trouble);
                if let Trouble::Damaged(cause) = &trouble {
                    self.log_damage(&key, cause);
                }
                Err(StoreLost::default())
            }
        }
    }

    /// Reads the answer to a question about an owner. The counts that came with it need not be told.
    fn read_owner(
        &self,
        question: &OwnerQuestion,
        reply: RedisResult<Value>,
    ) -> Result<OwnerElsewhere, About> {
        let owner = question.counts.owner;
        let about = |trouble| About(self.commands.keys.owner(owner), trouble);
        let elsewhere = reply
            .and_then(|reply| decode_owner(&reply, &question.counts.periods))
            .map_err(|error| about(Trouble::of(&error)))?;
        lock(&self.owners).said(owner, question.counts.number);
        Ok(elsewhere)
    }

    /// Asks the store, and remembers what it says of this replica's part.
    pub(crate) async fn ask(&self, question: &RunQuestion) -> Result<Recalled, StoreLost> {
        let (mut connection, generation) = self.link.get().ok_or_else(StoreLost::default)?;
        connection.set_response_timeout(ANSWER);
        let mut watch = self.link.watch(generation);
        let known = lock(&self.known).of(question);
        // What this replica has told about the run before comes before the question.
        let news = lock(&self.queue).about(&question.run);
        let mut pipe = Pipeline::new();
        pipe.ignore_errors();
        for cmd in news.iter().filter_map(|item| self.commands.tell(item)) {
            pipe.add_command(cmd);
        }
        let at = pipe.len();
        pipe.add_command(self.commands.ask(question, known.as_ref()));
        // Before the parent, of which the answers may say that it is another one.
        if let Some(owner) = &question.owner {
            lock(&self.owners).saw(&owner.counts);
            pipe.add_command(self.commands.ask_owner(owner));
        }
        if let Some(parent) = &question.parent {
            self.read_end(&mut pipe, question, parent);
        }
        let before_candidates = pipe.len();
        self.ask_candidates(question, &mut pipe);
        let mut replies = self.send(&mut connection, &pipe).await;
        if let Ok(answers) = &replies {
            if is_unknown_script(&answers[at]) {
                if let Err(error) = scripts::load(&mut connection).await {
                    watch.failed(&Trouble::of(&error));
                    return Err(StoreLost::default());
                }
                replies = self.send(&mut connection, &pipe).await;
            }
        }
        let answered = async {
            let mut replies = replies?;
            let candidates = replies.drain(before_candidates..).next();
            let mut replies = replies.into_iter().skip(at);
            let answer = replies.next().unwrap_or(Ok(Value::Nil));
            let (mut recalled, parent) = self.read(question, answer)?;
            if let Some(candidates) = candidates {
                recalled.candidates = self.read_candidates(question, candidates);
            }
            if let Some(owner) = &question.owner {
                let reply = replies.next().unwrap_or(Ok(Value::Nil));
                match self.read_owner(owner, reply) {
                    Ok(elsewhere) => recalled.owner = Some(elsewhere),
                    // The counts of an owner hide no run.
                    Err(About(key, Trouble::Damaged(cause))) => self.log_damage(&key, &cause),
                    Err(about) => return Err(about),
                }
            }
            if let Some(parent) = parent {
                let reply = match replies.next() {
                    Some(reply) if question.parent.as_ref() == Some(&parent) => reply,
                    _ => {
                        // Nobody but the store knew this parent.
                        let mut pipe = Pipeline::new();
                        self.read_end(pipe.ignore_errors(), question, &parent);
                        let replies = self.send(&mut connection, &pipe).await?;
                        replies.into_iter().next().unwrap_or(Ok(Value::Nil))
                    }
                };
                let key = self.key_of(question, &parent);
                recalled.parent_end = reply
                    .and_then(|reply| Ok(from_redis_value::<Option<String>>(reply)?))
                    .map_err(|error| About(key.clone(), Trouble::of(&error)))?
                    .map(|end| decode_end(&end).ok_or_else(|| damaged(key, "end")))
                    .transpose()?;
            }
            Ok::<_, About>(recalled)
        };
        match answered.await {
            Ok(recalled) => {
                watch.succeeded();
                lock(&self.known).learn(question, &recalled);
                Ok(recalled)
            }
            Err(About(key, trouble)) => {
                watch.failed(&trouble);
                if let Trouble::Damaged(cause) = &trouble {
                    self.log_damage(&key, cause);
                }
                Err(StoreLost::default())
            }
        }
    }

    async fn send(
        &self,
        connection: &mut redis::aio::MultiplexedConnection,
        pipe: &Pipeline,
    ) -> Result<Vec<RedisResult<Value>>, About> {
        let replies = pipe
            .query_async::<Vec<RedisResult<Value>>>(connection)
            .await;
        let replies = replies.map_err(|error| About(String::new(), Trouble::of(&error)))?;
        if replies.len() < pipe.len() {
            let short = Trouble::Broken("the server answered too little".into());
            return Err(About(String::new(), short));
        }
        Ok(replies)
    }

    fn key_of(&self, question: &RunQuestion, id: &RunId) -> String {
        self.commands.keys.run(&RunKey {
            owner: question.run.owner,
            id: id.clone(),
        })
    }

    fn read_end(&self, pipe: &mut Pipeline, question: &RunQuestion, id: &RunId) {
        pipe.cmd("HGET").arg(self.key_of(question, id)).arg("end");
    }

    /// Reads the answer to a question: what it says of the run, and the id of the run's parent.
    fn read(
        &self,
        question: &RunQuestion,
        answer: RedisResult<Value>,
    ) -> Result<(Recalled, Option<RunId>), About> {
        type Told = (String, i64, String, i64, i64, String, String, String, u8);
        type Answer = (Told, String, u8);
        let key = || self.commands.keys.run(&question.run);
        let answer = answer.and_then(|answer| Ok(from_redis_value::<Answer>(answer)?));
        let answer = answer.map_err(|error| About(key(), Trouble::of(&error)))?;
        let (told, added, suspended) = answer;
        let (incarnation, age, end, granted, elsewhere, parent, damage, spent, held) = told;
        if !damage.is_empty() {
            self.log_damage(&damage, "it is of another type");
        }
        let turns = |turns: i64| u32::try_from(turns.max(0)).unwrap_or(u32::MAX);
        let mut recalled = Recalled::default();
        recalled.incarnation = incarnation.parse().map_err(|_| damaged(key(), "inc"))?;
        recalled.age = Duration::from_micros(age.max(0).unsigned_abs());
        recalled.granted = turns(granted);
        recalled.turns_elsewhere = turns(elsewhere);
        recalled.is_held_elsewhere = held == 1;
        if end.is_empty() {
            let spent = decode_spent(&spent).ok_or_else(|| damaged(key(), "s:"))?;
            recalled.spent_elsewhere = spent;
            recalled.adjusted = decode_added(&added).ok_or_else(|| damaged(key(), "ext"))?;
            recalled.adjusted.suspended = suspended == 1;
        } else {
            let end = decode_end(&end).ok_or_else(|| damaged(key(), "end"))?;
            recalled.end = Some(end);
        }
        let parent = Some(parent).filter(|parent| !parent.is_empty());
        let parent = parent.map(|it| it.parse().map_err(|_| damaged(key(), "parent")));
        Ok((recalled, parent.transpose()?))
    }

    pub(crate) fn tell(&self, news: RunNews) {
        if let RunNews::Spent {
            run,
            part,
            incarnation,
            spent,
        } = news
        {
            lock(&self.known).spend(&run, part, spent);
            match lock(&self.unsaid).push(run, part, incarnation, spent) {
                Pushed::First => self.link.wake.notify_one(),
                Pushed::Full => {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Pushed::Another => {}
            }
            return;
        }
        if let RunNews::Counted(counts) = news {
            match lock(&self.owners).push(counts) {
                Pushed::First => self.link.wake.notify_one(),
                Pushed::Full => {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Pushed::Another => {}
            }
            return;
        }
        if is_hint(&news) && !self.link.is_up() {
            return;
        }
        let session = match &news {
            RunNews::Ended { run, .. } | RunNews::Left { run, .. } => {
                lock(&self.known).session_of(run)
            }
            _ => None,
        };
        let mut known = lock(&self.known);
        known.forget(&news);
        known.give_back(&news);
        drop(known);
        let dropped = lock(&self.queue).push(news, session);
        self.counts.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.link.wake.notify_one();
    }

    pub(crate) fn hear(&self, heard: Heard) {
        let mut inbox = lock(&self.inbox);
        let is_hole = matches!(heard, Heard::Hole);
        if is_hole && matches!(inbox.back(), Some(Heard::Hole)) {
            return;
        }
        if inbox.len() >= RunRegistry::ENDED {
            // Nobody listens, or not fast enough: what the news were about is asked anew.
            inbox.clear();
            inbox.push_back(Heard::Hole);
        } else {
            inbox.push_back(heard);
        }
        drop(inbox);
        self.arrived.notify_one();
    }

    /// Hears what the other parts of a run have spent, from the reply to this replica's news.
    pub(crate) fn hear_spent(&self, run: &RunKey, reply: Value) {
        let Ok((incarnation, spent)) = from_redis_value::<(String, String)>(reply) else {
            return;
        };
        // Of a run that is over, or that is another one now, the others' parts do not matter.
        let (Ok(incarnation), Some(elsewhere)) = (incarnation.parse(), decode_spent(&spent)) else {
            return;
        };
        self.hear(Heard::Spent {
            run: run.clone(),
            incarnation,
            elsewhere,
        });
    }

    /// Waits until the store has taken what was told, and then for the other replicas.
    pub(crate) async fn reach(
        &self,
        subject: &NewsSubject,
        wait: Duration,
    ) -> Result<Reach, StoreLost> {
        let until = Instant::now() + wait;
        let last = lock(&self.queue).last();
        while !lock(&self.queue).is_taken(last) {
            if !self.link.is_up() || Instant::now() >= until {
                return Err(StoreLost::default());
            }
            sleep(POLL).await;
        }
        let (mut connection, generation) = self.link.get().ok_or_else(StoreLost::default)?;
        connection.set_response_timeout(ANSWER);
        let tag = match subject {
            NewsSubject::Run(run) => tag_of_run(run),
            NewsSubject::Session { owner, session } => tag_of(*owner, session.as_bytes()),
            _ => return Err(StoreLost::default()),
        };
        let barrier = format!("{:016x}", fastrand::u64(..));
        let (put, mut answers) = (self.commands.barrier(tag, &barrier), redis::cmd("LLEN"));
        answers.arg(self.commands.keys.answers(tag, &barrier));
        let asked = Instant::now();
        let counted = async {
            let others = self.commands.live(&mut connection).await?.others.len();
            let others = u32::try_from(others).unwrap_or(u32::MAX);
            put.exec_async(&mut connection).await?;
            loop {
                let answers: u32 = answers.query_async(&mut connection).await?;
                let is_late = Instant::now() + POLL >= until;
                if answers >= others || is_late {
                    let (replicas, silent) = (1 + answers, others.saturating_sub(answers));
                    return RedisResult::Ok((replicas, silent));
                }
                sleep(POLL).await;
            }
        };
        let (replicas, silent) = counted.await.map_err(|error| {
            let trouble = Trouble::of(&error);
            if let Trouble::Damaged(cause) = &trouble {
                self.log_damage(&self.commands.keys.log(tag), cause);
            }
            self.link.failed(generation, asked, &trouble);
            StoreLost::default()
        })?;
        let mut reach = Reach::default();
        (reach.replicas, reach.silent) = (replicas, silent);
        Ok(reach)
    }

    /// Hears what the other replicas have counted for an owner, from the reply to this one's news.
    pub(crate) fn hear_counted(&self, counts: &OwnerCounts, reply: &Value) {
        if let Ok(elsewhere) = decode_owner(reply, &counts.periods) {
            self.hear(Heard::OwnerCounted {
                owner: counts.owner,
                number: counts.number,
                elsewhere,
            });
        }
    }

    /// The number of news that wait.
    pub(crate) fn waiting(&self) -> usize {
        let runs = lock(&self.queue).len() + lock(&self.unsaid).len();
        runs + lock(&self.owners).len()
    }

    /// How long to wait until something that merges is to be told; `None` if there is nothing.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        let due = [lock(&self.unsaid).due_in(), lock(&self.owners).due_in()];
        due.into_iter().flatten().min()
    }

    /// Lets the store be probed at once: what reads the log has lost it.
    pub(crate) fn suspect(&self) {
        self.suspected.store(true, Ordering::Release);
        self.link.wake.notify_one();
    }

    /// News may have been lost, on both sides.
    pub(crate) fn hear_hole(&self) {
        self.retells.store(true, Ordering::Release);
        self.suspect();
        self.hear(Heard::Hole);
    }

    pub(crate) async fn next(&self) -> Heard {
        loop {
            let heard = lock(&self.inbox).pop_front();
            if let Some(heard) = heard {
                return heard;
            }
            self.arrived.notified().await;
        }
    }

    /// Logs that a key does not hold what replicas write, at most once in a while.
    pub(crate) fn log_damage(&self, key: &str, cause: &str) {
        let mut logged = lock(&self.damage_logged);
        if logged.is_some_and(|at| at.elapsed() < DAMAGE_LOG) {
            return;
        }
        *logged = Some(Instant::now());
        drop(logged);
        tracing::warn!(target: "tower_agent", key, cause, "a key of the store of runs is damaged");
    }

    /// Logs that the store does not take news as they are.
    pub(crate) fn drop_news(&self, item: &QueuedNews, cause: &str) {
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        let key = match &item.news {
            RunNews::Ended { run, .. }
            | RunNews::Left { run, .. }
            | RunNews::GaveBack { run, .. }
            | RunNews::Spent { run, .. }
            | RunNews::Reopened { run } => self.commands.keys.run(run),
            RunNews::Counted(counts) => self.commands.keys.owner(counts.owner),
            news => self.commands.key_of_candidates(news),
        };
        self.log_damage(&key, cause);
    }
}

/// Trouble with this key, which is empty if it is with no key of its own.
#[derive(Debug)]
pub(crate) struct About(pub(crate) String, pub(crate) Trouble);

fn damaged(key: String, field: &str) -> About {
    About(key, Trouble::Damaged(format!("its field {field}")))
}

fn is_unknown_script(reply: &RedisResult<Value>) -> bool {
    let trouble = reply.as_ref().err().map(Trouble::of);
    matches!(trouble, Some(Trouble::NoScript))
}

/// Counts a question that got no answer, also one that was dropped.
struct Unanswered<'a>(Option<&'a AtomicU64>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(lost) = self.0 {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
