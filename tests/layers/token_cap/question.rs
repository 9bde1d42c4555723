//! A person who is asked before a run ends at its cap.
//!
//! covers: H8

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::sleep;
use tower::service_fn;
use tower_agent::{
    Owner, Run, RunRegistry, TerminalReason, TokenCapLayer, Watchdog, run::Answer,
    watchdog::Question,
};

use super::{CAPPED, ask, output, spent, ten};
use crate::support::{Place, Script, Stack, Upstream, prompt_json};

/// Frames of ten tokens, one a second.
fn upstream() -> Upstream {
    Upstream::script(Script::sse().repeat(100, 1.0, ten()))
}

fn asking(part: f64) -> Stack {
    let layer = TokenCapLayer::new(output(50)).ask_at(part);
    Stack::default().layer(Place::TokenCap, layer).retry(1)
}

/// The questions that a person got, and answers with each of these in turn.
fn person(
    watchdog: Watchdog,
    answers: impl IntoIterator<Item = Option<Answer>>,
) -> (Watchdog, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::new(Mutex::new(answers.into_iter().collect::<Vec<_>>()));
    let seen = Arc::clone(&asked);
    let person = service_fn(move |question: Question| {
        seen.lock().unwrap().push(question.message);
        let answer = answers.lock().unwrap().remove(0);
        async move {
            sleep(Duration::from_millis(500)).await;
            match answer {
                Some(answer) => Ok::<_, Infallible>(answer),
                None => std::future::pending().await,
            }
        }
    });
    (watchdog.question(person), asked)
}

#[tokio::test(start_paused = true)]
async fn a_person_may_let_the_run_use_its_cap_once_more() {
    let run = Run::open();
    let answers = [Some(Answer::Continue), None];
    let (watchdog, asked) = person(Watchdog::of_run(&run), answers);
    let watching = tokio::spawn(watchdog.run());
    let service = asking(0.8).build(&upstream());

    let cut = ask(&service, &run).await;

    assert_eq!(cut.reason, CAPPED);
    assert_eq!(
        spent(&run).output_tokens,
        110,
        "50, once more 50, and a frame"
    );
    assert_eq!(
        cut.at,
        Duration::from_secs(11),
        "nothing waited for a person"
    );
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 2, "at 40 and at 80 tokens: {asked:?}");
    let words = "it has used most of its 50 output tokens, estimated. Shall it continue";
    assert!(asked[0].contains(words), "{asked:?}");
    let words = "it has used most of its 100 output tokens, estimated. Shall it continue";
    assert!(asked[1].contains(words), "{asked:?}");
    watching.await.unwrap();
}

