use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::llm::{
    dialect::{Dialect, Finish, StreamFailure, Usage},
    stream::StreamReader,
};

const NONE: u64 = u64::MAX;

/// What the innermost layer found in an event stream so far, in byte offsets
/// of what it handed on; a response extension.
///
/// An outer layer takes a mark as true once it has handed on that many bytes:
/// what stands between may hold some back.
#[derive(Clone, Debug)]
pub struct ResponseMarks {
    marks: Arc<MarkCells>,
}

#[derive(Debug)]
struct MarkCells {
    dialect: OnceLock<Dialect>,
    progressed: AtomicU64,
    position: AtomicU64,
    events: AtomicU64,
    heartbeats: AtomicU64,
    commit: AtomicU64,
    terminator: AtomicU64,
    error: AtomicU64,
    sequence: AtomicU64,
    finished: AtomicBool,
    failure: OnceLock<StreamFailure>,
    input_tokens: AtomicU64,
    output_tokens: AtomicU64,
    stop_reason: OnceLock<Arc<str>>,
    response_id: OnceLock<(Arc<str>, u64)>,
}

impl ResponseMarks {
    pub(super) fn new() -> Self {
        Self {
            marks: Arc::new(MarkCells {
                dialect: OnceLock::new(),
                progressed: AtomicU64::new(0),
                position: AtomicU64::new(0),
                events: AtomicU64::new(0),
                heartbeats: AtomicU64::new(0),
                commit: AtomicU64::new(NONE),
                terminator: AtomicU64::new(NONE),
                error: AtomicU64::new(NONE),
                sequence: AtomicU64::new(0),
                finished: AtomicBool::new(false),
                failure: OnceLock::new(),
                input_tokens: AtomicU64::new(NONE),
                output_tokens: AtomicU64::new(NONE),
                stop_reason: OnceLock::new(),
                response_id: OnceLock::new(),
            }),
        }
    }

    /// The dialect, once an event told it.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.marks.dialect.get().copied().unwrap_or_default()
    }

    /// The end of the latest event that was progress; 0 if there was none.
    #[must_use]
    pub fn progressed(&self) -> u64 {
        self.marks.progressed.load(Ordering::Acquire)
    }

    /// How many bytes were judged so far: what is handed on while it does not grow,
    /// nobody judged.
    pub(crate) fn position(&self) -> u64 {
        self.marks.position.load(Ordering::Acquire)
    }

    /// How many events there were so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.marks.events.load(Ordering::Acquire)
    }

    /// How many comments and pings there were so far: see
    /// [`StreamReader::heartbeats`](crate::llm::stream::StreamReader::heartbeats).
    #[must_use]
    pub fn heartbeats(&self) -> u64 {
        self.marks.heartbeats.load(Ordering::Acquire)
    }

    /// The end of the first content event.
    #[must_use]
    pub fn commit(&self) -> Option<u64> {
        mark(&self.marks.commit)
    }

    /// The end of the dialect's terminator.
    #[must_use]
    pub fn terminator(&self) -> Option<u64> {
        mark(&self.marks.terminator)
    }

    /// The end of the upstream's own error event.
    #[must_use]
    pub fn error(&self) -> Option<u64> {
        mark(&self.marks.error)
    }

    /// Whether every choice of a chat answer has said why it finished, so that
    /// a clean end needs no terminator.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.marks.finished.load(Ordering::Acquire)
    }

    /// What the upstream's error event said.
    #[must_use]
    pub fn failure(&self) -> Option<&StreamFailure> {
        self.marks.failure.get()
    }

    /// Why the model stopped, as the upstream put it.
    #[must_use]
    pub fn stop_reason(&self) -> Option<Arc<str>> {
        self.marks.stop_reason.get().cloned()
    }

    /// The number that the next event of a Responses stream has.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.marks.sequence.load(Ordering::Acquire)
    }

    /// The id of a Responses answer, and the end of the event that said it.
    #[must_use]
    pub fn response_id(&self) -> Option<(&str, u64)> {
        let (id, end) = self.marks.response_id.get()?;
        Some((id, *end))
    }

    /// The tokens used so far, if the upstream said; also for a cut stream.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let input = mark(&self.marks.input_tokens);
        let output = mark(&self.marks.output_tokens);
        input.or(output)?;
        Some(Usage {
            input_tokens: input.unwrap_or(0),
            output_tokens: output.unwrap_or(0),
        })
    }

    /// Publishes what the judge knows: after every frame, so it is plain stores
    /// unless something new was said.
    pub(super) fn publish(&self, judge: &StreamReader) {
        let marks = &*self.marks;
        marks
            .progressed
            .store(judge.progressed(), Ordering::Release);
        marks.events.store(judge.events(), Ordering::Release);
        marks.position.store(judge.position(), Ordering::Release);
        marks
            .heartbeats
            .store(judge.heartbeats(), Ordering::Release);
        marks
            .sequence
            .store(judge.next_sequence(), Ordering::Release);
        marks.finished.store(
            matches!(judge.finish(), Finish::Finished),
            Ordering::Release,
        );
        store(&marks.commit, judge.commit());
        store(&marks.error, judge.error());
        store(&marks.terminator, judge.terminator());
        if let Some(usage) = judge.usage() {
            store(&marks.input_tokens, Some(usage.input_tokens));
            store(&marks.output_tokens, Some(usage.output_tokens));
        }
        if let Some(reason) = judge.stop_reason() {
            marks.stop_reason.get_or_init(|| reason.into());
        }
        if let Some((id, end)) = judge.named() {
            marks.response_id.get_or_init(|| (Arc::clone(id), end));
        }
        if let Some(failure) = judge.failure() {
            marks.failure.get_or_init(|| failure.clone());
        }
        if !matches!(judge.dialect(), Dialect::Any) {
            marks.dialect.get_or_init(|| judge.dialect());
        }
    }
}

