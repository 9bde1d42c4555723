//! What guards a connection and a request before the request reaches a route.
//!
//! [`server`] accepts connections. [`HostCheck`] and [`OriginCheck`] refuse requests that a browser
//! was made to send, [`Callers`] and [`Operator`] those without a credential. [`UploadLayer`] and
//! [`BufferedUploads`] bound what a client may upload. [`api`] has the shape of a refusal.

pub(crate) mod api;
mod buffered_uploads;
mod callers;
mod check_layer;
mod cors;
mod host_check;
mod operator;
mod origin_check;
pub(crate) mod server;
mod upload;

pub(crate) use self::{
    buffered_uploads::{BufferedUploads, Charge, HeldBytes, HeldLimits},
    callers::{Caller, Callers, owner_of, owner_of_name},
    check_layer::CheckLayer,
    cors::cors_layer,
    host_check::HostCheck,
    operator::Operator,
    origin_check::OriginCheck,
    server::SocketMeter,
    upload::{UploadLayer, stall_status},
};
