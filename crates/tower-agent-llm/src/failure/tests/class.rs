//! Tests of the table of failure classes, and of statuses without a body.

use std::collections::HashSet;

use http::StatusCode;

use super::super::class::FailureClass::{
    self, Auth, Caller, Certificate, Conflict, ContentFilter, ContextOverflow, Deadline,
    ModelFault, ModelGone, NotReady, Overloaded, Quota, RateLimit, Redirect, Region, RequestLimit,
    RequestTimeout, Server, SessionExpired, Slow, StepTimeout, TooLarge, Transport,
};
use crate::failure::class::{Cooldown, RetrySame, TryOther};
use crate::failure::classifier::Failure;

const TABLE: [(FailureClass, RetrySame, TryOther, Cooldown); 23] = [
    (StepTimeout, RetrySame::Once, TryOther::Yes, Cooldown::Short),
    (Slow, RetrySame::Yes, TryOther::Yes, Cooldown::Short),
    (Deadline, RetrySame::No, TryOther::Yes, Cooldown::No),
    (Transport, RetrySame::Yes, TryOther::Yes, Cooldown::Short),
    (
        Certificate,
        RetrySame::No,
        TryOther::Provider,
        Cooldown::Long,
    ),
    (Redirect, RetrySame::No, TryOther::Yes, Cooldown::Long),
    (RequestTimeout, RetrySame::Yes, TryOther::Yes, Cooldown::No),
    (Conflict, RetrySame::Yes, TryOther::No, Cooldown::No),
    (RateLimit, RetrySame::Yes, TryOther::Yes, Cooldown::Short),
    (RequestLimit, RetrySame::No, TryOther::Yes, Cooldown::No),
    (
        Overloaded,
        RetrySame::Slowly,
        TryOther::Yes,
        Cooldown::Short,
    ),
    (NotReady, RetrySame::Slowly, TryOther::Yes, Cooldown::Short),
    (Server, RetrySame::Yes, TryOther::Yes, Cooldown::Short),
    (ModelFault, RetrySame::Yes, TryOther::Yes, Cooldown::No),
    (Quota, RetrySame::No, TryOther::Credential, Cooldown::Quota),
    (Auth, RetrySame::No, TryOther::Credential, Cooldown::Long),
    (ModelGone, RetrySame::No, TryOther::Yes, Cooldown::Long),
    (Region, RetrySame::No, TryOther::Provider, Cooldown::Long),
    (
        ContextOverflow,
        RetrySame::No,
        TryOther::LargerWindow,
        Cooldown::No,
    ),
    (TooLarge, RetrySame::No, TryOther::IfAllowed, Cooldown::No),
    (
        ContentFilter,
        RetrySame::No,
        TryOther::IfAllowed,
        Cooldown::No,
    ),
    (SessionExpired, RetrySame::No, TryOther::No, Cooldown::No),
    (Caller, RetrySame::No, TryOther::IfAllowed, Cooldown::No),
];

#[test]
fn what_follows_is_that_of_the_table() {
    for (class, same, other, cool) in TABLE {
        assert_eq!(class.retry(), same, "{class}");
        assert_eq!(class.fallback(), other, "{class}");
        assert_eq!(class.cooldown(), cool, "{class}");
    }
}

#[test]
fn each_class_has_a_snake_case_name_of_its_own() {
    let mut names = HashSet::new();
    for (class, ..) in TABLE {
        let name = class.as_str();
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        assert_eq!(name.replace('_', ""), format!("{class:?}").to_lowercase());
        assert_eq!(class.to_string(), name);
        assert!(names.insert(name), "{name}");
    }
}

#[test]
fn an_upstream_may_forbid_another_try_but_not_allow_one() {
    for (class, same, ..) in TABLE {
        let mut failure = Failure::new(class);
        for (should_retry, is_allowed) in [(None, true), (Some(true), true), (Some(false), false)] {
            failure.should_retry = should_retry;
            let expected = is_allowed && same != RetrySame::No;
            let case = format!("{class}, {should_retry:?}");
            assert_eq!(failure.is_worth_repeating(), expected, "{case}");
        }
    }
}

#[test]
fn each_status_alone_has_its_class() {
    let cases = [
        (400, Caller),
        (401, Auth),
        (402, Quota),
        (403, Auth),
        (404, Caller),
        (405, Caller),
        (408, RequestTimeout),
        (409, Conflict),
        (410, ModelGone),
        (413, TooLarge),
        (415, Caller),
        (418, Caller),
        (422, Caller),
        (424, ModelFault),
        (429, RateLimit),
        (499, Server),
        (500, Server),
        (502, Server),
        (503, Server),
        (504, Server),
        (521, Server),
        (524, Server),
        (529, Overloaded),
        (599, Server),
    ];
    for (status, expected) in cases {
        for body in ["", "{}", "upstream connect error", "{\"error\":{\"ty"] {
            let found = super::class(status, body);
            assert_eq!(found, Some(expected), "{status} with {body:?}");
        }
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(FailureClass::from_status(status), Some(expected));
    }
    for status in [200, 201, 204, 301, 304] {
        assert_eq!(super::class(status, ""), None, "{status}");
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(FailureClass::from_status(status), None);
    }
}
