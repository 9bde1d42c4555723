//! Checks runs that make no progress, and asks a person before it ends them.
//!
//! An agent that polls a job five times in a row may be stuck, or may wait for something
//! slow, and no deadline can tell which. A [`Watchdog`] subscribes to runs that [look
//! stuck](crate::RunNotice::LooksStuck) and has them examined: by a checker, which may be
//! a second model, and by a person. The watchdog runs beside the calls: no call waits for
//! it.
//!
//! # The stages
//!
//! 1. The [checker](Watchdog::checker) gets the run's
//!    [snapshot](crate::RunSnapshot) and returns a [`Verdict`](crate::run::Verdict). A run
//!    that works is left alone. Without a verdict within 5 s the status is
//!    [`Status::Unknown`](crate::run::Status::Unknown).
//! 2. With [`ends`](Watchdog::ends) a run that is found stuck or looping ends as
//!    [`Stuck`](crate::TerminalReason::Stuck).
//! 3. Else the [question](Watchdog::question) goes to a person, who may answer as long as
//!    the run is live, and may stop it.
//!
//! A verdict or an answer counts only for the step at which the run was stuck at the
//! time of the question. A run that has moved on by then is left alone. If it is stuck
//! at another step, and was not found to work, a new inquiry starts. A stage that
//! panics counts as failed.
//!
//! Each stage is optional. A run that the watchdog does not end still meets the caps on
//! loops and turns. A run that is left alone is examined again after as many further
//! repeats: after five, after ten, and so on. There is one inquiry per run at a time. A
//! watchdog that was too slow for some events examines all live runs again, so some
//! runs may be examined earlier.
//!
//! The run's observers get a notice of each stage:
//! [`Checked`](crate::RunNotice::Checked), [`Asked`](crate::RunNotice::Asked),
//! [`Answered`](crate::RunNotice::Answered).
//!
//! # On demand
//!
//! [`Watchdog::check`] checks a run at any time, and ends nothing. The run keeps the latest
//! verdict: [`RunSnapshot::last_check`](crate::RunSnapshot). The snapshot that the checker and the
//! person get also has the run's task and its last actions, but no words of them unless the
//! program [sets](crate::Run::set_task) or [allows](crate::Run::keep_excerpts) them.
//!
//! # Same instant
//!
//! The end of a run comes first: no question is asked about an ended run, and the
//! inquiry in progress is dropped in the poll that receives the end.
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
#[allow(clippy::module_inception, reason = "the folder is named for its type")]
mod watchdog;

pub use self::{inquiry::Question, watchdog::Watchdog};
