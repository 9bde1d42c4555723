//! Asks a checker, then a person, about runs that look stuck, and may end them.
//!
//! An agent that polls a job five times in a row may be stuck, or may wait for something
//! slow, and no deadline can tell which. A [`Watchdog`] subscribes to the events of runs, and has
//! each run that [looks stuck](crate::RunNotice::LooksStuck) examined: by a checker, which may be
//! a second model, and by a person. The watchdog runs beside the calls: no call waits for
//! it.
//!
//! # The stages
//!
//! 1. The [checker](Watchdog::checker) gets the run's
//!    [snapshot](crate::RunSnapshot) and returns a [`Verdict`](crate::run::Verdict). A run
//!    that works is left alone. Without a verdict within 5 s, or the time that
//!    [`check_within`](Watchdog::check_within) sets, the status is
//!    [`Status::Unknown`](crate::run::Status::Unknown).
//! 2. With [`ends`](Watchdog::ends) a run that the checker finds stuck or looping ends as
//!    [`Stuck`](crate::TerminalReason::Stuck), unless the watchdog is in [shadow
//!    mode](Watchdog::shadow).
//! 3. Else the [question](Watchdog::question) goes to a person, but not in shadow mode, and the
//!    person may stop the run. The watchdog waits for the answer as long as the run is live, or for
//!    the time that [`answer_within`](Watchdog::answer_within) sets.
//!
//! A verdict or an answer counts only while the run is in the same series of repeats as when the
//! checker was asked, or without a checker, when the inquiry began. A run that has moved on is left
//! alone; but if it is stuck in another series by then, and the checker did not find that it works,
//! a new inquiry starts. A stage that panics counts as failed.
//!
//! Each stage is optional. A run that the watchdog does not end still meets the caps on loops and
//! turns. A run that is left alone is examined again after each further five repeats. A watchdog
//! has at most one inquiry for each run at a time, and at most 64 open questions: beyond that it asks
//! nothing, and leaves the run to its limits. A watchdog that was too slow for some
//! events examines all live runs that look stuck, so some runs may be examined earlier.
//!
//! The question is also asked about a run that is [near a cap on
//! tokens](crate::TokenCapLayer::ask_at), without a check. If another question about the run is open,
//! this one waits for its answer.
//!
//! The run's observers get a notice of each stage:
//! [`Checked`](crate::RunNotice::Checked), [`Asked`](crate::RunNotice::Asked),
//! [`Answered`](crate::RunNotice::Answered). In shadow mode
//! [`WouldHaveAsked`](crate::RunNotice::WouldHaveAsked) replaces the last two.
//!
//! # On demand
//!
//! [`Watchdog::check`] checks a run at any time, and ends nothing. The run stores the latest
//! verdict: [`RunSnapshot::last_check`](crate::RunSnapshot). The snapshot that the checker and the
//! person get also has the run's last actions, and, if the program [sets](crate::Run::set_task) or
//! [allows](crate::Run::keep_excerpts) them, the run's task and excerpts of the arguments.
//!
//! # Same instant
//!
//! The end of a run comes first: no question is asked about an ended run, and the
//! inquiry in progress is dropped in the poll in which the watchdog receives the end.
//!
//! # Cancel safety
//!
//! Dropping the future of [`Watchdog::run`] drops all inquiries. The future keeps no run
//! and no registry alive.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use std::convert::Infallible;
//! use tower::service_fn;
//! use tower_agent::{
//!     Run, RunSnapshot, TerminalReason, Watchdog,
//!     run::{Status, Verdict},
//! };
//!
//! let run = Run::open();
//! let checker = service_fn(|run: RunSnapshot| async move {
//!     let status = if run.in_flight > 0 { Status::Working } else { Status::Stuck };
//!     Ok::<_, Infallible>(Verdict::new(status, "nothing is under way"))
//! });
//! let watchdog = Watchdog::of_run(&run).checker(checker).ends(true);
//! let watching = tokio::spawn(watchdog.run());
//!
//! for round in 0..5 {
//!     run.heartbeat_at(round, "polling");
//! }
//! assert_eq!(run.ended().await, TerminalReason::Stuck);
//! watching.await.unwrap();
//! # }
//! ```

mod inquiry;
mod open_questions;
#[allow(clippy::module_inception, reason = "the folder is named for its type")]
mod watchdog;

pub use self::{inquiry::Question, watchdog::Watchdog};
