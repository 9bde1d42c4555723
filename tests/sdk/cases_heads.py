"""Which answers the SDKs try again, before a stream began: straight from the scripted upstream, and what
the gateway makes of it. An SDK tries twice more if it tries again at all."""

import json

import expect
from runner import case
from sdks import EACH_ANTHROPIC, EACH_OPENAI

MODEL = "scripted"
EACH_SDK = [*EACH_OPENAI, *EACH_ANTHROPIC]

# The statuses that reasons have, and those that have a meaning for SDKs.
TRIED_AGAIN = [408, 409, 429, 500, 502, 503, 504, 529]
FINAL = [400, 401, 403, 404, 413, 422, 499]


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


def counts(context, dialect, statuses, headers):
    # Without it they would wait, which is their matter.
    headers = {"retry-after-ms": "1", **headers}
    return {status: requests(context, dialect, status, headers) for status in statuses}


@case("without a gateway: 408, 409, 429 and 5xx are tried again, others are not", over=EACH_SDK)
def by_status(context, dialect):
    expect.equal(counts(context, dialect, TRIED_AGAIN, {}), dict.fromkeys(TRIED_AGAIN, 3))
    expect.equal(counts(context, dialect, FINAL, {}), dict.fromkeys(FINAL, 1))


@case("without a gateway: `x-should-retry: false` goes before any status", over=EACH_SDK)
def forbidden(context, dialect):
    statuses = TRIED_AGAIN + FINAL
    expect.equal(counts(context, dialect, statuses, {"x-should-retry": "false"}), dict.fromkeys(statuses, 1))


@case("without a gateway: `x-should-retry: true` goes before any status", over=EACH_SDK)
def asked_for(context, dialect):
    statuses = TRIED_AGAIN + FINAL
    expect.equal(counts(context, dialect, statuses, {"x-should-retry": "true"}), dict.fromkeys(statuses, 3))
