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
use crate::support::{Place, Script, Stack, Upstream};

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
    watching.await.unwrap();
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
}
