//! The two servers beside the gateway in `benches/load.py`: an upstream, and a bare pass-through.
//!
//! ```text
//! cargo run --release -p tower-agent-gateway --example load -- upstream
//! cargo run --release -p tower-agent-gateway --example load -- passthrough 127.0.0.1:PORT
//! ```

mod passthrough;
mod upstream;

use axum::{Router, serve::ListenerExt};
use tokio::net::TcpListener;
use tower_agent::BoxError;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let app: Router = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["upstream"] => upstream::app(),
        ["passthrough", upstream] => passthrough::app(upstream.parse()?)?,
        _ => return Err("usage: load upstream | passthrough ADDRESS".into()),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        // The gateway sets it too. Without it the other server only waits longer.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, app).await?;
    Ok(())
}
