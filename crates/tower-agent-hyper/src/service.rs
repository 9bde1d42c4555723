use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, Version, header};
use http_body::Body;
use hyper_util::client::legacy::connect::capture_connection;
use tower_agent::{BoxError, Run};
use tower_service::Service;

use crate::{
    body::HyperBody, clients::Clients, exchange::Exchange, future::HyperFuture,
    request_body::OutgoingBody, resend::Resend, uri::is_supported,
};

/// A hyper client as a service of `http` requests: see the [crate](crate).
///
/// Clones share their connections.
#[derive(Clone)]
pub struct HyperService {
    clients: Arc<Clients>,
}

impl HyperService {
    pub(crate) fn from_clients(clients: Clients) -> Self {
        Self {
            clients: Arc::new(clients),
        }
    }

    /// Returns a service with the same settings, and with connections of its own.
    ///
    /// The task of a connection runs on the runtime that made it. A server that has a runtime for each
    /// of its threads keeps a request on one of them if each thread has a service of its own.
    #[must_use]
    pub fn with_own_connections(&self) -> Self {
        Self::from_clients(self.clients.separate())
    }

    #[cfg(test)]
    pub(crate) const fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }
}

impl fmt::Debug for HyperService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperService")
            .field("proxy", &self.clients.proxy)
            .finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for HyperService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<HyperBody>;
    type Error = BoxError;
    type Future = HyperFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> HyperFuture {
        if !is_supported(request.uri()) {
            return HyperFuture::unsupported();
        }
        let run = request.extensions().get::<Run>().cloned();
        let mut request = request.map(OutgoingBody::new);
        // The extensions are of the caller's connection. hyper reads some of them, and would keep
        // the others until the request has been written.
        request.extensions_mut().clear();
        // The client refuses to send a request with HTTP/2 over HTTP/1.
        *request.version_mut() = Version::default();
        if let Some(credential) = self.clients.proxy.credential(request.uri()) {
            let name = header::PROXY_AUTHORIZATION;
            request.headers_mut().insert(name, credential);
        }
        let resend = match self.clients.resends {
            true => Resend::of(&request),
            false => None,
        };
        let body_failure = request.body().failure();
        let exchange = Exchange::new(run, self.clients.lease(), capture_connection(&mut request));
        let response = exchange.lease.pooled().request(request);
        HyperFuture::new(response, exchange, resend, body_failure)
    }
}
