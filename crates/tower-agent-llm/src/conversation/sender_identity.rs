//! Identifies the sender of a request by its body: the user's words, the session, the cache key.

use std::{hash::Hasher, sync::LazyLock};

use memchr::memmem::Finder;

use super::item::{Item, each};
use crate::{
    json_key::may_have_key,
    json_scanner::{Scan, Scanner, Text},
};

static CACHE_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"prompt_cache_key"));
static USER_ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"user_id"));

/// The values in a request's body that identify its sender.
#[derive(Clone, Debug, Default)]
pub struct SenderIdentity {
    /// The digest of the user's words so far; each new message with such words changes it.
    pub words: u64,
    /// The value of `prompt_cache_key`.
    pub cache_key: Option<String>,
    /// The session in the `user_id` of `metadata`.
    pub session: Option<String>,
    /// Whether the request offers tools to the model.
    pub has_tools: bool,
}

impl SenderIdentity {
    /// Whether a request's body may have a session or a cache key, by a search for their keys.
    #[must_use]
    pub fn may_be_named(body: &[u8]) -> bool {
        may_have_key(body, &[&CACHE_KEY, &USER_ID])
    }

    /// Reads a request's body; `None` if it is not a JSON object, or has no conversation.
    ///
    /// The user's words are the texts in messages of the user. Results of tools are left out. A
    /// text that is one element, such as `<system-reminder>..</system-reminder>`, counts as a note
    /// that the agent added, and is left out too. `hasher` digests the words: a keyed one, as a
    /// digest must not reveal what the user said.
    #[must_use]
    pub fn read(body: &[u8], hasher: &(impl Hasher + Clone)) -> Option<Self> {
        let (mut sender, mut words) = (Self::default(), None);
        let member = |json: &mut Scanner<'_>, key: &[u8]| -> Scan<()> {
            match key {
                b"messages" | b"input" => words = Some(words_in(json, hasher.clone())?),
                b"tools" => {
                    sender.has_tools = false;
                    json.array(|json| {
                        sender.has_tools = true;
                        json.skip()
                    })?;
                }
                b"prompt_cache_key" => sender.cache_key = text_in(json.span()?),
                b"metadata" => {
                    let [user] = texts(json.span()?, [b"user_id"]).unwrap_or_default();
                    sender.session = user.and_then(|user| session_in(&user));
                }
                _ => json.skip()?,
            }
            Ok(())
        };
        Scanner::document(body, member).ok()?;
        sender.words = words?;
        Some(sender)
    }
}

/// Reads the non-empty string fields `names` of the JSON object `document`.
///
/// The result is `None` if the document is not an object.
#[must_use]
pub fn texts<const N: usize>(document: &[u8], names: [&[u8]; N]) -> Option<[Option<String>; N]> {
    let values = Scanner::members(document, names).ok()?;
    Some(values.map(|value| text_in(value?)))
}

fn text_in(span: &[u8]) -> Option<String> {
    let text = Text::of(span)?.decoded().into_owned();
    String::from_utf8(text).ok().filter(|text| !text.is_empty())
}

/// The session in a user's id, which is JSON, or text with `_session_` before the session.
fn session_in(user: &str) -> Option<String> {
    match texts(user.as_bytes(), [b"session_id"]) {
        Some([session]) => session,
        None => Some(user.rsplit_once("_session_")?.1.to_owned()).filter(|it| !it.is_empty()),
    }
}

/// Digests the user's words in a conversation.
fn words_in(json: &mut Scanner<'_>, mut words: impl Hasher) -> Scan<u64> {
    let mut add = |span: &[u8]| {
        let Some(text) = Text::of(span).map(Text::decoded) else {
            return;
        };
        let text = text.trim_ascii();
        if !text.is_empty() && !is_element(text) {
            words.write(text);
            words.write_u8(0xff);
        }
    };
    if json.peek()? != b'[' {
        add(json.span()?);
        return Ok(words.finish());
    }
    json.array(|json| {
        let Some(content) = Item::read(json)?.content_of_user() else {
            return Ok(());
        };
        if content.starts_with(b"[") {
            each(Some(content), |block| {
                block.text_of().into_iter().for_each(&mut add)
            });
        } else {
            add(content);
        }
        Ok(())
    })?;
    Ok(words.finish())
}

