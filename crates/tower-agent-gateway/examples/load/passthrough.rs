//! What a proxy costs that does nothing: the gateway's server and client without the gateway.

use std::net::SocketAddr;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use reqwest::Client;
use tower_agent::BoxError;

#[derive(Clone, Debug)]
struct Forwarder {
    client: Client,
    address: SocketAddr,
}

/// Forwards each request to `address`, with its body unread, and returns the answer as it comes.
pub(crate) fn app(address: SocketAddr) -> Result<Router, BoxError> {
    // The client as the gateway builds it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .build()?;
    let forwarder = Forwarder { client, address };
    Ok(Router::new().fallback(forward).with_state(forwarder))
}

async fn forward(State(forwarder): State<Forwarder>, request: Request) -> Response {
    match forwarder.ask(request).await {
        Ok(answer) => answer,
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

impl Forwarder {
    async fn ask(&self, request: Request) -> Result<Response, BoxError> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = format!("http://{}{path}", self.address).parse::<Uri>()?;
        of_connection(&mut parts.headers);
        parts.headers.remove(header::HOST);
        let request =
            Request::from_parts(parts, reqwest::Body::wrap_stream(body.into_data_stream()));
        let answer = self.client.execute(request.try_into()?).await?;
        let mut answer = axum::http::Response::<reqwest::Body>::from(answer).map(Body::new);
        of_connection(answer.headers_mut());
        Ok(answer)
    }
}

/// Removes the headers that describe one connection.
fn of_connection(headers: &mut HeaderMap) {
    headers.remove(header::CONNECTION);
    headers.remove(header::TRANSFER_ENCODING);
}
