//! The layers, one module each. The [front page](crate#order) has their order.

pub mod client_disconnect;
pub mod hard_ceiling;
pub mod health_gate;
pub mod loop_guard;
pub mod model_fallback;
pub mod owner_cap;
pub mod pump;
pub mod retry_budget;
pub mod run;
pub mod run_store;
pub mod step_timeout;
pub mod stop_phrase;
pub mod terminal_response;
pub mod time_limits;
pub mod token_cap;
pub mod turn_cap;
