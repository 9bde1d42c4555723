"""The agent that polls 103 times for a job that never ends, at a cap of 30 turns, and whatever it sends to be let
go on, at a cap of 12; with new ids, or none, it meets the caps of its owner.

It asks again when it was refused, so every call beyond the cap is told the same. The second cap is a low one only
because the SDKs need long for long histories.

covers: D1, D5, D6
"""

import re
import threading

import dialects
import expect
from agent import KEY, Agent
from runner import case
from sdks import CALLERS

# Of the loop in the field, and the cap that is recommended.
CALLS = 103
RECOMMENDED = 30
TURNS = 12
# Calls beyond a cap, of those that are about something else.
MORE = 4
OPEN_RUNS = 5
TURNS_PER_HOUR = 40
REASON = "turn_cap_reached"
RUN = "polling"
OTHER_KEY = "sk-other"
KEYS = {"POLLING_KEYS": f"agent:{KEY},other:{OTHER_KEY}"}

CAPPED = """\
[run]
max_turns = {turns}

[auth]
keys_env = "POLLING_KEYS"
{caps}
[[candidates]]
model = "sim-polling"
base_url = "{{upstream}}/v1"

[[candidates]]
name = "spare"
model = "sim-polling"
base_url = "{{upstream}}/v1"
"""

HEADERS = {
    "x-max-turns": "1000",
    "x-run-turns": "0",
    "x-turns": "0",
    "x-turn-cap": "off",
    "x-terminal-reason": "completed",
    "x-should-retry": "true",
    "x-stainless-retry-count": "2",
    "x-attempt": "1",
    "x-session-id": "another",
    "x-agent": "other",
    "x-owner": "other",
    "x-forwarded-for": "10.0.0.1",
    # Keys that nobody has, where the SDKs put none.
    "x-api-key": "sk-new",
    "api-key": "sk-new",
}

BODY = {
    "max_turns": 1000,
    "metadata": {"max_turns": "1000", "run_id": "another", "x-run-id": "another"},
    "run": {"id": "another", "max_turns": 1000},
    "run_id": "another",
    "x-run-id": "another",
    "limits": {"max_turns": 0},
    "turn": 0,
    "user": "another",
}


class Stage:
    """A gateway with caps, and what it and its upstream have counted."""

    def __init__(self, context, turns=TURNS, caps=""):
        self.turns = turns
        text = CAPPED.format(turns=turns, caps=caps)
        self.client, self.gateway, self.upstream = context.in_front(text, KEYS)

    def agent(self, dialect, run=RUN, **tricks):
        return Agent(self.client, dialect, run, **tricks)

    def asked(self):
        """The requests that reached upstream."""
        return self.client.raw.get(f"{self.upstream}/stats").json()["started"]

    def snapshot(self, run=RUN):
        return self.client.raw.get(f"{self.client.url}/runs/{run}").json()

    def check(self, *agents):
        """Together they had all turns of the run, and not one more; and that is written down once."""
        for agent in agents:
            refused(agent)
        expect.equal(sum(agent.answered for agent in agents), self.turns)
        expect.equal(self.asked(), self.turns)
        self.check_run()

    def check_run(self):
        snapshot = self.snapshot()
        expect.equal((snapshot["reason"], snapshot["turns"]), (REASON, self.turns))
        records = [record for record in self.gateway.records() if record.get("kind") == "harness_terminate"]
        told = [(record["run"], record["reason"], record["at_turn"]) for record in records]
        expect.equal(told, [(RUN, REASON, self.turns)])


def refused(agent, word=""):
    """The calls that were refused are the last ones, each for the cap."""
    told = agent.refused
    assert told, "nothing was refused"
    expect.equal(agent.calls[-len(told) :], told)
    for raised in told:
        expect.named(raised, REASON)
        expect.equal(raised.status, 422)
        expect.equal(raised.headers.get("x-terminal-reason"), REASON)
        assert word in raised.message, raised.message


# covers: D9
@case("103 calls of one run, unary", over=CALLERS)
def unary(context, dialect):
    polls_on(context, dialect)


# covers: D9
@case("103 calls of one run, streaming", over=CALLERS)
def streaming(context, dialect):
    polls_on(context, dialect, stream=True)


def polls_on(context, dialect, **tricks):
    stage = Stage(context, RECOMMENDED)
    agent = stage.agent(dialect, **tricks)

    agent.poll(RECOMMENDED + 1)
    # Only because the SDKs need long for a long one.
    agent.forget()
    agent.poll(CALLS - RECOMMENDED - 1)

    expect.equal(len(agent.calls), CALLS)
    stage.check(agent)


def polls(context, dialect, **tricks):
    """An agent that begins as all do, and then tries something."""
    stage = Stage(context)
    agent = stage.agent(dialect)

    agent.poll(TURNS - 5)
    agent.tricks = tricks
    agent.poll(5 + MORE)

    stage.check(agent)


@case("it sends headers", over=CALLERS)
def headers(context, dialect):
    polls(context, dialect, headers=HEADERS)


@case("it sends fields in its body", over=CALLERS)
def body(context, dialect):
    polls(context, dialect, body=BODY)


@case("it asks for another model each time", over=CALLERS)
def models(context, dialect):
    polls(context, dialect, models=["sim-polling", "spare", "gpt-5", "claude-sonnet-4-5", "no-limit"])


