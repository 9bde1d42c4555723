use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{ResponseMarks, mark, store};

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
