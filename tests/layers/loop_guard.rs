//! Agents that go in circles.
//!
//! covers: D7

mod agent;
mod answers;
mod clock;
mod dialects;
mod nodes;
mod rules;
mod tools;

use tower_agent::{LoopPattern, LoopVerdict, RunEvent, RunNotice, run::RunEvents};

/// What was told of a run: loops by their numbers, and the rest by name.
async fn told(mut events: RunEvents) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            // That it is stuck is told of again as it goes on, and that is not the matter here.
            RunEvent::Notice {
                notice: RunNotice::LooksStuck { repeats: 6.. },
                ..
            } => {}
            RunEvent::Notice { notice, .. } => told.push(word(&notice)),
            RunEvent::Ended { message, .. } => {
                told.push(message);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    told
}

fn word(notice: &RunNotice) -> String {
    match notice {
        RunNotice::Opened => "opened".to_owned(),
        RunNotice::LooksStuck { repeats } => format!("stuck {repeats}"),
        RunNotice::Loop {
            pattern,
            verdict,
            tool,
            times,
        } => {
            let pattern = match pattern {
                LoopPattern::SameCall => "same call",
                LoopPattern::PingPong => "ping-pong",
                LoopPattern::Cycle => "cycle",
                LoopPattern::UnknownTool => "unknown tool",
                LoopPattern::SameTool => "same arguments",
                other => panic!("{other:?}"),
            };
            let verdict = match verdict {
                LoopVerdict::Warned => "warned",
                LoopVerdict::Stopped => "stopped",
                _ => "observed",
            };
            format!("{pattern} {verdict} {tool} {times}")
        }
        other => panic!("{other:?}"),
    }
}
