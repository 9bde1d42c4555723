//! The task that tells news, keeps this replica's parts known, and mends a lost link.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, Pipeline, RedisResult, Value, aio::MultiplexedConnection, from_redis_value};
use tokio::time::{Instant, sleep, timeout};
use tower_agent::{
    Owner, RunId, RunRegistry, TerminalReason,
    registry::store::{AbortTarget, Heard, RunEnd, RunKey, RunNews},
};

use crate::{
    keys::{TAGS, hex, owner_of, tag_of},
    link::Trouble,
    lock,
    queue::QueuedNews,
    scripts,
    shared::Shared,
};

/// How long a command may take that nobody waits for.
pub(crate) const ANSWER: Duration = Duration::from_millis(200);

/// How often the store is probed while it is well.
const PROBE: Duration = Duration::from_secs(1);

/// A lost store must answer so many probes, each in less than this time.
const PROBES: u32 = 3;
const PROBE_LIMIT: Duration = Duration::from_millis(25);

/// The first wait of a lost store, and the longest: each wait is twice the one before.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// After so long without trouble the waits begin anew.
const WELL: Duration = Duration::from_secs(10);

/// A store that comes back may have lost the writes of this last time, as after a failover.
const RETOLD: Duration = Duration::from_secs(60);

/// Why a server that answers is of no use.
pub(crate) const OTHER_SECRET: &str =
    "the replicas have another secret: give all of this prefix the same one";

/// How often the store learns that the open runs of this replica count on.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// The number of news in one round trip.
const BATCH: usize = 64;

/// The state of the task.
#[derive(Debug)]
pub(crate) struct Teller {
    shared: Arc<Shared>,
    /// The ends that the store took in the last [`RETOLD`], with the incarnations that they ended.
    recent: VecDeque<(Instant, Arc<QueuedNews>, u64)>,
    wait: Duration,
    probed: Instant,
    renewed: Instant,
    signed: Instant,
}

