//! The digests that processes with one secret share. The keys are those of a process, so each test
//! runs itself again.

use std::{collections::BTreeMap, env, process::Command};

use super::super::{
    cooldown::{CandidateCooldowns, Cooldowns, digest_candidate},
    sticky_sessions::digest_session,
};
use crate::{
    attempt::{Candidate, Operation},
    layers::run::{AgentHeaders, KnownAgents},
    registry::{Finder, Owner, RunRegistry, SharedSecret},
    run::Run,
};

/// Set in the processes that the tests start: the secret, or nothing.
const CHILD: &str = "TOWER_AGENT_TEST_SECRET";

const SECRET: &str = "f2c1a7f94be6d3055d1b7f8cbb0c4e21";

/// The digests of [`SECRET`]. Replicas of two versions do not work together if these differ, so a
/// change of them is one that users must know of.
const DIGESTS: [(&str, &str); 16] = [
    ("owner", "b207aa1af46ebe24527295f854d5b099"),
    ("nobody", "a1730fb768a3c8b1b59523b678920e3f"),
    ("printed owner", "owner-4659676a522545e6"),
    ("turn", "s-1:c4e58f16e2cdde69"),
    (
        "turn of an odd session",
        "f684da21cd9e0682:c4e58f16e2cdde69",
    ),
    ("session", "813c24fb811b6a3d"),
    ("session of a model", "fcd227782fb702e0"),
    ("model", "4bb747b87133d41b"),
    ("provider", "dd5c09fd2ffdcb94"),
    ("model of account", "a98f9eb17fe52883"),
    ("own account", "8b77dbef9cfa8327"),
    ("forwarding", "7605d39de827bdb6"),
    ("caller's account", "66f7d88a32cda375"),
    ("named account", "3810cd8ac3d9c371"),
    ("candidate", "fb73c29071084a83"),
    ("candidate of callers", "930566646d66609b"),
];

fn again(test: &str, secret: &str) -> String {
    let test = format!("layers::model_fallback::tests::shared_secret::{test}");
    let mut command = Command::new(env::current_exe().unwrap());
    let child = command
        .args(["--exact", &test, "--nocapture"])
        .env(CHILD, secret)
        .output()
        .unwrap();
    let said = String::from_utf8(child.stdout).unwrap();
    assert!(child.status.success(), "{said}{:?}", child.stderr);
    assert!(said.contains("1 passed"), "{said}");
    said
}

/// The digests that a process of its own makes, by what they are of.
fn digests_with(secret: &str) -> BTreeMap<String, String> {
    let said = again("one_secret_makes_the_same_digests_in_each_process", secret);
    let digests = said.lines().filter_map(|line| {
        let (name, digest) = line.strip_prefix("digest of ")?.split_once(": ")?;
        Some((name.to_owned(), digest.to_owned()))
    });
    digests.collect()
}

fn digests() -> Vec<(&'static str, String)> {
    let owner = Owner::of(b"sk-one");
    let mut digests = vec![
        ("owner", format!("{:032x}", owner.digest())),
        ("nobody", format!("{:032x}", Owner::anonymous().digest())),
        ("printed owner", owner.to_string()),
    ];

    let agents = KnownAgents::none().with(AgentHeaders::session("x-session".parse().unwrap()));
    let turn = |session| {
        let headers = [("x-session", session)];
        let body = br#"{"messages":[{"role":"user","content":"count"}]}"#;
        let found = agents.run_of(super::chat(&headers).head(), body).unwrap();
        found.id().to_string()
    };
    digests.push(("turn", turn("s-1")));
    digests.push(("turn of an odd session", turn("s 1")));

    let registry = RunRegistry::new();
    let run = registry.open(owner, "r-1".parse().unwrap());
    assert_eq!(digest_session(&run, None), None);
    for (name, model) in [("session", None), ("session of a model", Some("m"))] {
        let run = in_session(&registry, owner);
        let session = digest_session(&run, model).unwrap();
        digests.push((name, format!("{session:016x}")));
    }

    let candidate = || Candidate::new("m").base_url("https://h/v1").unwrap();
    let own = || candidate().api_key("sk-ours").unwrap();
    let candidates = [
        ("own account", own()),
        ("forwarding", own().forward_credentials(true)),
        ("caller's account", candidate().forward_credentials(true)),
        ("named account", candidate().credential("ours")),
    ];
    let all = candidates.each_ref().map(|(_, it)| it.clone().into());
    let cooldowns = CandidateCooldowns::new(Cooldowns::new(), &all);
    let request = super::chat(&[("authorization", "Bearer sk-one")]);
    let keys = |at| cooldowns.keys(at, request.head(), Some(Operation::Messages));
    let keys = |at| keys(at).unwrap();
    for (name, key) in [
        ("model", keys(0).model),
        ("provider", keys(0).provider),
        ("model of account", keys(0).model_of_account),
    ] {
        digests.push((name, format!("{:016x}", key.digest)));
    }
    for (at, (name, _)) in candidates.iter().enumerate() {
        digests.push((name, format!("{:016x}", keys(at).account.digest)));
    }
    for (name, candidate) in [
        ("candidate", own()),
        (
            "candidate of callers",
            candidate().forward_credentials(true),
        ),
    ] {
        digests.push((name, format!("{:016x}", digest_candidate(&candidate))));
    }
    digests
}

fn in_session(registry: &RunRegistry, owner: Owner) -> Run {
    let session = Some("s-1".into());
    registry.find_with(
        owner,
        "r-2".parse().unwrap(),
        session,
        RunRegistry::IDLE,
        Finder::Request,
        None,
    )
}

#[test]
fn one_secret_makes_the_same_digests_in_each_process() {
    if let Ok(secret) = env::var(CHILD) {
        if !secret.is_empty() {
            SharedSecret::new(secret.as_bytes())
                .unwrap()
                .install()
                .unwrap();
        }
        println!();
        for (name, digest) in digests() {
            println!("digest of {name}: {digest}");
        }
        return;
    }
    let shared = digests_with(SECRET);
    let known = DIGESTS.map(|(name, digest)| (name.to_owned(), digest.to_owned()));
    assert_eq!(shared, BTreeMap::from(known));

    let others = [&SECRET.replace('f', "e"), "", ""].map(digests_with);
    for (name, digest) in &shared {
        let mut known = vec![digest];
        for others in &others {
            let other = &others[name];
            assert!(!known.contains(&other), "{name}");
            known.push(other);
        }
    }
}

#[test]
fn a_secret_is_installed_before_the_first_digest_and_once() {
    let Ok(secret) = env::var(CHILD) else {
        for secret in ["", SECRET] {
            again(
                "a_secret_is_installed_before_the_first_digest_and_once",
                secret,
            );
        }
        return;
    };
    let ours = SharedSecret::new(SECRET.as_bytes()).unwrap();
    // The program itself needs no key.
    let program = Owner::default();
    assert_eq!((program.digest(), &*program.to_string()), (0, "program"));
    if secret.is_empty() {
        let owner = Owner::of(b"sk-one");
        let error = ours.install().unwrap_err().to_string();
        assert!(error.contains("install the secret first"), "{error}");
        assert_eq!(Owner::of(b"sk-one"), owner);
    } else {
        ours.install().unwrap();
        let owner = Owner::of(b"sk-one");
        assert_eq!(ours.install(), Ok(()), "the same again");
        let other = SharedSecret::new(&[7; 16]).unwrap();
        let error = other.install().unwrap_err().to_string();
        assert!(error.contains("another secret"), "{error}");
        assert_eq!(Owner::of(b"sk-one"), owner);
    }
}
