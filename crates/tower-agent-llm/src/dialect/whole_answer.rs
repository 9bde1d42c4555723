//! What a whole answer says that is not an event stream, from one walk of it.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{StreamState, Usage, usage::Tokens};
use crate::{
    json_scanner::{Scan, Scanner},
    stream::generated_text::MAX_USAGE,
};

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"reason\""));

/// The usage and stop reason of a complete answer that is not an event stream.
///
/// The values stand under the keys of any dialect. Of several choices the last one counts.
#[derive(Debug, Default)]
pub struct WholeAnswer {
    state: StreamState,
    stated: Option<Usage>,
}

impl WholeAnswer {
    /// Reads the body of an answer, a complete JSON object.
    ///
    /// The result is `None` if the body is malformed, or has neither usage nor stop reason.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        // Most bodies without these values are recognized by the searches, and not parsed.
        USAGE.find(body).or_else(|| REASON.find(body))?;
        let mut answer = Self::default();
        let mut is_deep = false;
        Scanner::document(body, |json, key| {
            answer.member(json, key)?;
            is_deep = json.is_deep();
            Ok(())
        })
        .ok()?;
        let says = |usage: &Usage| usage.output_tokens > 0 && !is_deep;
        answer.stated = answer.stated.filter(says);
        Some(answer)
    }

    fn member(&mut self, json: &mut Scanner<'_>, key: &[u8]) -> Scan<()> {
        match key {
            b"usage" => {
                let is_object = json.peek()? == b'{';
                let start = json.position();
                let tokens = Tokens::read(json, &[Tokens::PROMPT, Tokens::INPUT])?;
                self.state.report_tokens(tokens);
                if is_object {
                    let is_short = json.position() - start <= MAX_USAGE;
                    self.stated = tokens.usage().filter(|_| is_short);
                }
            }
            b"timings" => {
                let timings = json.span()?;
                let tokens = Tokens::of_timings(timings).unwrap_or_default();
                self.state.report_tokens(tokens);
                self.stated = None;
            }
            b"stop_reason" => self.stop(json)?,
            b"incomplete_details" => self.stop_in(json, b"reason")?,
            b"choices" => {
                json.array(|json| self.stop_in(json, b"finish_reason"))?;
            }
            _ => json.skip()?,
        }
        Ok(())
    }

    fn stop_in(&mut self, json: &mut Scanner<'_>, name: &[u8]) -> Scan<()> {
        json.object(|json, key| match key == name {
            true => self.stop(json),
            false => json.skip(),
        })?;
        Ok(())
    }

    fn stop(&mut self, json: &mut Scanner<'_>) -> Scan<()> {
        if let Some(reason) = json.text()?.filter(|reason| !reason.is_empty()) {
            self.state.report_stop(&reason.decoded());
        }
        Ok(())
    }

    /// The token usage of the answer.
    #[must_use]
    pub const fn usage(&self) -> Option<Usage> {
        self.state.usage()
    }

    /// The usage that a [`GeneratedText`](crate::stream::generated_text::GeneratedText) finds in the
    /// answer.
    ///
    /// The usage is `None` if it has no tokens of output, or if such a reader must read the answer to
    /// know.
    #[must_use]
    pub const fn stated(&self) -> Option<Usage> {
        self.stated
    }

    /// The reason why the model stopped, in the upstream's words.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&str> {
        self.state.stop_reason()
    }
}
