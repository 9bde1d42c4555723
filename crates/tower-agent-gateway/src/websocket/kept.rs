//! What a lane keeps of its last response, so that the next one can continue it.

use std::borrow::Cow;

use super::client_event::{Create, Members, push_member};

/// The conversation up to a response, under the id of the response.
///
/// It is what the upstream was sent in full, and what it answered. So the next request can go to any
/// candidate: none needs to know the id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) id: String,
    /// A response of an upstream that the items continue.
    pub(super) base: Option<String>,
    /// The items of the input and of the output, without brackets.
    pub(super) items: String,
}

impl Kept {
    /// The bytes that this takes.
    pub(super) fn len(&self) -> usize {
        self.id.len() + self.base.as_ref().map_or(0, String::len) + self.items.len()
    }

    /// Adds an item of the output.
    pub(super) fn push_output(&mut self, item: &str) {
        if let Some(item) = as_input(item) {
            push_items(&mut self.items, &item);
        }
    }
}

/// Appends items behind a comma, unless one side is empty.
pub(super) fn push_items(items: &mut String, more: &str) {
    if !items.is_empty() && !more.is_empty() {
        items.push(',');
    }
    items.push_str(more);
}

/// An item of an output as one of an input: without the ids of the server, which no other knows.
///
/// `None` for reasoning of which only the server has the content.
fn as_input(item: &str) -> Option<Cow<'_, str>> {
    let Ok(members) = serde_json::from_str::<Members<'_>>(item) else {
        return Some(Cow::Borrowed(item));
    };
    let kind = members.text("type");
    let is = |name: &str| kind.as_deref() == Some(name);
    let has = |name: &str| {
        let value = members.get(name).map(|value| value.get().trim());
        value.is_some_and(|value| !matches!(value, "null" | "[]" | "\"\""))
    };
    if is("reasoning") && !has("encrypted_content") && !has("content") {
        return None;
    }
    let mut kept = String::with_capacity(item.len());
    for (name, value) in &members.0 {
        let is_of_server = name == "id" || name == "status" && is("message");
        if !is_of_server {
            push_member(&mut kept, name, value.get());
        }
    }
    Some(Cow::Owned(format!("{{{kept}}}")))
}

/// The body of the POST for a `response.create`; `items` are those of the whole input.
///
/// Without an earlier response the input goes as it was sent.
pub(super) fn body(create: &Create, base: Option<&str>, resolved: Option<&str>) -> String {
    let mut members = create.fields.clone();
    push_member(&mut members, "stream", "true");
    if let Some(base) = base {
        let base = serde_json::Value::from(base).to_string();
        push_member(&mut members, "previous_response_id", &base);
    }
    match (resolved, &create.input) {
        (Some(items), _) => push_member(&mut members, "input", &format!("[{items}]")),
        (None, Some(input)) => push_member(&mut members, "input", input),
        (None, None) => {}
    }
    format!("{{{members}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_item_loses_the_ids_of_its_server() {
        let as_input = |item| as_input(item).map(Cow::into_owned);
        for (item, expected) in [
            (
                r#"{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[]}"#,
                Some(r#"{"type":"message","role":"assistant","content":[]}"#),
            ),
            (
                r#"{"type":"function_call","id":"fc_1","call_id":"call_1","status":"completed","arguments":"{\"id\":1}"}"#,
                Some(
                    r#"{"type":"function_call","call_id":"call_1","status":"completed","arguments":"{\"id\":1}"}"#,
                ),
            ),
            (
                r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"abc"}"#,
                Some(r#"{"type":"reasoning","summary":[],"encrypted_content":"abc"}"#),
            ),
            (
                r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":null}"#,
                None,
            ),
        ] {
            assert_eq!(as_input(item).as_deref(), expected);
        }
    }

    #[test]
    fn items_are_joined_by_commas() {
        let mut items = String::new();
        for more in ["", "1", "", "2,3"] {
            push_items(&mut items, more);
        }
        assert_eq!(items, "1,2,3");
    }
}
