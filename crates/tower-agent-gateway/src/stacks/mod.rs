//! From a configuration to the services that answer with a model.
//!
//! [`Stacks`] has a stack of the library's layers for each agent; [`Gateway`] chooses one for a
//! request, after [`RunAssignment`] has found the run of a known agent. [`watchdog_client`] asks
//! services about runs that look stuck. [`upstream_socket`] is the client of the upstreams.

mod agent_stacks;
mod missing_path;
mod run_assignment;
mod stack_generations;
mod upstream_socket;
pub(crate) mod watchdog_client;

pub(crate) use self::{
    agent_stacks::{Gateway, Stacks},
    run_assignment::RunAssignment,
    upstream_socket::UpstreamLane,
};
