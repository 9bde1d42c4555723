//! What the upstream says, call by call.

use std::collections::VecDeque;

use proptest::sample::Index;

use crate::tests::{
    stacks::{
        plan::{Ending, Head, Plan, States, What},
        trace::Given,
    },
    support::FINISH,
};

pub(crate) use crate::tests::support::DONE;

/// How an error of the upstream begins, as an event and as an answer.
pub(crate) const ERROR_EVENT: &str = "data: {\"error\":";
/// How what layers put between the events of the upstream begins.
const INSERTED: [&str; 2] = [": keep-alive\n", ": Still working"];

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Wait(u64),
    Head,
    Data(String, Given),
    /// What else the next frame gives.
    Gives(Given),
    End,
    Fail,
    Never,
}

/// Whether it was inserted on the way, and nothing the upstream said.
pub(crate) fn is_inserted(text: &str) -> bool {
    INSERTED.iter().any(|inserted| text.starts_with(inserted))
}

/// What a frame holds: what was inserted, each by itself, and what stood between. What
/// was held for long is handed on joined.
pub(crate) fn pieces(frame: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut rest = frame;
    while !rest.is_empty() {
        // What is inserted is one line, and no blank line ends it.
        let end = if is_inserted(rest) { "\n" } else { "\n\n" };
        let len = rest.find(end).map_or(rest.len(), |at| at + end.len());
        let (event, after) = rest.split_at(len);
        rest = after;
        match pieces.last_mut() {
            Some(last) if !is_inserted(last) && !is_inserted(event) => last.push_str(event),
            _ => pieces.push(event.to_owned()),
        }
    }
    pieces
}

/// The request's body.
pub(crate) fn ask(plan: &Plan, model: &str) -> String {
    let stream = plan.sse;
    let action = "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\
        \"function\":{\"name\":\"poll\",\"arguments\":\"{}\"}}]},\
        {\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"not yet\"}";
    let mut messages = vec!["{\"role\":\"user\",\"content\":\"go\"}"];
    messages.extend(std::iter::repeat_n(action, plan.actions as usize));
    let messages = messages.join(",");
    format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"temperature\":1.00,\
         \"messages\":[{messages}]}}"
    )
}

pub(crate) fn steps(plan: &Plan, call: usize) -> VecDeque<Step> {
    let mut steps = whole_steps(plan, call);
    for cut in &plan.cuts {
        let Some(at) = said(&steps, &cut.piece) else {
            break;
        };
        let Step::Data(text, _) = &mut steps[at] else {
            break;
        };
        // Each of the two frames has a byte at least.
        if text.len() > 1 {
            let begin = text.drain(..1 + cut.byte.index(text.len() - 1)).collect();
            steps.insert(at, Step::Wait(cut.wait));
            steps.insert(at, Step::Data(begin, Given::Rest));
        }
    }
    for join in &plan.joins {
        let Some(at) = said(&steps, join) else {
            break;
        };
        let next = (at + 1..steps.len()).find(|index| !matches!(steps[*index], Step::Wait(0)));
        let Some(next) = next.filter(|next| matches!(steps[*next], Step::Data(..))) else {
            continue;
        };
        if let Some(Step::Data(text, given)) = steps.remove(at) {
            if let Step::Data(rest, _) = &mut steps[next - 1] {
                rest.insert_str(0, &text);
            }
            steps.insert(at, Step::Gives(given));
        }
    }
    steps
}

/// Where one of the pieces stands that are said.
fn said(steps: &VecDeque<Step>, piece: &Index) -> Option<usize> {
    let said = steps.iter().enumerate();
    let said = said.filter_map(|(at, step)| matches!(step, Step::Data(..)).then_some(at));
    let said: Vec<_> = said.collect();
    (!said.is_empty()).then(|| *piece.get(&said))
}

