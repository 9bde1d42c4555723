"""What a caller must be told."""

from client import Raised


def equal(actual, expected):
    assert actual == expected, f"got {actual!r}, expected {expected!r}"


def error(call, *words):
    """Calls, and returns what the SDK raised, whose text must hold each of `words`."""
    try:
        result = call()
    except Raised as raised:
        for word in words:
            assert word in raised.message, f"{word!r} is not in {raised}"
        return raised
    raise AssertionError(f"no exception, but silent success: {result!r}")


def reason(call, name):
    """Calls, and returns what the SDK raised, which must name the reason."""
    return named(error(call), name)


def named(raised, name):
    """What the SDK raised must name the reason in its text and as its code."""
    assert name in raised.message, f"{name!r} is not in {raised}"
    equal(raised.type, name)
    # Anthropic's SDKs have no code beside the type.
    assert raised.code in (name, None), f"the code is {raised.code!r}, not {name!r}"
    return raised


def one_request(client, exchanges=None):
    """Neither the SDK nor the gateway tried twice."""
    equal(client.sent, 1)
    if exchanges is not None:
        equal(len(exchanges), 1)


def released(exchange, limit=30.0):
    """Upstream's connection is closed, by nothing but the end of its call."""
    assert exchange.closed.wait(limit), f"upstream was still connected {limit} s later"
