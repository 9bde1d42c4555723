//! What an owner may have in a day, a week and a month.
//!
//! covers: D6

use super::{is_capped, keyed, turn};
use crate::net::{Ask, CHAT, asks, run};

#[test]
fn an_owner_has_so_many_turns_this_month_and_an_agent_its_own_number_this_day() {
    run(async {
        let caps = "turns_per_month = 3\ntimezone = \"Asia/Tokyo\"\n[agents.one]\nturns_per_day = 1\nmax_turns = 7";
        let (upstream, gateway) = keyed(caps).await;
        assert_eq!(turn(&gateway, "sk-one", None).await.status, 200);
        let refused = turn(&gateway, "sk-one", Some("r")).await;
        is_capped(&refused);
        let words = "its caller has had 1 turns this day, as many as it may (turn_cap_reached). \
                     Wait for the next day.";
        assert!(refused.text().contains(words), "{refused:?}");
        for _ in 0..3 {
            assert_eq!(turn(&gateway, "sk-two", None).await.status, 200);
        }
        let refused = turn(&gateway, "sk-two", None).await;
        is_capped(&refused);
        assert!(refused.text().contains("3 turns this month"), "{refused:?}");
        assert_eq!(upstream.count(), 4);
        assert!(
            gateway.log().contains("a restart resets them"),
            "{}",
            gateway.log()
        );
    });
}

#[test]
fn the_tokens_of_a_month_are_refused_once_they_are_spent() {
    run(async {
        let caps = "output_tokens_per_month = 5\n[run]\nmax_turns = 30";
        let (_upstream, gateway) = keyed(caps).await;
        let ask = async || {
            gateway
                .post(CHAT, asks("ok", true))
                .bearer_auth("sk-one")
                .ask()
                .await
        };
        let mut served = 0;
        let refused = loop {
            let answer = ask().await;
            if answer.status != 200 {
                break answer;
            }
            served += 1;
            assert!(served < 30, "nothing is refused");
        };
        assert_eq!(refused.reason(), Some("token_cap_reached"));
        assert!(
            refused
                .text()
                .contains("used up, this month, its 5 output tokens"),
            "{refused:?}"
        );
    });
}