fn whole_steps(plan: &Plan, call: usize) -> VecDeque<Step> {
    let behaviour = plan.behaviour(call);
    let mut steps = VecDeque::from([Step::Wait(behaviour.head)]);
    if behaviour.head_is == Head::Broken {
        steps.push_back(Step::Fail);
        return steps;
    }
    steps.push_back(Step::Head);
    let last = Step::Wait(behaviour.last);
    let mut tokens = 0;
    let says_error = !behaviour.head_is.is_ok() || (behaviour.error_first && !plan.sse);
    if says_error {
        steps.extend([last, Step::Data(error(call), Given::Error)]);
    } else {
        if plan.json {
            steps.push_back(Step::Data("{\"said\":[".to_owned(), Given::Rest));
        }
        for piece in &behaviour.frames {
            tokens += u64::from(piece.what == What::Token);
            let usage = match plan.states {
                States::All => usage(call, tokens),
                _ => String::new(),
            };
            steps.push_back(Step::Wait(piece.after));
            steps.push_back(match plan.json {
                true => item(piece.what, call),
                false => data(piece.what, call, &usage),
            });
        }
        steps.push_back(last);
        if behaviour.error_first {
            let event = format!("data: {}\n\n", error(call));
            steps.push_back(Step::Data(event, Given::Error));
        }
    }
    let said = says_error || behaviour.error_first;
    let total = match plan.states {
        States::Nothing => String::new(),
        _ => usage(call, tokens + 1),
    };
    let [done, finish] = match plan.json {
        true => ["[DONE]", ""].map(|last| format!("\"{last}\"]{total}}}")),
        false if total.is_empty() => [DONE, FINISH].map(str::to_owned),
        false => {
            let total = format!("data: {{\"choices\":[]{total}}}\n\n");
            [format!("{total}{DONE}"), format!("{FINISH}{total}")]
        }
    };
    let done = Step::Data(done, Given::Terminator);
    let finish = Step::Data(finish, Given::Rest);
    steps.extend(match behaviour.ending {
        Ending::Done | Ending::Finish if said => vec![Step::End],
        Ending::DoneAndSilence if said => vec![Step::Never],
        Ending::Done => vec![done, Step::End],
        Ending::DoneAndSilence => vec![done, Step::Never],
        Ending::Finish => vec![finish, Step::End],
        Ending::Cut => vec![Step::End],
        Ending::Fail => vec![Step::Fail],
        Ending::Never => vec![Step::Never],
    });
    steps
}

fn error(call: usize) -> String {
    format!("{{\"error\":{{\"message\":\"boom {call}\"}}}}")
}

/// The tokens of an answer, as another key of an object. Those of the prompt say of which call.
fn usage(call: usize, tokens: u64) -> String {
    let prompt = 10 + call;
    format!(",\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens}}}")
}

/// The tokens in and out that a call has stated at the end of what it has given.
pub(crate) fn stated(given: &str) -> Option<(u64, u64)> {
    let (_, usage) = given.rsplit_once("\"usage\":{")?;
    let (usage, _) = usage.split_once('}')?;
    let mut numbers = usage.split(',').map(|count| count.rsplit_once(':'));
    let mut number = || numbers.next()??.1.parse().ok();
    Some((number()?, number()?))
}

/// A piece that says of which call it is.
fn data(what: What, call: usize, usage: &str) -> Step {
    let delta =
        |delta| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]{usage}}}\n\n");
    let (text, given) = match what {
        What::Token => (
            delta(format!("{{\"content\":\"a{call}\"}}")),
            Given::Content,
        ),
        What::Ping => (format!(": ping {call}\n\n"), Given::Rest),
        What::Prelude => (
            delta(format!(
                "{{\"role\":\"assistant\",\"content\":\"\",\"call\":{call}}}"
            )),
            Given::Rest,
        ),
        What::Half => (
            format!("data: {{\"call\":{call},\"choices\":[{{"),
            Given::Rest,
        ),
    };
    Step::Data(text, given)
}

/// A piece of a document.
fn item(what: What, call: usize) -> Step {
    match what {
        What::Token => Step::Data(format!("\"a{call}\","), Given::Content),
        _ => Step::Data("\n".to_owned(), Given::Rest),
    }
}

/// Everything that a call would give if nobody stopped it.
pub(crate) fn all(plan: &Plan, call: usize) -> String {
    let texts = steps(plan, call).into_iter().filter_map(|step| match step {
        Step::Data(text, _) => Some(text),
        _ => None,
    });
    texts.collect()
}