/// The layer further out has other caps, at which it does not ask.
#[tokio::test(start_paused = true)]
async fn a_layer_asks_inside_of_one_that_does_not() {
    let run = Run::open();
    let (watchdog, asked) = person(Watchdog::of_run(&run), [None]);
    tokio::spawn(watchdog.run());
    let outer = TokenCapLayer::new(output(1_000));
    let stack = Stack::default().layer(Place::TokenCap, outer);
    let asking = TokenCapLayer::new(output(50)).ask_at(0.8);
    let service = stack.layer(Place::TokenCap, asking).retry(1);

    let cut = ask(&service.build(&upstream()), &run).await;

    assert_eq!(cut.reason, CAPPED);
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_person_may_stop_the_run_before_its_cap() {
    let run = Run::open();
    let (watchdog, _) = person(Watchdog::of_run(&run), [Some(Answer::Stop)]);
    tokio::spawn(watchdog.run());
    let service = asking(0.4).build(&upstream());

    let cut = ask(&service, &run).await;

    assert_eq!(cut.reason, CAPPED);
    assert_eq!(spent(&run).output_tokens, 20);
    assert_eq!(cut.at, Duration::from_millis(2500));
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_or_a_watchdog_the_run_ends_at_its_cap() {
    for watched in [true, false] {
        let run = Run::open();
        let (watchdog, asked) = person(Watchdog::of_run(&run), [None]);
        if watched {
            tokio::spawn(watchdog.run());
        }
        let service = asking(0.4).build(&upstream());

        let cut = ask(&service, &run).await;

        assert_eq!(cut.reason, CAPPED);
        assert_eq!(spent(&run).output_tokens, 60);
        assert_eq!(asked.lock().unwrap().len(), usize::from(watched));
    }
}

/// Two owners may use one id, and only the run that is near its cap is asked about.
#[tokio::test(start_paused = true)]
async fn only_the_run_that_is_near_its_cap_is_asked_about() {
    let registry = RunRegistry::new();
    let (watchdog, asked) = person(Watchdog::new(&registry), [Some(Answer::Continue)]);
    tokio::spawn(watchdog.run());
    let open = |owner: &[u8]| registry.open(Owner::of(owner), "r-1".parse().unwrap());
    let (near, far) = (open(b"one"), open(b"two"));
    let service = asking(0.8).build(&upstream());

    let call = tokio::spawn(service.ask(near.attach(crate::support::prompt("a"))));
    sleep(Duration::from_millis(5500)).await;

    assert_eq!(asked.lock().unwrap().len(), 1);
    assert_eq!(far.terminal_reason(), None);
    call.abort();
}

#[tokio::test(start_paused = true)]
async fn the_program_may_extend_a_run_itself() {
    let run = Run::open();
    run.extend_tokens();
    let service = asking(1.0).build(&upstream());

    let cut = ask(&service, &run).await;

    assert_eq!(cut.reason, Some(TerminalReason::TokenCap));
    assert_eq!(spent(&run).output_tokens, 110);
    let message = run.terminated().unwrap().message();
    assert!(message.contains("its 100 output tokens"), "{message}");
}

/// An answer of this many tokens that is no stream.
fn whole(tokens: u32) -> Script {
    let usage = format!(r#"{{"usage":{{"prompt_tokens":9,"completion_tokens":{tokens}}}}}"#);
    Script::answer(200, usage)
}

#[tokio::test(start_paused = true)]
async fn a_person_is_asked_about_an_agent_that_does_not_stream() {
    for retries in [false, true] {
        let run = Run::open();
        let answers = [Some(Answer::Continue), None];
        let (watchdog, asked) = person(Watchdog::of_run(&run), answers);
        tokio::spawn(watchdog.run());
        let layer = TokenCapLayer::new(output(50)).ask_at(0.8);
        let stack = Stack::default().layer(Place::TokenCap, layer);
        let stack = if retries { stack.retry(1) } else { stack };
        let service = stack.build(&Upstream::script(whole(45)));

        for asks in [1, 2] {
            let answer = service.ask(run.attach(prompt_json("a"))).await;
            answer.whole();
            sleep(Duration::from_secs(1)).await;
            assert_eq!(asked.lock().unwrap().len(), asks);
        }
        assert_eq!(run.terminal_reason(), None, "90 of 100 tokens");
    }
}

/// The run is near its cap by an answer that passed no layer with caps.
#[tokio::test(start_paused = true)]
async fn a_person_is_asked_when_a_request_finds_the_run_near_its_cap() {
    let run = Run::open();
    let (watchdog, asked) = person(Watchdog::of_run(&run), [None]);
    tokio::spawn(watchdog.run());
    let never = Script::before_head().never();
    let service = asking(0.8).build(&Upstream::scripts([whole(5), never]));
    service.ask(run.attach(prompt_json("a"))).await.whole();
    let other = Stack::default().retry(1);
    let other = other.build(&Upstream::script(whole(40)));
    other.ask(run.attach(prompt_json("a"))).await.whole();

    let call = tokio::spawn(service.ask(run.attach(prompt_json("a"))));
    sleep(Duration::from_secs(1)).await;

    assert_eq!(asked.lock().unwrap().len(), 1);
    call.abort();
}

#[tokio::test(start_paused = true)]
async fn a_watchdog_asks_about_a_run_that_was_near_its_cap_before() {
    let registry = RunRegistry::new();
    let run = registry.open(Owner::default(), "r-1".parse().unwrap());
    let service = asking(0.8).build(&Upstream::script(whole(45)));
    service.ask(run.attach(prompt_json("a"))).await.whole();

    let (watchdog, asked) = person(Watchdog::new(&registry), [Some(Answer::Continue)]);
    let watching = tokio::spawn(watchdog.run());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(asked.lock().unwrap().len(), 1);
    watching.abort();

    // The person has agreed, so the next watchdog has no question.
    let (watchdog, asked) = person(Watchdog::new(&registry), []);
    tokio::spawn(watchdog.run());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(asked.lock().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_watchdog_that_has_lost_the_notice_asks_too() {
    let registry = RunRegistry::new();
    let open = |id: &str| registry.open(Owner::default(), id.parse().unwrap());
    let run = open("r-1");
    let (watchdog, asked) = person(Watchdog::new(&registry), [Some(Answer::Continue)]);
    let watching = tokio::spawn(watchdog.run());
    sleep(Duration::from_secs(1)).await;
    let service = asking(0.8).build(&Upstream::script(whole(45)));

    // The watchdog is not polled until there are more notices than it may lag behind.
    service.ask(run.attach(prompt_json("a"))).await.whole();
    for number in 0..5000 {
        open(&format!("other-{number}")).end(TerminalReason::Completed);
    }
    sleep(Duration::from_secs(1)).await;

    assert_eq!(asked.lock().unwrap().len(), 1);
    watching.abort();
}

/// A run looks stuck while the person still thinks about its cap.
#[tokio::test(start_paused = true)]
async fn a_person_has_one_question_about_a_run_at_a_time() {
    let registry = RunRegistry::new();
    let run = registry.open(Owner::default(), "r-1".parse().unwrap());
    let answers = [Some(Answer::Continue), Some(Answer::Stop)];
    let (watchdog, asked) = person(Watchdog::new(&registry), answers);
    let watching = tokio::spawn(watchdog.run());
    let service = asking(0.8).build(&Upstream::script(whole(45)));
    service.ask(run.attach(prompt_json("a"))).await.whole();
    for round in 0..5 {
        run.heartbeat_at(round, "polling");
    }

    sleep(Duration::from_millis(400)).await;
    assert_eq!(asked.lock().unwrap().len(), 1);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(asked.lock().unwrap().len(), 2, "the first is answered");
    assert_eq!(run.ended().await, TerminalReason::Stuck);
    watching.abort();
}

/// The person has let the run go on, which settles the question about its cap, too.
#[tokio::test(start_paused = true)]
async fn a_question_that_waited_is_dropped_when_its_cause_is_gone() {
    let registry = RunRegistry::new();
    let run = registry.open(Owner::default(), "r-1".parse().unwrap());
    let (watchdog, asked) = person(Watchdog::new(&registry), [Some(Answer::Continue)]);
    let watching = tokio::spawn(watchdog.run());
    for round in 0..5 {
        run.heartbeat_at(round, "polling");
    }
    sleep(Duration::from_millis(100)).await;
    let service = asking(0.8).build(&Upstream::script(whole(45)));
    service.ask(run.attach(prompt_json("a"))).await.whole();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(asked.lock().unwrap().len(), 1);
    run.extend_tokens();

    sleep(Duration::from_secs(2)).await;
    assert_eq!(asked.lock().unwrap().len(), 1);
    watching.abort();
}
