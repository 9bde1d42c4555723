"""Cases about the operator's page, each in a browser in front of a gateway."""

import http.server
import json
import shutil
import signal
import subprocess
import threading
import time

from playwright.sync_api import expect

from support import PATIENCE, Call, Gateway, Proxy, eventually, free_port, listens, open_runs, watched

TOKEN = "sesame-0123456789"
KEYS = {"coder": "key-coder", "nightly": "key-nightly", "late": "key-late"}
MARKUP = "<img src=x onerror=\"document.title='owned'\">"
RIGHT_TO_LEFT = "\u202e\u05d0\u05d1\u05d2 model \u0634\u0628\u0643\u0629"
LONG = "L" + "ong" * 1365

MODELS = ["sim-healthy", "sim-slow", "sim-stall-stream", "sim-failing", "sim-cut", "sim-rate-limited-long"]
NAMES = [(MARKUP, "sim-slow"), (RIGHT_TO_LEFT, "sim-slow"), (LONG, "sim-slow")]

# What Chromium writes about an answer that the test provoked.
REFUSED = r"Failed to load resource: the server responded with a status of 40[03]"
CUT = r"Failed to load resource: net::|net::ERR_"


def configuration(upstream):
    text = """
[control]
token_env = "UI_TOKEN"
[auth]
keys_env = "UI_KEYS"
[run]
max_turn_time = "2h"
idle = "1h"
[attempt]
step_timeout = "25s"
[fallback]
cooldown = true
[agents.nightly]
max_turns = 1
at_cap = "pause"
"""
    for name, model in [*((it, it) for it in MODELS), *NAMES]:
        text += f'[[candidates]]\nname = {json.dumps(name)}\nmodel = "{model}"\nbase_url = "http://{upstream}/v1"\n'
    return text


FRAME = """(url) => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.onload = done;
    frame.src = url;
    document.body.append(frame);
})"""


class World:
    """What all cases share."""

    def __init__(self, binary, browser, is_full):
        self.binary, self.browser, self.is_full = binary, browser, is_full
        self.simulator = Gateway(binary)
        keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
        self.env = {"UI_TOKEN": TOKEN, "UI_KEYS": keys}
        self.config = configuration(self.simulator.upstream())
        self.gateway = Gateway(binary, config=self.config, env=self.env)

    def clean(self):
        """Ends what the case before has left."""
        self.ask("DELETE", "/freeze")
        for owner in KEYS:
            self.ask("DELETE", f"/freeze/{owner}")
        self.ask("POST", "/abort", {"all": True})
        for name in MODELS:
            self.ask("POST", f"/cooldowns/{name}/clear")

    def call(self, run, model, owner="coder", **more):
        return Call(self.gateway.port, KEYS[owner], run, model, **more)

    def ask(self, method, path, body=None):
        status, answer = self.gateway.ask(method, path, body, token=TOKEN)
        assert status == 200, (method, path, status, answer)
        return answer

    def enter(self, page, port=None, path="/ui"):
        """Opens the page in a tab that has the token; the first case types it."""
        page.add_init_script(f"sessionStorage.setItem('tower-agent-token', '{TOKEN}')")
        page.goto(f"http://127.0.0.1:{port or self.gateway.port}{path}")
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        expect(page.locator(".pages")).to_be_visible()

    def bound(self, what, seconds, limit):
        """Prints a time; with --full it must be below its bound."""
        print(f"    {what}: {seconds:.2f} s (bound {limit} s)")
        assert not self.is_full or seconds < limit, f"{what} took {seconds:.2f} s"


def rows(page):
    return page.locator("tr[data-run]")


def row(page, run):
    return page.locator(f'tr[data-run="{run}"]')


def order(page, title):
    page.get_by_label("order").select_option(label=title)


def confirm(page, opens, button):
    """Presses a button, reads the question, and says yes by the button that names the number."""
    page.get_by_role("button", name=opens, exact=True).click()
    yes = page.get_by_role("dialog").get_by_role("button", name=button, exact=True)
    expect(yes).to_be_enabled()
    said = page.locator("dialog .found").inner_text()
    yes.click()
    expect(page.locator("dialog")).to_have_count(0)
    return said


