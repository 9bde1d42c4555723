//! The end of a run as the end of a process.

use std::{
    fmt,
    io::{self, Write},
    process::{ExitCode, Termination},
};

use super::Terminated;
use crate::run::reason::{ReasonClass, TerminalReason};

impl Terminated {
    /// The exit status for a process that ends because of this error.
    ///
    /// 0 if the run completed, 1 if the upstream failed, 122 at a limit, 124 at a clock (as
    /// `timeout(1)` does), 130 if the work was cancelled (as after Ctrl-C). A reason of the
    /// program goes by its class, and is never 0.
    ///
    /// Returned from `main`, the error exits with this status, and prints a line on stderr that
    /// says why:
    ///
    /// ```no_run
    /// use std::process::{ExitCode, Termination};
    /// use tower_agent::Terminated;
    /// # async fn agent() -> Result<(), Terminated> { Ok(()) }
    ///
    /// #[tokio::main]
    /// async fn main() -> ExitCode {
    ///     match agent().await {
    ///         Ok(()) => ExitCode::SUCCESS,
    ///         Err(end) => end.report(),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.reason.class() {
            ReasonClass::Success if self.reason == TerminalReason::Completed => 0,
            ReasonClass::Success | ReasonClass::Failure => 1,
            ReasonClass::Limit => 122,
            ReasonClass::Timeout => 124,
            ReasonClass::Cancelled => 130,
        }
    }
}

/// Writes the reason and the message to stderr, and exits with
/// [`exit_code`](Terminated::exit_code).
impl Termination for Terminated {
    fn report(self) -> ExitCode {
        // A failed write changes nothing: stderr may be closed.
        let _ = writeln!(io::stderr(), "{}", ExitLine(&self));
        ExitCode::from(self.exit_code())
    }
}

/// The message of the error on one line, even if a tool's name has control characters.
struct ExitLine<'a>(&'a Terminated);

impl fmt::Display for ExitLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}: {}", self.0.reason, self.0.message());
        f.write_str(&text.replace(char::is_control, " "))
    }
}
