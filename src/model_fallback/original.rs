use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Version, header, request::Parts};

use super::{Candidate, Operation, patch::Prompt};
use crate::{body::ReplayBody, terminal_response::InvalidRequest};

/// The caller's request, read once; each attempt is made from it, never from
/// the attempt before.
pub(crate) struct Original {
    head: Parts,
    body: Bytes,
    content: Content,
    operation: Option<Operation>,
}

#[derive(Debug)]
enum Content {
    Nothing,
    Json(Prompt),
    /// A form with files, in which no model is looked for.
    Form,
}

impl Original {
    pub(crate) fn read(request: Request<ReplayBody>) -> Result<Self, InvalidRequest> {
        let (head, body) = request.into_parts();
        let body = body.gathered();
        let content = if body.is_empty() {
            Content::Nothing
        } else {
            match Prompt::read(&body) {
                Ok(prompt) => Content::Json(prompt),
                Err(_) if is_form(&head.headers) => Content::Form,
                Err(error) => return Err(encoded(&head.headers).unwrap_or(error)),
            }
        };
        Ok(Self {
            operation: Operation::from_path(head.uri.path()),
            head,
            body,
            content,
        })
    }

    #[cfg(test)]
    pub(crate) const fn head(&self) -> &Parts {
        &self.head
    }

    pub(crate) const fn operation(&self) -> Option<Operation> {
        self.operation
    }

    /// What a JSON body says of itself.
    pub(crate) const fn prompt(&self) -> Option<&Prompt> {
        match &self.content {
            Content::Json(prompt) => Some(prompt),
            _ => None,
        }
    }

    /// Whether it can be made out to another model. If not, the body names its
    /// model itself, and only the first candidate may be asked.
    pub(crate) const fn patchable(&self) -> bool {
        !matches!(self.content, Content::Form)
    }

    fn body_for(&self, model: &str) -> ReplayBody {
        match &self.content {
            Content::Json(prompt) => prompt.splice(&self.body, model),
            _ => self.body.clone().into(),
        }
    }
}

impl Candidate {
    /// The request of one attempt. `run_id` is for a trusted candidate only.
    pub(crate) fn request(
        &self,
        original: &Original,
        run_id: Option<HeaderValue>,
    ) -> Result<Request<ReplayBody>, InvalidRequest> {
        let mut head = original.head.clone();
        if let Some(base) = &self.base_url {
            let operation = original.operation.ok_or_else(|| {
                let path = head.uri.path();
                InvalidRequest::new(format!("no operation of a model is known at {path:?}"))
            })?;
            head.uri = base.join(operation, head.uri.query())?;
        }
        // That of the caller's connection: a client refuses HTTP/2 where the
        // upstream does not speak it.
        head.version = Version::default();
        let body = original.body_for(&self.model);
        self.dress(&mut head.headers, original.operation, run_id, body.len());
        Ok(Request::from_parts(head, body))
    }
}

/// Neither the caller's headers nor the prompt, which are nobody's business in
/// a log.
impl fmt::Debug for Original {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original")
            .field("method", &self.head.method)
            .field("operation", &self.operation)
            .field("content", &self.content)
            .field("len", &self.body.len())
            .finish_non_exhaustive()
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes)
        .and_then(|kind| kind.split_first_chunk());
    kind.is_some_and(|(kind, _): (&[u8; 10], _)| kind.eq_ignore_ascii_case(b"multipart/"))
}

/// Why a compressed body is not JSON.
fn encoded(headers: &HeaderMap) -> Option<InvalidRequest> {
    let coding = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?;
    (!coding.eq_ignore_ascii_case("identity")).then(|| {
        InvalidRequest::new(format!(
            "the request body is not readable as JSON: its content-encoding is {coding:?}"
        ))
    })
}
