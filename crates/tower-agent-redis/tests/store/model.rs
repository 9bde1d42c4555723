//! Random commands of three replicas, repeated at random, against a model of the scripts' rules.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::timeout;
use tower_agent::{
    Owner, RunId, TerminalReason,
    registry::store::{
        AbortTarget, Heard, Recalled, RunEnd, RunKey, RunNews, RunQuestion, RunStore, StoreFuture,
        TurnsAsked,
    },
    run::RunAdjustments,
};
use tower_agent_redis::RedisRunStore;

use crate::server::{Server, until};

/// What the store must know of a run.
#[derive(Clone, Debug)]
struct ModelRun {
    /// Learned from the store when it makes the run known.
    incarnation: Option<u64>,
    /// Whether no replica knew the run when a question opened it.
    is_fresh: bool,
    session: Option<Arc<str>>,
    parent: Option<RunId>,
    end: Option<RunEnd>,
    parts: HashMap<(usize, u64), Part>,
    adjusted: RunAdjustments,
    /// The turns of parts that a store which had lost the run has not heard of itself.
    untold: u32,
    /// The incarnation by which the run is listed in its session's index.
    is_listed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    turns: u32,
    /// The number of the latest question about turns.
    number: u64,
    is_alive: bool,
}

impl ModelRun {
    fn new() -> Self {
        Self {
            incarnation: None,
            is_fresh: false,
            session: None,
            parent: None,
            end: None,
            parts: HashMap::new(),
            adjusted: RunAdjustments::default(),
            untold: 0,
            is_listed: false,
        }
    }
}

/// What a replica tells the store of its part, should the store have lost the run.
#[derive(Clone, Copy)]
struct Remembered {
    part: u64,
    incarnation: u64,
    turns: u32,
    elsewhere: u32,
}

#[derive(Default)]
struct Model {
    remembered: [HashMap<RunKey, Remembered>; 3],
    runs: HashMap<RunKey, ModelRun>,
    /// The runs that are listed among those of their id.
    listed: HashSet<RunKey>,
    /// The ends that each replica is to hear, by run and reason.
    ends: [BTreeMap<String, usize>; 3],
}

impl Model {
    fn ask(&mut self, replica: usize, question: &RunQuestion) -> Recalled {
        let remembered = self.remembered[replica].get(&question.run).copied();
        let remembered = remembered.filter(|it| it.part == question.part);
        let is_lost = !self.runs.contains_key(&question.run);
        let run = self.runs.entry(question.run.clone()).or_insert_with(|| {
            let mut new = ModelRun::new();
            new.incarnation = remembered.map(|it| it.incarnation);
            new.is_fresh = remembered.is_none();
            new.untold = remembered.map_or(0, |it| it.elsewhere);
            new
        });
        let mut expected = Recalled::default();
        expected.end.clone_from(&run.end);
        if run.end.is_none() {
            self.listed.insert(question.run.clone());
            if run.session.is_none() {
                run.session.clone_from(&question.session);
            }
            if run.parent.is_none() {
                run.parent.clone_from(&question.parent);
            }
            run.is_listed |= question.session.is_some() && run.session == question.session;
            let ours = (replica, question.part);
            let others = run.parts.iter().filter(|it| *it.0 != ours);
            let others: u32 = others.map(|it| it.1.turns).sum();
            let part = run.parts.entry(ours).or_default();
            if let Some(remembered) =
                remembered.filter(|it| run.incarnation == Some(it.incarnation))
            {
                part.turns = part.turns.max(remembered.turns);
                if !is_lost && !part.is_alive {
                    run.untold = run.untold.saturating_sub(remembered.turns);
                }
            }
            part.is_alive = true;
            expected.turns_elsewhere = others + run.untold;
            expected.adjusted = run.adjusted;
            if let Some(turns) = question.turns {
                let cap = turns.cap + run.adjusted.turns.saturating_sub(turns.added);
                let left = cap.saturating_sub(expected.turns_elsewhere);
                if turns.number > part.number {
                    part.number = turns.number;
                    part.turns = turns.want.min(left).max(turns.taken);
                }
            }
            expected.granted = part.turns;
        }
        let parent = run.parent.clone().map(|id| RunKey {
            owner: question.run.owner,
            id,
        });
        let parent = parent.and_then(|parent| self.runs.get(&parent));
        expected.parent_end = parent.and_then(|parent| parent.end.clone());
        expected
    }

    /// Whether the store takes the end.
    fn end(
        &mut self,
        replica: usize,
        run: &RunKey,
        incarnation: Option<u64>,
        if_known: bool,
        end: &RunEnd,
    ) {
        if !if_known && !self.runs.contains_key(run) {
            let mut new = ModelRun::new();
            new.incarnation = incarnation;
            self.runs.insert(run.clone(), new);
        }
        let Some(known) = self.runs.get_mut(run) else {
            if incarnation.is_none() {
                self.tell_others(replica, run, end);
            }
            return;
        };
        // An incarnation that no answer has told yet is a random one.
        let is_other = incarnation.is_some() && incarnation != known.incarnation;
        let is_anew = known.is_fresh && !if_known;
        if (is_other && !is_anew) || known.end.is_some() {
            return;
        }
        known.end = Some(end.clone());
        self.tell_others(replica, run, end);
    }

