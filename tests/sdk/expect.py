"""What a caller must be told."""

import openai

from client import SDK_ERRORS


def equal(actual, expected):
    assert actual == expected, f"got {actual!r}, expected {expected!r}"


def error(call, *words, kinds=SDK_ERRORS):
    """Calls, and returns the exception, whose text must hold each of `words`."""
    try:
        result = call()
    except kinds as raised:
        for word in words:
            assert word in str(raised), f"{word!r} is not in {type(raised).__name__}: {raised}"
        return raised
    raise AssertionError(f"no exception, but silent success: {result!r}")


def reason(call, name):
    """Calls, and returns the exception, which must name the reason in its text and as its code."""
    raised = error(call, name)
    if isinstance(raised, openai.APIError):
        equal(raised.code, name)
        equal(raised.type, name)
    else:
        equal(raised.body["error"]["type"], name)
    return raised


def one_request(client, exchanges=None):
    """Neither the SDK nor the gateway tried twice."""
    equal(client.sent, 1)
    if exchanges is not None:
        equal(len(exchanges), 1)


def released(exchange, limit=1.0):
    """Upstream's connection is closed soon."""
    assert exchange.closed.wait(limit), f"upstream was still connected {limit} s later"
