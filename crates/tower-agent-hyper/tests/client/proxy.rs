//! Proxies: which requests go through one, and what it and the upstream see.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request, StatusCode};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SignatureScheme, client::ResolvesClientCert,
    pki_types::pem::PemObject, server::WebPkiClientVerifier, sign::CertifiedKey,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tower_agent::llm::failure::TransportError;
use tower_agent_hyper::{HyperService, UpstreamProxy};

use crate::upstream::{OK, Peer, Server, ask, causes, client_by, send};

const CERTIFICATE: &[u8] = include_bytes!("cert.pem");
/// The key of nothing but these tests.
const KEY: &[u8] = include_bytes!("key.pem");

/// `Basic` of `user:p@ss`.
const CREDENTIAL: &str = "Basic dXNlcjpwQHNz";

/// The acceptor asks for the client's certificate, and takes none as well.
pub(crate) fn acceptor() -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots()), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(CERTIFICATE).unwrap()],
            PrivateKeyDer::from_pem_slice(KEY).unwrap(),
        );
    TlsAcceptor::from(Arc::new(config.unwrap()))
}

fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    roots.add(certificate).unwrap();
    roots
}

pub(crate) fn trusting() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots())
        .with_no_client_auth()
}

/// An upstream behind TLS, which notes the heads of its requests.
async fn https() -> Server {
    Server::start(|peer: Peer| async move {
        let Some(mut peer) = peer.behind_tls(acceptor()).await else {
            return;
        };
        while let Some(head) = peer.head().await {
            peer.note(head);
            peer.send(OK).await;
        }
    })
    .await
}

/// A proxy that answers requests over plain HTTP itself, and makes tunnels to loopback.
async fn proxy() -> Server {
    Server::start(|mut peer: Peer| async move {
        while let Some(head) = peer.head().await {
            peer.note(head.clone());
            let Some(target) = head.strip_prefix("CONNECT localhost:") else {
                peer.send(OK).await;
                continue;
            };
            let port: u16 = target.split(' ').next().unwrap().parse().unwrap();
            let mut upstream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            peer.send("HTTP/1.1 200 Connected\r\n\r\n").await;
            let _ = tokio::io::copy_bidirectional(&mut peer.io, &mut upstream).await;
            return;
        }
    })
    .await
}

fn with_credential(proxy: &Server) -> UpstreamProxy {
    UpstreamProxy::all(&format!("http://user:p%40ss@{}", proxy.addr)).unwrap()
}

#[tokio::test]
async fn a_request_over_plain_http_goes_to_the_proxy_with_its_uri() {
    let proxy = proxy().await;
    let client = client_by(with_credential(&proxy));
    for _ in 0..2 {
        let request = Request::get("http://upstream.invalid/v1/models").body("".into());
        assert_eq!(ask(&client, request.unwrap()).await.unwrap(), "ok");
    }
    let notes = proxy.notes();
    assert_eq!(notes.len(), 2);
    for (connection, head) in notes {
        assert_eq!(connection, 0);
        let (line, headers) = head.split_once("\r\n").unwrap();
        assert_eq!(line, "GET http://upstream.invalid/v1/models HTTP/1.1");
        assert!(headers.contains(&format!("proxy-authorization: {CREDENTIAL}\r\n")));
    }
}

#[tokio::test]
async fn a_request_over_https_goes_through_a_tunnel() {
    let (proxy, upstream) = (proxy().await, https().await);
    let client = HyperService::builder()
        .proxy(with_credential(&proxy))
        .tls_config(trusting())
        .build()
        .unwrap();
    let port = upstream.addr.port();
    let request = Request::get(format!("https://localhost:{port}/v1/models"));

    let answer = ask(&client, request.body("".into()).unwrap()).await;

    assert_eq!(answer.unwrap(), "ok");
    let [(_, tunnel)] = &proxy.notes()[..] else {
        panic!("not one tunnel: {:?}", proxy.notes());
    };
    assert!(tunnel.starts_with(&format!("CONNECT localhost:{port} HTTP/1.1\r\n")));
    assert!(tunnel.contains(&format!("Proxy-Authorization: {CREDENTIAL}\r\n")));
    let [(_, head)] = &upstream.notes()[..] else {
        panic!("not one request");
    };
    assert!(head.starts_with("GET /v1/models HTTP/1.1\r\n"));
    assert!(!head.to_lowercase().contains("proxy-"), "{head}");
}

/// Counts how often a server asks for the client's certificate.
#[derive(Debug, Default)]
struct Asked(AtomicUsize);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn the_clients_certificate_is_for_the_upstream_and_not_for_its_proxy() {
    let server = https().await;
    let url = format!("https://localhost:{}", server.addr.port());
    let by_proxy = UpstreamProxy::all(&url).unwrap();
    for (proxy, uri, wanted) in [
        (by_proxy, "http://upstream.invalid/".to_owned(), 0),
        (UpstreamProxy::none(), url, 1),
    ] {
        let asked = Arc::new(Asked::default());
        let mut tls = trusting();
        tls.client_auth_cert_resolver = Arc::clone(&asked) as Arc<_>;
        let client = HyperService::builder().proxy(proxy).tls_config(tls);
        let request = Request::get(&uri).body("".into()).unwrap();

        let answer = ask(&client.build().unwrap(), request).await;

        assert_eq!(answer.unwrap(), "ok");
        assert_eq!(asked.0.load(Ordering::SeqCst), wanted, "{uri}");
    }
}

#[tokio::test]
async fn without_a_proxy_the_upstream_is_asked_itself() {
    let upstream = Server::start(Peer::answer_all).await;
    let client = client_by(UpstreamProxy::none());
    ask(&client, upstream.post("a")).await.unwrap();
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_fails_the_call() {
    let upstream = https().await;
    let uri = format!("https://localhost:{}/", upstream.addr.port());
    let request = Request::get(uri).body("".into()).unwrap();
    let client = HyperService::builder().build().unwrap();

    let error = send(&client, request).await.unwrap_err();

    assert!(TransportError::is_in(&*error));
    let causes = causes(&error).concat();
    assert!(causes.contains("invalid peer certificate"), "{causes}");
}

#[tokio::test]
async fn a_proxy_that_makes_no_tunnel_fails_the_call_without_its_credential() {
    for status in [
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        StatusCode::FORBIDDEN,
    ] {
        let refuses = Server::start(move |mut peer: Peer| async move {
            peer.head().await;
            peer.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))
                .await;
        })
        .await;
        let client = client_by(with_credential(&refuses));
        let request = Request::get("https://upstream.invalid/").body("".into());

        let error = send(&client, request.unwrap()).await.unwrap_err();

        assert!(TransportError::is_in(&*error));
        let shown = causes(&error).concat();
        for secret in ["p@ss", "p%40ss", "dXNlcjpwQHNz"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
