//! The model, as the agent sees it: chat completions over HTTP.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::{Service, ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_agent::{BoxError, HardCeilingLayer, Run, StepTimeoutLayer};
use tower_agent_reqwest::ReqwestService;

use crate::{CALL_LIMIT, SILENCE};

type Client = BoxCloneSyncService<Request<Full<Bytes>>, Response<Bytes>, BoxError>;

/// One model behind a gateway.
#[derive(Debug)]
pub(crate) struct ChatModel {
    client: Client,
    url: Uri,
    name: &'static str,
}

/// What the model wants next.
#[derive(Debug)]
pub(crate) enum Reply {
    Text(String),
    /// To be run at once, all of them in one turn. `said` goes into the history.
    Tools {
        said: Value,
        calls: Vec<WantedTool>,
    },
    /// No model was asked, or none answered.
    Refused(GatewayRefusal),
}

/// What the gateway said instead of an answer.
#[derive(Debug)]
pub(crate) struct GatewayRefusal {
    /// Why the run is over, if it is.
    pub(crate) reason: Option<String>,
    pub(crate) message: String,
    status: StatusCode,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct WantedTool {
    pub(crate) id: String,
    pub(crate) function: Function,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// JSON, as text.
    pub(crate) arguments: String,
}

impl GatewayRefusal {
    /// As [`Terminated::exit_code`](tower_agent::Terminated::exit_code), which knows more
    /// than the gateway says.
    pub(crate) fn exit_code(&self) -> u8 {
        match (&self.reason, self.status) {
            (Some(_), StatusCode::UNPROCESSABLE_ENTITY) => 122,
            (Some(_), StatusCode::GATEWAY_TIMEOUT) => 124,
            (Some(reason), _) if ["aborted", "superseded", "shutdown"].contains(&&**reason) => 130,
            _ => 1,
        }
    }
}

impl ChatModel {
    pub(crate) fn new(gateway: &str, name: &'static str) -> Result<Self, BoxError> {
        let client = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(CALL_LIMIT))
            .layer(StepTimeoutLayer::new(SILENCE))
            .service(ReqwestService::new(reqwest::Client::builder())?)
            .map_request(|request: Request<Full<Bytes>>| request)
            .and_then(read_whole);
        Ok(Self {
            client: BoxCloneSyncService::new(client),
            url: format!("{gateway}/v1/chat/completions").parse()?,
            name,
        })
    }

    /// One turn: asks with the whole history.
    pub(crate) async fn ask(
        &self,
        run: &Run,
        history: &[Value],
        tools: &Value,
    ) -> Result<Reply, BoxError> {
        let body = json!({"model": self.name, "messages": history, "tools": tools});
        let mut request = Request::post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        // By this id the gateway knows which requests are one run, and caps it.
        let id = HeaderValue::try_from(run.id().to_string())?;
        request.headers_mut().insert("x-run-id", id);
        let mut client = self.client.clone();
        let answer = client.ready().await?.call(run.attach(request)).await?;
        let text = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
        let said: Value = serde_json::from_slice(answer.body())?;
        if !answer.status().is_success() {
            let message = said["error"]["message"].as_str().unwrap_or("no message");
            return Ok(Reply::Refused(GatewayRefusal {
                reason: text("x-terminal-reason"),
                message: message.to_owned(),
                status: answer.status(),
            }));
        }
        read(&said["choices"][0]["message"])
    }
}

async fn read_whole<B>(answer: Response<B>) -> Result<Response<Bytes>, BoxError>
where
    B: Body<Data = Bytes, Error = BoxError>,
{
    let (parts, body) = answer.into_parts();
    let whole = body.collect().await?.to_bytes();
    Ok(Response::from_parts(parts, whole))
}

fn read(said: &Value) -> Result<Reply, BoxError> {
    match said.get("tool_calls") {
        Some(calls) => Ok(Reply::Tools {
            calls: Vec::deserialize(calls)?,
            said: said.clone(),
        }),
        None => Ok(Reply::Text(
            said["content"].as_str().unwrap_or_default().to_owned(),
        )),
    }
}
