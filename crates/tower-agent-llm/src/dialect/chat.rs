use super::{
    faulty_stops::FaultyStop,
    grammar::{Finish, Grammar},
    stream_state::{ChatChoices, StreamState},
    usage::Tokens,
};
use crate::{
    json_scanner::{Scan, Scanner, Text},
    sse::{Event, EventKind, EventVerdict, is_empty_object, is_heartbeat},
};

#[derive(Debug)]
pub(crate) struct OpenAiChat;

// One bit per key with a non-empty value in a delta or choice; of two equal known keys the last
// decides.
const CONTENT: u32 = 1;
const REFUSAL: u32 = 1 << 1;
const TOOL_CALLS: u32 = 1 << 2;
const FUNCTION_CALL: u32 = 1 << 3;
const LEGACY_TEXT: u32 = 1 << 4;
const REASONING: u32 = 1 << 5;
const REASONING_CONTENT: u32 = 1 << 6;
const REASONING_DETAILS: u32 = 1 << 7;
/// The thinking in a content that is a list of parts, as Mistral's models send it.
const THINKING: u32 = 1 << 8;
const UNKNOWN: u32 = 1 << 9;
const ANY_REASONING: u32 = REASONING | REASONING_CONTENT | REASONING_DETAILS | THINKING;

/// The values that one chat event has under the known keys.
///
/// The usage, the ends of choices and the stop reason go into the stream's state. The other values
/// decide the kind of the event, and so does a stop reason that is `error` or names a fault.
///
/// If the event turns out to be malformed at its end, the values are discarded.
#[derive(Default)]
struct Chunk<'a> {
    has_choices: bool,
    object: Option<Text<'a>>,
    kind: Option<Text<'a>>,
    is_error: bool,
    /// Whether `error` has a value that is not empty: an empty one beside choices says nothing.
    says_error: bool,
    choices: ChoiceValues<'a>,
    usage: Tokens,
    /// The value of `timings`: llama.cpp counts there, also if no usage was asked for.
    timings: Option<&'a [u8]>,
    /// The value of `prompt_progress`: llama.cpp counts the part of the prompt there that it has
    /// read, before the answer.
    prompt_progress: Option<&'a [u8]>,
    /// The value of `x_groq`: Groq's last event has the usage there if the caller did not ask for
    /// it.
    groq: Option<&'a [u8]>,
}

/// The content, stop reason and failure of one chat event, merged over its choices.
#[derive(Default)]
struct ChoiceValues<'a> {
    choices: ChatChoices,
    carried: u32,
    stop: Option<Text<'a>>,
    failed: bool,
    /// The usage in the last choice that has one: Moonshot states it there.
    usage: Option<&'a [u8]>,
}

impl Grammar for OpenAiChat {
    fn name(&self) -> &'static str {
        "openai-chat"
    }

    #[inline]
    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict {
        let mut chunk = Chunk::default();
        if chunk.read(event.data).is_err() {
            return unreadable(event).into();
        }
        chunk.report(event, stream)
    }

    fn finish(&self, stream: &StreamState) -> Finish {
        if stream.choices.all_finished() {
            Finish::Finished
        } else {
            Finish::Truncated
        }
    }
}

/// Whether an event's data is `[DONE]`.
pub(crate) fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

fn unreadable(event: &Event<'_>) -> EventKind {
    if is_done(event.data) {
        EventKind::Terminator
    } else if is_heartbeat(event.name) || (event.is_blank() && !event.oversized) {
        EventKind::Life
    } else if event.is_error_text() {
        EventKind::Error
    } else {
        EventKind::Progress
    }
}

impl<'a> Chunk<'a> {
    #[inline]
    fn read(&mut self, data: &'a [u8]) -> Scan<()> {
        Scanner::document(data, |json, key| {
            match key {
                b"choices" => {
                    self.choices = ChoiceValues::default();
                    let choices = &mut self.choices;
                    self.has_choices = json.array(|json| choices.read_choice(json))?;
                }
                b"object" => self.object = json.text()?,
                b"type" => self.kind = json.text()?,
                b"usage" => self.usage = Tokens::read(json, &[Tokens::PROMPT])?,
                b"timings" => self.timings = Some(json.span()?),
                b"prompt_progress" => self.prompt_progress = Some(json.span()?),
                b"x_groq" => self.groq = Some(json.span()?),
                b"error" => {
                    let error = json.span()?;
                    self.is_error = Scanner::new(error).is_error()?;
                    self.says_error = self.is_error && Scanner::new(error).filled()?;
                }
                _ => json.skip()?,
            }
            Ok(())
        })
    }

