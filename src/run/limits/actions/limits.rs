use std::num::NonZeroU32;

/// How far a run may go in circles. None is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopLimits {
    /// How often the same may come back before it is told, and after each further
    /// such number.
    pub(crate) warn: Option<NonZeroU32>,
    /// How often the same may come back.
    pub(crate) stop: Option<NonZeroU32>,
    /// How many calls of tools that there are not.
    pub(crate) unknown_tool: Option<NonZeroU32>,
    /// How often the same call in a row, whatever came of it.
    pub(crate) any_tool: Option<NonZeroU32>,
}

const fn count(number: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(number)
}

impl LoopLimits {
    /// How many actions a run remembers at least.
    pub(super) const WINDOW: usize = 30;

    /// The most that a limit may be: as many actions are remembered.
    pub(crate) const MOST: u32 = 1000;

    pub(crate) const DEFAULT: Self = Self {
        warn: count(10),
        stop: count(20),
        unknown_tool: count(10),
        any_tool: count(30),
    };

    /// The limit of a setter: 0 is off, and more than the most is the most.
    pub(crate) const fn limit(number: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(if number > Self::MOST {
            Self::MOST
        } else {
            number
        })
    }

    /// Of each two limits the smaller.
    pub(super) fn tightened(self, by: Self) -> Self {
        let least = |one: Option<NonZeroU32>, other| one.into_iter().chain(other).min();
        Self {
            warn: least(self.warn, by.warn),
            stop: least(self.stop, by.stop),
            unknown_tool: least(self.unknown_tool, by.unknown_tool),
            any_tool: least(self.any_tool, by.any_tool),
        }
    }

    /// How many actions must be remembered to judge by them.
    pub(super) fn window(self) -> usize {
        let limits = [self.warn, self.stop, self.unknown_tool, self.any_tool];
        let most = limits.into_iter().flatten().max();
        most.map_or(0, |most| most.get() as usize).max(Self::WINDOW)
    }
}