@case("its SDK may retry five times", over=CALLERS)
def retries(context, dialect):
    polls(context, dialect, max_retries=5)


@case("it drops its history", over=CALLERS)
def compaction(context, dialect):
    stage = Stage(context)
    agent = stage.agent(dialect)

    for _ in range(4):
        agent.poll(5)
        agent.forget()

    stage.check(agent)


@case("it goes on over a second connection", over=CALLERS)
def second_connection(context, dialect):
    stage = Stage(context)
    first, second = stage.agent(dialect), stage.agent(dialect)

    first.poll(TURNS - 5)
    second.poll(5 + MORE)
    first.poll(MORE)

    expect.equal(first.answered, TURNS - 5)
    stage.check(first, second)


@case("it goes on after a restart", over=CALLERS)
def restart(context, dialect):
    stage = Stage(context)
    agent = stage.agent(dialect)

    agent.poll(TURNS - 5)
    # It remembers nothing but what is handed over here.
    context.restart(stage.client)
    agent.poll(5 + MORE)

    stage.check(agent)


@case("it goes on in another dialect, with another SDK", over=CALLERS)
def other_dialect(context, dialect):
    stage = Stage(context)
    agents = [stage.agent(dialect)]
    for other in dialects.DIALECTS:
        if other is not dialect:
            agents.append(stage.agent(other, sdk="anthropic" if other.name == "messages" else "openai"))

    for agent in agents:
        agent.poll(TURNS // len(agents))
    for agent in agents:
        agent.poll(MORE)

    stage.check(*agents)


@case("it is two agents at once", over=CALLERS)
def at_once(context, dialect):
    stage = Stage(context)
    # Whose answer is cut may ask again, and is told then.
    agents = [stage.agent(dialect, repeats=True) for _ in range(2)]

    both = [threading.Thread(target=agent.poll, args=(TURNS + MORE,)) for agent in agents]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()

    # The last one that was admitted may have been under way when the run ended.
    answered = sum(agent.answered for agent in agents)
    assert answered in (TURNS - 1, TURNS), answered
    assert stage.asked() in (TURNS - 1, TURNS), stage.asked()
    for agent in agents:
        expect.equal(len(agent.calls), TURNS + MORE)
        expect.equal({raised.type for raised in agent.refused}, {REASON})
        agent.repeats = False
        agent.poll(1)
    stage.check_run()


@case("it shows a key that nobody has", over=CALLERS)
def unknown_key(context, dialect):
    stage = Stage(context)
    agent, stranger = stage.agent(dialect), stage.agent(dialect, key="sk-new")

    agent.poll(TURNS + 1)
    stranger.poll(1)

    expect.equal([raised.status for raised in stranger.refused], [401])
    stage.check(agent)


@case("a new id each time: the owner's open runs", over=CALLERS)
def new_ids(context, dialect):
    agent = owned(context, dialect, f"max_open_runs = {OPEN_RUNS}\nturns_per_hour = {TURNS_PER_HOUR}", range(TURNS_PER_HOUR + MORE))

    expect.equal(agent.answered, OPEN_RUNS)
    refused(agent, f"{OPEN_RUNS} open runs")


@case("a new id each time: the owner's turns", over=CALLERS)
def new_ids_turns(context, dialect):
    agent = owned(context, dialect, f"turns_per_hour = {TURNS_PER_HOUR}", range(TURNS_PER_HOUR + MORE))

    expect.equal(agent.answered, TURNS_PER_HOUR)
    refused(agent, f"{TURNS_PER_HOUR} turns within an hour")


@case("no id: the owner's turns", over=CALLERS)
def no_id(context, dialect):
    agent = owned(context, dialect, f"max_open_runs = {OPEN_RUNS}\nturns_per_hour = {TURNS_PER_HOUR}")

    expect.equal(agent.answered, TURNS_PER_HOUR)
    refused(agent, f"{TURNS_PER_HOUR} turns within an hour")


def owned(context, dialect, caps, ids=None):
    """Polls under each of the ids once, or without one, and has another owner ask then."""
    stage = Stage(context, RECOMMENDED, caps)
    agent = stage.agent(dialect, run=None)
    if ids is None:
        agent.poll(TURNS_PER_HOUR + MORE)
    for number in ids or ():
        agent.poll(1, run=f"{RUN}-{number}")
    outcome = context.outcome

    expect.equal(len(agent.calls), TURNS_PER_HOUR + MORE)
    expect.equal(stage.asked(), agent.answered)
    # It is nobody else's cap, and no run's: what was refused has not begun.
    other = stage.agent(dialect, key=OTHER_KEY)
    other.poll(1)
    expect.equal(other.answered, 1)
    records = stage.gateway.records()
    told = [(record["kind"], record["reason"], record["refused"], record["run"]) for record in records]
    expect.equal(told, [("harness_refused", REASON, 1, None)])
    named, limit = caps.splitlines()[0 if ids else -1].split(" = ")
    expect.equal((records[0]["cap"], records[0]["limit"]), (named, int(limit)))
    assert re.fullmatch("owner-[0-9a-f]{16}", records[0]["owner"]), records
    context.outcome = outcome
    return agent
