//! The tokens of streams, as upstreams of several kinds send them.
//!
//! covers: H8

use tower_agent::Run;

use super::{CAPPED, ask, capped, output, spent, ten, total};
use crate::support::{DONE, FINISH, Script, Upstream, content_block, messages};

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

/// Its last event states the prompt again, without the tokens that were written to the cache.
#[tokio::test(start_paused = true)]
async fn tokens_written_to_a_cache_count_although_the_last_event_leaves_them_out() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":\
                 {\"input_tokens\":15,\"cache_creation_input_tokens\":500,\
                 \"cache_read_input_tokens\":80,\"output_tokens\":1}}}\n\n";
    let end = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":\
               {\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":15,\
               \"output_tokens\":40}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let script = Script::sse().data(start).data(content_block("x")).data(end);
    let service = capped(total(5000))
        .retry(1)
        .build(&Upstream::script(script));
    let run = Run::open();

    service.ask(run.attach(messages())).await.whole();

    let spent = spent(&run);
    assert_eq!((spent.input_tokens, spent.cached_input_tokens), (515, 80));
    assert_eq!(spent.output_tokens, 40);
}
