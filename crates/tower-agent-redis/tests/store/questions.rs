//! Questions between the programs of replicas, and what comes of those that nobody answers.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::{join_all, select};
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tower_agent::registry::store::{RunKey, RunQuestion, RunStore};
use tower_agent_redis::{AskError, RedisOptions, RedisRunStore, ReplicaAnswers};

use crate::server::{Server, until};

/// So long that a machine under load leaves nobody silent.
const PATIENT: Duration = Duration::from_secs(10);

const SHORT: Duration = Duration::from_millis(300);

/// What a question may take beyond its wait, on a machine under load.
const LATE: Duration = Duration::from_secs(1);

/// A program that answers; it no longer does once this is dropped.
struct Answers(AbortHandle);

impl Drop for Answers {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Answers {
    fn by<A>(store: &RedisRunStore, handler: impl Fn(String) -> A + Send + Sync + 'static) -> Self
    where
        A: Future<Output = String> + Send + 'static,
    {
        Self(tokio::spawn(store.answer(handler)).abort_handle())
    }

    /// With its name and the question.
    fn named(store: &RedisRunStore, name: &'static str) -> Self {
        Self::by(store, move |question| async move {
            format!("{name}: {question}")
        })
    }
}

async fn named(server: &Server, name: &str) -> Arc<RedisRunStore> {
    server.store_with(RedisOptions::new().replica(name)).await
}

/// The names and the texts.
fn texts(answers: &ReplicaAnswers) -> Vec<(&str, Option<&str>)> {
    let all = answers.answers.iter();
    all.map(|it| (&*it.replica, it.text.as_deref())).collect()
}

#[tokio::test]
async fn a_question_goes_to_all_other_replicas_and_names_those_that_are_silent() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let one = named(&server, "one").await;
    let alone = one.ask_replicas("q", PATIENT).await.unwrap();
    assert_eq!(
        (&*alone.asked_by, texts(&alone), alone.missing.len()),
        ("one", vec![], 0)
    );

    let two = named(&server, "two").await;
    let _own = Answers::named(&one, "one");
    let answering = Answers::named(&two, "two");
    let answers = one.ask_replicas("a\nquestion", PATIENT).await.unwrap();
    assert_eq!(texts(&answers), [("two", Some("two: a\nquestion"))]);
    assert_eq!(answers.answers[0].id, two.replica_id());
    assert!(answers.missing.is_empty());

    // The third one has no name, and answers nothing.
    let three = server.store().await;
    let asked = Instant::now();
    let answers = one.ask_replicas("q", SHORT).await.unwrap();
    let took = asked.elapsed();
    eprintln!("a question of {SHORT:?} with a silent replica took {took:?}");
    assert!((SHORT..SHORT + LATE).contains(&took), "{took:?}");
    assert_eq!(texts(&answers), [("two", Some("two: q"))]);
    assert_eq!(answers.missing, [three.replica_id()]);
    assert_eq!(three.replica(), three.replica_id());

    // Of three all others answer; one that asks does not ask itself.
    let _third = Answers::named(&three, "three");
    let answers = two.ask_replicas("q", PATIENT).await.unwrap();
    let expected = [
        ("one", Some("one: q")),
        (three.replica_id(), Some("three: q")),
    ];
    assert_eq!(texts(&answers), expected);

    // A program that stops to answer is silent.
    drop(answering);
    let answers = one.ask_replicas("q", SHORT).await.unwrap();
    assert_eq!(answers.missing, ["two"]);
}

#[tokio::test]
async fn the_last_handler_of_a_store_answers() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    let first = tokio::spawn(two.answer(|_| async { "first".to_owned() }));
    let _second = Answers::named(&two, "second");
    timeout(PATIENT, first).await.unwrap().unwrap();
    let answers = one.ask_replicas("q", PATIENT).await.unwrap();
    assert_eq!(texts(&answers), [("two", Some("second: q"))]);
    // The future holds no store.
    let weak = Arc::downgrade(&two);
    drop(two);
    assert!(weak.upgrade().is_none());
}

