//! The caps of owners: the keys of `[auth]` that cap each owner, and those of `[agents.NAME]` that cap one.

use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::{
    OwnerCaps, TokenCaps,
    config::{Amount, BoundedCount, ConfigError, KeyPart},
};

type RunCount = Option<BoundedCount<0, 1_000_000>>;
type Turns = Option<BoundedCount<0, 1_000_000_000>>;
type Tokens = Option<BoundedCount<0, { u32::MAX }>>;

/// Makes the tables that have the keys of the caps, and `CAP_KEYS` with their names.
macro_rules! caps_table {
    ($($of:ident $in_a:literal: $turns:ident $output:ident $total:ident $cost:ident,)*) => {
        /// The caps of one owner, as they are written.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default, expecting = "a table")]
        pub(super) struct CapsTable {
            max_open_runs: RunCount,
            $($turns: Turns, $output: Tokens, $total: Tokens, $cost: Option<Amount>,)*
            count_cached_input: Option<bool>,
        }

        /// `[auth]`, as it is written.
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, expecting = "a table")]
        pub(super) struct AuthTable {
            /// The environment variable that holds the keys: `NAME:KEY,NAME:KEY`.
            pub(super) keys_env: Option<String>,
            /// The absolute path of a file that holds the keys, in place of `keys_env`.
            #[schemars(regex(pattern = "^/"))]
            pub(super) keys_file: Option<String>,
            /// The place whose days, weeks and months these are, such as "Europe/Berlin". "UTC" by
            /// default.
            pub(super) timezone: Option<String>,
            /// The most open runs of one owner. Off by default.
            max_open_runs: RunCount,
            $(
                #[doc = concat!("The most turns in ", $in_a, ", over all runs. Off by default.")]
                $turns: Turns,
                #[doc = concat!("The most tokens of answers in ", $in_a, ". Off by default.")]
                $output: Tokens,
                #[doc = concat!("The most tokens of prompts and answers in ", $in_a, ". Off by default.")]
                $total: Tokens,
                #[doc = concat!("The most that the tokens cost in ", $in_a, ". Off by default.")]
                $cost: Option<Amount>,
            )*
            /// Whether the caps on total tokens count the cached tokens of prompts, too. False by
            /// default.
            count_cached_input: Option<bool>,
        }

        impl AuthTable {
            /// The caps of each owner.
            pub(super) const fn caps(&self) -> CapsTable {
                CapsTable {
                    max_open_runs: self.max_open_runs,
                    $(
                        $turns: self.$turns,
                        $output: self.$output,
                        $total: self.$total,
                        $cost: self.$cost,
                    )*
                    count_cached_input: self.count_cached_input,
                }
            }
        }

        /// The names of the keys of the caps.
        pub(super) const CAP_KEYS: &[&str] = &[
            "max_open_runs",
            $(stringify!($turns), stringify!($output), stringify!($total), stringify!($cost),)*
            "count_cached_input",
        ];

        impl CapsTable {
            /// The caps, with those of `all` for the absent ones. Zero disables a cap.
            fn over(&self, all: &Self) -> Self {
                Self {
                    max_open_runs: self.max_open_runs.or(all.max_open_runs),
                    $(
                        $turns: self.$turns.or(all.$turns),
                        $output: self.$output.or(all.$output),
                        $total: self.$total.or(all.$total),
                        $cost: self.$cost.or(all.$cost),
                    )*
                    count_cached_input: self.count_cached_input.or(all.count_cached_input),
                }
            }

            fn windows(&self) -> [(BudgetWindow, Caps); 4] {
                [$((BudgetWindow::$of, Caps {
                    turns: self.$turns,
                    output: self.$output,
                    total: self.$total,
                    cost: self.$cost,
                    keys: [stringify!($turns), stringify!($output), stringify!($total), stringify!($cost)],
                }),)*]
            }
        }
    };
}