def without_a_token_there_is_the_form_and_nothing_else(world):
    world.call("secret-run", "sim-slow")
    with watched(world.browser, allowed=[REFUSED]) as page:
        addresses = []
        page.on("request", lambda it: addresses.append(it.url))
        page.goto(f"http://127.0.0.1:{world.gateway.port}/ui")
        expect(page.get_by_label("The operator's token")).to_be_focused()
        page.wait_for_timeout(1000)
        assert page.locator("table, dialog, .strip").count() == 0
        assert "secret-run" not in page.content()
        assert page.get_by_role("button").count() == 1
        page.get_by_label("The operator's token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("This token is wrong.")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0, "a wrong token is kept"
        page.get_by_label("The operator's token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(row(page, "secret-run")).to_be_visible()
        assert TOKEN not in page.url and TOKEN not in page.content()
        assert len(addresses) > 10 and not [it for it in addresses if TOKEN in it or "wrong" in it]
        assert page.context.cookies() == []
        assert page.evaluate("localStorage.length") == 0
        page.reload()
        expect(row(page, "secret-run")).to_be_visible()
        page.get_by_role("button", name="Forget the token").click()
        expect(page.get_by_label("The operator's token")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0
        assert "secret-run" not in page.content()


def a_gateway_without_a_token_needs_no_form(world):
    Call(world.simulator.port, "one", "open-run", "sim-slow")
    with watched(world.browser) as page:
        page.goto(f"http://127.0.0.1:{world.simulator.port}/ui")
        expect(row(page, "open-run")).to_be_visible()
        assert page.get_by_role("button", name="Forget the token").count() == 0


def failed_by(world, kind):
    """A run of which an attempt failed by this class."""
    for at in range(50):
        attempts = world.ask("GET", f"/runs/mixed-{at}")["attempts_of_late"]
        if any(it["class"] == kind for it in attempts):
            return f"mixed-{at}"
    return None


def a_row_follows_its_event(world):
    models = ["sim-stall-stream", "sim-failing", "sim-slow", "sim-cut", "sim-rate-limited-long"]
    for at in range(50):
        world.call(f"mixed-{at}", models[at % len(models)], session="mixed")
    with watched(world.browser) as page:
        world.enter(page)
        order(page, "newest")
        expect(rows(page).first).to_be_visible()
        slowest = 0
        for at in range(3):
            began = time.monotonic()
            call = world.call(f"follows-{at}", "sim-slow")
            row(page, f"follows-{at}").wait_for()
            slowest = max(slowest, time.monotonic() - began)
            began = time.monotonic()
            world.ask("POST", f"/runs/follows-{at}/abort")
            expect(row(page, f"follows-{at}")).to_have_count(0)
            slowest = max(slowest, time.monotonic() - began)
            call.wait()
        world.bound("a row follows its event", slowest, 1)
        # Those that fell back, and those that were cut, say so in their panel.
        page.get_by_role("searchbox", name="session").fill("mixed")
        page.keyboard.press("Enter")
        for kind, says in [("server", "failed: server 500"), ("transport", "failed: transport")]:
            run, _ = eventually(lambda: failed_by(world, kind), f"no attempt failed by {kind}")
            row(page, run).click()
            expect(page.locator(".timeline").get_by_text(says).first).to_be_visible()
            assert page.locator(".timeline .bar-piece").count() > 0
        # The end of a run is one sentence.
        world.ask("POST", "/runs/mixed-2/abort")
        page.get_by_label("state").select_option(label="ended, 10 minutes")
        row(page, "mixed-2").click()
        expect(page.locator(".sentence")).to_contain_text("Ended as aborted after")


def nothing_is_missing_after_a_reconnect(world):
    proxy = Proxy(world.gateway.port)
    sent = []
    with watched(world.browser, allowed=[CUT]) as page:
        page.on("request", lambda it: "/events" in it.url and sent.append(it.headers.get("last-event-id")))
        world.enter(page, proxy.port)
        page.get_by_role("searchbox", name="owner").fill("late")
        page.keyboard.press("Enter")
        open_runs(world.gateway.port, KEYS["late"], [f"early-{at}" for at in range(10)])
        expect(rows(page)).to_have_count(10)
        expect(page.get_by_text("● live")).to_be_visible()

        proxy.cut()
        expect(page.get_by_text("○ not live")).to_be_visible()
        open_runs(world.gateway.port, KEYS["late"], [f"meanwhile-{at}" for at in range(30)])
        for at in range(5):
            world.ask("POST", f"/runs/early-{at}/abort")
        proxy.mend()
        expect(page.get_by_text("● live")).to_be_visible()
        expect(rows(page)).to_have_count(35)
        assert sent[0] is None and any(sent[1:]), sent
        expect(page.get_by_text("0 events lost")).to_be_visible()

        # More events than the gateway keeps: the page is told that it lost some.
        proxy.cut()
        expect(page.get_by_text("○ not live")).to_be_visible()
        names = [f"flood-{at}" for at in range(1200)]
        open_runs(world.gateway.port, KEYS["coder"], names)
        open_runs(world.gateway.port, KEYS["late"], [f"after-{at}" for at in range(20)])
        proxy.mend()
        expect(page.get_by_text("● live")).to_be_visible()
        expect(page.get_by_text("got lost; the list was read again")).to_be_visible()
        expect(rows(page)).to_have_count(55)


def an_abort_by_row_ends_the_clients_read(world):
    with watched(world.browser) as page:
        world.enter(page)
        call = world.call("to-abort", "sim-slow")
        row(page, "to-abort").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".panel h2")).to_have_text("to-abort")
        page.get_by_role("button", name="End…", exact=True).click()
        yes = page.get_by_role("dialog").get_by_role("button", name="End 1 run", exact=True)
        expect(yes).to_be_enabled()
        assert "Ends 1 run, with 1 call in flight." in page.locator("dialog .found").inner_text()
        assert call.ended is None, "it has ended before the operator said yes"
        began = time.monotonic()
        yes.click()
        call.wait()
        world.bound("the client's read ends", call.ended - began, 1)
        assert "aborted" in call.text
        expect(row(page, "to-abort")).to_have_count(0)
        expect(page.locator(".sentence")).to_contain_text("Ended as aborted")
        page.keyboard.press("Escape")
        expect(page.locator(".panel")).to_have_count(0)
        # By keys alone: from row to row, into the panel, and back.
        open_runs(world.gateway.port, KEYS["coder"], ["first", "second"])
        order(page, "oldest")
        expect(rows(page)).to_have_count(2)
        rows(page).first.focus()
        page.keyboard.press("ArrowDown")
        expect(rows(page).last).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".panel")).to_be_focused()
        page.keyboard.press("Escape")
        expect(rows(page).last).to_be_focused()


