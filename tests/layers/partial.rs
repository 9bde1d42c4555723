//! What the end of a run says: all that observers are told, and the text that the
//! caller has of an answer which was cut.
//!
//! covers: B2, B6

use std::sync::Arc;

use http::Request;
use tower::{Layer, ServiceExt};
use tower_agent::{
    Owner, Run, RunEvent, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason,
    registry::{AbortOutcome, WaitOutcome},
};

use crate::support::{
    DONE, FINISH, PRELUDE, ReadExt, Script, Summaries, Upstream, chat, content_block, later,
    messages, poll_body, request, request_of, secs,
};

/// The partial text of the end of a run.
async fn partial_of(run: &Run) -> Option<Arc<str>> {
    match run.subscribe().next().await.unwrap() {
        RunEvent::Ended { partial, .. } => partial,
        other => panic!("{other:?}"),
    }
}

fn responses() -> Request<()> {
    Request::post("/v1/responses").body(()).unwrap()
}

fn output_text(text: &str) -> String {
    format!(
        "data: {{\"type\":\"response.output_text.delta\",\"sequence_number\":1,\
         \"delta\":\"{text}\"}}\n\n"
    )
}

/// What is left of an answer of `script` when its run is aborted after nine seconds.
async fn cut(mut asked: Request<()>, script: Script, max: usize) -> Option<String> {
    let run = Run::open();
    run.keep_partial(max);
    asked.extensions_mut().insert(run.clone());
    let upstream = Upstream::script(script.never());
    let service = StepTimeoutLayer::new(secs(600)).layer(upstream);
    let body = service.oneshot(asked).await.unwrap().into_body();
    let mut events = run.subscribe();
    later(9, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });
    assert_eq!(body.read().await.reason(), Some(TerminalReason::Aborted));
    let RunEvent::Ended { partial, .. } = events.next().await.unwrap() else {
        panic!()
    };
    assert_eq!(
        partial,
        partial_of(&run).await,
        "who comes late is told the same"
    );
    partial.map(|text| text.to_string())
}

