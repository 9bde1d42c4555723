//! The end of a run as the end of a process.

use std::{
    fmt,
    io::{self, Write},
    process::{ExitCode, Termination},
};

use super::Terminated;
use crate::run::reason::{ReasonClass, TerminalReason};

impl Terminated {
    /// What a process should exit with that ends because of this: 0 if it had
    /// completed, 1 if the upstream failed, 122 at a limit, 124 at a clock (as
    /// `timeout(1)` does), 130 if somebody did not want it any more (as after
    /// Ctrl-C). A reason of the program's own goes by its class, and is never 0.
    ///
    /// As what `main` returns it exits so, with a line on stderr that says why:
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

/// Writes a line to stderr, the reason and the message for people, and exits with
/// [`exit_code`](Terminated::exit_code).
impl Termination for Terminated {
    fn report(self) -> ExitCode {
        // Nobody may be there to read it; that changes nothing.
        let _ = writeln!(io::stderr(), "{}", ExitLine(&self));
        ExitCode::from(self.exit_code())
    }
}

/// On one line, whatever a tool was called.
struct ExitLine<'a>(&'a Terminated);

impl fmt::Display for ExitLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}: {}", self.0.reason, self.0.message());
        f.write_str(&text.replace(char::is_control, " "))
    }
}
