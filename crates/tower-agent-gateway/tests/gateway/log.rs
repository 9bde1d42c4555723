//! What an operator reads on stderr of calls and runs that are over.

use crate::{
    net::{Ask, CHAT, chat, eventually, run},
    support::{Config, Gateway},
};

const LIMITS: &str = "[run]\nmax_turns = 1\n[attempt]\nstep_timeout = \"300ms\"\n";

/// Asks, reads all of it, and waits for a line of a call that says this: all lines of the
/// ends of this run.
async fn logged(gateway: &Gateway, user: &str, id: &str, says: &str) -> Vec<String> {
    let request = gateway.post(CHAT, chat(user)).header("x-run-id", id);
    request.ask().await;
    eventually(async || {
        let log = gateway.log();
        let of_run = format!(" run={id} ");
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains(&of_run) && line.contains(" ended "))
            .map(str::to_owned)
            .collect();
        // The last of an end is that of the call.
        let reason = format!("call ended reason=\"{says}\"");
        lines
            .iter()
            .any(|line| line.contains(&reason))
            .then_some(lines)
    })
    .await
}

#[test]
fn each_end_is_one_line_of_its_level() {
    run(async {
        let (_upstream, gateway) = Config::new(LIMITS).start_with_model(&["m"]).await;

        let whole = logged(&gateway, "ok", "r-ok", "completed").await;
        let cut = logged(&gateway, "stall", "r-cut", "step_timeout").await;
        let capped = logged(&gateway, "ok", "r-ok", "turn_cap_reached").await;

        for lines in [&whole, &cut] {
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(
                lines[0].contains(" INFO tower_agent: call ended "),
                "{lines:?}"
            );
            assert!(lines[0].contains("candidate=\"m\" attempts=1 "));
        }
        // The call that the cap refused, and the run that it ended.
        let [_, call, ended] = &capped[..] else {
            panic!("{capped:?}");
        };
        let mut texts = [call, ended].map(|line| {
            assert!(line.contains("WARN"), "{line}");
            line.contains("run ended")
        });
        texts.sort_unstable();
        assert_eq!(texts, [false, true]);
        let log = gateway.log();
        for form in ["run=\"", "RunId(", "Some(", "AttemptSummary {"] {
            assert!(!log.contains(form), "{form}: {log}");
        }
    });
}
