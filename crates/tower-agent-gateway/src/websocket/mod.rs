//! The Responses API over WebSocket: each `response.create` becomes a POST to the same stack.
//!
//! [`Bridge`] answers the upgrade, [`socket`] is one caller's connection, [`answer`] turns the answer to
//! a call into frames. `docs/websocket.md` has what the clients speak.
//!
//! Every response is a call like one over HTTP: limits, caps, retries, fallbacks and the log see no
//! difference. The bridge adds what belongs to the transport: lanes, the input of the last response of
//! each lane, and responses without a model.

mod answer;
mod client_event;
mod frames;
mod kept;
mod lanes;
mod socket;
mod template;

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequestParts, Request, ws::WebSocketUpgrade},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, header};
use tokio::sync::watch;
use tower::util::BoxCloneSyncService;

use self::{socket::CallerSocket, template::Template};
use crate::{
    config::{MAX_BODY, WebSocketSettings},
    http::{HeldBytes, HeldLimits, SocketMeter, api, owner_of},
};

/// The bytes that a socket reads at a time. An idle one holds a buffer of so many.
const READ_BUFFER: usize = 8 * 1024;

/// The bytes of small frames that are written together.
const WRITE_BUFFER: usize = 8 * 1024;

/// The service to which the calls of a socket go.
pub(crate) type CallService = BoxCloneSyncService<Request<Body>, Response, Infallible>;

/// Answers upgrades to WebSockets, and serves the sockets.
#[derive(Debug)]
pub(crate) struct Bridge {
    pub(crate) service: CallService,
    pub(crate) settings: WebSocketSettings,
    /// The bytes of messages and of kept conversations count among those of request bodies.
    pub(crate) held: HeldBytes,
    pub(crate) limits: HeldLimits,
    /// After so long without a sign of life the caller gets a ping.
    pub(crate) keep_alive: Option<Duration>,
    /// After so long without a head a response gets a sign of life.
    pub(crate) response_keep_alive: Option<Duration>,
    /// How long a message may pause in its middle.
    pub(crate) upload_idle: Option<Duration>,
    pub(crate) leave: LeaveSignals,
}

/// What makes a socket close once it is idle.
#[derive(Clone, Debug)]
pub(crate) struct LeaveSignals {
    /// True from the first signal to stop on.
    pub(crate) draining: watch::Receiver<bool>,
    /// Changes at a reload: what was checked at the upgrade may be another then.
    pub(crate) reloads: watch::Receiver<u64>,
}

/// Whether a client asks for a WebSocket: over HTTP/1.1, as HTTP/2 has no such request here.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(header::UPGRADE).into_iter();
    let mut asked = asked.filter_map(|value| value.to_str().ok());
    asked.any(|value| {
        let mut protocols = value.split(',').map(str::trim);
        protocols.any(|protocol| protocol.eq_ignore_ascii_case("websocket"))
    })
}

impl Bridge {
    /// Answers an upgrade: with a 101, or with an error in the shape of the API.
    pub(crate) async fn upgrade(self: Arc<Self>, request: Request) -> Response {
        let (mut parts, _) = request.into_parts();
        let upgrade = match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
            Ok(upgrade) => upgrade,
            Err(rejection) => {
                let message = rejection.body_text();
                let status = rejection.into_response().status();
                let asked = (&parts.uri, &parts.headers);
                return api::error(asked, status, "invalid_upgrade", &message);
            }
        };
        let owner = owner_of(&parts.extensions, &parts.headers);
        // Without an announced length there is always room for none.
        let charge = match self.held.open(owner, self.limits, 0) {
            Ok(charge) => charge,
            Err(full) => {
                let asked = (&parts.uri, &parts.headers);
                let status = http::StatusCode::SERVICE_UNAVAILABLE;
                return api::error(asked, status, "upload_buffer_full", &full.to_string());
            }
        };
        let meter = parts.extensions.remove::<SocketMeter>();
        let template = Template::new(parts);
        upgrade
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(WRITE_BUFFER)
            .max_message_size(MAX_BODY)
            .max_frame_size(MAX_BODY)
            .on_failed_upgrade(|error| tracing::debug!(%error, "an upgrade failed"))
            .on_upgrade(move |socket| {
                CallerSocket::new(socket, self, template, charge, meter).run()
            })
    }
}

#[cfg(test)]
mod tests {
    //! covers: H13

    use futures_util::{SinkExt, StreamExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_tungstenite::{client_async, tungstenite::Message};

    use crate::{Config, Runs, app, background::BackgroundTask};

    /// A program that serves the routes by itself may keep nothing but the router.
    #[tokio::test]
    async fn the_routes_serve_sockets_under_another_server() {
        let candidate = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
        let config = Config::parse(candidate, "test").unwrap();
        let router = app(&config, &Runs::new()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let _server = BackgroundTask::spawn(async move {
            axum::serve(listener, router).await.unwrap();
        });
        let stream = TcpStream::connect(addr).await.unwrap();
        let url = format!("ws://{addr}/v1/responses");
        let (mut socket, _) = client_async(url, stream).await.unwrap();
        for _ in 0..2 {
            let create = r#"{"type":"response.create","model":"m","generate":false}"#;
            socket.send(Message::text(create)).await.unwrap();
            for kind in ["response.created", "response.completed"] {
                let event = socket.next().await.unwrap().unwrap();
                assert!(event.to_text().unwrap().contains(kind), "{event}");
            }
        }
    }
}
