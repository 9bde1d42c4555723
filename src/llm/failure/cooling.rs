use std::{error::Error, fmt, time::Duration};

use super::class::FailureClass;

/// Every candidate that could serve a request has failed a while ago, and is
/// left alone: nobody was asked.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoolingDown {
    /// Each of them.
    pub candidates: Vec<Cooling>,
}

/// A candidate that is left alone.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cooling {
    /// Its label.
    pub candidate: String,
    /// For how long yet.
    pub left: Duration,
    /// What it failed with.
    pub class: FailureClass,
}

impl CoolingDown {
    /// How long until the first of them may be asked again.
    #[must_use]
    pub fn soonest(&self) -> Duration {
        self.first().map(|first| first.left).unwrap_or_default()
    }

    /// What the one failed with that may be asked again first.
    pub(crate) fn class(&self) -> FailureClass {
        self.first().map_or(FailureClass::Server, |it| it.class)
    }

    fn first(&self) -> Option<&Cooling> {
        self.candidates.iter().min_by_key(|cooling| cooling.left)
    }
}

impl fmt::Display for CoolingDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every candidate is left alone after a failure: ")?;
        for (at, cooling) in self.candidates.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let Cooling {
                candidate, class, ..
            } = cooling;
            let seconds = seconds(cooling.left);
            write!(f, "{comma}{candidate} for {seconds} s more ({class})")?;
        }
        Ok(())
    }
}

impl Error for CoolingDown {}

/// Whole seconds, never too few.
pub(crate) const fn seconds(left: Duration) -> u64 {
    left.as_secs() + (left.subsec_nanos() > 0) as u64
}
