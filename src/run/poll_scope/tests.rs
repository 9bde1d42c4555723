use std::{
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use super::{PollScope, Role};
use crate::run::{Clock, Run, nanos};

struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

fn task() -> Waker {
    Waker::from(Arc::new(Task))
}

#[test]
fn a_wait_of_another_task_hides_the_enforcer_around_it() {
    let (run, [outer, inner]) = (Run::open(), [task(), task()]);
    let _enforcer = Role::enter(&outer, &run);

    let _wait = PollScope::enter(&inner, &run);

    assert!(!Role::enter(&inner, &run).is_inner());
}

#[test]
fn the_end_of_a_nested_poll_restores_the_role_around_it() {
    let (run, task) = (Run::open(), task());
    let call = run.open_call();
    let _enforcer = Role::enter(&task, &run);

    drop(Role::enter(&task, &call));

    assert!(Role::enter(&task, &run).is_inner());
}

#[test]
fn a_driver_of_another_task_waits_for_the_deadlines_of_the_enforcer_around_it_too() {
    let (run, [outer, inner]) = (Run::open(), [task(), task()]);
    let call = run.open_call();
    let at = Duration::from_secs(10);
    run.node().tighten(Clock::Ceiling, at);
    let _enforcer = Role::enter(&outer, &run);

    let role = Role::enter(&inner, &call);

    let Role::Enforcer(scope) = &role else {
        panic!("an enforcer of another task hid this one")
    };
    assert_eq!(scope.next_deadline(call.node()), nanos(at));
}

#[test]
fn the_end_of_another_tasks_poll_restores_the_driven_node_around_it() {
    let (run, [outer, inner]) = (Run::open(), [task(), task()]);
    let call = run.open_call();
    let _driver = Role::enter(&outer, &run);

    drop(Role::enter(&inner, &call));

    assert_eq!(PollScope::driven(), run.node().number());
}

#[test]
fn each_of_several_tasks_polls_restores_the_one_around_it_also_if_it_panics() {
    let runs = [Run::open(), Run::open(), Run::open()];
    let tasks = [task(), task(), task()];
    let [outer, middle, inner] = [0, 1, 2].map(|at| runs[at].node().number());
    let _outer = PollScope::enter(&tasks[0], &runs[0]);
    let scope = PollScope::enter(&tasks[1], &runs[1]);
    let driven = std::cell::Cell::new(0);

    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _inner = Role::enter(&tasks[2], &runs[2]);
        driven.set(PollScope::driven());
        panic!("as a service may");
    }));

    assert!(panicked.is_err());
    assert_eq!((driven.get(), PollScope::driven()), (inner, middle));
    drop(scope);
    assert_eq!(PollScope::driven(), outer);
}