#[tokio::test(start_paused = true)]
async fn the_end_has_the_text_of_an_answer_that_was_cut_in_each_dialect() {
    let hello = Some("Hel\"lo\u{e9}".to_owned());
    let [first, second] = ["Hel\\\"l", "o\\u00e9"];
    let script = |event: fn(&str) -> String| Script::sse().data(event(first)).data(event(second));

    assert_eq!(cut(request(), script(chat), 100).await, hello);
    assert_eq!(cut(messages(), script(content_block), 100).await, hello);
    assert_eq!(cut(responses(), script(output_text), 100).await, hello);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_text_of_the_answer_is_not_kept() {
    let other = "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"}}]}\n\n";
    let tool = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{}]}}]}\n\n";
    let thought = "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"hm\"}}]}\n\n";
    let script = Script::sse()
        .data(PRELUDE)
        .data(other)
        .data(tool)
        .data(thought);
    assert_eq!(cut(request(), script.clone(), 100).await, None);
    let blank = script.clone().data(chat(" ")).data(chat("\\n\\t"));
    assert_eq!(cut(request(), blank.clone(), 100).await, None);
    let text = cut(request(), blank.data(chat("a")), 100).await;
    assert_eq!(text.as_deref(), Some(" \n\ta"));
    let text = cut(request(), script.data(chat("a")), 100).await;
    assert_eq!(text.as_deref(), Some("a"));

    let thought = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\
                   \"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}\n\n";
    assert_eq!(
        cut(messages(), Script::sse().data(thought), 100).await,
        None
    );
    for other in ["reasoning_text", "function_call_arguments"] {
        let other = Script::sse().data(output_text("hm").replace("output_text", other));
        assert_eq!(cut(responses(), other, 100).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn the_text_with_which_a_block_begins_is_text_of_the_answer() {
    let begun = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\
                 \"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"He\"}}\n\n";
    let script = Script::sse().data(begun).data(content_block("y"));

    let text = cut(messages(), script, 100).await;

    assert_eq!(text.as_deref(), Some("Hey"));
}

#[tokio::test(start_paused = true)]
async fn it_is_bounded_and_cut_between_characters() {
    let script = |text| {
        Script::sse()
            .data(chat("abc"))
            .data(chat(text))
            .data(chat("z"))
    };
    for (text, max, kept) in [
        ("defg", 5, Some("abcde")),
        ("\u{1f600}", 5, Some("abc")),
        ("\u{1f600}", 7, Some("abc\u{1f600}")),
        ("\u{1f600}", 8, Some("abc\u{1f600}z")),
        ("d", 0, None),
    ] {
        assert_eq!(cut(request(), script(text), max).await.as_deref(), kept);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_came_to_its_end_is_no_part_of_one() {
    for end in [DONE, FINISH] {
        let run = Run::open();
        run.keep_partial(100);
        let upstream = Upstream::script(Script::sse().data(chat("a")).data(end));
        let service = StepTimeoutLayer::new(secs(600)).layer(upstream);
        let answer = service.oneshot(request_of(&run)).await.unwrap();
        answer.into_body().read().await.whole();

        run.end(TerminalReason::Aborted);

        assert_eq!(partial_of(&run).await, None);
    }
}

/// covers: C6
#[tokio::test(start_paused = true)]
async fn a_late_wait_is_given_the_last_text_of_a_run_that_keeps_it() {
    let whole = |text| Script::sse().data(chat(text)).data(DONE);
    let silent = Script::sse().data(DONE);
    let cases = [
        (vec![whole("a"), whole("b")], Some("b")),
        (vec![whole("a"), silent], Some("a")),
        (vec![whole("a"), whole(" ")], Some("a")),
        (
            vec![whole("a"), Script::sse().data(chat("b")).never()],
            Some("b"),
        ),
    ];
    let ends = |max| {
        vec![
            (max, TerminalReason::Completed),
            (max, TerminalReason::Aborted),
        ]
    };
    for (max, reason) in [ends(100), ends(0)].concat() {
        for (scripts, text) in cases.clone() {
            let registry = RunRegistry::new();
            let run = registry.open(Owner::anonymous(), "r".parse().unwrap());
            run.keep_partial(max);
            let mut bodies = Vec::new();
            for script in scripts {
                let service = StepTimeoutLayer::new(secs(600)).layer(Upstream::script(script));
                let answer = service.oneshot(run.attach(request())).await.unwrap();
                let mut body = answer.into_body();
                while let Ok(Some(_)) = tokio::time::timeout(secs(1), body.next()).await {}
                bodies.push(body);
            }
            let snapshot = serde_json::to_value(run.snapshot()).unwrap();
            assert_eq!(snapshot.get("text"), None, "the run lives");
            run.end(reason.clone());
            drop((run, bodies));

            let wait = registry.wait(Owner::anonymous(), &"r".parse().unwrap(), secs(1));
            let WaitOutcome::Ended { snapshot, .. } = wait.await else {
                panic!("it has ended")
            };
            let snapshot = serde_json::to_value(snapshot).unwrap();

            let found = snapshot.get("text").and_then(|text| text.as_str());
            assert_eq!(found, text.filter(|_| max > 0), "{reason:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_completes_has_no_part_of_an_answer_that_was_left() {
    let run = Run::open();
    run.keep_partial(100);
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = StepTimeoutLayer::new(secs(600)).layer(upstream);
    let answer = service.oneshot(run.attach(request())).await.unwrap();
    let mut body = answer.into_body();
    body.next().await.unwrap().unwrap();
    drop(body);

    let mut events = run.subscribe();
    run.end(TerminalReason::Completed);

    let RunEvent::Ended { partial, .. } = events.next().await.unwrap() else {
        panic!()
    };
    assert_eq!(partial, None);
}

#[tokio::test(start_paused = true)]
async fn of_several_answers_it_is_the_last_that_is_not_whole() {
    let run = Run::open();
    run.keep_partial(100);
    let ask = |script: Script| {
        let service = StepTimeoutLayer::new(secs(600)).layer(Upstream::script(script));
        let run = run.clone();
        async move { service.oneshot(request_of(&run)).await.unwrap().into_body() }
    };
    let mut first = ask(Script::sse().data(chat("first")).never()).await;
    first.token().await;
    let mut second = ask(Script::sse().data(chat("second")).data(DONE)).await;
    second.token().await;
    assert!(poll_body(&mut first).is_pending());
    second.read().await.whole();
    run.end(TerminalReason::Aborted);

    assert_eq!(partial_of(&run).await.as_deref(), Some("first"));
}

/// A text of a megabyte must not cost a megabyte for each place in which it is.
#[tokio::test(start_paused = true)]
async fn the_text_of_a_run_that_was_cut_is_stored_once() {
    let registry = RunRegistry::new();
    let told = Summaries::default();
    let layer = RunLayer::new(registry.clone())
        .keep_partial(100)
        .on_end(told.hook());
    let mut events = registry.subscribe();
    let upstream = Upstream::script(Script::sse().data(chat("so ")).data(chat("far")).never());
    let mut asked = request();
    asked
        .headers_mut()
        .insert("x-run-id", "r-1".parse().unwrap());
    let mut body = layer
        .layer(upstream)
        .oneshot(asked)
        .await
        .unwrap()
        .into_body();
    body.token().await;
    body.token().await;
    events.next().await;
    let run = registry.get(Owner::anonymous(), &"r-1".parse().unwrap());

    registry.abort(Owner::anonymous(), &"r-1".parse().unwrap());
    drop(body);

    let RunEvent::Ended {
        partial, snapshot, ..
    } = events.next().await.unwrap()
    else {
        panic!("it has ended")
    };
    let told = told.one().partial.clone();
    let later = run.unwrap().snapshot().text;
    for text in [snapshot.text.clone(), told, later] {
        assert_eq!(text.as_deref(), Some("so far"));
        assert!(Arc::ptr_eq(&text.unwrap(), partial.as_ref().unwrap()));
    }
}

#[tokio::test(start_paused = true)]
async fn every_end_says_run_session_number_reason_and_message() {
    for (script, partial) in [
        (Script::sse().data(chat("so far")).never(), Some("so far")),
        (Script::sse().data(PRELUDE).never(), None),
    ] {
        let registry = RunRegistry::new();
        let told = Summaries::default();
        let layer = RunLayer::new(registry.clone())
            .keep_partial(100)
            .on_end(told.hook());
        let mut events = registry.subscribe();
        let service = layer.layer(Upstream::script(script));
        let mut asked = request();
        let headers = asked.headers_mut();
        headers.insert("x-run-id", "r-1".parse().unwrap());
        headers.insert("x-session-id", "s-1".parse().unwrap());
        let mut body = service.oneshot(asked).await.unwrap().into_body();
        body.token().await;
        let Some(RunEvent::Notice { sequence, .. }) = events.next().await else {
            panic!("it was opened")
        };

        assert_eq!(
            registry.abort(Owner::anonymous(), &"r-1".parse().unwrap()),
            AbortOutcome::Ended
        );
        drop(body);

        let event = serde_json::to_value(events.next().await.unwrap()).unwrap();
        let message = "The run was stopped after 0ms: it was aborted (aborted). \
                       Last step: llm_call. Start a new run to go on.";
        let expected = [
            ("event", "ended"),
            ("run", "r-1"),
            ("session", "s-1"),
            ("reason", "aborted"),
            ("message", message),
        ];
        for (key, value) in expected {
            assert_eq!(event[key], value);
        }
        assert_eq!(event["sequence"], sequence + 1);
        assert_eq!(event.get("partial").and_then(|text| text.as_str()), partial);
        assert_eq!(told.one().partial.as_deref(), partial);
    }
}