#[tokio::test]
async fn a_question_and_an_answer_have_their_greatest_length() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    let _answering = Answers::by(&two, |question| async move {
        let more = question.len() - RedisRunStore::LONGEST_QUESTION;
        "x".repeat(RedisRunStore::LONGEST_ANSWER + more)
    });
    let _other = named(&server, "three").await;
    let _others = Answers::by(&_other, |question| async move {
        let less = RedisRunStore::LONGEST_QUESTION - question.len();
        "x".repeat(RedisRunStore::LONGEST_ANSWER + 1 - less)
    });
    let longest = "q".repeat(RedisRunStore::LONGEST_QUESTION);
    let answers = one.ask_replicas(&longest, PATIENT).await.unwrap();
    let lengths = answers.answers.iter().map(|it| {
        let text = it.text.as_ref();
        (&*it.replica, text.map(String::len))
    });
    let expected = [
        ("three", None),
        ("two", Some(RedisRunStore::LONGEST_ANSWER)),
    ];
    assert_eq!(lengths.collect::<Vec<_>>(), expected);
    assert!(answers.missing.is_empty(), "{:?}", answers.missing);

    let longer = longest + "q";
    let refused = one.ask_replicas(&longer, PATIENT).await;
    assert_eq!(refused.unwrap_err(), AskError::TooLong);
}

/// A long answer takes its time on a connection of its own.
#[tokio::test]
async fn questions_about_runs_wait_for_no_answer_of_a_program() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    let _answering = Answers::by(&two, |_| async { "x".repeat(4_000_000) });
    let connections = async || {
        let mut other = server.connection().await;
        let cmd = redis::cmd("CLIENT").arg("LIST").take();
        let list: String = cmd.query_async(&mut other).await.unwrap();
        list.lines().count() - 1
    };
    let before = connections().await;
    one.ask_replicas("q", PATIENT).await.unwrap();
    assert_eq!(connections().await, before + 2, "one of each");

    let asking = join_all((0..8).map(|_| one.ask_replicas("q", PATIENT)));
    let run = |number| RunKey {
        owner: tower_agent::Owner::anonymous(),
        id: format!("r-{number}").parse().unwrap(),
    };
    let about_runs = async {
        let mut took = Vec::new();
        for number in 0..50 {
            let since = Instant::now();
            let question = RunQuestion::new(run(number), 1);
            Arc::clone(&one).ask(question).await.unwrap();
            took.push(since.elapsed());
        }
        took.sort();
        took
    };
    let (answers, took) = futures_util::join!(asking, about_runs);
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.answers[0].text.as_ref().unwrap().len(), 4_000_000);
    }
    eprintln!(
        "beside eight answers of 4 MB a question about a run took {:?}, at most {:?}",
        took[25], took[49]
    );
    assert_eq!(connections().await, before + 2);
}

#[tokio::test]
async fn an_asker_that_leaves_leaves_nothing_behind() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let _answering = Answers::by(&two, move |question| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            if question == "slow" {
                sleep(SHORT).await;
            }
            question
        }
    });
    for number in 1..=20 {
        let asks = pin!(one.ask_replicas("slow", PATIENT));
        let is_asked = || asked.load(Ordering::Relaxed) == number;
        // Who leaves earlier, on a machine under load, may have asked nobody.
        let is_asked = pin!(until("the other is asked", is_asked));
        drop(select(is_asked, asks).await);
    }
    let answers = one.ask_replicas("q", PATIENT).await.unwrap();
    assert_eq!(texts(&answers), [("two", Some("q"))]);
    let mut other = server.connection().await;
    let mut lists = async || -> Vec<String> {
        let cmd = redis::cmd("KEYS").arg("ta1:*:re:*").take();
        cmd.query_async(&mut other).await.unwrap()
    };
    until("all are asked", || asked.load(Ordering::Relaxed) == 21).await;
    let deadline = Instant::now() + PATIENT;
    while !lists().await.is_empty() {
        assert!(Instant::now() < deadline, "answers without a reader stay");
        sleep(Duration::from_millis(50)).await;
    }
}

fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(|text| &**text).collect()
}

