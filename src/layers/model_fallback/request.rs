use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Version, header, request::Parts};

use crate::{
    attempt::{Candidate, Operation, RequestTemplate, strip_request_headers, without_credentials},
    body::ReplayBody,
    error::{BoxError, InvalidRequest},
    llm::{FormFields, RequestFields, insert_model, is_form, is_plain},
};

/// The caller's request, from which the layer makes the request of each attempt.
#[derive(Clone)]
pub(crate) struct OriginalRequest {
    template: RequestTemplate,
    body: Bytes,
    content: Content,
    operation: Option<Operation>,
    /// Whether a JSON body without a model gets that of the candidate.
    names_model: bool,
    /// Whether the request of the next attempt takes the head without a clone.
    is_last: bool,
    /// Whether the request's method is POST: the head may be gone once an answer comes.
    is_post: bool,
}

#[derive(Clone, Debug)]
enum Content {
    Nothing,
    Json(RequestFields),
    Form(FormFields),
    /// A form that cannot be read, for this reason.
    UnreadForm(&'static str),
}

impl OriginalRequest {
    /// Reads a request; `operation` is its operation if its path has none.
    pub(crate) fn read(
        request: Request<ReplayBody>,
        operation: Option<Operation>,
    ) -> Result<Self, InvalidRequest> {
        let (mut head, body) = request.into_parts();
        let body = body.into_gathered();
        let content = if body.is_empty() {
            Content::Nothing
        } else {
            match RequestFields::read(&body) {
                Ok(fields) => Content::Json(fields),
                Err(_) if is_form(&head.headers) => match FormFields::read(&head.headers, &body) {
                    Ok(fields) => Content::Form(fields),
                    Err(why) => Content::UnreadForm(why),
                },
                Err(error) => return Err(encoded(&head.headers).unwrap_or(error)),
            }
        };
        let operation = Operation::from_path(head.uri.path()).or(operation);
        strip_request_headers(&mut head.headers);
        // Drop the version of the caller's connection: a client that gets a request with HTTP/2
        // fails at an upstream that does not support it.
        head.version = Version::default();
        let is_post = head.method == Method::POST;
        Ok(Self {
            operation,
            is_post,
            template: RequestTemplate::new(head),
            body,
            content,
            names_model: false,
            is_last: false,
        })
    }

    /// Sets whether a JSON body without a `model` gets that of the candidate.
    pub(super) const fn set_names_model(&mut self, names_model: bool) {
        self.names_model = names_model;
    }

    /// Checks that the candidate's model can be written into the body.
    ///
    /// The body is JSON or, for edits and variations of images, a form that names its model.
    pub(super) fn check_body(&self) -> Result<(), InvalidRequest> {
        let takes_forms = matches!(
            self.operation,
            Some(Operation::ImageEdits | Operation::ImageVariations)
        );
        let message = match &self.content {
            Content::Json(_) => return Ok(()),
            Content::Form(fields) if takes_forms => match fields.model() {
                None if !self.names_model => "the request's form names no `model`".to_owned(),
                _ => return Ok(()),
            },
            Content::UnreadForm(why) if takes_forms => {
                format!("the request's form is unusable: {why}")
            }
            Content::Nothing => "the request body is not JSON: it is empty".to_owned(),
            Content::Form(_) | Content::UnreadForm(_) => {
                "the request body is not JSON: it is a form".to_owned()
            }
        };
        Err(InvalidRequest::new(message))
    }

    /// Sets the number of the next attempt, and whether its request takes the head.
    ///
    /// With `is_last` no other request can be made: the head is moved, and not cloned.
    pub(super) fn prepare(&mut self, number: u32, is_last: bool) {
        self.template.set_attempt(number);
        self.is_last = is_last;
    }

    pub(crate) const fn operation(&self) -> Option<Operation> {
        self.operation
    }

    /// The caller's head, without the headers of its connection; empty once the last attempt's
    /// request has taken it.
    pub(crate) const fn head(&self) -> &Parts {
        self.template.head()
    }

    pub(super) const fn is_post(&self) -> bool {
        self.is_post
    }

    /// The caller's body.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The model that the request's body names, if any.
    pub(crate) fn model(&self) -> Option<&str> {
        match &self.content {
            Content::Json(fields) => fields.model(),
            Content::Form(fields) => fields.model(),
            Content::Nothing | Content::UnreadForm(_) => None,
        }
    }

    /// Whether the request's body asks for a stream.
    pub(crate) const fn streams(&self) -> bool {
        match &self.content {
            Content::Json(fields) => fields.stream(),
            Content::Form(fields) => fields.stream(),
            Content::Nothing | Content::UnreadForm(_) => false,
        }
    }

    /// Whether candidates other than the first may get the request.
    ///
    /// False for a form in which the layer cannot write the candidate's model.
    pub(crate) fn may_move(&self) -> bool {
        match &self.content {
            Content::Json(_) | Content::Nothing => true,
            Content::Form(fields) => fields.model().is_some() || self.names_model,
            Content::UnreadForm(_) => false,
        }
    }

    /// The error for a path of no known operation, to which a base URL cannot be joined.
    ///
    /// The server has to be configured, so this is no [`InvalidRequest`] of the caller.
    pub(crate) fn unknown_operation_error(&self) -> BoxError {
        let path = self.template.head().uri.path();
        format!(
            "no operation of a model is known at {path:?}: set `ModelFallbackLayer::operation`, or \
             add a candidate without a base URL"
        )
        .into()
    }

    fn body_for(&self, model: &str) -> ReplayBody {
        match &self.content {
            Content::Json(fields) if self.names_model && fields.model().is_none() => {
                ReplayBody::spliced(insert_model(&self.body, model))
            }
            Content::Json(fields) => ReplayBody::spliced(fields.splice(&self.body, model)),
            Content::Form(fields) if self.may_move() => {
                ReplayBody::spliced(fields.splice(&self.body, model))
            }
            _ => self.body.clone().into(),
        }
    }
}

impl Candidate {
    /// Makes the request of one attempt; the caller passes `run_id` for a trusted candidate only.
    pub(crate) fn request(
        &self,
        original: &mut OriginalRequest,
        run_id: Option<HeaderValue>,
    ) -> Result<Request<ReplayBody>, BoxError> {
        let destination = match &self.base_url {
            Some(base) => {
                let operation = original
                    .operation
                    .ok_or_else(|| original.unknown_operation_error())?;
                Some((base, operation))
            }
            None => None,
        };
        let body = original.body_for(&self.model);
        let length = body.len();
        let mut request = match original.is_last {
            true => original.template.last(body),
            false => original.template.again(body),
        };
        if let Some((base, operation)) = destination {
            let query = request
                .uri()
                .query()
                .map(|query| match self.hides_credentials() {
                    true => without_credentials(query),
                    false => query.into(),
                });
            let query = query.filter(|query| !query.is_empty());
            *request.uri_mut() = base.join(operation, query.as_deref())?;
        }
        self.write_request_headers(request.headers_mut(), original.operation, run_id, length);
        Ok(request)
    }
}

/// Prints neither the caller's headers nor the prompt: logs must not hold them.
impl fmt::Debug for OriginalRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginalRequest")
            .field("method", &self.template.head().method)
            .field("operation", &self.operation)
            .field("content", &self.content)
            .field("len", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The error for a body that cannot be parsed because it is compressed; `None` for a plain body.
fn encoded(headers: &HeaderMap) -> Option<InvalidRequest> {
    let coding = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?;
    (!is_plain(headers)).then(|| {
        InvalidRequest::new(format!(
            "the request body is not readable as JSON: its content-encoding is {coding:?}"
        ))
    })
}
