"""Which answers the SDKs try again before a stream began, straight from the scripted upstream: why a
reason's answer has the status and the headers that it has. An SDK tries twice more if it tries again at
all; a cell says which of the statuses it tried again.

covers: T92
"""

import json

import expect
from runner import case
from sdks import EACH_ANTHROPIC, EACH_OPENAI

MODEL = "scripted"
EACH_SDK = [*EACH_OPENAI, *EACH_ANTHROPIC]

# The statuses that reasons have, and those that have a meaning for SDKs.
STATUSES = [400, 401, 403, 404, 408, 409, 413, 422, 429, 499, 500, 502, 503, 504, 529]


def refusing(status, headers):
    body = json.dumps({"type": "error", "error": {"type": "melted", "code": "melted", "message": "melting"}}).encode()
    return lambda exchange: exchange.json(body, status=f"{status} Melting", headers=headers)


def requests(context, dialect, status, headers):
    """How many requests one call makes."""
    context.play(refusing(status, headers))
    client = context.direct
    before = client.sent
    raised = expect.error(lambda: client.ask(dialect, MODEL, context.prompt), "melting")
    expect.equal(raised.status, status)
    return client.sent - before


def tried_again(context, dialect, headers):
    # Without it they would wait, which is their matter.
    headers = {"retry-after-ms": "1", **headers}
    counts = {status: requests(context, dialect, status, headers) for status in STATUSES}
    assert set(counts.values()) <= {1, 3}, counts
    again = [status for status, count in counts.items() if count == 3]
    context.outcome = "all" if again == STATUSES else ", ".join(map(str, again)) or "none"
    return again


@case("without a header", over=EACH_SDK)
def by_status(context, dialect):
    expect.equal(tried_again(context, dialect, {}), [408, 409, 429, 500, 502, 503, 504, 529])


@case("`x-should-retry: false`", over=EACH_SDK)
def forbidden(context, dialect):
    expect.equal(tried_again(context, dialect, {"x-should-retry": "false"}), [])


@case("`x-should-retry: true`", over=EACH_SDK)
def asked_for(context, dialect):
    expect.equal(tried_again(context, dialect, {"x-should-retry": "true"}), STATUSES)