/// Whoever can write to the store.
#[tokio::test]
async fn what_no_replica_wrote_is_no_question_and_no_answer() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let _answering = Answers::by(&two, move |question| {
        count.fetch_add(1, Ordering::Relaxed);
        // Time for a foreign writer.
        async move {
            sleep(SHORT).await;
            question
        }
    });
    let mut other = server.connection().await;
    let huge = "x".repeat(5_000_000);
    let not_text: &[u8] = b"\xff\xfe";
    let (nonce, long) = ("00000000000000aa", "9".repeat(400));
    let add = |id: &str, fields: &[(&str, &[u8])]| {
        let mut cmd = redis::cmd("XADD");
        cmd.arg("ta1:{00}:ask").arg(id);
        for (name, value) in fields {
            cmd.arg(*name).arg(*value);
        }
        cmd
    };
    let with = |name: &str, value: &[u8]| {
        let usual: [(&str, &[u8]); 4] = [
            ("r", b"x-00000000000000ff"),
            ("n", nonce.as_bytes()),
            ("w", b"60000"),
            ("q", b"q"),
        ];
        let fields: Vec<_> = usual
            .into_iter()
            .map(|field| match field.0 == name {
                true => (field.0, value.to_vec()),
                false => (field.0, field.1.to_vec()),
            })
            .collect();
        fields
    };
    // It was asked in 1970.
    let late = with("", b"");
    let mut all = vec![("1-1", late)];
    for (name, value) in [
        ("r", not_text),
        ("n", b"short" as &[u8]),
        ("n", b"no hexadecimal.."),
        ("n", b"0000000000000000:more"),
        ("w", b"-1"),
        ("w", b"soon"),
        ("w", long.as_bytes()),
        ("q", not_text),
        ("q", huge.as_bytes()),
    ] {
        all.push(("*", with(name, value)));
    }
    for (id, fields) in &all {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (*name, &value[..]))
            .collect();
        add(id, &fields).exec_async(&mut other).await.unwrap();
        let fewer = add("*", &fields[..3]);
        fewer.exec_async(&mut other).await.unwrap();
    }
    // A question of this replica's own name, as it seems.
    let own = with("r", two.replica_id().as_bytes());
    let own: Vec<_> = own
        .iter()
        .map(|(name, value)| (*name, &value[..]))
        .collect();
    add("*", &own).exec_async(&mut other).await.unwrap();

    let foreign = async {
        let questions = async || {
            let cmd = redis::cmd("XREVRANGE")
                .arg(&["ta1:{00}:ask", "+", "-", "COUNT", "1"])
                .take();
            cmd.query_async(&mut server.connection().await)
                .await
                .unwrap()
        };
        // The nonce of the question below.
        let nonce = loop {
            let entries: Vec<(String, Vec<String>)> = questions().await;
            let fields = entries.first().map(|(_, fields)| &fields[..]);
            if let Some([_, _, _, nonce, _, _, _, "the question"]) = fields.map(strs).as_deref() {
                break (*nonce).to_owned();
            }
            sleep(Duration::from_millis(1)).await;
        };
        let mut other = server.connection().await;
        for answer in [
            not_text,
            b"",
            b"x-00000000000000ff",
            b"x-00000000000000ff half\ntext",
            huge.as_bytes(),
        ] {
            let mut cmd = redis::cmd("RPUSH");
            cmd.arg(format!("ta1:{{00}}:re:{nonce}")).arg(answer);
            cmd.exec_async(&mut other).await.unwrap();
        }
    };
    let (answers, ()) = futures_util::join!(one.ask_replicas("the question", PATIENT), foreign);
    let answers = answers.unwrap();
    assert_eq!(texts(&answers), [("two", Some("the question"))]);
    assert_eq!(answers.missing, [""; 0]);
    assert_eq!(asked.load(Ordering::Relaxed), 1, "no other was put");
    assert!(two.stats().up && one.stats().up);
}

#[tokio::test]
async fn a_replica_that_has_left_is_not_missed_and_one_that_has_gone_is_for_a_while() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    two.leave().await;
    let left = one.ask_replicas("q", PATIENT).await.unwrap();
    assert_eq!((texts(&left), left.missing.len()), (vec![], 0));

    // What a replica leaves that was killed ten seconds ago.
    let mut other = server.connection().await;
    let time = redis::cmd("TIME").take();
    let (seconds, _): (u64, u64) = time.query_async(&mut other).await.unwrap();
    let mut gone = redis::cmd("ZADD");
    gone.arg("ta1:{00}:replicas").arg((seconds - 10) * 1000);
    gone.arg("three-00000000000000aa");
    gone.exec_async(&mut other).await.unwrap();
    let asked = Instant::now();
    let answers = one.ask_replicas("q", PATIENT).await.unwrap();
    assert!(asked.elapsed() < PATIENT, "it is not waited for");
    assert_eq!(answers.missing, ["three"]);
    // It was started again.
    let three = named(&server, "three").await;
    let _answering = Answers::named(&three, "three");
    let answers = one.ask_replicas("q", PATIENT).await.unwrap();
    assert_eq!(texts(&answers), [("three", Some("three: q"))]);
    assert!(answers.missing.is_empty(), "{:?}", answers.missing);
}