impl Teller {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Self {
            shared,
            recent: VecDeque::new(),
            wait: FIRST_WAIT,
            probed: now,
            renewed: now,
            signed: now,
        }
    }

    pub(crate) async fn work(mut self) {
        loop {
            let Some((mut connection, generation)) = self.shared.link.get() else {
                self.mend().await;
                continue;
            };
            connection.set_response_timeout(ANSWER);
            let since = Instant::now();
            while self.shared.link.generation() == generation && self.shared.link.is_up() {
                let sent = Instant::now();
                if let Err(trouble) = self.turn(&mut connection).await {
                    self.shared.link.failed(generation, sent, &trouble);
                    // The next try is a probe, too.
                    sleep(FIRST_WAIT / 4).await;
                } else {
                    self.shared.link.succeeded(generation);
                }
                if since.elapsed() > WELL {
                    self.wait = FIRST_WAIT;
                }
            }
        }
    }

    /// One turn while the link is up: tells, probes and renews what is due, then waits.
    async fn turn(&mut self, connection: &mut MultiplexedConnection) -> Result<(), Trouble> {
        if self.shared.retells.swap(false, Ordering::AcqRel) {
            if let Err(trouble) = self.retell(connection).await {
                self.shared.retells.store(true, Ordering::Release);
                return Err(trouble);
            }
        }
        if self.shared.due_in().is_some_and(|due| due.is_zero()) {
            self.tell_spent(connection).await?;
            self.tell_counted(connection).await?;
        }
        if self.signed.elapsed() >= SIGN_OF_LIFE {
            let signs = lock(&self.shared.owners).signs_of_life();
            self.count(connection, signs).await?;
            self.signed = Instant::now();
        }
        if self.deliver(connection).await? {
            return Ok(());
        }
        let is_suspected = self.shared.suspected.swap(false, Ordering::AcqRel);
        if is_suspected || self.probed.elapsed() >= PROBE {
            self.probe(connection).await?;
        }
        if self.renewed.elapsed() >= self.shared.ttl / 3 {
            self.renewed = Instant::now();
            self.renew().await;
        }
        let rest = PROBE.saturating_sub(self.probed.elapsed());
        let due = self.shared.due_in();
        let rest = due.map_or(rest, |due| rest.min(due));
        // The news, a lost link and a hole wake the task.
        let _woken = timeout(rest, self.shared.link.wake.notified()).await;
        Ok(())
    }

    /// Waits until the store is well, tells what has waited, and lets questions pass again.
    async fn mend(&mut self) {
        loop {
            match self.try_mend().await {
                Ok(connection) => {
                    self.shared.link.set_up(connection);
                    self.shared.hear_hole();
                    tracing::info!(target: "tower_agent", "the store of runs is back");
                    return;
                }
                Err(Trouble::Broken(cause)) if cause == OTHER_SECRET => {
                    tracing::error!(target: "tower_agent", cause, "the store of runs cannot be used");
                }
                Err(trouble) => {
                    tracing::debug!(target: "tower_agent", cause = %trouble, "the store of runs stays lost");
                }
            }
            sleep(self.wait.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
            self.wait = (2 * self.wait).min(LONGEST_WAIT);
        }
    }

    async fn try_mend(&mut self) -> Result<MultiplexedConnection, Trouble> {
        let opened = self.shared.address.open(ANSWER).await;
        let mut connection = opened.map_err(|error| Trouble::of(&error))?;
        let prepared = self.shared.commands.prepare(&mut connection).await;
        if !prepared.map_err(|error| Trouble::of(&error))? {
            return Err(Trouble::Broken(OTHER_SECRET.into()));
        }
        for _ in 0..PROBES {
            let since = Instant::now();
            self.probe(&mut connection).await?;
            if since.elapsed() >= PROBE_LIMIT {
                return Err(Trouble::Failed("the server is slow".into()));
            }
        }
        self.retell(&mut connection).await?;
        while self.deliver(&mut connection).await? {}
        Ok(connection)
    }

    /// A probe writes: a server that is full, or a replica of another one, is of no use.
    async fn probe(&mut self, connection: &mut MultiplexedConnection) -> Result<(), Trouble> {
        let done = self.shared.commands.live(connection).await;
        done.map_err(|error| match Trouble::of(&error) {
            Trouble::Damaged(text) => Trouble::Failed(text),
            trouble => trouble,
        })?;
        self.probed = Instant::now();
        Ok(())
    }

    /// Tells the next news. Returns whether there were any.
    async fn deliver(&mut self, connection: &mut MultiplexedConnection) -> Result<bool, Trouble> {
        let mut batch = lock(&self.shared.queue).front(BATCH);
        let is_several = |item: &Arc<QueuedNews>| {
            let news = &item.news;
            matches!(
                news,
                RunNews::SessionEnded { .. } | RunNews::AbortedForAll(_)
            )
        };
        let Some(first) = batch.first() else {
            return Ok(false);
        };
        let ended = match &first.news {
            RunNews::SessionEnded {
                owner,
                session,
                spared,
            } => {
                let spared = spared.as_ref();
                Some(self.end_session(connection, *owner, session, spared).await)
            }
            RunNews::AbortedForAll(target) => Some(self.end_for_all(connection, target).await),
            _ => None,
        };
        if let Some(ended) = ended {
            match ended {
                Err(Trouble::Damaged(cause)) => self.shared.drop_news(first, &cause),
                ended => ended?,
            }
            lock(&self.shared.queue).taken(first);
            return Ok(true);
        }
        let until = batch.iter().position(is_several);
        batch.truncate(until.unwrap_or(BATCH));
        let told = self.tell(connection, &batch).await;
        let (taken, outcome) = match told {
            Ok(()) => (batch.last(), Ok(true)),
            Err((at, trouble)) => (at.checked_sub(1).and_then(|at| batch.get(at)), Err(trouble)),
        };
        if let Some(taken) = taken {
            lock(&self.shared.queue).taken(taken);
        }
        outcome
    }

    /// Tells what this replica's parts have spent, and hears what the others have.
    async fn tell_spent(&mut self, connection: &mut MultiplexedConnection) -> Result<(), Trouble> {
        let all = lock(&self.shared.unsaid).all();
        for batch in all.chunks(BATCH) {
            let items = batch.iter().map(|(_, news)| {
                let news = QueuedNews::unqueued(news.clone(), None);
                Arc::new(news)
            });
            let items: Vec<_> = items.collect();
            let told = self.tell(connection, &items).await;
            let taken = told.as_ref().map_or_else(|(at, _)| *at, |()| batch.len());
            let mut unsaid = lock(&self.shared.unsaid);
            for (number, news) in &batch[..taken] {
                if let RunNews::Spent { run, .. } = news {
                    unsaid.said(*number, run);
                }
            }
            drop(unsaid);
            told.map_err(|(_, trouble)| trouble)?;
        }
        Ok(())
    }

    /// Tells what this replica has counted for owners, and hears what the others have.
    async fn tell_counted(
        &mut self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), Trouble> {
        let all = lock(&self.shared.owners).all();
        self.count(connection, all).await
    }

    async fn count(
        &mut self,
        connection: &mut MultiplexedConnection,
        counts: Vec<RunNews>,
    ) -> Result<(), Trouble> {
        let items = counts
            .into_iter()
            .map(|news| QueuedNews::unqueued(news, None));
        let items: Vec<_> = items.map(Arc::new).collect();
        for batch in items.chunks(BATCH) {
            let told = self.tell(connection, batch).await;
            let taken = told.as_ref().map_or_else(|(at, _)| *at, |()| batch.len());
            let mut owners = lock(&self.shared.owners);
            for item in &batch[..taken] {
                if let RunNews::Counted(counts) = &item.news {
                    owners.said(counts.owner, counts.number);
                }
            }
            drop(owners);
            told.map_err(|(_, trouble)| trouble)?;
        }
        Ok(())
    }

    /// Tells these news in one round trip.
    ///
    /// # Errors
    ///
    /// How many the store has taken, and why it did not take the next.
    async fn tell(
        &mut self,
        connection: &mut MultiplexedConnection,
        items: &[Arc<QueuedNews>],
    ) -> Result<(), (usize, Trouble)> {
        let mut pipe = Pipeline::new();
        for item in items {
            if let Some(cmd) = self.shared.commands.tell(item) {
                pipe.add_command(cmd);
            }
        }
        let replies = send(connection, &mut pipe).await;
        let replies = replies.map_err(|trouble| (0, trouble))?;
        for (at, (item, reply)) in items.iter().zip(replies).enumerate() {
            match reply.map_err(|error| Trouble::of(&error)) {
                Ok(reply) => self.took(item, reply),
                Err(Trouble::Damaged(cause)) => self.shared.drop_news(item, &cause),
                Err(Trouble::NoScript) => {
                    let loaded = scripts::load(connection).await;
                    let trouble = loaded.err().map(|error| Trouble::of(&error));
                    let again = || Trouble::Failed("the scripts were lost".into());
                    return Err((at, trouble.unwrap_or_else(again)));
                }
                Err(trouble) => return Err((at, trouble)),
            }
        }
        Ok(())
    }

    /// Remembers an end that the store has taken, and hears what the others have spent.
    fn took(&mut self, item: &Arc<QueuedNews>, reply: Value) {
        if let RunNews::Spent { run, .. } = &item.news {
            return self.shared.hear_spent(run, reply);
        }
        if let RunNews::Counted(counts) = &item.news {
            return self.shared.hear_counted(counts, &reply);
        }
        if !matches!(item.news, RunNews::Ended { .. }) {
            return self.shared.check_candidates(&item.news, reply);
        }
        let reply = from_redis_value::<(u8, String, String)>(reply);
        let Ok((stored, incarnation, damage)) = reply else {
            return;
        };
        if !damage.is_empty() {
            self.shared.log_damage(&damage, "it is of another type");
        }
        let Ok(incarnation) = incarnation.parse() else {
            return;
        };
        if stored == 1 {
            let now = Instant::now();
            self.recent.push_back((now, Arc::clone(item), incarnation));
        }
        self.forget_old();
    }

    fn forget_old(&mut self) {
        let is_old = |it: &(Instant, _, _)| it.0.elapsed() > RETOLD;
        while self.recent.len() > RunRegistry::ENDED || self.recent.front().is_some_and(is_old) {
            self.recent.pop_front();
        }
    }

    /// Tells the ends of the last minute again, each for the incarnation that it ended.
    async fn retell(&mut self, connection: &mut MultiplexedConnection) -> Result<(), Trouble> {
        self.forget_old();
        let again = self
            .recent
            .iter()
            .map(|(_, item, incarnation)| item.again(*incarnation));
        let again: Vec<_> = again.map(Arc::new).collect();
        // The time of a first telling counts, so that nothing is told again for ever.
        let recent = std::mem::take(&mut self.recent);
        let mut outcome = Ok(());
        for batch in again.chunks(BATCH) {
            outcome = self.tell(connection, batch).await;
            if outcome.is_err() {
                break;
            }
        }
        self.recent = recent;
        outcome.map_err(|(_, trouble)| trouble)
    }

    /// Ends the runs of a session that the store knows, and tells those that have runs without an id
    /// of their own.
    async fn end_session(
        &mut self,
        connection: &mut MultiplexedConnection,
        owner: Owner,
        session: &Arc<str>,
        spared: Option<&RunId>,
    ) -> Result<(), Trouble> {
        let keys = &self.shared.commands.keys;
        let mut pipe = Pipeline::new();
        for tag in 0..TAGS {
            let index = keys.session(tag, owner, session);
            pipe.cmd("ZRANGE").arg(index).arg(0).arg(-1);
        }
        let log = keys.log(tag_of(owner, session.as_bytes()));
        let mut ends = Vec::new();
        for (tag, reply) in (0..TAGS).zip(send(connection, &mut pipe).await?) {
            let members = reply.and_then(|reply| Ok(from_redis_value::<Vec<String>>(reply)?));
            let members = match members.map_err(|error| Trouble::of(&error)) {
                Err(Trouble::Damaged(cause)) => {
                    let index = self.shared.commands.keys.session(tag, owner, session);
                    self.shared.log_damage(&index, &cause);
                    continue;
                }
                members => members?,
            };
            for member in members {
                let Some((incarnation, id)) = member.split_once(':') else {
                    continue;
                };
                let (Ok(incarnation), Ok(id)) = (incarnation.parse::<u64>(), id.parse::<RunId>())
                else {
                    continue;
                };
                if Some(&id) != spared {
                    let run = RunKey { owner, id };
                    ends.push(Arc::new(QueuedNews::of_session(run, incarnation, session)));
                }
            }
        }
        for batch in ends.chunks(BATCH) {
            let told = self.tell(connection, batch).await;
            told.map_err(|(_, trouble)| trouble)?;
        }
        let mut cmd = redis::cmd("XADD");
        cmd.arg(&log).arg("MAXLEN").arg("~").arg(10_000).arg("*");
        cmd.arg("k")
            .arg("ses")
            .arg("r")
            .arg(&self.shared.commands.replica);
        cmd.arg("o").arg(hex(owner)).arg("s").arg(&**session);
        cmd.arg("x")
            .arg(spared.map_or_else(String::new, ToString::to_string));
        self.add(cmd, &log, connection).await
    }

    /// Ends the runs of an id or of a session that the store knows, of all owners, and tells those that
    /// have runs that it does not know.
    async fn end_for_all(
        &mut self,
        connection: &mut MultiplexedConnection,
        target: &AbortTarget,
    ) -> Result<(), Trouble> {
        let keys = self.shared.commands.keys.clone();
        let set = |tag| match target {
            AbortTarget::Run(id) => keys.owners_of_id(tag, id),
            AbortTarget::Session(session) => keys.owners_of_session(tag, session),
            _ => String::new(),
        };
        let mut pipe = Pipeline::new();
        for tag in 0..TAGS {
            pipe.cmd("SMEMBERS").arg(set(tag));
        }
        let mut owners = HashSet::new();
        for (tag, reply) in (0..TAGS).zip(send(connection, &mut pipe).await?) {
            let members = reply.and_then(|reply| Ok(from_redis_value::<Vec<String>>(reply)?));
            match members.map_err(|error| Trouble::of(&error)) {
                Err(Trouble::Damaged(cause)) => self.shared.log_damage(&set(tag), &cause),
                members => owners.extend(members?.iter().filter_map(|it| owner_of(it))),
            }
        }
        let (kind, field, text, log) = match target {
            AbortTarget::Run(id) => {
                let of = |owner| RunKey {
                    owner,
                    id: id.clone(),
                };
                let ends = owners
                    .into_iter()
                    .map(|owner| QueuedNews::aborted(of(owner)));
                let ends: Vec<_> = ends.map(Arc::new).collect();
                for batch in ends.chunks(BATCH) {
                    let told = self.tell(connection, batch).await;
                    told.map_err(|(_, trouble)| trouble)?;
                }
                let text = id.to_string();
                let tag = tag_of(Owner::default(), text.as_bytes());
                ("all", "i", text, keys.log(tag))
            }
            AbortTarget::Session(session) => {
                for owner in owners {
                    self.end_session(connection, owner, session, None).await?;
                }
                let tag = tag_of(Owner::default(), session.as_bytes());
                ("alls", "s", session.to_string(), keys.log(tag))
            }
            _ => return Ok(()),
        };
        let mut cmd = redis::cmd("XADD");
        cmd.arg(&log).arg("MAXLEN").arg("~").arg(10_000).arg("*");
        cmd.arg("k").arg(kind).arg("r");
        cmd.arg(&self.shared.commands.replica).arg(field).arg(text);
        self.add(cmd, &log, connection).await
    }

    /// Adds an entry to a log.
    async fn add(
        &self,
        cmd: Cmd,
        log: &str,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), Trouble> {
        let told = cmd.exec_async(connection).await;
        match told.map_err(|error| Trouble::of(&error)) {
            Err(Trouble::Damaged(cause)) => {
                self.shared.log_damage(log, &cause);
                Ok(())
            }
            told => told,
        }
    }

    /// Keeps the store from forgetting the runs that this replica has.
    async fn renew(&self) {
        let questions = lock(&self.shared.known).questions();
        for question in questions {
            if !self.shared.link.is_up() {
                return;
            }
            let Ok(recalled) = self.shared.ask(&question).await else {
                continue;
            };
            if let Some(end) = recalled.end {
                self.shared.hear(Heard::Ended {
                    run: question.run,
                    incarnation: recalled.incarnation,
                    end,
                });
            }
        }
    }
}

