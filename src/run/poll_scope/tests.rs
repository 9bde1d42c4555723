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