#[tokio::test]
async fn while_the_server_is_away_a_question_is_lost_within_its_wait() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    let _answering = Answers::named(&two, "two");
    assert!(one.ask_replicas("q", PATIENT).await.is_ok());

    server.signal("STOP");
    for _ in 0..3 {
        let asked = Instant::now();
        let lost = one.ask_replicas("q", SHORT).await;
        assert!(matches!(lost, Err(AskError::Lost(_))), "{lost:?}");
        let took = asked.elapsed();
        assert!(took < SHORT + LATE, "{took:?}");
    }
    until("the store is lost", || !one.stats().up).await;
    let asked = Instant::now();
    assert!(one.ask_replicas("q", PATIENT).await.is_err());
    let took = asked.elapsed();
    assert!(
        took < LATE,
        "no wait while it is known to be lost: {took:?}"
    );
    server.signal("CONT");
    until("the store is back", || one.stats().up && two.stats().up).await;
    assert_answered(&one).await;

    server.restart();
    until("the store is back", || one.stats().up && two.stats().up).await;
    assert_answered(&one).await;
}

/// One of the two may have to find the server first.
async fn assert_answered(one: &RedisRunStore) {
    let deadline = Instant::now() + PATIENT;
    loop {
        let answers = one.ask_replicas("q", SHORT).await;
        if answers.is_ok_and(|it| texts(&it) == [("two", Some("two: q"))]) {
            return;
        }
        assert!(Instant::now() < deadline, "no answer");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn hundreds_of_questions_at_once_are_answered() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (named(&server, "one").await, named(&server, "two").await);
    let at_a_time = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (now, peak) = (Arc::clone(&at_a_time), Arc::clone(&most));
    let _answering = Answers::by(&two, move |question| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(5)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            question
        }
    });
    let texts_of = |number: usize| format!("q-{number}");
    let since = Instant::now();
    let asked = (0..300).map(|number| {
        let one = &one;
        async move { one.ask_replicas(&texts_of(number), PATIENT).await.unwrap() }
    });
    for (number, answers) in join_all(asked).await.into_iter().enumerate() {
        assert_eq!(texts(&answers), [("two", Some(&*texts_of(number)))]);
    }
    let most = most.load(Ordering::SeqCst);
    eprintln!("300 questions took {:?}, {most} at a time", since.elapsed());
    assert!((2..=64).contains(&most), "{most}");
}

/// What a replica does with a question.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Answers,
    AnswersLate,
    AnswersTooMuch,
    Panics,
}

#[tokio::test]
async fn random_replicas_answer_as_a_model_says() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let seed = std::env::var("TOWER_AGENT_SEED").ok();
    let seed = seed.map_or(7, |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    let names = ["one", "two", "two", "three"];
    let mut stores = Vec::new();
    for name in names {
        stores.push(named(&server, name).await);
    }
    let modes = [
        Mode::Answers,
        Mode::AnswersLate,
        Mode::AnswersTooMuch,
        Mode::Panics,
    ];
    for round in 0..40 {
        let plan = [(); 4].map(|()| modes[random.usize(..4)]);
        let answering: Vec<_> = stores
            .iter()
            .zip(plan)
            .map(|(store, mode)| {
                Answers::by(store, move |question| async move {
                    match mode {
                        Mode::Answers => question,
                        Mode::AnswersLate => {
                            sleep(PATIENT).await;
                            question
                        }
                        Mode::AnswersTooMuch => "x".repeat(RedisRunStore::LONGEST_ANSWER + 1),
                        // Without a line on standard error.
                        Mode::Panics => std::panic::resume_unwind(Box::new(())),
                    }
                })
            })
            .collect();
        let asker = random.usize(..4);
        // Of two with one name neither has it alone.
        let name = |at: usize| match names[at] {
            "two" => stores[at].replica_id().to_owned(),
            name => name.to_owned(),
        };
        let others = (0..4).filter(|at| *at != asker);
        let is_silent = |at: &usize| matches!(plan[*at], Mode::AnswersLate | Mode::Panics);
        let (silent, heard): (Vec<_>, Vec<_>) = others.partition(is_silent);
        let wait = if silent.is_empty() { PATIENT } else { SHORT };
        let question = format!("round {round} of seed {seed}");
        let answers = stores[asker].ask_replicas(&question, wait).await.unwrap();

        let mut expected: Vec<_> = heard
            .into_iter()
            .map(|at| {
                let text = (plan[at] == Mode::Answers).then(|| question.clone());
                (name(at), text)
            })
            .collect();
        expected.sort();
        let mut missing: Vec<_> = silent.into_iter().map(name).collect();
        missing.sort();
        let texts: Vec<_> = answers
            .answers
            .into_iter()
            .map(|it| (it.replica, it.text))
            .collect();
        assert_eq!(
            (texts, answers.missing),
            (expected, missing),
            "{plan:?} {asker}"
        );
        assert_eq!(answers.asked_by, name(asker));
        drop(answering);
    }
}
