//! An agent in each of the dialects.

use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::Full;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Chat,
    Responses,
    Anthropic,
}

pub(super) const ALL: [Dialect; 3] = [Dialect::Chat, Dialect::Responses, Dialect::Anthropic];

/// Repeats in each request all that it did.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    dialect: Dialect,
    messages: Vec<String>,
    calls: usize,
    tools: Vec<&'static str>,
}

impl Agent {
    pub(super) fn new(dialect: Dialect) -> Self {
        let messages = vec![r#"{"role":"user","content":"is the job done?"}"#.to_owned()];
        Self {
            dialect,
            messages,
            calls: 0,
            tools: Vec::new(),
        }
    }

    /// The only tools that there are.
    pub(super) fn has(mut self, tools: &[&'static str]) -> Self {
        self.tools = tools.to_vec();
        self
    }

    /// It calls a tool, and hears this.
    pub(super) fn does(&mut self, name: &str, result: &str) {
        self.calls(name, r#"{"job":7}"#, Some(result));
    }

    /// It calls a tool with these arguments; one that is refused has no result.
    pub(super) fn calls(&mut self, name: &str, arguments: &str, result: Option<&str>) {
        self.calls += 1;
        let id = self.calls;
        let quoted = serde_json::Value::from(arguments);
        let result = result.map(serde_json::Value::from);
        let (call, answer) = match self.dialect {
            Dialect::Chat => (
                format!(
                    r#"{{"role":"assistant","tool_calls":[{{"id":"c{id}","type":"function","function":{{"name":"{name}","arguments":{quoted}}}}}]}}"#
                ),
                result.map(|result| {
                    format!(r#"{{"role":"tool","tool_call_id":"c{id}","content":{result}}}"#)
                }),
            ),
            Dialect::Responses => (
                format!(
                    r#"{{"type":"function_call","call_id":"c{id}","name":"{name}","arguments":{quoted}}}"#
                ),
                result.map(|result| {
                    format!(
                        r#"{{"type":"function_call_output","call_id":"c{id}","output":{result}}}"#
                    )
                }),
            ),
            Dialect::Anthropic => (
                format!(
                    r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"c{id}","name":"{name}","input":{arguments}}}]}}"#
                ),
                result.map(|result| {
                    format!(
                        r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c{id}","content":{result}}}]}}"#
                    )
                }),
            ),
        };
        self.messages.push(call);
        self.messages.extend(answer);
    }

    pub(super) fn hears(&mut self, text: &str) {
        self.messages
            .push(format!(r#"{{"role":"user","content":"{text}"}}"#));
    }

    pub(super) fn body(&self) -> String {
        let messages = self.messages.join(",");
        let tools: Vec<_> = self.tools.iter().map(|name| self.declared(name)).collect();
        let tools = tools.join(",");
        match self.dialect {
            Dialect::Responses => {
                format!(r#"{{"model":"m","tools":[{tools}],"input":[{messages}]}}"#)
            }
            _ => format!(r#"{{"model":"m","tools":[{tools}],"messages":[{messages}]}}"#),
        }
    }

    fn declared(&self, name: &str) -> String {
        match self.dialect {
            Dialect::Chat => {
                format!(r#"{{"type":"function","function":{{"name":"{name}","parameters":{{}}}}}}"#)
            }
            Dialect::Responses => format!(r#"{{"type":"function","name":"{name}"}}"#),
            Dialect::Anthropic => format!(r#"{{"name":"{name}","input_schema":{{}}}}"#),
        }
    }

    pub(super) fn request(&self) -> Request<Full<Bytes>> {
        let path = match self.dialect {
            Dialect::Chat => "/v1/chat/completions",
            Dialect::Responses => "/v1/responses",
            Dialect::Anthropic => "/v1/messages",
        };
        Request::post(path).body(Full::from(self.body())).unwrap()
    }

    /// The same, of this run.
    pub(super) fn request_of(&self, id: &str) -> Request<Full<Bytes>> {
        let mut request = self.request();
        let name = HeaderName::from_static("x-run-id");
        request.headers_mut().insert(name, id.parse().unwrap());
        request
    }
}
