//! Each layer alone, on a paused clock, through the public API.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod agent_stack;
mod alone;
mod attempts;
mod caller_deadline;
mod client_disconnect;
mod commit;
#[cfg(feature = "config")]
mod config;
mod consecutive;
mod extension;
mod full_stack;
mod hard_ceiling;
mod health_gate;
mod idle_layers;
mod known_agents;
mod known_sub_agents;
mod linger;
mod local;
mod log;
mod loop_guard;
#[cfg(feature = "metrics")]
mod metrics;
mod model_fallback;
mod order;
mod owner_caps;
mod partial;
mod pause_at_cap;
mod paused;
mod periods;
mod polling_loop;
mod progress;
mod pump;
mod reasons;
mod registry;
mod replicas;
mod retry_budget;
mod run;
mod run_layer;
mod shadow;
mod snapshot;
mod spans;
mod speed_floor;
mod step_timeout;
mod stop_phrase;
mod stuck;
mod summary;
#[path = "../support/mod.rs"]
mod support;
mod terminal_response;
mod ties;
mod time_limits;
mod token_cap;
mod tool_windows;
mod tools;
mod tools_grace;
mod trajectory;
mod turn_cap;
mod wake_gate;
mod watchdog;
