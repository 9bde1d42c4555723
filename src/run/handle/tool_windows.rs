//! The windows of a run's tools.

use std::time::Duration;

use super::Run;
use crate::run::step::ResetOn;

impl Run {
    /// Sets the longest time that a [tool](Self::tool) at or below this node may take, if the tool
    /// has no window of its own.
    ///
    /// Of several nodes above a tool the nearest for which the method was called decides. Zero
    /// stands for no such window: then the step window of the run applies to the tool. The value
    /// holds for tools that are called from now on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// use std::{future::pending, time::Duration};
    /// use tower_agent::{NodeKind, Run};
    ///
    /// let run = Run::open();
    /// run.tool_window(Duration::from_secs(300));
    /// let hung = run.tool("hung").watch(pending::<()>()).await.unwrap_err();
    /// assert_eq!(hung.kind, NodeKind::Tool);
    /// # }
    /// ```
    pub fn tool_window(&self, window: Duration) {
        self.node().clocks.set_tool_window(window);
    }

    /// Adds a step window of the nearest run, which also measures the tools of the run.
    pub(crate) fn add_window(&self, window: Duration, resets_on: ResetOn, observes: bool) {
        let windows = &self.run_state().rare().windows;
        windows.add(window, resets_on, observes);
    }

    /// The step windows of the nearest run at or above this node that has some, each with the flag
    /// of shadow mode.
    pub(crate) fn windows(&self) -> Vec<(Duration, ResetOn, bool)> {
        let mut nodes = self.node().path();
        let found = nodes.find_map(|node| {
            let windows: Vec<_> = node.payload.rare_if_any()?.windows.all().collect();
            (!windows.is_empty()).then_some(windows)
        });
        found.unwrap_or_default()
    }
}