caps_table! {
    Hour "an hour": turns_per_hour output_tokens_per_hour total_tokens_per_hour cost_per_hour,
    Day "a day": turns_per_day output_tokens_per_day total_tokens_per_day cost_per_day,
    Week "a week": turns_per_week output_tokens_per_week total_tokens_per_week cost_per_week,
    Month "a month": turns_per_month output_tokens_per_month total_tokens_per_month cost_per_month,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BudgetWindow {
    Hour,
    Day,
    Week,
    Month,
}

/// The caps in one window.
struct Caps {
    turns: Turns,
    output: Tokens,
    total: Tokens,
    cost: Option<Amount>,
    /// The keys of these four.
    keys: [&'static str; 4],
}

impl Caps {
    /// The caps that are on, each with its key.
    fn of_keys(&self) -> [(&'static str, Option<f64>); 4] {
        let count = |cap: Option<u32>| cap.map(f64::from);
        let [turns, output, total, cost] = self.keys;
        [
            (turns, count(self.turns.and_then(BoundedCount::limit))),
            (output, count(self.output.and_then(BoundedCount::limit))),
            (total, count(self.total.and_then(BoundedCount::limit))),
            (cost, self.cost.and_then(Amount::limit)),
        ]
    }
}

impl CapsTable {
    /// Resolves the caps of the table at this path, each absent one that of `all`.
    pub(super) fn resolve(
        &self,
        all: &Self,
        path: &[&str],
        has_prices: bool,
        errors: &mut Vec<ConfigError>,
    ) -> OwnerCaps {
        let mut wrong = |key: &str, message: String| {
            let path = path.iter().copied().map(KeyPart::from);
            let key = path.chain([KeyPart::from(key)]);
            errors.push(ConfigError::new(key, message));
        };
        for (_, caps) in self.windows() {
            if caps.cost.and_then(Amount::limit).is_some() && !has_prices {
                let [.., cost] = caps.keys;
                wrong(cost, "has no effect: no candidate has a price".to_owned());
            }
        }
        let caps = self.over(all);
        for (key, cap, longer, least) in self.above_longer_windows(&caps) {
            wrong(
                key,
                format!("{cap} is more than {longer} ({least}), which is met first"),
            );
        }
        let counts_cached = caps.count_cached_input == Some(true);
        let has_total =
            |(_, caps): (BudgetWindow, Caps)| caps.total.and_then(BoundedCount::limit).is_some();
        if self.count_cached_input == Some(true) && !caps.windows().into_iter().any(has_total) {
            wrong(
                "count_cached_input",
                "has no effect without total_tokens_per_hour, or the same of a day, week or month"
                    .to_owned(),
            );
        }
        let mut resolved = OwnerCaps::new();
        if let Some(runs) = caps.max_open_runs.and_then(BoundedCount::limit) {
            resolved = resolved.max_open_runs(runs);
        }
        for (window, caps) in caps.windows() {
            let tokens = TokenCaps::new()
                .max_output_tokens(caps.output.and_then(BoundedCount::limit))
                .max_total_tokens(caps.total.and_then(BoundedCount::limit))
                .max_cost(caps.cost.and_then(Amount::limit))
                .count_cached_input(counts_cached);
            resolved = match window {
                BudgetWindow::Hour => resolved.tokens_per_hour(tokens),
                BudgetWindow::Day => resolved.tokens_per_day(tokens),
                BudgetWindow::Week => resolved.tokens_per_week(tokens),
                BudgetWindow::Month => resolved.tokens_per_month(tokens),
            };
            let Some(turns) = caps.turns.and_then(BoundedCount::limit) else {
                continue;
            };
            resolved = match window {
                BudgetWindow::Hour => resolved.turns_per_hour(turns),
                BudgetWindow::Day => resolved.turns_per_day(turns),
                BudgetWindow::Week => resolved.turns_per_week(turns),
                BudgetWindow::Month => resolved.turns_per_month(turns),
            };
        }
        resolved
    }

    /// The caps of this table that are more than that of a longer window in `whole`, with the key of that.
    ///
    /// A week may lie in two months, so its caps may be more than a month's.
    fn above_longer_windows(&self, whole: &Self) -> Vec<(&'static str, f64, &'static str, f64)> {
        let longer = whole.windows();
        let mut found = Vec::new();
        for (place, (window, caps)) in self.windows().into_iter().enumerate() {
            let longer = longer[place + 1..].iter();
            let longer = longer.filter(|_| window != BudgetWindow::Week);
            for (kind, (key, cap)) in caps.of_keys().into_iter().enumerate() {
                let of_kind = longer.clone().filter_map(|(_, caps)| {
                    let (key, cap) = caps.of_keys()[kind];
                    Some((key, cap?))
                });
                let Some(cap) = cap else { continue };
                let least = of_kind.min_by(|(_, a), (_, b)| a.total_cmp(b));
                if let Some((longer, least)) = least.filter(|(_, least)| cap > *least) {
                    found.push((key, cap, longer, least));
                }
            }
        }
        found
    }

    /// Whether a cap on cost is set.
    pub(super) fn caps_cost(&self) -> bool {
        let mut windows = self.windows().into_iter();
        windows.any(|(_, caps)| caps.cost.and_then(Amount::limit).is_some())
    }

    /// Whether a cap is set in a day, a week or a month.
    pub(super) fn uses_calendar(&self) -> bool {
        let is_set = |caps: &Caps| {
            let tokens = [caps.output, caps.total];
            caps.cost.and_then(Amount::limit).is_some()
                || caps.turns.and_then(BoundedCount::limit).is_some()
                || tokens
                    .into_iter()
                    .any(|cap| cap.and_then(BoundedCount::limit).is_some())
        };
        let mut windows = self.windows().into_iter();
        windows.any(|(window, caps)| window != BudgetWindow::Hour && is_set(&caps))
    }
}
