//! The spans of the library, sent to a receiver of OTLP as protobuf over HTTP.

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tower_agent::BoxError;
use tracing::Subscriber;
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

use super::otlp_client::OtlpHttpClient;
use crate::config::Config;

/// The target of the library's spans, and the name of their scope.
const TARGET: &str = "tower_agent";

/// The variable that names a service for each of OpenTelemetry's libraries.
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

/// Sends the library's spans to the receiver of `[telemetry]`, in batches.
///
/// A thread collects the batches. Their HTTP requests run on the tokio runtime in which
/// [`new`](Self::new) was called, so nothing is sent while that runtime does not run.
///
/// ```no_run
/// use std::time::Duration;
/// use tower_agent_gateway::{Config, Telemetry};
/// use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), tower_agent::BoxError> {
/// let telemetry = Telemetry::new(&Config::load("gateway.toml")?)?;
/// let spans = telemetry.as_ref().map(Telemetry::layer);
/// tracing_subscriber::registry().with(spans).init();
/// // ... serves, then:
/// if let Some(telemetry) = telemetry {
///     telemetry.shut_down(Duration::from_secs(2));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Telemetry(SdkTracerProvider);

impl Telemetry {
    /// Makes the sender; `None` without `[telemetry]`. Nothing is sent before a span has closed.
    ///
    /// # Errors
    ///
    /// If the HTTP client or the thread cannot be made.
    ///
    /// # Panics
    ///
    /// With `[telemetry]`, outside a tokio runtime, which carries the requests to the receiver.
    pub fn new(config: &Config) -> Result<Option<Self>, BoxError> {
        let Some(settings) = &config.telemetry else {
            return Ok(None);
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpHttpClient::new(&config.proxy, &settings.traces)?)
            .with_endpoint(settings.traces.to_string())
            .with_protocol(Protocol::HttpBinary)
            .build()?;
        let of_environment = std::env::var(SERVICE_NAME).ok();
        let of_environment = of_environment.filter(|name| !name.is_empty());
        let name = settings.service_name.clone().or(of_environment);
        let name = name.unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned());
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(Resource::builder().with_service_name(name).build());
        Ok(Some(Self(provider.build())))
    }

    /// The part of the program's subscriber that takes the library's spans, and nothing else.
    #[must_use]
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(TARGET))
            // No call has the thread to itself, so no span is ever entered.
            .with_context_activation(false)
            .with_tracked_inactivity(false)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_filter(filter_fn(|it| it.is_span() && it.target() == TARGET))
    }

    /// Sends the remaining spans, within `limit`. Blocks the thread: in a runtime of one thread
    /// nothing can be sent meanwhile.
    pub fn shut_down(self, limit: Duration) {
        if let Err(error) = self.0.shutdown_with_timeout(limit) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}
