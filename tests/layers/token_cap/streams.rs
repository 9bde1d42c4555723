//! The tokens of streams, as upstreams of several kinds send them.
//!
//! covers: H8

use tower_agent::Run;

use super::{CAPPED, ask, capped, output, spent, ten};
use crate::support::{DONE, FINISH, Script, Upstream};

fn second_choice(event: &str) -> String {
    event.replace(r#""index":0"#, r#""index":1"#)
}

#[tokio::test(start_paused = true)]
async fn a_choice_that_has_finished_leaves_the_others_capped() {
    let both = Script::sse().data(ten()).data(second_choice(&ten()));
    let script = both.data(FINISH).repeat(30, 1.0, second_choice(&ten()));
    let script = script.data(second_choice(FINISH)).data(DONE);
    let service = capped(output(50)).retry(1).build(&Upstream::script(script));
    let run = Run::open();

    let cut = ask(&service, &run).await;

    assert_eq!(cut.reason, CAPPED);
    assert_eq!(spent(&run).output_tokens, 60);
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_several_choices_is_handed_on_once_all_have_finished() {
    let script = Script::sse().data(ten()).data(second_choice(&ten()));
    let script = script.data(FINISH).data(second_choice(FINISH)).wait(1.0);
    let script = script.data(super::usage(7, 500)).data(DONE);
    let service = capped(output(30)).retry(1).build(&Upstream::script(script));
    let run = Run::open();

    assert!(ask(&service, &run).await.whole().ends_with(DONE));

    assert_eq!(run.terminal_reason(), None);
}
