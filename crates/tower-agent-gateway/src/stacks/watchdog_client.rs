//! `[watchdog]`: asks services over HTTP about runs that look stuck.

use http::{Method, Request, Uri, header};
use serde::{Serialize, de::DeserializeOwned};
use tower::{Service, ServiceExt, service_fn};
use tower_agent::{BoxError, ReplayBody, RunRegistry, Watchdog};
use tower_agent_hyper::HyperService;

use crate::{
    config::Config,
    http_client::{Roots, http_client, read_at_most},
};

/// The most bytes of an answer that are read; a longer answer is an error.
const MOST: usize = 64 * 1024;

/// Builds the watchdog of a registry's runs; `None` if the configuration has none.
///
/// # Errors
///
/// If the HTTP client cannot be built.
pub(crate) fn watchdog(
    config: &Config,
    registry: &RunRegistry,
) -> Result<Option<Watchdog>, BoxError> {
    let proxy = &config.proxy;
    let Some(config) = &config.watchdog else {
        return Ok(None);
    };
    let urls = [&config.checker, &config.question].into_iter().flatten();
    let client = http_client(proxy, Roots::of(urls))?;
    let mut watchdog = Watchdog::new(registry).ends(config.ends);
    if let Some(url) = &config.checker {
        watchdog = watchdog.checker(asked(&client, url));
    }
    if let Some(limit) = config.check_within {
        watchdog = watchdog.check_within(limit);
    }
    if let Some(url) = &config.question {
        watchdog = watchdog.question(asked(&client, url));
    }
    if let Some(limit) = config.answer_within {
        watchdog = watchdog.answer_within(limit);
    }
    Ok(Some(match config.observe {
        true => watchdog.shadow(),
        false => watchdog,
    }))
}

/// A service that posts each question to `url` as JSON, and reads the answer as JSON.
fn asked<Q, A>(
    client: &HyperService,
    url: &Uri,
) -> impl Service<Q, Response = A, Error = BoxError, Future: Send> + Clone + Send + 'static
where
    Q: Serialize + Send + 'static,
    A: DeserializeOwned + Send + 'static,
{
    let (client, url) = (client.clone(), url.clone());
    service_fn(move |question: Q| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            let body = ReplayBody::from(serde_json::to_vec(&question)?);
            let request = Request::builder()
                .method(Method::POST)
                .uri(url)
                .header(header::CONTENT_TYPE, "application/json")
                .body(body)?;
            let answer = client.oneshot(request).await?;
            if !answer.status().is_success() {
                return Err(format!("the answer is a {}", answer.status()).into());
            }
            let body = read_at_most(answer.into_body(), MOST).await?;
            let body = body.ok_or("the answer has more than 64 KiB")?;
            Ok(serde_json::from_slice(&body)?)
        }
    })
}
