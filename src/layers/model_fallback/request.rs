use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Version, header, request::Parts};

use crate::{
    attempt::{Candidate, Operation, RequestTemplate, undress, without_credentials},
    body::ReplayBody,
    error::InvalidRequest,
    llm::Prompt,
};

/// The caller's request, read once; each attempt is made from it, never from
/// the attempt before.
#[derive(Clone)]
pub(crate) struct OriginalRequest {
    kept: RequestTemplate,
    body: Bytes,
    content: Content,
    operation: Option<Operation>,
}

#[derive(Clone, Debug)]
enum Content {
    Nothing,
    Json(Prompt),
    /// A form with files, in which no model is looked for.
    Form,
}

impl OriginalRequest {
    pub(crate) fn read(request: Request<ReplayBody>) -> Result<Self, InvalidRequest> {
        let (mut head, body) = request.into_parts();
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
        let operation = Operation::from_path(head.uri.path());
        undress(&mut head.headers);
        // That of the caller's connection: a client refuses HTTP/2 where the
        // upstream does not speak it.
        head.version = Version::default();
        Ok(Self {
            operation,
            kept: RequestTemplate::new(head),
            body,
            content,
        })
    }

    pub(crate) const fn operation(&self) -> Option<Operation> {
        self.operation
    }

    /// The caller's, but for the headers of its connection.
    pub(crate) const fn head(&self) -> &Parts {
        self.kept.head()
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

    /// Why it can be sent to no upstream but the caller's own.
    pub(crate) fn unknown(&self) -> InvalidRequest {
        let path = self.kept.head().uri.path();
        InvalidRequest::new(format!("no operation of a model is known at {path:?}"))
    }

    fn body_for(&self, model: &str) -> ReplayBody {
        match &self.content {
            Content::Json(prompt) => ReplayBody::spliced(prompt.splice(&self.body, model)),
            _ => self.body.clone().into(),
        }
    }
}

impl Candidate {
    /// The request of one attempt. `run_id` is for a trusted candidate only.
    pub(crate) fn request(
        &self,
        original: &mut OriginalRequest,
        run_id: Option<HeaderValue>,
    ) -> Result<Request<ReplayBody>, InvalidRequest> {
        let body = original.body_for(&self.model);
        let length = body.len();
        let mut request = original.kept.again(body);
        if let Some(base) = &self.base_url {
            let operation = original.operation.ok_or_else(|| original.unknown())?;
            let query = request
                .uri()
                .query()
                .map(|query| match self.is_sent_no_account() {
                    true => without_credentials(query),
                    false => query.into(),
                });
            let query = query.filter(|query| !query.is_empty());
            *request.uri_mut() = base.join(operation, query.as_deref())?;
        }
        self.dress(request.headers_mut(), original.operation, run_id, length);
        Ok(request)
    }
}

/// Neither the caller's headers nor the prompt, which are nobody's business in
/// a log.
impl fmt::Debug for OriginalRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original")
            .field("method", &self.kept.head().method)
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