fn mark(cell: &AtomicU64) -> Option<u64> {
    let offset = cell.load(Ordering::Acquire);
    (offset != NONE).then_some(offset)
}

fn store(cell: &AtomicU64, offset: Option<u64>) {
    if let Some(offset) = offset {
        cell.store(offset, Ordering::Release);
    }
}

/// The marks of a stream into which bytes are inserted, as layers further out see
/// them: in offsets of what they are handed.
#[derive(Debug)]
pub(crate) struct ShiftedMarks {
    judged: ResponseMarks,
    inserted: u64,
    /// The latest progress that was taken over, as it was marked.
    progressed: u64,
}

impl ShiftedMarks {
    pub(crate) fn new() -> Self {
        Self {
            judged: ResponseMarks::new(),
            inserted: 0,
            progressed: 0,
        }
    }

    pub(crate) const fn judged(&self) -> &ResponseMarks {
        &self.judged
    }

    /// So many bytes are put in behind what was handed on.
    pub(crate) const fn insert(&mut self, bytes: u64) {
        self.inserted += bytes;
    }

    /// Takes over what `inner` has marked within the first `passed` bytes of its
    /// stream, which are handed on. A mark is taken over once: what is put in later
    /// does not move it.
    pub(crate) fn follow(&mut self, inner: &ResponseMarks, passed: u64) {
        let inserted = self.inserted;
        let (ours, theirs) = (&*self.judged.marks, &*inner.marks);
        let shifted = |at: u64| (at <= passed).then(|| at.saturating_add(inserted));
        let offsets = [
            (&ours.commit, &theirs.commit),
            (&ours.error, &theirs.error),
            (&ours.terminator, &theirs.terminator),
        ];
        for (ours, theirs) in offsets {
            if mark(ours).is_none() {
                store(ours, mark(theirs).and_then(shifted));
            }
        }
        // Whoever follows looks whether it has changed.
        let progressed = inner.progressed();
        if std::mem::replace(&mut self.progressed, progressed) != progressed {
            let progressed = progressed.saturating_add(inserted);
            ours.progressed.store(progressed, Ordering::Release);
        }
        copy(&ours.position, &theirs.position);
        copy(&ours.events, &theirs.events);
        copy(&ours.heartbeats, &theirs.heartbeats);
        copy(&ours.sequence, &theirs.sequence);
        copy(&ours.input_tokens, &theirs.input_tokens);
        copy(&ours.output_tokens, &theirs.output_tokens);
        ours.finished.store(inner.is_finished(), Ordering::Release);
        if let Some(dialect) = theirs.dialect.get() {
            ours.dialect.get_or_init(|| *dialect);
        }
        if let Some(failure) = theirs.failure.get() {
            ours.failure.get_or_init(|| failure.clone());
        }
        if let Some(reason) = theirs.stop_reason.get() {
            ours.stop_reason.get_or_init(|| Arc::clone(reason));
        }
        if let Some((id, end)) = theirs.response_id.get() {
            if let Some(end) = shifted(*end) {
                ours.response_id.get_or_init(|| (Arc::clone(id), end));
            }
        }
    }
}

fn copy(to: &AtomicU64, from: &AtomicU64) {
    to.store(from.load(Ordering::Acquire), Ordering::Release);
}
