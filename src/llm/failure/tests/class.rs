//! The columns of the table, and the statuses alone.

use std::collections::HashSet;

use http::StatusCode;

use super::super::{
    class::FailureClass::{
        self, Auth, Caller, Certificate, Conflict, ContentFilter, ContextOverflow, Deadline,
        ModelFault, ModelGone, NotReady, Overloaded, Quota, RateLimit, Redirect, Region,
        RequestLimit, RequestTimeout, Server, Silence, TooLarge, Transport,
    },
    failure::Failure,
    retry_advice::{Cool, Other, Same},
};

const TABLE: [(FailureClass, Same, Other, Cool); 21] = [
    (Silence, Same::Once, Other::Yes, Cool::Short),
    (Deadline, Same::No, Other::Yes, Cool::No),
    (Transport, Same::Yes, Other::Yes, Cool::Short),
    (Certificate, Same::No, Other::Yes, Cool::Long),
    (Redirect, Same::No, Other::Yes, Cool::Long),
    (RequestTimeout, Same::Yes, Other::Yes, Cool::No),
    (Conflict, Same::Yes, Other::No, Cool::No),
    (RateLimit, Same::Yes, Other::Yes, Cool::Short),
    (RequestLimit, Same::No, Other::Yes, Cool::No),
    (Overloaded, Same::Slowly, Other::Yes, Cool::Short),
    (NotReady, Same::Slowly, Other::Yes, Cool::Short),
    (Server, Same::Yes, Other::Yes, Cool::Short),
    (ModelFault, Same::Yes, Other::Yes, Cool::No),
    (Quota, Same::No, Other::Credential, Cool::Quota),
    (Auth, Same::No, Other::Credential, Cool::Long),
    (ModelGone, Same::No, Other::Yes, Cool::Long),
    (Region, Same::No, Other::Provider, Cool::Long),
    (ContextOverflow, Same::No, Other::LargerWindow, Cool::No),
    (TooLarge, Same::No, Other::IfAllowed, Cool::No),
    (ContentFilter, Same::No, Other::IfAllowed, Cool::No),
    (Caller, Same::No, Other::IfAllowed, Cool::No),
];

#[test]
fn what_follows_is_that_of_the_table() {
    for (class, same, other, cool) in TABLE {
        assert_eq!(class.same(), same, "{class}");
        assert_eq!(class.other(), other, "{class}");
        assert_eq!(class.cool(), cool, "{class}");
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
            let expected = is_allowed && same != Same::No;
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
