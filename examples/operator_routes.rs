//! An axum server whose callers have keys, and whose operator lists, ends and freezes runs.
//!
//! ```text
//! KEYS=anna:sk-anna,ben:sk-ben cargo run --all-features --example operator_routes -- http://127.0.0.1:8000/v1
//! ```
//!
//! Callers use the first address, with `authorization: Bearer sk-anna`. The second address is the
//! operator's, and must be one that no caller reaches:
//!
//! ```text
//! curl OPERATOR/runs
//! curl -X POST OPERATOR/runs/RUN/abort
//! curl -X POST OPERATOR/freeze/ben
//! ```

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use tower_agent::{
    AbortOutcome, AgentStack, BoxError, Candidate, Owner, OwnerCaps, RetryBudget, RunId,
    RunRegistry, RunSnapshot,
};
use tower_agent_reqwest::ReqwestService;

/// The name of the caller of each key.
type Keys = Arc<HashMap<String, String>>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt::init(); // Why each call ended is in the log.
    // reqwest's default features bring a provider along; those of this repository do not.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let upstream = std::env::args().nth(1).ok_or("give the upstream's URL")?;
    let keys = keys(&std::env::var("KEYS")?)?;

    let registry = RunRegistry::new();
    let callers = callers(&registry, keys, &upstream, &["large", "small"])?;
    let for_callers = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let for_operator = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("callers at http://{}", for_callers.local_addr()?);
    println!("operator at http://{}", for_operator.local_addr()?);
    tokio::try_join!(async { axum::serve(for_callers, callers).await }, async {
        axum::serve(for_operator, operator(&registry)).await
    },)?;
    Ok(())
}

/// Reads `name:key` pairs with commas between them.
fn keys(pairs: &str) -> Result<Keys, BoxError> {
    let pair = |pair: &str| {
        let (name, key) = pair
            .split_once(':')
            .ok_or("KEYS must be name:key,name:key")?;
        Ok::<_, BoxError>((key.to_owned(), name.to_owned()))
    };
    Ok(Arc::new(
        pairs.split(',').map(pair).collect::<Result<_, _>>()?,
    ))
}

/// What the callers reach: each gets its own runs, and caps over all of them.
fn callers(
    registry: &RunRegistry,
    keys: Keys,
    upstream: &str,
    models: &[&str],
) -> Result<Router, BoxError> {
    let candidate = |name: &&str| Candidate::new(*name).base_url(upstream);
    let candidates = models
        .iter()
        .map(candidate)
        .collect::<Result<Vec<_>, _>>()?;
    let names = keys.clone();
    let stack = AgentStack::server(registry)
        // The owner is the name and not the key, so that a run survives a new key of its caller.
        .runs(move |layer| {
            layer.owner_by(move |parts| match caller(&names, &parts.headers) {
                Some(name) => owner(name),
                None => Owner::default(),
            })
        })
        .owner_caps(OwnerCaps::new().max_open_runs(20))
        .ceiling(Duration::from_secs(1800))
        .max_turns(40)
        .fallback(candidates)
        .retry(RetryBudget::new())
        .step(Duration::from_secs(120))
        .service(ReqwestService::new(reqwest::Client::builder())?);
    let router = Router::new().fallback_service(stack);
    Ok(router.layer(from_fn_with_state(keys, admit)))
}

/// Refuses a request without a known key, before it opens a run.
async fn admit(State(keys): State<Keys>, request: Request, next: Next) -> Response {
    match caller(&keys, request.headers()) {
        Some(_) => next.run(request).await,
        None => (StatusCode::UNAUTHORIZED, "unknown key").into_response(),
    }
}

fn caller<'a>(keys: &'a Keys, headers: &HeaderMap) -> Option<&'a str> {
    let key = headers.get(AUTHORIZATION)?.to_str().ok()?;
    keys.get(key.strip_prefix("Bearer ")?).map(String::as_str)
}

fn owner(name: &str) -> Owner {
    Owner::of(name.as_bytes())
}

/// What the operator reaches.
fn operator(registry: &RunRegistry) -> Router {
    Router::new()
        .route("/runs", get(list))
        .route("/runs/{id}/abort", post(abort))
        .route("/freeze/{name}", post(freeze))
        .with_state(registry.clone())
}

