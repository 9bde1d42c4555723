//! The requests of the command line.

use std::{path::PathBuf, time::Duration};

use http::{HeaderValue, Request, Uri, header};
use serde_json::Value;
use tokio::time::timeout;
use tower::ServiceExt;
use tower_agent::{BoxError, ReplayBody};
use tower_agent_hyper::{HyperService, UpstreamProxy};

use crate::{
    config::secret_file,
    http_client::{Roots, causes, http_client, read_at_most},
};

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

/// The variable that holds the control token, unless a flag names another place.
const TOKEN: &str = "TOWER_AGENT_TOKEN";

/// Where the control token is, as the flags say.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    /// The environment variable that holds the control token; without it TOWER_AGENT_TOKEN, if that is
    /// set.
    #[arg(long, value_name = "VARIABLE")]
    token_env: Option<String>,
    /// The file that holds the control token.
    #[arg(long, value_name = "FILE", conflicts_with = "token_env")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// The header that carries the token; `None` if there is no token.
    ///
    /// # Errors
    ///
    /// The variable or the file that a flag names cannot be read, or what was read is no token.
    fn header(&self) -> Result<Option<HeaderValue>, BoxError> {
        let (place, token) = if let Some(path) = &self.token_file {
            let place = format!("--token-file: {}", path.display());
            let token = secret_file(path).map_err(|why| format!("{place}: {why}"))?;
            (place, token)
        } else if let Some(variable) = &self.token_env {
            let place = format!("--token-env: the environment variable {variable}");
            let token = std::env::var(variable).map_err(|_| format!("{place} is not set"))?;
            (place, token)
        } else {
            let token = std::env::var(TOKEN).unwrap_or_default();
            if token.is_empty() {
                return Ok(None);
            }
            (format!("the environment variable {TOKEN}"), token)
        };
        let header = HeaderValue::try_from(format!("Bearer {token}"));
        let header = header.ok().filter(|_| !token.trim().is_empty());
        let mut header = header.ok_or_else(|| format!("{place} holds no token"))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl OperatorClient {
    pub(super) fn new(url: &str, token: &TokenArgs) -> Result<Self, BoxError> {
        // A text that is no URL fails at its first request.
        let parsed = url.parse().ok();
        let roots = Roots::of(&parsed);
        Ok(Self {
            client: http_client(&UpstreamProxy::default(), roots)?,
            url: url.trim_end_matches('/').to_owned(),
            token: token.header()?,
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
        let message = message.unwrap_or_else(text);
        let mut why = format!("{status}: {message}");
        if self.token.is_none() && message.contains("control token") {
            why.push_str(&format!("; --token-env, --token-file or {TOKEN} gives it"));
        }
        Err(unreachable(why).into())
    }
}