    fn tell_others(&mut self, replica: usize, run: &RunKey, end: &RunEnd) {
        for (at, ends) in self.ends.iter_mut().enumerate() {
            if at != replica {
                *ends
                    .entry(format!("{} {}", run.id, end.reason))
                    .or_default() += 1;
            }
        }
    }

    fn tell(&mut self, replica: usize, news: &RunNews) {
        match news {
            RunNews::Ended {
                run,
                incarnation,
                if_known,
                end,
            } => self.end(replica, run, *incarnation, *if_known, end),
            RunNews::SessionEnded {
                owner,
                session,
                spared,
            } => {
                let runs = self.runs.iter().filter(|(key, run)| {
                    key.owner == *owner
                        && run.is_listed
                        && run.session.as_ref() == Some(session)
                        && Some(&key.id) != spared.as_ref()
                });
                let runs: Vec<_> = runs.map(|(key, _)| key.clone()).collect();
                let end = RunEnd::new(TerminalReason::Aborted);
                for run in runs {
                    self.end(replica, &run, None, true, &end);
                }
            }
            RunNews::GaveBack {
                run,
                part,
                number,
                turns,
            } => {
                let remembered = self.remembered[replica].get_mut(run);
                if let Some(remembered) = remembered.filter(|it| it.part == *part) {
                    remembered.turns = remembered.turns.min(*turns);
                }
                let Some(known) = self.runs.get_mut(run).filter(|it| it.end.is_none()) else {
                    return;
                };
                let part = known.parts.entry((replica, *part)).or_default();
                if *number > part.number {
                    part.number = *number;
                    part.turns = part.turns.min(*turns);
                }
            }
            RunNews::Left {
                run,
                part,
                turns,
                completed,
            } => {
                let remembered = &mut self.remembered[replica];
                if remembered.get(run).is_some_and(|it| it.part == *part) {
                    remembered.remove(run);
                }
                let Some(known) = self.runs.get_mut(run) else {
                    return;
                };
                let part = known.parts.get_mut(&(replica, *part));
                let Some(part) = part.filter(|part| part.is_alive) else {
                    return;
                };
                part.is_alive = false;
                part.turns = *turns;
                let is_over = *completed && known.end.is_none();
                if is_over && known.parts.values().all(|part| !part.is_alive) {
                    self.runs.remove(run);
                }
            }
            RunNews::Adjusted {
                run,
                incarnation,
                adjusted,
                suspension,
            } => {
                let Some(known) = self.runs.get_mut(run).filter(|it| it.end.is_none()) else {
                    return;
                };
                if incarnation.is_none() || *incarnation == known.incarnation {
                    known.adjusted = known.adjusted.merged(*adjusted, *suspension);
                }
            }
            RunNews::Reopened { run } => {
                self.runs.insert(run.clone(), ModelRun::new());
            }
            RunNews::AbortedForAll(AbortTarget::Run(id)) => {
                let runs = self.listed.iter().filter(|run| run.id == *id);
                let runs: Vec<_> = runs.cloned().collect();
                let end = RunEnd::new(TerminalReason::Aborted);
                for run in runs {
                    self.end(replica, &run, None, true, &end);
                }
            }
            _ => unreachable!(),
        }
    }
}

/// The number of a question: mostly a later one than all before.
fn number(step: u64) -> u64 {
    step.saturating_sub(fastrand::u64(..6))
}