/// The runs, with what each of them has spent, and the reason of its end.
async fn list(State(runs): State<RunRegistry>) -> Json<Vec<RunSnapshot>> {
    Json(runs.list())
}

/// Ends a run: its calls upstream and its tools stop, and its caller reads the reason.
async fn abort(State(runs): State<RunRegistry>, Path(id): Path<String>) -> StatusCode {
    let Ok(id) = id.parse::<RunId>() else {
        return StatusCode::BAD_REQUEST;
    };
    match runs.abort_for_all(&id) {
        AbortOutcome::Unknown => StatusCode::NOT_FOUND,
        AbortOutcome::AlreadyOver => StatusCode::CONFLICT,
        _ => StatusCode::OK,
    }
}

/// Admits no new runs of a caller; those that are open go on.
async fn freeze(State(runs): State<RunRegistry>, Path(name): Path<String>) -> StatusCode {
    match runs.freeze(owner(&name)) {
        true => StatusCode::OK,
        false => StatusCode::CONFLICT,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    /// Asks `service`, and returns the status, the reason of the run's end and the body.
    async fn ask(service: &Router, request: http::Request<Body>) -> (u16, String, String) {
        let answer = service.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let reason = answer.headers().get("x-terminal-reason");
        let reason = reason.map_or("", |it| it.to_str().unwrap()).to_owned();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, reason, String::from_utf8(body.to_vec()).unwrap())
    }

    fn turn(key: &str, run: &str, model: &str) -> http::Request<Body> {
        let asks =
            format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}"#);
        let request = http::Request::post("/v1/chat/completions");
        let request = request.header("authorization", format!("Bearer {key}"));
        let request = request.header("x-run-id", run);
        let request = request.header("content-type", "application/json");
        request.body(Body::from(asks)).unwrap()
    }

    fn command(method: &str, path: &str) -> http::Request<Body> {
        let request = http::Request::builder().method(method).uri(path);
        request.body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn the_operator_sees_ends_and_freezes_runs_of_callers() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let upstream = tower_agent_simulator::spawn().await.unwrap();
        let registry = RunRegistry::new();
        let keys = keys("anna:sk-anna,ben:sk-ben").unwrap();
        let upstream = format!("http://{upstream}/v1");
        let models = ["sim-healthy", "sim-stall-head"];
        let callers = callers(&registry, keys, &upstream, &models).unwrap();
        let operator = operator(&registry);

        // Without a key nothing is opened; with one, each caller has a run of its own.
        let (status, _, _) = ask(&callers, turn("sk-other", "task", "sim-healthy")).await;
        assert_eq!((status, registry.list().len()), (401, 0));
        for key in ["sk-anna", "sk-ben"] {
            let (status, _, _) = ask(&callers, turn(key, "task", "sim-healthy")).await;
            assert_eq!(status, 200, "{key}");
        }
        let (_, _, listed) = ask(&operator, command("GET", "/runs")).await;
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let runs = listed.as_array().unwrap();
        assert_eq!(runs.len(), 2, "{listed}");
        assert!(runs.iter().all(|run| run["run"] == "task"), "{listed}");
        assert_ne!(runs[0]["owner"], runs[1]["owner"]);

        // A call that hangs ends with its run.
        let hung = callers.clone();
        let hung = async { ask(&hung, turn("sk-anna", "hung", "sim-stall-head")).await };
        let ended = async {
            while registry.find(&"hung".parse().unwrap()).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ask(&operator, command("POST", "/runs/hung/abort")).await.0
        };
        let ((_, reason, _), status) = tokio::join!(hung, ended);
        assert_eq!((reason.as_str(), status), ("aborted", 200));
        let again = ask(&operator, command("POST", "/runs/hung/abort")).await.0;
        assert_eq!(again, 409);
        assert_eq!(
            ask(&operator, command("POST", "/runs/none/abort")).await.0,
            404
        );

        // New runs of one caller are refused; its open one goes on, and so do the others'.
        assert_eq!(ask(&operator, command("POST", "/freeze/ben")).await.0, 200);
        assert_eq!(
            ask(&callers, turn("sk-ben", "new", "sim-healthy")).await.0,
            503
        );
        assert_eq!(
            ask(&callers, turn("sk-ben", "task", "sim-healthy")).await.0,
            200
        );
        assert_eq!(
            ask(&callers, turn("sk-anna", "new", "sim-healthy")).await.0,
            200
        );
    }
}
