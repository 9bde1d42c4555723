//! An answer to be written in a dialect, and the tool call that it may contain instead of a text.

use serde_json::{Value, json};

use super::behavior::Behavior;
use super::request::Request;

/// One answer to be written in a dialect.
#[derive(Debug)]
pub(super) struct SimulatedAnswer<'a> {
    /// The number of the request, which makes ids unique on this server.
    pub(super) serial: u64,
    pub(super) model: &'a str,
    pub(super) deltas: Vec<String>,
    /// The tool call that the answer contains instead of a text.
    pub(super) call: Option<SimulatedCall>,
    /// Whether the request sets `stream_options.include_usage`.
    ///
    /// A chat stream then has its usage in one more chunk, the last one before `[DONE]`.
    pub(super) include_usage: bool,
}

impl<'a> SimulatedAnswer<'a> {
    pub(super) fn new(serial: u64, request: &'a Request, behavior: Behavior, body: &[u8]) -> Self {
        Self {
            serial,
            model: &request.model,
            deltas: behavior.deltas(body),
            call: SimulatedCall::next(behavior, request, serial),
            include_usage: request
                .stream_options
                .as_ref()
                .is_some_and(|options| options.include_usage),
        }
    }

    pub(super) fn text(&self) -> String {
        self.deltas.concat()
    }

    /// The tokens of a prompt, whatever its text; of embeddings, those of each input.
    pub(super) const INPUT_TOKENS: usize = 9;

    /// The tokens of the answer: one for each delta.
    pub(super) fn output_tokens(&self) -> usize {
        self.deltas.len()
    }
}

/// A tool call that an answer contains instead of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SimulatedCall {
    /// The id of the call, which the tool's result in the next request repeats.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: Value,
}

impl SimulatedCall {
    /// The tool call of the model's next answer, if any.
    ///
    /// A polling model makes the same call for ever; an agent calls each tool once, in order.
    pub(super) fn next(behavior: Behavior, request: &Request, serial: u64) -> Option<Self> {
        let names: Vec<&str> = request.tools.iter().filter_map(name).collect();
        let (name, arguments) = match behavior {
            Behavior::Polling => (*names.first()?, json!({"job": "job-1"})),
            Behavior::Agent => {
                let turn = results(request);
                (*names.get(turn)?, json!({"turn": turn}))
            }
            _ => return None,
        };
        Some(Self {
            id: format!("call_sim{serial}"),
            name: name.to_owned(),
            arguments,
        })
    }
}

/// The name of a tool; in chat it stands inside `function`.
fn name(tool: &Value) -> Option<&str> {
    let own = tool["name"].as_str();
    own.or_else(|| tool["function"]["name"].as_str())
}

/// How many results of tools the request brings, in any dialect.
fn results(request: &Request) -> usize {
    let messages = request.messages.as_array().into_iter().flatten();
    let items = request.input.as_array().into_iter().flatten();
    messages
        .chain(items)
        .map(|message| {
            let blocks = message["content"].as_array().into_iter().flatten();
            let blocks = blocks.filter(|block| block["type"] == "tool_result");
            let whole = message["role"] == "tool" || message["type"] == "function_call_output";
            blocks.count() + usize::from(whole)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(behavior: Behavior, request: Value) -> Option<(String, Value)> {
        let request = serde_json::from_value(request).unwrap();
        let call = SimulatedCall::next(behavior, &request, 1)?;
        Some((call.name, call.arguments))
    }

    #[test]
    fn an_agent_asks_for_each_tool_once_and_then_answers() {
        let tools = json!([{"function": {"name": "a"}}, {"name": "b"}]);
        let histories = [
            json!([]),
            json!([{"role": "tool", "content": "x"}]),
            json!([{"role": "tool", "content": "x"}, {"role": "user", "content": [{"type": "tool_result"}]}]),
        ];
        let asked = histories.map(|messages| {
            let request = json!({"model": "m", "tools": tools, "messages": messages});
            next(Behavior::Agent, request).map(|(name, _)| name)
        });
        assert_eq!(asked, [Some("a".into()), Some("b".into()), None]);
    }

    #[test]
    fn a_polling_model_asks_for_the_same_for_ever() {
        for results in [0, 1, 7] {
            let input = vec![json!({"type": "function_call_output"}); results];
            let request = json!({"model": "m", "tools": [{"name": "poll"}], "input": input});
            let asked = next(Behavior::Polling, request);
            assert_eq!(asked, Some(("poll".into(), json!({"job": "job-1"}))));
        }
        let without = json!({"model": "m", "messages": []});
        assert_eq!(next(Behavior::Polling, without), None);
    }
}
