use http::Request;

use crate::{
    body::ReplayBody,
    llm::History,
    run::Run,
    supervise::{RequestReader, dialect_of},
};

/// Tells the run what its requests say of tools.
#[derive(Debug)]
pub struct HistoryReader(pub(super) Run);

impl<A> RequestReader<A> for HistoryReader {
    type Answer = A;

    fn run(&self) -> &Run {
        &self.0
    }

    /// The run may end for it, which is asked next.
    fn read(&self, request: &Request<ReplayBody>) -> Option<A> {
        let body = request.body().gathered();
        let dialect = dialect_of(request);
        if let Some(history) = History::read(&dialect, &body, &self.0.places()) {
            self.0.follow(&history);
        }
        None
    }

    fn pass(answer: A) -> A {
        answer
    }
}
