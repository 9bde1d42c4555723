//! The caller, and the answer that it got in a few words.

use std::{net::SocketAddr, time::Duration};

use tokio::time::timeout;
use tower::{ServiceBuilder, ServiceExt, service_fn, timeout::TimeoutLayer};
use tower_agent::BoxError;

use crate::upstream::FIRST;

/// How long a caller waits that does not leave earlier.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a caller does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallerPlan {
    /// Reads the answer to its end.
    Reads,
    /// Leaves after this time.
    Leaves(Duration),
    /// Makes so many calls, one after the other, as one turn of an agent.
    Steps(u32),
}

impl CallerPlan {
    /// What it got; `wall_clock` is what a turn may take, if anything limits it.
    pub(crate) async fn ask(
        self,
        client: &reqwest::Client,
        gateway: SocketAddr,
        wall_clock: Option<Duration>,
    ) -> String {
        match self {
            Self::Reads => timeout(PATIENCE, one(client, gateway))
                .await
                .unwrap_or_else(|_| "nothing: gave up".to_owned()),
            Self::Leaves(after) => timeout(after, one(client, gateway))
                .await
                .unwrap_or_else(|_| "left".to_owned()),
            Self::Steps(steps) => {
                let turn = service_fn(|()| async {
                    for _ in 0..steps {
                        one(client, gateway).await;
                    }
                    Ok::<_, BoxError>(format!("{steps} of {steps} steps"))
                });
                let turn = ServiceBuilder::new()
                    .option_layer(wall_clock.map(TimeoutLayer::new))
                    .service(turn);
                let ended = turn.oneshot(()).await;
                ended.unwrap_or_else(|error| format!("killed while it worked: {error}"))
            }
        }
    }
}

/// One call, read to its end, in a few words.
async fn one(client: &reqwest::Client, gateway: SocketAddr) -> String {
    let url = format!("http://{gateway}/v1/chat/completions");
    let body = format!("{{\"model\":\"{FIRST}\",\"stream\":true,\"messages\":[]}}");
    let read = async {
        let request = client.post(url).header("x-run-id", "tour").body(body);
        let answer = request.send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let text = answer.text().await?;
        Ok::<_, reqwest::Error>((status, headers, text))
    };
    let Ok((status, headers, text)) = read.await else {
        return "a broken connection".to_owned();
    };
    let reason = headers
        .get("x-terminal-reason")
        .and_then(|it| it.to_str().ok());
    match reason {
        Some(reason) => format!("{}: {reason}", status.as_u16()),
        None if !status.is_success() => format!("{}: {}", status.as_u16(), short(&text)),
        None if text.contains("step_timeout") => "error event: step_timeout".to_owned(),
        None if text.contains("\"error\"") => "200, and an error in it".to_owned(),
        None if text.contains("[DONE]") => "an answer".to_owned(),
        None => "half an answer".to_owned(),
    }
}

fn short(text: &str) -> &str {
    match text {
        text if text.starts_with('{') => "the upstream's",
        text => text,
    }
}
