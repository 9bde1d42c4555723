"""Checks of the gateway in front of a real llama.cpp server: see `run`."""

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import model
from world import Caller, Gateway, LateClose, Llama

CHECKS = []
RETRY = "[retry]\nbase_delay = '200ms'"
WINDOW = "[attempt]\nstep_timeout = '1s'"
LONG = {"stream": True, "max_tokens": 1500, "ignore_eos": True}


def check(function):
    CHECKS.append(function)
    return function


def equal(what, found, expected):
    assert found == expected, f"{what}: {found!r}, not {expected!r}"


def calls_after_streams(world, *tables, late=False):
    """llama.cpp closes a connection behind each stream, and does not say so before."""
    wrong = []
    with Llama(world) as llama, Gateway(world, *tables, (LateClose(llama) if late else llama).candidate()) as gateway:
        for number in range(400):
            before = gateway.call(stream=True)
            time.sleep((0, 0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08)[number // 2 % 8])
            after = gateway.call(stream=number % 2 == 0)
            for answer in (before, after):
                if answer.status != 200 or answer.attempt != 1:
                    wrong.append((answer.status, answer.attempt))
    kinds = {kind: wrong.count(kind) for kind in wrong}
    assert not wrong, f"{len(wrong)} of 800 calls: (status, attempt): {kinds}"


@check
def after_a_stream(world):
    calls_after_streams(world)


@check
def after_a_stream_with_retry(world):
    calls_after_streams(world, RETRY)


@check
def after_a_stream_that_closes_late(world):
    calls_after_streams(world, late=True)


@check
def after_a_stream_that_closes_late_with_retry(world):
    calls_after_streams(world, RETRY, late=True)


@check
def connections_that_served_many_calls(world):
    """A connection ends after 100 requests, and when it was idle for 5 s."""
    with Llama(world) as llama, Gateway(world, llama.candidate()) as gateway:
        answers = [gateway.call(max_tokens=1) for _ in range(250)]
        for pause in (4.9, 5.0, 5.1):
            time.sleep(pause)
            answers.append(gateway.call(max_tokens=1))
        equal("statuses", {answer.status for answer in answers}, {200})


@check
def overflow_of_the_only_model(world):
    with Llama(world, context=512) as llama, Gateway(world, RETRY, "[fallback]\ncooldown = true", llama.candidate()) as gateway:
        for path, stream in [("chat/completions", False), ("chat/completions", True), ("responses", True), ("messages", True)]:
            answer = gateway.call("word " * 400, path=path, stream=stream)
            equal(path, (answer.status, answer.attempt), (400, 1))
            equal(path, answer.error()["type"], "exceed_context_size_error")
        equal("a short prompt meanwhile", gateway.call().status, 200)
        while 'class="context_overflow" signal="exceed_context_size_error"' not in gateway.logged():
            time.sleep(0.02)


@check
def overflow_moves_to_a_larger_model(world):
    with Llama(world, context=512) as small, Llama(world, context=4096) as large:
        candidates = small.candidate(context_window=512), large.candidate(name="large", context_window=4096)
        with Gateway(world, *candidates) as gateway:
            for stream in (False, True):
                answer = gateway.call("word " * 400, stream=stream)
                equal("served", (answer.status, answer.headers["x-served-candidate"], answer.attempt), (200, "large", 2))


@check
def an_answer_that_fills_the_context(world):
    with Llama(world, context=512) as llama, Gateway(world, llama.candidate()) as gateway:
        answer = gateway.call(**LONG)
        equal("whole", answer.whole(), True)
        equal("finish", answer.events()[-2]["choices"][0]["finish_reason"], "length")


def page(llama):
    """The configuration that crates/tower-agent-llm/docs/providers.md has for llama.cpp, for this server."""
    text = Path("crates/tower-agent-llm/docs/providers.md").read_text().partition("### llama.cpp")[2]
    return text.partition("```toml")[2].partition("```")[0].replace("127.0.0.1:8080", f"127.0.0.1:{llama.port}")


@check
def loading(world):
    """A model that takes seconds to load: 503 meanwhile."""
    with Llama(world, "large", 512, wait=False) as llama:
        while llama.health() != 503:
            time.sleep(0.05)
        with Gateway(world, llama.candidate()) as gateway:
            answer = gateway.call()
            equal("alone", (answer.status, answer.error()["message"]), (503, "Loading model"))
        with Gateway(world, page(llama)) as gateway:
            for stream in (False, True):
                equal("loads", llama.health(), 200 if stream else 503)
                answer = gateway.call(stream=stream, max_tokens=1)
                equal("with the page's configuration", (answer.status, answer.attempt), (200, 1))


@check
def loading_with_retry(world):
    with Llama(world, "large", 512, wait=False) as llama:
        while llama.health() != 503:
            time.sleep(0.05)
        repeats = "[retry]\nmax_attempts_per_candidate = 20\nbase_delay = '1s'\nmax_delay = '1s'"
        with Gateway(world, repeats, llama.candidate()) as gateway:
            answer = gateway.call(max_tokens=1)
            equal("status", answer.status, 200)
            assert answer.attempt > 1, answer.attempt


@check
def restart(world):
    """With [health] a call waits for a server that is down, and then loads."""
    with Llama(world) as llama:
        port = llama.port
    health = f"[health]\nurl = 'http://127.0.0.1:{port}/health'\nevery = '200ms'"
    with Gateway(world, health, llama.candidate()) as gateway:
        answers = []
        call = threading.Thread(target=lambda: answers.append(gateway.call(max_tokens=1)))
        call.start()
        time.sleep(1)
        with Llama(world, port=port):
            call.join()
            equal("served", (answers[0].status, answers[0].attempt), (200, 1))


@check
def frozen_before_the_head(world):
    with Llama(world) as llama, Gateway(world, WINDOW, llama.candidate()) as gateway:
        llama.send(signal.SIGSTOP)
        for stream in (True, False):
            answer = gateway.call(stream=stream)
            equal("answer", (answer.status, answer.headers["x-terminal-reason"]), (504, "step_timeout"))
            assert 1 <= answer.seconds < 2, answer.seconds
        llama.send(signal.SIGCONT)
        equal("afterwards", gateway.call(stream=True).whole(), True)


@check
def frozen_before_the_head_with_another_model(world):
    with Llama(world) as llama, Llama(world) as other:
        with Gateway(world, WINDOW, llama.candidate(), other.candidate(name="other")) as gateway:
            llama.send(signal.SIGSTOP)
            answer = gateway.call(stream=True)
            equal("served", (answer.status, answer.headers["x-served-candidate"]), (200, "other"))


@check
def frozen_in_a_stream(world):
    with Llama(world) as llama, Gateway(world, WINDOW, llama.candidate()) as gateway:
        answer = gateway.call(then=lambda: llama.send(signal.SIGSTOP), **LONG)
        equal("error", (answer.error()["code"], answer.whole()), ("step_timeout", False))
        llama.send(signal.SIGCONT)
        equal("afterwards", gateway.call(stream=True).whole(), True)


@check
def frozen_for_less_than_the_window(world):
    def freeze():
        llama.send(signal.SIGSTOP)
        time.sleep(0.5)
        llama.send(signal.SIGCONT)

    with Llama(world) as llama, Gateway(world, WINDOW, llama.candidate()) as gateway:
        equal("whole", gateway.call(then=freeze, **LONG).whole(), True)


@check
def killed_in_a_stream(world):
    with Llama(world) as llama, Gateway(world, RETRY, llama.candidate()) as gateway:
        answer = gateway.call(then=lambda: llama.send(signal.SIGKILL), **LONG)
        equal("status", answer.status, 200)
        equal("whole", answer.whole(), False)
        assert answer.error(), answer.events()[-1]
        equal("afterwards", gateway.call().status, 502)


def stated(path, answer):
    """The tokens of prompt and answer, as llama.cpp's own answer has them."""
    said = answer.events() if answer.headers["content-type"] == "text/event-stream" else [answer.json()]
    said = [event for event in said if isinstance(event, dict)]
    if path == "messages":
        usage = said[0].get("message", said[0])["usage"]
        output = [event["usage"] for event in said if "usage" in event][-1]["output_tokens"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], output
    if path == "responses":
        usage = said[-1].get("response", said[-1])["usage"]
        return usage["input_tokens"], usage["output_tokens"]
    timings = said[-1]["timings"]
    found = timings["cache_n"] + timings["prompt_n"], timings["predicted_n"]
    if usage := said[-1].get("usage"):
        equal("usage beside timings", (usage["prompt_tokens"], usage["completion_tokens"]), found)
    return found


@check
def usage(world):
    with Llama(world) as llama, Gateway(world, llama.candidate()) as gateway:
        for path, body in [
            ("chat/completions", {}),
            ("chat/completions", {"stream": True}),
            ("chat/completions", {"stream": True, "stream_options": {"include_usage": True}}),
            ("responses", {}),
            ("responses", {"stream": True}),
            ("messages", {}),
            ("messages", {"stream": True}),
        ]:
            run = f"usage.{len(body)}.{path.replace('/', '.')}"
            expected = [0, 0]
            for _ in range(2):
                # The second prompt comes from llama.cpp's cache.
                answer = gateway.call(f"Count these {path} {body}", run=run, path=path, **body)
                equal(run, answer.status, 200)
                expected = [a + b for a, b in zip(expected, stated(path, answer))]
            spent = gateway.spent(run)
            found = [spent["input_tokens"] + spent["cached_input_tokens"], spent["output_tokens"]]
            equal(f"{run}: {spent}", found, expected)
            equal(f"{run}: {spent}", (spent["estimated_input_tokens"], spent["estimated_tokens"]), (0, 0))


@check
def a_long_prompt(world):
    """Without a sign of life the window passes; `return_progress` shows that the prompt is read."""
    words = "word " * 900
    with Llama(world, "slow", 8192, options=["-b", "32", "-ub", "32"]) as llama, Gateway(world, WINDOW, llama.candidate()) as gateway:
        answer = gateway.call(words, stream=True)
        equal("without", (answer.status, answer.headers["x-terminal-reason"]), (504, "step_timeout"))
        answer = gateway.call("Now " + words, stream=True, return_progress=True)
        equal("with return_progress", (answer.whole(), answer.headers["x-terminal-reason"]), (True, None))
        assert answer.seconds > 1.5, f"the prompt was read within {answer.seconds} s: nothing is shown"


@check
def other_operations(world):
    with Llama(world) as llama, Gateway(world, "[fallback]\ncooldown = true", llama.candidate()) as gateway:
        caller = Caller(gateway.port)
        count = {"model": "local", "messages": [{"role": "user", "content": "hi"}]}
        equal("count_tokens", caller.ask("POST", "/v1/messages/count_tokens", count).status, 200)
        equal("embeddings", caller.ask("POST", "/v1/embeddings", {"model": "local", "input": "hi"}).status, 501)
        equal("chat meanwhile", gateway.call().status, 200)


def main():
    arguments = argparse.ArgumentParser()
    for name in ("server", "gateway", "folder"):
        arguments.add_argument(f"--{name}", required=True, type=os.path.abspath)
    arguments.add_argument("words", nargs="*")
    world = arguments.parse_args()
    for name, size in {"tiny": {}, "slow": {"blocks": 4, "width": 256}, "large": {"blocks": 16, "width": 2048, "zeros": True}}.items():
        if not Path(path := f"{world.folder}/{name}.gguf").exists():
            model.write(path, **size)

    failed = 0
    for function in CHECKS:
        name = function.__name__
        if world.words and not any(word in name for word in world.words):
            continue
        began = time.monotonic()
        try:
            function(world)
            result = "ok"
        except Exception as error:
            failed += 1
            result = f"FAILED: {error}"
            if not isinstance(error, AssertionError):
                traceback.print_exc()
        print(f"{name}: {time.monotonic() - began:.1f} s: {result}", flush=True)
    sys.exit(failed > 0)


main()
