use crate::run::{Run, RunSnapshot, Verdict};

/// What a person is asked about a run that looks stuck.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct Question {
    /// All that is known of the run.
    pub snapshot: RunSnapshot,
    /// The question, ready to be shown.
    pub message: String,
}

impl Question {
    pub(super) fn of(run: &Run, repeats: Option<u32>, verdict: Option<&Verdict>) -> Self {
        let snapshot = run.snapshot();
        let often = repeats.map_or_else(String::new, |times| format!(" {times} times in a row"));
        let mut message = format!("The run {} did the same thing{often}", snapshot.run);
        if let Some(step) = &snapshot.last_step {
            message += &format!(" (last step: {step})");
        }
        message.push('.');
        if let Some(verdict) = verdict {
            message += &format!(" A check says that it is {}", verdict.status.as_str());
            if !verdict.reason.is_empty() {
                message += &format!(": {}", verdict.reason);
            }
            message.push('.');
        }
        message += " Shall it continue?";
        Self { snapshot, message }
    }
}