impl QueuedNews {
    /// The same end, for the incarnation that it has ended.
    fn again(&self, ended: u64) -> Self {
        let mut news = self.news.clone();
        if let RunNews::Ended {
            incarnation,
            if_known,
            ..
        } = &mut news
        {
            *incarnation = Some(ended);
            *if_known = false;
        }
        Self::unqueued(news, None)
    }

    /// The abort of whichever run of this id the store knows.
    fn aborted(run: RunKey) -> Self {
        let news = RunNews::Ended {
            run,
            incarnation: None,
            if_known: true,
            end: RunEnd::new(TerminalReason::Aborted),
        };
        Self::unqueued(news, None)
    }

    fn of_session(run: RunKey, incarnation: u64, session: &Arc<str>) -> Self {
        let news = RunNews::Ended {
            run,
            incarnation: Some(incarnation),
            if_known: true,
            end: RunEnd::new(TerminalReason::Aborted),
        };
        Self::unqueued(news, Some(Arc::clone(session)))
    }
}

async fn send(
    connection: &mut MultiplexedConnection,
    pipe: &mut Pipeline,
) -> Result<Vec<RedisResult<Value>>, Trouble> {
    let expected = pipe.len();
    let replies = pipe.ignore_errors().query_async(connection).await;
    let replies: Vec<_> = replies.map_err(|error| Trouble::of(&error))?;
    if replies.len() < expected {
        return Err(Trouble::Broken("the server answered too little".into()));
    }
    Ok(replies)
}
