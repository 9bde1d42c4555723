//! The limit of open files of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one.
///
/// Shells and service managers leave the soft limit at 1,024 for programs that call `select`, which this
/// one does not. Where the system refuses, fewer connections are accepted.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        let _ = setrlimit(Resource::Nofile, raised);
    }
}
