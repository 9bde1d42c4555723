//! The HTTP routes of the simulated upstream.

use std::future;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::answer::SimulatedAnswer;
use super::behavior::{Behavior, FailureMode, MODELS};
use super::error_answer::Refusal;
use super::request::{CREATED, Endpoint, Request};
use super::scripted_body::ScriptBody;
use super::stats::{Stats, StatsPage};
use super::{anthropic_messages, openai_chat, openai_embeddings, openai_images, openai_responses};

/// The name in `GET /stats` of requests that name no simulated model.
const REFUSED: &str = "(refused)";

/// The delay before a unary answer of [`Behavior::Slow`].
const SLOW_ANSWER: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Default)]
struct SimulatedUpstream {
    stats: Stats,
}

/// The upstream as a router with counts of its own, to be served or called by the program.
pub fn router() -> Router {
    let operation = |operation| {
        post(
            move |State(upstream): State<SimulatedUpstream>, body: Bytes| {
                upstream.answer(operation, body)
            },
        )
    };
    Router::new()
        .route("/v1/chat/completions", operation(Endpoint::Chat))
        .route("/v1/responses", operation(Endpoint::Responses))
        .route("/v1/messages", operation(Endpoint::Messages))
        .route(
            "/v1/messages/count_tokens",
            operation(Endpoint::CountTokens),
        )
        .route("/v1/embeddings", operation(Endpoint::Embeddings))
        .route("/v1/images/generations", operation(Endpoint::Images))
        .route("/v1/images/edits", operation(Endpoint::Images))
        .route("/v1/images/variations", operation(Endpoint::Images))
        .route("/v1/models", get(models))
        .route("/stats", get(stats))
        .layer(DefaultBodyLimit::disable())
        .with_state(SimulatedUpstream::default())
}

async fn stats(State(upstream): State<SimulatedUpstream>) -> Json<StatsPage> {
    Json(upstream.stats.snapshot())
}

/// The list of models. It has the fields of both dialects, so that every SDK parses it.
async fn models() -> Json<Value> {
    let data = MODELS.map(|(model, _)| {
        json!({
            "id": model,
            "object": "model",
            "created": CREATED,
            "owned_by": "simulation",
            "type": "model",
            "display_name": model,
            "created_at": "2025-10-09T08:53:20Z",
        })
    });
    Json(json!({
        "object": "list",
        "data": data,
        "has_more": false,
        "first_id": MODELS.first().map(|(model, _)| model),
        "last_id": MODELS.last().map(|(model, _)| model),
    }))
}

impl SimulatedUpstream {
    async fn answer(self, operation: Endpoint, body: Bytes) -> Response {
        let form = (operation == Endpoint::Images).then(|| openai_images::form(&body));
        let request = match form.flatten() {
            Some(request) => Ok(request),
            None => serde_json::from_slice(&body),
        };
        match request {
            Ok(request) => self.generate(operation, &request, &body).await,
            Err(error) => self.refuse(operation, &Refusal::BadJson(error)),
        }
    }

    async fn generate(self, operation: Endpoint, request: &Request, body: &[u8]) -> Response {
        let Some((model, behavior)) = Behavior::of(&request.model) else {
            return self.refuse(operation, &Refusal::UnknownModel(request.model.clone()));
        };
        // From here on a disconnect drops the guard, which counts the request as released.
        let mut open = self.stats.open(model);
        if let Behavior::Failing(how) = behavior {
            open.complete();
            let refused = Refusal::Simulated { model, how };
            return if request.stream && how == FailureMode::OverloadedStream {
                refused.stream(operation)
            } else {
                refused.respond(operation)
            };
        }
        if behavior == Behavior::StallHead {
            future::pending::<()>().await;
        }

        let answer = SimulatedAnswer::new(open.serial, request, behavior, body);
        let events = match operation {
            _ if !request.stream => None,
            Endpoint::Chat => Some(openai_chat::events(&answer)),
            Endpoint::Responses => Some(openai_responses::events(&answer)),
            Endpoint::Messages => Some(anthropic_messages::events(&answer)),
            Endpoint::CountTokens | Endpoint::Embeddings | Endpoint::Images => None,
        };

        let mut headers = head(operation, open.serial);
        let body = if let Some(events) = events {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("text/event-stream; charset=utf-8"),
            );
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            ScriptBody::stream(behavior, events, open)
        } else {
            if behavior == Behavior::Slow {
                sleep(SLOW_ANSWER).await;
            }
            let whole = Bytes::from(whole(operation, request, &answer).to_string());
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            // A unary answer announces its full length, even if it will stall or be cut. Only that
            // of `Ping` announces none, because it never ends.
            if behavior != Behavior::Ping {
                headers.insert(CONTENT_LENGTH, whole.len().into());
            }
            ScriptBody::unary(behavior, whole, open)
        };
        (headers, Body::new(body)).into_response()
    }

    fn refuse(&self, operation: Endpoint, refused: &Refusal) -> Response {
        self.stats.open(REFUSED).complete();
        refused.respond(operation)
    }
}

fn whole(operation: Endpoint, request: &Request, answer: &SimulatedAnswer<'_>) -> Value {
    match operation {
        Endpoint::Chat => openai_chat::whole(answer),
        Endpoint::Responses => openai_responses::whole(answer),
        Endpoint::Messages => anthropic_messages::whole(answer),
        Endpoint::CountTokens => anthropic_messages::count(),
        Endpoint::Embeddings => openai_embeddings::whole(request),
        Endpoint::Images => openai_images::whole(request),
    }
}

/// The headers with the request id, under the dialect's name for it.
fn head(operation: Endpoint, serial: u64) -> HeaderMap {
    let name = match operation {
        Endpoint::Messages | Endpoint::CountTokens => HeaderName::from_static("request-id"),
        _ => HeaderName::from_static("x-request-id"),
    };
    let mut headers = HeaderMap::new();
    if let Ok(id) = format!("req_sim{serial}").parse() {
        headers.insert(name, id);
    }
    headers
}