    #[inline]
    fn report(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict {
        stream.choices.merge(self.choices.choices);
        stream.report_tokens(self.usage);
        self.report_nested_usage(stream);
        if let Some(reason) = self.choices.stop {
            stream.report_stop(&reason.decoded());
        }
        let is = |text: Option<Text<'_>>, word: &[u8]| text.is_some_and(|text| text.is(word));
        let is_error = self.is_error && (self.says_error || !self.has_choices);
        if is_error || is(self.kind, b"error") || self.choices.failed {
            return EventKind::Error.into();
        }
        if self.choices.carried & !UNKNOWN != 0 {
            return EventVerdict::content(self.choices.carried & !(ANY_REASONING | UNKNOWN) == 0);
        }
        let has_grown = |progress| stream.has_prompt_grown(progress);
        let kind = if self.choices.carried != 0 || self.prompt_progress.is_some_and(has_grown) {
            EventKind::Progress
        } else if self.has_choices || is(self.object, b"chat.completion.chunk") {
            EventKind::Prelude
        } else if self.is_life(event) {
            EventKind::Life
        } else {
            EventKind::Progress
        };
        kind.into()
    }
}

impl Chunk<'_> {
    /// Whether the event, which is not a chunk of an answer, is a sign of life.
    #[cold]
    fn is_life(&self, event: &Event<'_>) -> bool {
        match self.kind {
            Some(kind) => is_heartbeat(&kind.decoded()),
            None => {
                is_heartbeat(event.name)
                    || self.prompt_progress.is_some()
                    || event.name.is_empty() && is_empty_object(event.data)
            }
        }
    }

    /// Reports the usage that stands in a choice, or in Groq's own object.
    #[inline]
    fn report_nested_usage(&self, stream: &mut StreamState) {
        let names = [Tokens::PROMPT];
        if let Some(usage) = self.choices.usage {
            stream
                .report_tokens(Tokens::read(&mut Scanner::new(usage), &names).unwrap_or_default());
        }
        if let Some(timings) = self.timings.filter(|_| self.usage.is_empty()) {
            stream.report_tokens(Tokens::of_timings(timings).unwrap_or_default());
        }
        if let Some(groq) = self.groq {
            stream.report_tokens(Tokens::within(groq, &names).unwrap_or_default());
        }
    }
}

impl<'a> ChoiceValues<'a> {
    #[inline]
    fn read_choice(&mut self, json: &mut Scanner<'a>) -> Scan<()> {
        let mut index = None;
        let mut stop = None;
        let mut carried = 0;
        let mut delta = 0;
        let mut usage = None;
        let is_choice = json.object(|json, key| {
            match key {
                b"delta" => delta = read_delta(json)?,
                b"index" => index = json.integer()?,
                b"finish_reason" => stop = json.text()?.filter(|text| !text.is_empty()),
                // The older `completions` API has the text of a choice here.
                b"text" => carried = if json.filled()? { LEGACY_TEXT } else { 0 },
                b"usage" => usage = Some(json.span()?).filter(|usage| *usage != b"null"),
                _ => json.skip()?,
            }
            Ok(())
        })?;
        if is_choice {
            self.choices.see(index.unwrap_or(0), stop.is_some());
            self.carried |= carried | delta;
            self.usage = usage.or(self.usage);
            if let Some(stop) = stop {
                self.failed |= stop.is(b"error") || FaultyStop::is(&stop.decoded());
                self.stop = Some(stop);
            }
        }
        Ok(())
    }
}

/// Reads a delta, and returns one bit for each kind of content that it has.
#[inline]
fn read_delta(json: &mut Scanner<'_>) -> Scan<u32> {
    let mut carried = 0;
    json.object(|json, key| {
        let bit = match key {
            b"content" if json.peek()? == b'[' => {
                carried = carried & !(CONTENT | THINKING) | read_parts(json)?;
                return Ok(());
            }
            b"content" => CONTENT,
            b"role" => return json.skip(),
            b"refusal" => REFUSAL,
            b"tool_calls" => TOOL_CALLS,
            b"function_call" => FUNCTION_CALL,
            b"reasoning" => REASONING,
            b"reasoning_content" => REASONING_CONTENT,
            b"reasoning_details" => REASONING_DETAILS,
            _ => UNKNOWN,
        };
        if bit != UNKNOWN {
            carried &= !bit;
        }
        if bit == CONTENT {
            carried &= !THINKING;
        }
        if json.filled()? {
            carried |= bit;
        }
        Ok(())
    })?;
    Ok(carried)
}

/// Reads the content of a delta that is a list of parts: the model's thinking, or any other content.
#[cold]
fn read_parts(json: &mut Scanner<'_>) -> Scan<u32> {
    let mut carried = 0;
    json.array(|json| {
        let [kind] = Scanner::members(json.span()?, [b"type"]).unwrap_or_default();
        let is_thinking = kind
            .and_then(Text::of)
            .is_some_and(|kind| kind.is(b"thinking"));
        carried |= if is_thinking { THINKING } else { CONTENT };
        Ok(())
    })?;
    Ok(carried)
}