def a_hung_run_among_130_others_is_ended_in_two_clicks(world):
    open_runs(world.gateway.port, KEYS["coder"], [f"idle-{at}" for at in range(120)])
    working = [world.call(f"works-{at}", "sim-slow") for at in range(10)]
    hung = world.call("hung", "sim-stall-stream")
    with watched(world.browser) as page:
        world.enter(page)
        # It has written its first tokens, and no more since.
        expect(rows(page).first).to_have_attribute("data-run", "hung")
        page.wait_for_timeout(2000)
        first = rows(page).first
        expect(first).to_have_attribute("data-run", "hung")
        first.hover()
        first.get_by_role("button", name="End the run").click()
        yes = page.get_by_role("dialog").get_by_role("button", name="End 1 run", exact=True)
        yes.click()
        assert "aborted" in hung.wait().text
        expect(row(page, "hung")).to_have_count(0)
        assert all(call.ended is None for call in working)
        # By the keyboard: no more keys than clicks.
        row(page, "works-3").focus()
        page.keyboard.press("Delete")
        page.get_by_role("dialog").get_by_role("button", name="Cancel").press("Enter")
        expect(row(page, "works-3")).to_be_focused()
        # The browser tells of the first dialog's close in a later frame, when the second one is open.
        page.keyboard.press("Delete")
        expect(yes).to_be_enabled()
        page.evaluate("""() => {
            document.querySelector("dialog button[type=button]").click();
            const press = new KeyboardEvent("keydown", { key: "Delete", bubbles: true });
            document.querySelector("[data-run=works-3]").dispatchEvent(press);
        }""")
        page.wait_for_timeout(500)
        expect(yes).to_be_enabled()
        yes.press("Enter")
        assert "aborted" in working[3].wait().text
        assert world.ask("POST", "/abort", {"owner": "coder", "dry_run": True})["count"] == 129


def a_gateway_that_hangs_is_not_shown_as_live(world):
    gateway = Gateway(world.binary, config=world.config, env=world.env)
    open_runs(gateway.port, KEYS["coder"], ["seen-last"])
    try:
        with watched(world.browser, allowed=[CUT, REFUSED]) as page:
            world.enter(page, gateway.port)
            expect(row(page, "seen-last")).to_be_visible()
            gateway.process.send_signal(signal.SIGSTOP)
            expect(page.get_by_text("The list is old")).to_be_visible(timeout=30_000)
            expect(row(page, "seen-last")).to_be_visible()
            gateway.process.send_signal(signal.SIGCONT)
            expect(page.get_by_text("The list is old")).to_have_count(0, timeout=30_000)
    finally:
        gateway.process.send_signal(signal.SIGCONT)
        gateway.stop()


