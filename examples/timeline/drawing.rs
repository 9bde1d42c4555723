//! The bars of a run, and the picture of them.

use std::{fmt::Write as _, time::Duration};

use tower_agent::{TerminalReason, attempt::AttemptSummary};

/// The rows of the picture, from above.
const ROWS: [&str; 3] = ["large", "small", "tools"];

const WIDTH: f32 = 880.0;
const LEFT: f32 = 70.0;
const TOP: f32 = 46.0;
const ROW: f32 = 46.0;

/// A wall clock, as the plain alternative: the seconds after which it would end a run.
const WALL_CLOCK: f32 = 20.0;

/// An attempt or a tool.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) row: String,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    pub(crate) text: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Served,
    Failed,
    Cut,
    Tool,
}

impl Bar {
    /// The bar of an attempt that has ended now.
    pub(crate) fn of_attempt(tried: &AttemptSummary, now: Duration) -> Self {
        let row = tried.candidate.as_deref().unwrap_or("-").to_owned();
        let (kind, text) = match &tried.reason {
            TerminalReason::Completed => (Kind::Served, "served".to_owned()),
            reason if tried.class.is_some() => (
                Kind::Failed,
                format!("{}: the attempt failed", reason.as_str()),
            ),
            reason => (Kind::Cut, reason.as_str().to_owned()),
        };
        Self {
            row,
            from: now.saturating_sub(tried.duration),
            to: now,
            text,
            kind,
        }
    }

    pub(crate) fn of_tool(name: &str, from: Duration, to: Duration) -> Self {
        Self {
            row: "tools".into(),
            from,
            to,
            text: name.into(),
            kind: Kind::Tool,
        }
    }
}

/// Draws the bars as an SVG.
pub(crate) fn draw(bars: &[Bar], is_dark: bool) -> String {
    let last = bars.iter().map(|bar| bar.to).max().unwrap_or_default();
    let end = (last.as_secs_f32() / 10.0).ceil().max(1.0) * 10.0;
    let x = |seconds: f32| LEFT + seconds / end * (WIDTH - LEFT - 20.0);
    let bottom = TOP + ROW * 3.0;
    let height = bottom + 64.0;
    let (text, faint, paper) = match is_dark {
        true => ("#e6edf3", "#8b949e", "#0d1117"),
        false => ("#1f2328", "#656d76", "#ffffff"),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
         <title>A run of three turns: slow steps go on, a silent model is left for another, and nothing follows when the user leaves</title>\n\
         <style>text {{ font: 12px system-ui, sans-serif; fill: {text} }} .faint {{ fill: {faint} }} line {{ stroke: {faint} }}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{paper}\"/>\n",
    );
    let mut put = |line: String| {
        let _ = writeln!(svg, "{line}");
    };
    let mut tick = 0.0;
    while tick <= end {
        let at = x(tick);
        put(format!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" opacity=\".25\"/>"
        ));
        put(format!(
            "<text class=\"faint\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{tick} s</text>",
            bottom + 18.0
        ));
        tick += 10.0;
    }
    for (number, row) in (0_u8..).zip(ROWS) {
        let y = TOP + ROW * f32::from(number) + 20.0;
        put(format!(
            "<text class=\"faint\" x=\"{}\" y=\"{y}\" text-anchor=\"end\">{row}</text>",
            LEFT - 10.0
        ));
    }
    for bar in bars {
        let number = ROWS
            .iter()
            .position(|row| *row == bar.row)
            .unwrap_or_default();
        let number = f32::from(u8::try_from(number).unwrap_or_default());
        let (from, to) = (x(bar.from.as_secs_f32()), x(bar.to.as_secs_f32()));
        let fill = match bar.kind {
            Kind::Served => "#2f9e5b",
            Kind::Failed => "#d29922",
            Kind::Cut => "#d9443f",
            Kind::Tool => "#3b82d6",
        };
        let y = TOP + ROW * number + 6.0;
        put(format!(
            "<rect x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"16\" rx=\"3\" fill=\"{fill}\"/>",
            to - from
        ));
        put(format!(
            "<text x=\"{:.1}\" y=\"{}\"{}>{}</text>",
            if bar.to == last { to - 6.0 } else { from },
            y + 29.0,
            if bar.to == last {
                " text-anchor=\"end\""
            } else {
                ""
            },
            bar.text
        ));
    }
    let at = x(WALL_CLOCK);
    put(format!(
        "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"26\" y2=\"{bottom}\" stroke-dasharray=\"4 4\"/>"
    ));
    put(format!(
        "<text class=\"faint\" x=\"{:.1}\" y=\"20\" text-anchor=\"middle\">a wall clock of {WALL_CLOCK} s would end the run here, at work</text>",
        at
    ));
    let left = x(last.as_secs_f32());
    put(format!(
        "<text x=\"{left:.1}\" y=\"{}\" text-anchor=\"end\">the user leaves: no retry, no fallback, the upstream is released</text>",
        bottom + 44.0
    ));
    put(format!(
        "<line x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{TOP}\" y2=\"{}\" stroke-width=\"2\"/>",
        bottom + 30.0
    ));
    svg.push_str("</svg>\n");
    svg
}
