//! The requests of the command line.

use std::time::Duration;

use http::{HeaderValue, Request, Uri, header};
use serde_json::Value;
use tokio::time::timeout;
use tower::ServiceExt;
use tower_agent::{BoxError, ReplayBody};
use tower_agent_hyper::{HyperService, UpstreamProxy};

use crate::http_client::{Roots, causes, http_client, read_at_most};

/// The longest that the gateway is waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// The most bytes of an answer that are read.
const MOST: usize = 64 << 20;

/// A client of a gateway's routes.
pub(super) struct OperatorClient {
    client: HyperService,
    url: String,
    token: Option<HeaderValue>,
}

impl OperatorClient {
    pub(super) fn new(url: &str, token_env: Option<&str>) -> Result<Self, BoxError> {
        let token = token_env.map(|variable| {
            let token = std::env::var(variable).map_err(|_| {
                format!("--token-env: the environment variable {variable} is not set")
            })?;
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value = value.map_err(|_| {
                format!("--token-env: the environment variable {variable} holds no token")
            })?;
            value.set_sensitive(true);
            Ok::<_, BoxError>(value)
        });
        // A text that is no URL fails at its first request.
        let parsed = url.parse().ok();
        let roots = Roots::of(&parsed);
        Ok(Self {
            client: http_client(&UpstreamProxy::default(), roots)?,
            url: url.trim_end_matches('/').to_owned(),
            token: token.transpose()?,
        })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, BoxError> {
        self.send("GET", path, None).await
    }

    /// Sends a request, and reads the JSON of its answer.
    ///
    /// # Errors
    ///
    /// The gateway cannot be reached, or its answer is an error or no JSON.
    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, BoxError> {
        let url = format!("{}{path}", self.url);
        let uri: Uri = url
            .parse()
            .map_err(|error| format!("--url: {url}: {error}"))?;
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                ReplayBody::from(body.to_string())
            }
            None => ReplayBody::default(),
        };
        let answered = async {
            let answer = self.client.clone().oneshot(request.body(body)?).await?;
            let status = answer.status();
            let body = read_at_most(answer.into_body(), MOST).await?;
            Ok::<_, BoxError>((status, body.ok_or("its answer is too long")?))
        };
        let unreachable = |why: String| format!("{}: {why}", self.url);
        let answered = timeout(LIMIT, answered).await;
        let answered = answered.map_err(|_| unreachable(format!("no answer within {LIMIT:?}")))?;
        let (status, body) = answered.map_err(|error| unreachable(causes(&*error)))?;
        let json = serde_json::from_slice::<Value>(&body);
        if status.is_success() {
            return json.map_err(|error| unreachable(format!("no JSON: {error}")).into());
        }
        let message = json
            .ok()
            .and_then(|it| Some(it["error"]["message"].as_str()?.to_owned()));
        let text = || String::from_utf8_lossy(&body).trim().to_owned();
        Err(unreachable(format!("{status}: {}", message.unwrap_or_else(text))).into())
    }
}
