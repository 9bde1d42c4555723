use std::sync::Arc;

use crate::{attempt::Candidate, error::InvalidRequest};

/// The candidates that one request may go to, in order; an extension of the request.
///
/// The program sets it. The candidate that the request names as its `model` still goes
/// first, also if the list does not have it. With an empty list the request goes to the
/// named candidate only, or to the first that can serve. A name that no candidate has is an
/// error, an [`InvalidRequest`](crate::error::InvalidRequest).
///
/// ```
/// use tower_agent::CandidateOrder;
///
/// let mut request = http::Request::new(());
/// request
///     .extensions_mut()
///     .insert(CandidateOrder::new(["small", "large"]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CandidateOrder(Arc<[String]>);

impl CandidateOrder {
    /// Makes the list from the [labels](Candidate::label) of candidates, in order.
    pub fn new<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// The positions of these candidates in the layer's list, each once.
    ///
    /// A name finds all candidates that share it: one of them may accept the request's
    /// dialect.
    pub(super) fn find(&self, candidates: &[Arc<Candidate>]) -> Result<Vec<usize>, InvalidRequest> {
        let mut found = Vec::with_capacity(self.0.len());
        for name in &*self.0 {
            let all = candidates.iter().enumerate();
            let named = all.filter(|(_, it)| it.label() == name);
            let mut named = named.map(|(at, _)| at).peekable();
            if named.peek().is_none() {
                return Err(unknown(name, candidates));
            }
            for at in named {
                if !found.contains(&at) {
                    found.push(at);
                }
            }
        }
        Ok(found)
    }
}

fn unknown(name: &str, candidates: &[Arc<Candidate>]) -> InvalidRequest {
    let known: Vec<_> = candidates.iter().map(|it| it.label()).collect();
    let known = known.join(", ");
    InvalidRequest::new(format!(
        "the request's list of candidates names {name:?}, which is none of {known}"
    ))
}