fn pick<T: Clone>(from: &[T]) -> T {
    from[fastrand::usize(..from.len())].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_follow_the_model_whatever_three_replicas_do() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let stores: [Arc<RedisRunStore>; 3] = [
        server.store().await,
        server.store().await,
        server.store().await,
    ];
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SEED={seed}");
    fastrand::seed(seed);

    let owners = [Owner::anonymous(), Owner::of(b"sk-one")];
    let runs: Vec<RunKey> = (0..8)
        .map(|at| RunKey {
            owner: owners[at % 2],
            id: format!("r:{at}").parse().unwrap(),
        })
        .collect();
    let ids: Vec<RunId> = runs.iter().map(|run| run.id.clone()).collect();
    let sessions: Vec<Arc<str>> = vec!["s".into(), "a session with spaces:{}".into()];
    let mut model = Model::default();
    let mut incarnations = vec![1_u64];
    for step in 1..4001 {
        let replica = fastrand::usize(..3);
        let run = pick(&runs);
        let part = 10 * replica as u64 + fastrand::u64(..2);
        let repeats = 1 + usize::from(fastrand::u8(..4) == 0);
        let kind = fastrand::u8(..20);
        if kind < 12 {
            let mut question = RunQuestion::new(run.clone(), part);
            question.session = fastrand::bool().then(|| pick(&sessions));
            question.parent = (fastrand::u8(..4) == 0).then(|| pick(&ids));
            question.turns = fastrand::bool().then(|| TurnsAsked {
                number: number(step),
                taken: fastrand::u32(..4),
                want: fastrand::u32(..12),
                cap: fastrand::u32(..20),
                added: fastrand::u32(..3),
            });
            for _ in 0..repeats {
                let expected = model.ask(replica, &question);
                let answer = ask(&stores[replica], question.clone()).await;
                let of = |it: &Recalled| {
                    let ends = (it.end.clone(), it.parent_end.clone());
                    (ends, it.granted, it.turns_elsewhere, it.adjusted)
                };
                assert_eq!(
                    of(&answer),
                    of(&expected),
                    "SEED={seed} {step} {question:?}"
                );
                let known = model.runs.get_mut(&run).unwrap();
                let incarnation = *known.incarnation.get_or_insert(answer.incarnation);
                assert_eq!(answer.incarnation, incarnation, "SEED={seed} {step}");
                incarnations.push(incarnation);
                let known = Remembered {
                    part,
                    incarnation,
                    turns: answer.granted,
                    elsewhere: answer.turns_elsewhere,
                };
                let remembered = &mut model.remembered[replica];
                match answer.end {
                    Some(_) => drop(remembered.remove(&run)),
                    None => drop(remembered.insert(run.clone(), known)),
                }
                assert!(answer.age < Duration::from_secs(600));
            }
            continue;
        }
        let reasons = [
            TerminalReason::Aborted,
            TerminalReason::TurnCap,
            TerminalReason::HardCeiling,
        ];
        let news = match kind {
            12..15 => {
                let mut end = RunEnd::new(pick(&reasons));
                end.elapsed = Duration::from_micros(fastrand::u64(..1_000_000));
                end.at_cap = fastrand::bool();
                let known = model.runs.get(&run).and_then(|known| known.incarnation);
                RunNews::Ended {
                    incarnation: match fastrand::u8(..4) {
                        0 => Some(pick(&incarnations)),
                        1 => None,
                        _ => known,
                    },
                    if_known: fastrand::bool(),
                    run,
                    end,
                }
            }
            15 => RunNews::SessionEnded {
                owner: run.owner,
                session: pick(&sessions),
                spared: fastrand::bool().then(|| pick(&ids)),
            },
            16 if fastrand::bool() => RunNews::AbortedForAll(AbortTarget::Run(run.id)),
            16 => RunNews::GaveBack {
                run,
                part,
                number: number(step),
                turns: fastrand::u32(..6),
            },
            17 => RunNews::Left {
                run,
                part,
                turns: fastrand::u32(0..6),
                completed: fastrand::bool(),
            },
            18 => {
                let mut adjusted = RunAdjustments::default();
                adjusted.turns = fastrand::u32(..6);
                adjusted.output_tokens = fastrand::u64(..9);
                adjusted.total_tokens = fastrand::u64(..9);
                adjusted.cost = f64::from(fastrand::u32(..9)) / 8.0;
                adjusted.time = Duration::from_micros(fastrand::u64(..9_000_000_000));
                let known = model.runs.get(&run).and_then(|known| known.incarnation);
                RunNews::Adjusted {
                    incarnation: match fastrand::u8(..4) {
                        0 => Some(pick(&incarnations)),
                        1 => None,
                        _ => known,
                    },
                    run,
                    adjusted,
                    suspension: pick(&[None, Some(false), Some(true)]),
                }
            }
            _ => RunNews::Reopened { run },
        };
        for _ in 0..repeats {
            model.tell(replica, &news);
            stores[replica].tell(news.clone());
            until("the news are taken", || {
                stores[replica].stats().waiting == 0
            })
            .await;
        }
    }

    for (store, ends) in stores.iter().zip(&model.ends) {
        let mut heard = BTreeMap::<String, usize>::new();
        while heard.values().sum::<usize>() < ends.values().sum() {
            let next = Arc::clone(store).next();
            match timeout(Duration::from_secs(5), next)
                .await
                .expect("more news")
            {
                Heard::Ended { run, end, .. } => {
                    *heard
                        .entry(format!("{} {}", run.id, end.reason))
                        .or_default() += 1;
                }
                Heard::SessionEnded { .. } | Heard::AbortedForAll(_) => {}
                heard => panic!("{heard:?}"),
            }
        }
        assert_eq!(heard, *ends, "SEED={seed}");
        assert!(heard.len() > 10);
        assert_eq!(store.stats().dropped, 0);
    }
}

async fn ask(store: &Arc<RedisRunStore>, question: RunQuestion) -> Recalled {
    let answer: StoreFuture<_> = Arc::clone(store).ask(question);
    answer.await.expect("the store answers")
}
