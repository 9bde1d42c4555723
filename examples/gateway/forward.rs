use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use serde::de::IgnoredAny;
use tower::Service;
use tower_agent::{
    BoxError, Run,
    adapter::reqwest::{ReqwestBody, ReqwestService},
    client_disconnect::RequestCut,
    sse::Dialect,
    terminal_response::InvalidRequest,
};

use crate::config::{self, Candidate, Config};

/// The largest request body, in bytes.
const MAX_BODY: usize = 32 * 1024 * 1024;

/// Headers of one connection, which are never handed on.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers of the caller that a candidate must not see.
const PRIVATE: [&str; 8] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "cookie",
    "host",
    "x-run-id",
    "x-session-id",
];

/// Sends a request to the candidate, body and model unchanged.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    client: ReqwestService,
    candidate: Arc<Candidate>,
}

impl Forward {
    pub(crate) fn new(config: &Config) -> Result<Self, BoxError> {
        Ok(Self {
            client: ReqwestService::new(reqwest::Client::builder().tcp_nodelay(true))?,
            candidate: Arc::new(config.candidate.clone()),
        })
    }
}

impl Service<Request<Body>> for Forward {
    type Response = Response<ReqwestBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Request<Full<Bytes>>>::poll_ready(&mut self.client, cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let candidate = Arc::clone(&self.candidate);
        // The clone that stays has not been asked whether it is ready.
        let next = self.client.clone();
        let mut client = std::mem::replace(&mut self.client, next);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            // Up front: an unread body would hide that the caller has left.
            // The caller's time, not the upstream's silence.
            let uploading = parts.extensions.get::<Run>().map(Run::pause);
            let body = Limited::new(body, MAX_BODY).collect().await;
            let body = body.map_err(unread)?.to_bytes();
            drop(uploading);
            if parts.method == Method::POST {
                let json: Result<IgnoredAny, _> = serde_json::from_slice(&body);
                json.map_err(|error| {
                    InvalidRequest::new(format!("the request body is not JSON: {error}"))
                })?;
            }
            let dialect = Dialect::from_path(parts.uri.path());
            speaks(&candidate, dialect)?;
            parts.uri = target(&candidate.base_url, &parts.uri)?;
            let run = parts.extensions.get::<Run>();
            parts.headers = outgoing(&parts.headers, &candidate, dialect, run)?;
            let mut answer = client
                .call(Request::from_parts(parts, Full::new(body)))
                .await?;
            strip_hop(answer.headers_mut());
            Ok(answer)
        })
    }
}

/// Too large is the caller's fault; anything else means that it has left.
fn unread(error: BoxError) -> BoxError {
    if error.is::<LengthLimitError>() {
        return error;
    }
    RequestCut::new(error).into()
}

/// Whether the candidate understands what it would be sent.
fn speaks(candidate: &Candidate, asked: Dialect) -> Result<(), InvalidRequest> {
    let anthropic = matches!(asked, Dialect::Anthropic);
    let (understood, spoken) = match candidate.dialect {
        config::Dialect::Any => return Ok(()),
        config::Dialect::OpenAi => (!anthropic, "openai"),
        config::Dialect::Anthropic => (anthropic, "anthropic"),
    };
    if understood {
        return Ok(());
    }
    let asked = if anthropic { "anthropic" } else { "openai" };
    Err(InvalidRequest::new(format!(
        "the request is in the {asked} dialect, and the only candidate, {}, speaks {spoken}",
        candidate.name
    )))
}

/// The candidate's base URL, the operation, and the caller's query.
fn target(base: &Uri, asked: &Uri) -> Result<Uri, BoxError> {
    let path = asked.path();
    let operation = path.strip_prefix("/v1").unwrap_or(path);
    let query = asked
        .query()
        .map_or_else(String::new, |query| format!("?{query}"));
    let base = base.to_string();
    Ok(format!("{}{operation}{query}", base.trim_end_matches('/')).parse()?)
}

fn outgoing(
    incoming: &HeaderMap,
    candidate: &Candidate,
    dialect: Dialect,
    run: Option<&Run>,
) -> Result<HeaderMap, BoxError> {
    let mut headers = incoming.clone();
    strip_hop(&mut headers);
    for name in PRIVATE {
        headers.remove(name);
    }
    // The transport counts the body itself.
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("identity"),
    );
    if let Some(key) = &candidate.api_key {
        let (name, value) = match dialect {
            Dialect::Anthropic => (
                HeaderName::from_static("x-api-key"),
                key.expose().to_owned(),
            ),
            _ => (header::AUTHORIZATION, format!("Bearer {}", key.expose())),
        };
        let mut value = HeaderValue::try_from(value)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    if let (true, Some(run)) = (candidate.trusted, run) {
        headers.insert("x-run-id", HeaderValue::try_from(run.id().to_string())?);
    }
    Ok(headers)
}

/// Removes what belongs to one connection, and what `connection` names.
fn strip_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in &named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}
