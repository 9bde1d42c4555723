//! The gateway as a process: its configuration, and the requests of a test.
//!
//! A test asks a [`Gateway`], which a [`Config`] starts in front of an upstream of
//! [`net`](crate::net). One where the model fails once and then serves:
//!
//! ```ignore
//! #[test]
//! fn the_next_candidate_serves() {
//!     run(async {
//!         let config = Config::new("[retry]\nmax_attempts_per_candidate = 1");
//!         let (upstream, gateway) = config.start_with_model(&["500", "ok"]).await;
//!
//!         let answer = gateway.post(CHAT, asks("500", false)).ask().await;
//!
//!         assert_eq!(answer.status, 200);
//!         assert_eq!(answer.text(), WHOLE);
//!         assert_eq!(upstream.models(), ["500", "ok"]);
//!     });
//! }
//! ```

mod config;
mod gateway;
mod redis_server;
mod sentinels;

pub(crate) use self::{
    config::{Config, File},
    gateway::Gateway,
    redis_server::RedisServer,
    sentinels::Sentinels,
};
