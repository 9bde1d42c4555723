"""Runs cases side by side and says what became of each."""

import queue
import threading
import time
import traceback

# No case needs half of it; what takes longer hangs.
LIMIT = 60
WORKERS = 8

CASES = []


def case(name, over=(None,)):
    """Registers a case, once for each member of `over`, which it is called with."""

    def register(function):
        for value in over:
            if value is None:
                CASES.append((name, function, ()))
            else:
                CASES.append((f"{value.name}: {name}", function, (value,)))
        return function

    return register


def run(make_context, words):
    """Runs the cases whose names contain one of `words`; how many passed and failed."""
    chosen = [case for case in CASES if not words or any(word in case[0] for word in words)]
    # The slow ones first, or they would run on alone at the end.
    chosen.sort(key=lambda case: "slow" not in case[0])
    todo = queue.SimpleQueue()
    for number, (name, function, arguments) in enumerate(chosen, start=1):
        todo.put((number, name, function, arguments))

    outcomes = queue.SimpleQueue()
    for _ in range(WORKERS):
        threading.Thread(target=_work, args=(make_context, todo, outcomes), daemon=True).start()

    unheard = {name for name, _, _ in chosen}
    failed = 0
    while unheard:
        try:
            name, seconds, problem = outcomes.get(timeout=LIMIT)
        except queue.Empty:
            break
        unheard.discard(name)
        failed += bool(problem)
        print(f"{'FAILED' if problem else 'ok':6} {seconds:5.1f} s  {name}", flush=True)
        if problem:
            print(problem, flush=True)
    for name in sorted(unheard):
        print(f"FAILED  never    {name}: no case has ended for {LIMIT} s")
    return len(chosen) - failed - len(unheard), failed + len(unheard)


def _work(make_context, todo, outcomes):
    while True:
        try:
            number, name, function, arguments = todo.get_nowait()
        except queue.Empty:
            return
        start = time.monotonic()
        problem = None
        context = make_context(f"[case-{number}]")
        try:
            function(context, *arguments)
        except Exception:
            problem = traceback.format_exc()
        finally:
            context.close()
        outcomes.put((name, time.monotonic() - start, problem))
