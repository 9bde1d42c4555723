//! The connections that the limit of open files has room for.

use rustix::process::{Resource, getrlimit};

/// The descriptors of the listener, the outputs, files, services and stores.
const OTHERS: u64 = 64;

/// The descriptors of one thread, which polls and is woken by them.
const OF_THREAD: u64 = 4;

/// The most connections for which the process has room; `None` without a limit.
///
/// Beyond them a call would find no descriptor for its upstream, and fail as if the upstream did.
pub(super) fn most_connections(threads: u32) -> Option<u32> {
    getrlimit(Resource::Nofile)
        .current
        .map(|limit| room(limit, threads))
}

/// A call has a descriptor for its caller and one for its upstream.
fn room(limit: u64, threads: u32) -> u32 {
    let left = limit.saturating_sub(OTHERS + OF_THREAD * u64::from(threads));
    u32::try_from(left / 2).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_room_for_one_to_an_upstream() {
        for (limit, threads, most) in [
            (0, 0, 1),
            (64, 1, 1),
            (128, 2, 28),
            (1024, 4, 472),
            (u64::MAX, 1024, u32::MAX),
        ] {
            assert_eq!(room(limit, threads), most, "{limit}, {threads}");
        }
    }
}
