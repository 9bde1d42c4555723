//! A cooldown window as it is written in the store, by the server's clock.

use std::{sync::Arc, time::Duration};

use redis::{RedisResult, Value, from_redis_value};
use tokio::time::Instant;
use tower_agent::{FailureClass, registry::store::SharedCooldown};

/// The longest window that is believed.
const LONGEST: Duration = Duration::from_secs(400 * 24 * 3600);

/// What the clock of the server said, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreClock {
    server: Duration,
    pub(crate) here: Instant,
}

impl StoreClock {
    /// Reads the reply to `TIME`.
    pub(crate) fn read(reply: Value) -> RedisResult<Self> {
        let (seconds, micros): (u64, u64) = from_redis_value(reply)?;
        Ok(Self {
            server: Duration::from_secs(seconds) + Duration::from_micros(micros),
            here: Instant::now(),
        })
    }

    /// The time at the server since this one; zero if it has not come.
    pub(crate) fn since(&self, server: Duration) -> Duration {
        self.server.saturating_sub(server)
    }

    /// When it is this time at the server; `None` if that is years away.
    fn instant(&self, server: Duration) -> Option<Instant> {
        match server.checked_sub(self.server) {
            Some(left) if left > LONGEST => None,
            Some(left) => Some(self.here + left),
            None => {
                let ago = self.server.saturating_sub(server);
                // A process may be younger than the window, and its clock have no earlier time.
                Some(self.here.checked_sub(ago).unwrap_or(self.here))
            }
        }
    }
}

/// A stored window.
#[derive(Debug, PartialEq)]
pub(crate) struct Window {
    pub(crate) number: u64,
    pub(crate) is_over: bool,
    until: Duration,
    began: Duration,
    class: FailureClass,
    row: u32,
    is_callers: bool,
    /// The digests of the model, the account and the host.
    digests: [u64; 3],
    candidate: Arc<str>,
}

impl Window {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(11, ' ');
        let mut next = || words.next();
        let number = next()?.parse().ok()?;
        let is_over = match next()? {
            "r" => false,
            "e" => true,
            _ => return None,
        };
        let until = Duration::from_micros(next()?.parse().ok()?);
        let began = Duration::from_micros(next()?.parse().ok()?);
        let class = next()?;
        let class = FailureClass::ALL
            .into_iter()
            .find(|it| it.as_str() == class)?;
        let row = next()?.parse().ok()?;
        let is_callers = match next()? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let digests = [digest(next()?)?, digest(next()?)?, digest(next()?)?];
        let candidate = next()?.into();
        (began <= until).then_some(Self {
            number,
            is_over,
            until,
            began,
            class,
            row,
            is_callers,
            digests,
            candidate,
        })
    }

    pub(crate) fn share(self, key: u64, clock: StoreClock) -> Option<SharedCooldown> {
        let times = [clock.instant(self.began)?, clock.instant(self.until)?];
        let mut shared = SharedCooldown::new(key, self.number, self.candidate, self.class, times);
        [shared.model, shared.account, shared.host] = self.digests;
        shared.row = self.row;
        shared.is_callers = self.is_callers;
        Some(shared)
    }
}

/// What a script reads that follows the class: see [`Window::parse`].
pub(crate) fn rest(cooldown: &SharedCooldown) -> String {
    let SharedCooldown {
        row,
        is_callers,
        model,
        account,
        host,
        candidate,
        ..
    } = cooldown;
    let is_callers = u8::from(*is_callers);
    format!("{row} {is_callers} {model:016x} {account:016x} {host:016x} {candidate}")
}

/// The digest of 16 hexadecimal digits.
pub(crate) fn digest(hex: &str) -> Option<u64> {
    let is_hex = hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cooldown(now: Instant) -> SharedCooldown {
        let times = [now, now + Duration::from_secs(30)];
        let mut shared = SharedCooldown::new(1, 2, "a b".into(), FailureClass::Server, times);
        [shared.model, shared.account, shared.host] = [3, 4, u64::MAX];
        (shared.row, shared.is_callers) = (5, true);
        shared
    }

    #[tokio::test]
    async fn a_window_comes_back_as_it_was() {
        let here = Instant::now();
        let server = Duration::from_secs(1_700_000_000);
        let clock = StoreClock { server, here };
        let told = cooldown(here);
        let [began, until] = [0, 30].map(|later| (server.as_secs() + later) * 1_000_000);
        let value = format!("2 r {until} {began} server {}", rest(&told));
        let window = Window::parse(&value).unwrap();
        assert!(!window.is_over);
        assert_eq!(window.share(1, clock), Some(told));
        let ended = Window::parse(&value.replace(" r ", " e ")).unwrap();
        assert!(ended.is_over);
    }

    #[test]
    fn what_no_replica_wrote_is_no_window() {
        let good = "2 r 30 20 server 5 1 0000000000000003 0000000000000004 ffffffffffffffff a";
        assert!(Window::parse(good).is_some());
        for (from, to) in [
            ("2 r", "-2 r"),
            (" r ", " x "),
            ("30 20", "20 30"),
            ("30 20", "1e3 20"),
            ("server", "serverless"),
            (" 5 1 ", " -5 1 "),
            (" 5 1 ", " 5 2 "),
            ("0000000000000003", "3"),
            ("0000000000000003", "+000000000000003"),
            (" a", ""),
            (good, ""),
        ] {
            assert_eq!(
                Window::parse(&good.replacen(from, to, 1)),
                None,
                "{from}: {to}"
            );
        }
    }
}
