//! Asks before it kills: looks after runs that are alive and get nowhere.
//!
//! An agent that polls a job five times in a row may be stuck, or it may wait for
//! something slow, and no clock knows which. A [`Watchdog`] listens for runs that
//! [look stuck](crate::RunNotice::LooksStuck) and has them looked at: by a checker, which
//! may be a second model, and by a person. It stands beside the calls and not in their
//! way: no call waits for it.
//!
//! # What is asked
//!
//! 1. The [checker](Watchdog::checker) gets the run's
//!    [snapshot](crate::RunSnapshot) and says [`Verdict`](crate::run::Verdict). A run that works is left
//!    alone. It has 5 s, else it is [`Status::Unknown`](crate::run::Status::Unknown).
//! 2. With [`ends`](Watchdog::ends) a run that was found stuck or looping ends as
//!    [`Stuck`](crate::TerminalReason::Stuck).
//! 3. Else the [question](Watchdog::question) goes to a person, who may take as long as
//!    the run goes on, and may stop it.
//!
//! A verdict or an answer counts for what the run was stuck at when it was asked about.
//! One that has moved on by then is left alone; if it is stuck at something else, and was
//! not found to work, it is asked about anew. A stage that panics counts as one that failed.
//!
//! Each stage may be left out. What nobody ends here meets the caps of loops and turns.
//! A run that is left alone is asked about again when it has done the same thing as
//! often again: after five repeats, after ten, and so on. There is one inquiry of a run
//! at a time. An observer that was too slow for some events looks at all live runs
//! again, so that one of those may be asked about earlier.
//!
//! Observers are told of each stage: [`Checked`](crate::RunNotice::Checked),
//! [`StageFuture`](crate::RunNotice::Asked), [`Answered`](crate::RunNotice::Answered).
//!
//! # Same instant
//!
//! The end of a run comes first: nothing is asked about a run that is over, and what is
//! being asked is dropped in the poll that learns of the end.
//!
//! # Cancel safety
//!
//! Dropping the future of [`Watchdog::run`] drops what is being asked. It keeps no run
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
mod watching;

pub use self::{inquiry::Question, watchdog::Watchdog};
