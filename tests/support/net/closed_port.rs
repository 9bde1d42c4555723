use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// A port of this machine that refuses connections for as long as this lives.
pub(crate) struct ClosedPort {
    pub(crate) addr: SocketAddr,
    // Bound and not listening, so that no other socket can take the port.
    _bound: TcpSocket,
}

impl ClosedPort {
    /// Takes a free port.
    pub(crate) fn new() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind(([127, 0, 0, 1], 0).into()).unwrap();
        Self {
            addr: bound.local_addr().unwrap(),
            _bound: bound,
        }
    }
}
