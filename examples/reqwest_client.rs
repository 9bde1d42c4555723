//! A reqwest client under supervision: a stream that hangs is cut after its
//! step window, and says so.
//!
//! ```text
//! cargo run --all-features --example reqwest_client
//! ```
//!
//! It starts an upstream of its own that sends two tokens and then nothing.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tower::{Service, ServiceBuilder};
use tower_agent::{BoxError, HardCeilingLayer, StepTimeoutLayer, TerminalReason, Terminated};
use tower_agent_reqwest::ReqwestService;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Several providers may be linked in; the example needs one chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/chat/completions", listener.local_addr()?);

    let mut client = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(Duration::from_secs(60)))
        .layer(StepTimeoutLayer::new(Duration::from_millis(500)).first(Duration::from_secs(5)))
        .service(ReqwestService::new(reqwest::Client::builder())?);

    let conversation = async {
        let request = Request::post(url).body(Full::new(Bytes::from("{\"stream\":true}")))?;
        let mut body = client.call(request).await?.into_body();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => print!(
                    "{}",
                    String::from_utf8_lossy(frame.data_ref().unwrap_or(&Bytes::new()))
                ),
                Err(error) => match Terminated::find(&*error) {
                    Some(end) if end.reason == TerminalReason::StepTimeout => {
                        println!("cut: {}", end.message());
                        return Ok(());
                    }
                    _ => return Err(error),
                },
            }
        }
        Err("the stream ended as if it were complete".into())
    };
    let hang = async {
        hang_after_two_tokens(listener).await?;
        std::future::pending().await
    };
    let ended = futures_util::future::select(Box::pin(conversation), Box::pin(hang)).await;
    ended.factor_first().0
}

async fn hang_after_two_tokens(listener: TcpListener) -> Result<(), BoxError> {
    let (mut socket, _) = listener.accept().await?;
    let mut request = [0; 4096];
    let _ = socket.read(&mut request).await?;
    socket
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
              data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"}}]}\n\n\
              data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"two\"}}]}\n\n",
        )
        .await?;
    let closed = socket.read(&mut request).await?;
    println!("(the upstream's connection was released: read {closed} bytes)");
    Ok(())
}
