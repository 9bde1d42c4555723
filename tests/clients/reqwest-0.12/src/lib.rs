//! A client of reqwest 0.12 below a stack of tower-agent's layers, and its builder in front of it.

use bytes::Bytes;
use http::{
    Request, Response,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use http_body::Body;
use tower::{Service, service_fn};
use tower_agent::{BoxError, Run, llm::failure::TransportError};

/// Makes the innermost service of a stack: one that sends requests with a client of `builder`.
///
/// The client makes no retries, and follows no redirects: no layer could count the first, and the
/// second would send a prompt to a host that the program did not choose.
///
/// # Errors
///
/// The errors of `ClientBuilder::build`.
pub fn service<B>(
    builder: reqwest::ClientBuilder,
) -> Result<
    impl Service<
        Request<B>,
        Response = Response<reqwest::Body>,
        Error = BoxError,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static,
    reqwest::Error,
>
where
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    let builder = builder.retry(reqwest::retry::never());
    let client = builder
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    Ok(service_fn(move |mut request: Request<B>| {
        let client = client.clone();
        let run = request.extensions_mut().remove::<Run>();
        async move {
            let request = request.map(reqwest::Body::wrap).try_into()?;
            let answer = client.execute(request).await;
            let answer = answer.map_err(|error| TransportError::new(error.without_url()))?;
            let mut answer = Response::<reqwest::Body>::from(answer);
            let headers = answer.headers_mut();
            // Framing belongs to the connection. A length beside an encoding is not the body's.
            if headers.remove(TRANSFER_ENCODING).is_some() {
                headers.remove(CONTENT_LENGTH);
            }
            // reqwest drops the request's extensions, and the run in them.
            if let Some(run) = run {
                answer.extensions_mut().insert(run);
            }
            Ok(answer)
        }
    }))
}