/// Whether a text begins with an opening tag and ends with the closing tag of the same name.
fn is_element(text: &[u8]) -> bool {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
    let name = |text: &[u8]| text.iter().take_while(|byte| is_name(byte)).count();
    let Some(inner) = text.strip_prefix(b"<") else {
        return false;
    };
    let name = &inner[..name(inner)];
    let end = text
        .strip_suffix(b">")
        .and_then(|text| text.strip_suffix(name));
    !name.is_empty() && end.is_some_and(|text| text.ends_with(b"</"))
}

#[cfg(test)]
mod tests {
    use std::hash::DefaultHasher;

    use super::*;

    fn read(body: &[u8]) -> Option<SenderIdentity> {
        SenderIdentity::read(body, &DefaultHasher::new())
    }

    fn words(messages: &str) -> u64 {
        let body = format!(r#"{{"model":"m","messages":[{messages}]}}"#);
        read(body.as_bytes()).unwrap().words
    }

    #[test]
    fn only_what_the_user_says_changes_the_words() {
        let asked = r#"{"role":"user","content":"count"}"#;
        let first = words(asked);
        let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"b","input":{}}]}"#;
        for same in [
            r#"{"role":"user","content":[{"type":"text","text":"count","cache_control":{"type":"ephemeral"}}]}"#.to_owned(),
            r#"{"role":"user","content":[{"type":"text","text":"<system-reminder>\nat 9\n</system-reminder>"},{"type":"text","text":" count\n"}]}"#.to_owned(),
            format!(r#"{{"role":"system","content":"be brief"}},{asked}"#),
            format!(r#"{asked},{call},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c","content":"1"}}]}}"#),
            format!(r#"{asked},{{"role":"assistant","content":"1"}},{{"role":"tool","tool_call_id":"c","content":"2"}}"#),
            format!(r#"{asked},{call},{{"role":"user","content":"<task-notification>done</task-notification>"}}"#),
        ] {
            assert_eq!(words(&same), first, "{same}");
        }
        let again = r#"{"role":"user","content":"count"}"#;
        let more = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"1"},{"type":"text","text":"go on"}]}"#;
        let tags = r#"{"role":"user","content":"<b>bold</b> is what I want"}"#;
        let others = [
            words(""),
            words(&format!("{asked},{again}")),
            words(&format!("{asked},{call},{more}")),
            words(&format!("{asked},{tags}")),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, first, "{index}");
            assert!(!others[..index].contains(other), "{index}");
        }
    }

    #[test]
    fn a_body_that_names_no_session_is_known_without_a_walk() {
        for body in [
            r#"{"messages":[],"prompt_cache_key":"k"}"#,
            r#"{"messages":[],"metadata":{"user_id":"u_session_s"}}"#,
            r#"{"messages":[],"prompt\u005fcache_key":"k"}"#,
        ] {
            let sender = read(body.as_bytes()).unwrap();
            assert!(sender.session.or(sender.cache_key).is_some(), "{body}");
            assert!(SenderIdentity::may_be_named(body.as_bytes()), "{body}");
        }
        let body = br#"{"messages":[],"metadata":{"user":"u_session_s"},"cache_key":"k"}"#;
        assert!(!SenderIdentity::may_be_named(body));
    }

    #[test]
    fn a_body_of_another_shape_tells_nothing() {
        for body in ["", "[]", "{\"messages\":", "{\"model\":\"m\"}", "no json"] {
            assert!(read(body.as_bytes()).is_none(), "{body}");
        }
        let odd = br#"{"messages":7,"prompt_cache_key":[],"metadata":"x"}"#;
        let odd = read(odd).unwrap();
        assert!(odd.cache_key.is_none() && odd.session.is_none());
    }
}
