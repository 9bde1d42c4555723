//! What the storm came to, to read and to paste.

use crate::{load::OUTAGE, play::SystemOutcome, systems::System};

pub(crate) fn explain() {
    let seconds = (OUTAGE.end - OUTAGE.start).as_secs();
    println!(
        "The {seconds} s of the outage. calls: what reached the first candidate; traffic: the first"
    );
    println!("attempts among them; most: what our budget promises for that traffic; second: what");
    println!(
        "reached the second. Of the agents' calls: served and failed, and the time until they"
    );
    println!("were. late: upstream calls that were begun for callers who had left.\n");
}

pub(crate) fn head(title: &str) {
    println!(
        "| {title:<36} | calls | traffic | ratio |  most | second | served | failed | median |  worst | late |",
    );
    println!(
        "|:{:-<37}|------:|--------:|------:|------:|-------:|-------:|-------:|-------:|-------:|-----:|",
        ""
    );
}

pub(crate) fn row(system: &System, outcome: &SystemOutcome) {
    let most = match system.is_ours() {
        true => outcome.most().to_string(),
        false => "–".to_owned(),
    };
    println!(
        "| {:<36} | {:>5} | {:>7} | {:>5.2} | {most:>5} | {:>6} | {:>6} | {:>6} | {:>4.1} s | {:>4.1} s | {:>4} |",
        system.name,
        outcome.first.all,
        outcome.first.traffic,
        outcome.first.all as f64 / outcome.first.traffic as f64,
        outcome.second.all,
        outcome.served,
        outcome.failed,
        outcome.median.as_secs_f64(),
        outcome.worst.as_secs_f64(),
        outcome.for_nobody,
    );
}