def the_operator_freezes_and_thaws(world):
    with watched(world.browser) as page:
        world.enter(page)
        open_runs(world.gateway.port, KEYS["coder"], ["goes-on"])
        said = confirm(page, "Freeze all…", "Freeze all owners")
        assert "1 run that is open will go on" in said, said
        expect(page.get_by_text("New runs of all owners are refused.")).to_be_visible()
        refused = world.call("too-late", "sim-healthy").wait()
        assert refused.status == 503 and "frozen" in refused.text, refused.text
        assert world.call("goes-on", "sim-healthy").wait().status == 200
        confirm(page, "Thaw all…", "Thaw all owners")
        assert world.call("again", "sim-healthy").wait().status == 200
        # One owner alone.
        row(page, "again").click()
        confirm(page, "Freeze its owner…", "Freeze 1 owner")
        assert world.call("of-coder", "sim-healthy").wait().status == 503
        assert world.call("of-late", "sim-healthy", owner="late").wait().status == 200
        confirm(page, "Thaw its owner…", "Thaw 1 owner")
        assert world.call("of-coder", "sim-healthy").wait().status == 200


def a_run_is_paused_resumed_and_extended(world):
    with watched(world.browser) as page:
        world.enter(page)
        open_runs(world.gateway.port, KEYS["coder"], ["by-hand"])
        row(page, "by-hand").click()
        assert "Pauses 1 run" in confirm(page, "Pause…", "Pause 1 run")
        expect(row(page, "by-hand")).to_contain_text("paused by hand")
        held = world.call("by-hand", "sim-healthy")
        time.sleep(1)
        assert held.ended is None, "the turn is not held"
        confirm(page, "Resume…", "Resume 1 run")
        assert held.wait().status == 200

        world.call("at-cap", "sim-healthy", owner="nightly").wait()
        held = world.call("at-cap", "sim-healthy", owner="nightly")
        expect(row(page, "at-cap")).to_contain_text("paused: cap on turns")
        row(page, "at-cap").click()
        page.get_by_role("button", name="Extend…", exact=True).click()
        page.get_by_role("textbox", name="Turns").fill("3")
        page.get_by_role("textbox", name="Why").fill("a test")
        page.get_by_role("dialog").get_by_role("button", name="Extend 1 run").click()
        assert held.wait().status == 200
        expect(row(page, "at-cap")).to_contain_text("2/4")


def many_runs_are_counted_and_then_ended(world):
    open_runs(world.gateway.port, KEYS["coder"], [f"many-{at}" for at in range(7)])
    call = world.call("of-session", "sim-slow", session="chat-9")
    with watched(world.browser, allowed=[REFUSED]) as page:
        world.enter(page)
        page.get_by_role("button", name="End many…").click()
        dialog = page.get_by_role("dialog")
        # Nothing is selected: the gateway refuses, and the page shows why.
        dialog.get_by_role("button", name="Count first").click()
        expect(dialog.get_by_role("alert")).to_contain_text("name what to abort")
        dialog.get_by_label("Session").fill("chat-9")
        dialog.get_by_role("button", name="Count first").click()
        dialog.get_by_role("button", name="End 1 run", exact=True).click()
        assert "aborted" in call.wait().text
        expect(page.get_by_text("Ended 1 run.")).to_be_visible()
        page.get_by_role("button", name="End many…").click()
        dialog.get_by_label("Owner").fill("coder")
        dialog.get_by_role("button", name="Count first").click()
        count = world.ask("POST", "/abort", {"owner": "coder", "dry_run": True})["count"]
        assert count >= 7
        expect(dialog.get_by_text(f"Ends {count} runs.")).to_be_visible()
        # A change needs a new count.
        dialog.get_by_label("Owner").fill("late")
        expect(dialog.get_by_role("button", name="Count first")).to_be_visible()
        dialog.get_by_label("Owner").fill("coder")
        dialog.get_by_role("button", name="Count first").click()
        # What fits may be more by the time that the person says yes: that is another question.
        expect(dialog.get_by_text(f"Ends {count} runs.")).to_be_visible()
        open_runs(world.gateway.port, KEYS["coder"], ["one-more"])
        dialog.get_by_role("button", name=f"End {count} runs", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text(f"The number has changed: it was {count}.")
        assert world.ask("POST", "/abort", {"owner": "coder", "dry_run": True})["count"] == count + 1
        dialog.get_by_role("button", name=f"End {count + 1} runs", exact=True).click()
        expect(page.locator("dialog")).to_have_count(0)
        assert world.ask("POST", "/abort", {"owner": "coder", "dry_run": True})["count"] == 0
        # Escape closes a question, and does nothing.
        page.get_by_role("button", name="End many…").click()
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)


