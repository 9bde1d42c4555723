//! The seam between async-openai and a stack of tower-agent's layers.

use async_openai::{
    Client, config::OpenAIConfig, error::OpenAIError, middleware::HttpRequestFactory,
};
use bytes::Bytes;
use serde_json::Value;
use tower::{Service, ServiceExt, service_fn};
use tower_agent::{BoxError, Run, TerminalReason};

/// Makes a client that sends its requests through `stack`.
///
/// The outermost layer of `stack` should be a `TerminalResponseLayer`: the client keeps nothing of
/// an error in a body but its text. A request belongs to the run in whose scope it is sent.
pub fn client<S, B>(config: OpenAIConfig, stack: S) -> Client<OpenAIConfig>
where
    S: Service<http::Request<reqwest::Body>, Response = http::Response<B>>,
    S: Clone + Send + Sync + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    let service = service_fn(move |factory: HttpRequestFactory| {
        let (stack, run) = (stack.clone(), Run::current());
        async move {
            let mut request = http::Request::try_from(factory.build().await?)?;
            if let Some(run) = run {
                request = run.attach(request);
            }
            let answer = stack.oneshot(request).await;
            let answer = answer.map_err(|error| OpenAIError::Boxed(error.into()))?;
            Ok::<_, OpenAIError>(answer.map(reqwest::Body::wrap).into())
        }
    });
    Client::with_config(config).with_http_service(service)
}

/// The terminal reason of the cut that caused `error`; `None` if no cut did.
pub fn reason_of(error: &OpenAIError) -> Option<TerminalReason> {
    let in_text = |text: &str| {
        let said: Value = serde_json::from_str(text).ok()?;
        Some(said["error"]["code"].as_str()?.to_owned())
    };
    let code = match error {
        // The client does not read the body of a 5xx; its message is that body.
        OpenAIError::ApiError(answer) => {
            let answer = &answer.api_error;
            answer.code.clone().or_else(|| in_text(&answer.message))?
        }
        // The error event of a cut stream, which is no chunk of an answer.
        OpenAIError::JSONDeserialize(_, event) => in_text(event)?,
        OpenAIError::Boxed(error) => return TerminalReason::find(&**error).cloned(),
        _ => return None,
    };
    code.parse().ok()
}
