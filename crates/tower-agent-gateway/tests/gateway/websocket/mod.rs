//! The Responses API over WebSocket, on real sockets.
//!
//! covers: H13

mod client;
mod continuations;
mod cost;
mod ends;
mod equal;
mod lanes;
mod limits;
mod refusals;
mod replayed;
mod reports;
mod supervised;
mod upstream_sockets;
