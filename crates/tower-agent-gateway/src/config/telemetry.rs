//! `[telemetry]`: the receiver of the gateway's spans.

use http::Uri;
use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::config::{ConfigError, Url};

/// The path at which a receiver of OTLP takes spans.
const TRACES: &str = "/v1/traces";

/// The receiver of the spans, and the name of the gateway in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TelemetrySettings {
    /// The URL to which spans are sent.
    pub(crate) traces: Uri,
    /// The `service.name`; `None` takes that of the environment, or else the gateway's own name.
    pub(crate) service_name: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct TelemetryTable {
    /// The URL of a receiver of OTLP over HTTP.
    otlp: Url,
    /// The name of the gateway in its spans. `OTEL_SERVICE_NAME` by default, or else
    /// "tower-agent-gateway".
    #[schemars(length(min = 1))]
    service_name: Option<String>,
}

pub(super) fn telemetry(table: TelemetryTable) -> Result<TelemetrySettings, ConfigError> {
    if table.service_name.as_deref().is_some_and(str::is_empty) {
        return Err(ConfigError::new(["telemetry", "service_name"], "is empty"));
    }
    let base = table.otlp.get().to_string();
    let base = base.trim_end_matches('/');
    let traces = format!("{}{TRACES}", base.strip_suffix(TRACES).unwrap_or(base));
    let traces = traces.parse();
    Ok(TelemetrySettings {
        traces: traces.map_err(|error: http::uri::InvalidUri| {
            ConfigError::new(["telemetry", "otlp"], error.to_string())
        })?,
        service_name: table.service_name,
    })
}
