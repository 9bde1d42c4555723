//! The registry against the simplest thing that answers the same: a list of all runs, and
//! for each id which of them has it. What is done is drawn by seed.

mod abort;
mod open;

use std::{collections::HashMap, time::Duration};

use fastrand::Rng;
use tokio::time::{Instant, advance};

use super::super::{RunRegistry, owner_caps::Owner};
use crate::run::{Run, RunId, TerminalReason};

const SEQUENCES: u64 = 300;
const STEPS: usize = 40;
const SESSIONS: [&str; 2] = ["s", "t"];

type RunName = (usize, RunId);

/// A run, and what is to be known of it.
struct Known {
    run: Run,
    name: RunName,
    session: Option<usize>,
    generation: u64,
    idle: Duration,
    /// How many work on it.
    active: usize,
    /// Something was done that no refused request is.
    used: bool,
    last: Instant,
    ceiling: Option<Instant>,
    reason: Option<TerminalReason>,
    expires: Instant,
}

struct Model {
    registry: RunRegistry,
    owners: [Owner; 3],
    /// In the order of opening.
    all: Vec<Known>,
    by_name: HashMap<RunName, usize>,
    random: Rng,
    now: Instant,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            registry: RunRegistry::new(),
            owners: [Owner::default(), Owner::of(b"a"), Owner::of(b"b")],
            all: Vec::new(),
            by_name: HashMap::new(),
            random: Rng::with_seed(seed),
            now: Instant::now(),
        }
    }

    fn any_name(&mut self) -> RunName {
        let made_up = self.random.u8(..) < 40;
        if let (true, Some(known)) = (made_up, self.random.choice(&self.all)) {
            return known.name.clone();
        }
        let id = ["a", "b", "c"][self.random.usize(..3)];
        (self.random.usize(..self.owners.len()), id.parse().unwrap())
    }

    fn any_session(&mut self) -> Option<usize> {
        let session = self.random.usize(..=SESSIONS.len());
        (session < SESSIONS.len()).then_some(session)
    }

    fn any_live(&mut self) -> Option<usize> {
        let live: Vec<_> = self.live().collect();
        self.random.choice(live)
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        let all = self.all.iter().enumerate();
        all.filter(|(_, known)| known.reason.is_none())
            .map(|(n, _)| n)
    }

    /// The run of this name, for one more time.
    fn hit(&mut self, name: &RunName) -> Option<usize> {
        let n = *self.by_name.get(name)?;
        self.all[n].expires = self.now + RunRegistry::REMEMBERED;
        Some(n)
    }

    fn opened(&mut self, run: Run, name: RunName, session: Option<usize>, idle: Duration) -> usize {
        let before = self.by_name.get(&name).map(|n| self.all[*n].generation);
        self.by_name.insert(name.clone(), self.all.len());
        self.all.push(Known {
            run,
            name,
            session,
            generation: before.unwrap_or(0) + 1,
            idle,
            active: 0,
            used: true,
            last: self.now,
            ceiling: None,
            reason: None,
            expires: self.now,
        });
        self.all.len() - 1
    }

    fn ended(&mut self, n: usize, reason: TerminalReason) {
        let expires = self.now + RunRegistry::REMEMBERED;
        let known = &mut self.all[n];
        assert!(known.reason.is_none());
        (known.reason, known.expires) = (Some(reason), expires);
    }

    fn is_completed(&self, n: usize) -> bool {
        self.all[n].reason == Some(TerminalReason::Completed)
    }

    /// What the time alone brings about, once somebody looks.
    fn look(&mut self) {
        let now = self.now;
        let (all, by_name) = (&self.all, &mut self.by_name);
        by_name.retain(|_, n| all[*n].reason.is_none() || all[*n].expires > now);
        for n in self.live().collect::<Vec<_>>() {
            let known = &self.all[n];
            let idle = (known.active == 0).then(|| known.last + known.idle);
            let idle = idle.filter(|at| *at <= now);
            // A ceiling ends no run that has no work.
            if known.active > 0 && known.ceiling.is_some_and(|at| at <= now) {
                self.ended(n, TerminalReason::HardCeiling);
            } else if idle.is_some() {
                self.ended(n, TerminalReason::Completed);
            }
        }
    }

    fn of_session(&self, session: usize, owner: Option<usize>) -> Vec<usize> {
        let ours = |n: &usize| {
            let known = &self.all[*n];
            known.session == Some(session) && owner.is_none_or(|owner| known.name.0 == owner)
        };
        self.live().filter(ours).collect()
    }

    fn step(&mut self) {
        match self.random.u8(..16) {
            0..5 => self.find(true),
            5 => self.find(false),
            6..9 => self.leave(),
            9 => self.limit(),
            10 => self.end(),
            11 => self.abort(),
            12 => self.abort_session(),
            13 => self.supersede(),
            14 => self.reopen(),
            _ => self.detach(),
        }
    }

    fn compare(&mut self) {
        let listed = self.registry.list().into_iter();
        let mut listed: Vec<_> = listed
            .map(|run| (run.run, run.generation, run.reason))
            .collect();
        self.look();
        let known = self.by_name.values().map(|n| &self.all[*n]);
        let mut known: Vec<_> = known
            .map(|known| (known.name.1.clone(), known.generation, known.reason.clone()))
            .collect();
        for all in [&mut listed, &mut known] {
            all.sort_by_key(|(id, generation, reason)| {
                (id.to_string(), *generation, format!("{reason:?}"))
            });
        }
        let live = known.iter().filter(|(_, _, reason)| reason.is_none());
        assert_eq!(self.registry.open_runs(), live.count());
        assert_eq!(listed, known);
        let number = |run: &Run| run.node().number();
        for (session, name) in SESSIONS.iter().enumerate() {
            let found = self.registry.find_session(name);
            let ours = self.of_session(session, None);
            let ours = ours.iter().map(|n| number(&self.all[*n].run));
            let found = found.iter().map(number).collect::<Vec<_>>();
            assert_eq!(found, ours.collect::<Vec<_>>(), "in the order of opening");
        }
        let id = self.any_name().1;
        let found = self.registry.find(&id);
        let mut found: Vec<_> = found.iter().map(number).collect();
        let known = self.by_name.iter().filter(|((_, known), _)| *known == id);
        let mut known: Vec<_> = known.map(|(_, n)| number(&self.all[*n].run)).collect();
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}

/// So many seconds pass between two steps, at times.
fn pause(random: &mut Rng) -> Duration {
    Duration::from_secs(match random.u8(..8) {
        0 => 1,
        1 => 30,
        2 => random.u64(..120),
        3 => 600,
        4 if random.bool() => 1801,
        _ => 0,
    })
}

#[tokio::test(start_paused = true)]
async fn it_answers_as_a_list_of_runs_would_whatever_comes() {
    for seed in 0..SEQUENCES {
        let _which = Which(seed);
        let mut model = Model::new(seed);
        let events = model.registry.subscribe();
        for _ in 0..STEPS {
            advance(pause(&mut model.random)).await;
            model.now = Instant::now();
            model.compare();
            model.step();
        }
        model.finish(events).await;
    }
}

/// Says which sequence it was, if it failed.
struct Which(u64);

impl Drop for Which {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