def a_cooldown_is_cleared(world):
    world.call("rests", "sim-rate-limited-long").wait()
    with watched(world.browser) as page:
        world.enter(page)
        candidate = page.locator(".candidate", has_text="sim-rate-limited-long")
        expect(candidate).to_contain_text("rests")
        expect(candidate).to_contain_text("rate limit")
        candidate.get_by_role("button", name="Clear…").click()
        said = page.locator("dialog .found")
        expect(said).to_contain_text("of 1 candidate")
        page.get_by_role("dialog").get_by_role("button", name="End 1 cooldown").click()
        expect(candidate).not_to_contain_text("rests")


def a_foreign_page_and_a_frame_are_refused(world):
    class Foreign(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>foreign</title><body>foreign</body>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # The simulator's gateway asks for no token, so that its checks of the origin are all there is.
    target = f"http://127.0.0.1:{world.simulator.port}"
    Call(world.simulator.port, "one", "goes-on", "sim-slow")
    context = world.browser.new_context()
    page = context.new_page()
    for host in ["127.0.0.1", "localhost"]:
        page.goto(f"http://{host}:{server.server_address[1]}/")
        for path in ["/runs", "/ui", "/ui/app.js", "/freeze"]:
            read = """async (url) => {
                try { return (await fetch(url)).status } catch { return "refused" }
            }"""
            assert page.evaluate(read, target + path) == "refused", path
        abort = """async (url) => {
            try { await fetch(url, { method: "POST", mode: "no-cors", body: '{"all":true}' }) } catch {}
        }"""
        page.evaluate(abort, target + "/abort")
        page.evaluate(FRAME, target + "/ui")
        assert page.frames[-1].locator("table, #token").count() == 0, "the page shows itself in a frame"
        loaded = page.evaluate("""(url) => new Promise((done) => {
            const script = document.createElement("script");
            script.type = "module";
            script.onload = () => done("loaded");
            script.onerror = () => done("refused");
            script.src = url;
            document.body.append(script);
        })""", target + "/ui/app.js")
        assert loaded == "refused"
    # A page of the gateway's own origin may read it, and not put it into a frame either.
    page.goto(target + "/healthz")
    page.evaluate(FRAME, target + "/ui")
    assert page.frames[-1].locator("table, #token").count() == 0, "the page shows itself in a frame"
    context.close()
    server.shutdown()
    status, list_ = world.simulator.ask("GET", "/runs?state=open")
    assert status == 200 and any(it["run"] == "goes-on" for it in list_["runs"]), "a foreign page ended a run"


def hostile_names_are_text(world):
    for width in [1400, 360]:
        for at, (name, _) in enumerate(NAMES):
            world.call(f"hostile-{width}-{at}", name)
        with watched(world.browser, viewport={"width": width, "height": 800}) as page:
            world.enter(page)
            order(page, "newest")
            for at, (name, _) in enumerate(NAMES):
                expect(row(page, f"hostile-{width}-{at}")).to_contain_text(name)
                row(page, f"hostile-{width}-{at}").click()
                expect(page.locator(".sentence")).to_contain_text(f"asks \u2068{name}\u2069, attempt 1")
                expect(page.locator(".timeline")).to_contain_text(name)
                page.keyboard.press("Escape")
            assert page.locator("img").count() == 0
            assert page.title() != "owned"
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"the page is {wide} px wide in a window of {width} px"
            # What is written from right to left does not turn its neighbors.
            cell = row(page, f"hostile-{width}-1").locator("td[data-name=Candidate] bdi")
            assert cell.evaluate("it => getComputedStyle(it).unicodeBidi") == "isolate"


def a_silent_replica_is_named(world):
    if not shutil.which("redis-server"):
        print("    left out: there is no redis-server here")
        return
    port = free_port()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    eventually(lambda: listens(port), "redis-server does not listen")
    config = world.config + '[replicas]\nurl_env = "UI_STORE"\nsecret_env = "UI_SECRET"\nname_env = "UI_NAME"\n'
    env = {**world.env, "UI_STORE": f"redis://127.0.0.1:{port}", "UI_SECRET": "0123456789abcdef0123456789abcdef"}
    one, two = (Gateway(world.binary, config=config, env={**env, "UI_NAME": name}) for name in ["one", "two"])
    try:
        Call(one.port, KEYS["coder"], "at-one", "sim-slow")
        Call(two.port, KEYS["coder"], "at-two", "sim-slow")
        with watched(world.browser) as page:
            world.enter(page, one.port)
            expect(row(page, "at-two")).to_contain_text("at two")
            expect(row(page, "at-one")).to_be_visible()
            expect(page.get_by_text("2 replicas")).to_be_visible()
            two.process.send_signal(signal.SIGSTOP)
            expect(page.get_by_text("1 replica silent: two")).to_be_visible()
            two.process.send_signal(signal.SIGCONT)
            expect(page.get_by_text("1 replica silent")).to_have_count(0)
            expect(row(page, "at-two")).to_be_visible()
    finally:
        one.stop()
        two.stop()
        redis.kill()


def many_open_runs_stay_quick(world):
    count = 10_000 if world.is_full else 200
    gateway = Gateway(world.binary, config=world.config, env=world.env)
    began = time.monotonic()
    open_runs(gateway.port, KEYS["coder"], [f"crowd-{at}" for at in range(count)])
    print(f"    {count} runs were opened in {time.monotonic() - began:.1f} s")
    for sort in ["started", "silent", "spent"]:
        times = []
        for _ in range(5):
            began = time.monotonic()
            status, _ = gateway.ask("GET", f"/runs?state=open&limit=100&sort={sort}", token=TOKEN)
            assert status == 200
            times.append(time.monotonic() - began)
        world.bound(f"a page of GET /runs, sort={sort}", sorted(times)[2], 0.05 if sort == "started" else 0.25)
    with watched(world.browser, viewport={"width": 1400, "height": 900}) as page:
        world.enter(page, gateway.port)
        page.add_init_script("""
            window.tasks = [];
            new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((it) => it.duration)))
                .observe({ type: "longtask", buffered: true });
        """)
        page.reload()
        row_at, _ = eventually(
            lambda: page.evaluate("document.querySelector('tr[data-run]') && performance.now()"), "no row"
        )
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        world.bound("the first paint", paint / 1000, 1)
        world.bound("the first row", row_at / 1000, 1)
        shown = rows(page).count()
        assert 0 < shown <= 200, f"{shown} rows"
        if world.is_full:
            expect(page.locator(".figure").first).to_contain_text(str(count))
        page.mouse.move(600, 700)
        longest = []
        for _ in range(3):
            page.evaluate("window.tasks.length = 0")
            for at in range(40):
                page.mouse.wheel(0, 300 if at % 20 < 10 else -300)
                page.wait_for_timeout(50)
            longest.append(max(page.evaluate("window.tasks"), default=0) / 1000)
        # Another process may hold up a task for as long as it likes, but hardly three times.
        world.bound("the longest task while scrolling", min(longest), 0.1)
        # The next page of the newest.
        order(page, "newest")
        expect(row(page, f"crowd-{count - 1}").or_(rows(page).first).first).to_be_visible()
        page.get_by_role("button", name="Older").click()
        expect(page.get_by_text("Page 2:")).to_be_visible()
        assert rows(page).count() <= 200
    gateway.stop()


CASES = [
    without_a_token_there_is_the_form_and_nothing_else,
    a_gateway_without_a_token_needs_no_form,
    a_row_follows_its_event,
    an_abort_by_row_ends_the_clients_read,
    a_hung_run_among_130_others_is_ended_in_two_clicks,
    a_gateway_that_hangs_is_not_shown_as_live,
    the_operator_freezes_and_thaws,
    a_run_is_paused_resumed_and_extended,
    many_runs_are_counted_and_then_ended,
    a_cooldown_is_cleared,
    a_foreign_page_and_a_frame_are_refused,
    hostile_names_are_text,
    nothing_is_missing_after_a_reconnect,
    a_silent_replica_is_named,
    many_open_runs_stay_quick,
]
