"""Runs cases side by side and says what became of each."""

import queue
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Optional

from client import Raised

# Longer than a case waits for anything; what takes longer hangs.
LIMIT = 180
WORKERS = 16


@dataclass(frozen=True)
class Case:
    """`group` is the file that it is written in; `caller` the SDK and dialect that it is run for."""

    group: str
    scenario: str
    function: Callable
    caller: Optional[object]
    arguments: tuple

    @property
    def name(self):
        who = self.caller or next(iter(self.arguments), None)
        return f"{who.name}: {self.scenario}" if who else self.scenario


CASES = []


class Skip(Exception):
    """A case does not hold yet; the text says why. It counts as neither passed nor failed."""


@contextmanager
def known_fault(why):
    """Skips what fails in here, for a fault that is written down; once it holds, the fault is mended."""
    try:
        yield
    except (AssertionError, Raised):
        raise Skip(why) from None
    raise AssertionError(f"this holds now, so the fault is mended, and `known_fault` is to go: {why}")


def case(scenario, over=(None,)):
    """Registers a case, once for each member of `over`: callers, or dialects that no SDK is needed for.
    It is called with the dialect."""

    def register(function):
        group = function.__module__
        for value in over:
            caller = value if hasattr(value, "sdk") else None
            dialect = caller.dialect if caller else value
            CASES.append(Case(group, scenario, function, caller, () if dialect is None else (dialect,)))
        return function

    return register


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def check(self, ok, text):
        self.passed += ok
        self.failed += not ok
        print(f"{'ok' if ok else 'FAILED':6}          {text}", flush=True)


def chosen(words):
    return [case for case in CASES if not words or any(word in case.name for word in words)]


def run(make_context, cases):
    """Runs them; the tally, and how the SDK's last call ended in each case that did not fail."""
    # The slow ones first, or they would run on alone at the end.
    todo = queue.SimpleQueue()
    for number, case in enumerate(sorted(cases, key=lambda case: "slow" not in case.scenario), start=1):
        todo.put((number, case))
    done = queue.SimpleQueue()
    for _ in range(WORKERS):
        threading.Thread(target=_work, args=(make_context, todo, done), daemon=True).start()

    unheard = set(cases)
    tally, outcomes = Tally(), {}
    while unheard:
        try:
            case, seconds, problem, outcome = done.get(timeout=LIMIT)
        except queue.Empty:
            break
        unheard.discard(case)
        if isinstance(problem, Skip):
            tally.skipped += 1
            outcomes[case] = "skipped"
            print(f"SKIPPED {seconds:4.1f} s  {case.name}: {problem}", flush=True)
            continue
        tally.passed += not problem
        tally.failed += bool(problem)
        if not problem:
            outcomes[case] = str(outcome)
        print(f"{'FAILED' if problem else 'ok':6} {seconds:5.1f} s  {case.name}", flush=True)
        if problem:
            print(problem, flush=True)
    for case in unheard:
        print(f"FAILED  never    {case.name}: no case has ended for {LIMIT} s")
    tally.failed += len(unheard)
    return tally, outcomes


def _work(make_context, todo, done):
    while True:
        try:
            number, case = todo.get_nowait()
        except queue.Empty:
            return
        start = time.monotonic()
        problem = None
        context = make_context(f"[case-{number}]", case.caller)
        try:
            case.function(context, *case.arguments)
        except Skip as skip:
            problem = skip
        except (Exception, SystemExit):
            problem = traceback.format_exc()
        finally:
            context.close()
        done.put((case, time.monotonic() - start, problem, context.outcome))
