use tower_layer::Layer;

use super::service::ClientDisconnect;
use crate::run::Scope;

/// Ends a call when its caller goes away: see the [module](super).
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientDisconnectLayer {
    scope: Scope,
}

impl ClientDisconnectLayer {
    /// Ends the node that is found in the request.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            scope: Scope::Found,
        }
    }

    /// Which node is ended. By default the one found.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

impl<S> Layer<S> for ClientDisconnectLayer {
    type Service = ClientDisconnect<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ClientDisconnect::new(inner, self.scope)
    }
}
