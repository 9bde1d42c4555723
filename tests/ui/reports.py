"""Public reports about other products' pages, each as a case about the operator's page.

A case expects of this page what failed in the page of the report.
"""

import http.client
import http.server
import json
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager

from playwright.sync_api import expect

from check import CUT, KEYS, LONG, MARKUP, REFUSED, TOKEN, confirm, order, row, rows
from support import PATIENCE, Call, Gateway, Proxy, eventually, open_runs, watched

# The most rows in the document, and the rows of one page of the list.
MOST_ROWS = 200
PAGE_ROWS = 100

# What Chromium writes about an id that the gateway does not know.
UNKNOWN = r"Failed to load resource: the server responded with a status of 404"

BREAKOUT = "\"><script>document.title='owned'</script>"
HANDLER = "' onmouseover='document.title=\"owned\"' x='"


def held(what, seconds, limit):
    """Prints a time, which must be below its bound on any machine."""
    print(f"    {what}: {seconds:.2f} s (bound {limit} s)")
    assert seconds < limit, f"{what} took {seconds:.2f} s"


@contextmanager
def gateway_of(world, config=None):
    """A gateway of one case."""
    gateway = Gateway(world.binary, config=config or world.config, env=world.env)
    try:
        yield gateway
    finally:
        gateway.stop()


def ask(gateway, method, path, body=None, token=TOKEN):
    status, answer = gateway.ask(method, path, body, token=token)
    assert status in (200, 202), (method, path, status, answer)
    return answer


def choose(page, name, value):
    """Fills in a filter of the list."""
    page.get_by_role("searchbox", name=name).fill(value)
    page.keyboard.press("Enter")


def words(reason):
    return reason.replace("_", " ")


def panel_button(page, name):
    return page.locator(".panel").get_by_role("button", name=name, exact=True)


def nothing_can_be_done_with_the_run(page):
    """The buttons for an open run are gone or disabled."""
    for name in ["End…", "Pause…", "Resume…", "Extend…"]:
        expect(page.locator(".panel button:enabled", has_text=re.compile(f"^{name}$"))).to_have_count(0)


class Below:
    """A reverse proxy that strips a prefix, and notes what was asked for beside it."""

    HOPS = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "server", "date"}

    def __init__(self, port, prefix):
        self.strays, self.events = [], b""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def serve(self):
                if not self.path.startswith(f"{prefix}/"):
                    outer.strays.append(self.path)
                    self.send_error(404)
                    return
                # `Host` is passed on as the browser sent it: the gateway holds it against `Origin`.
                headers = {name: value for name, value in self.headers.items() if name.lower() not in outer.HOPS}
                headers |= {"x-forwarded-for": "192.0.2.7", "x-forwarded-prefix": prefix, "via": "1.1 test"}
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                try:
                    connection.request(self.command, self.path[len(prefix):], body or None, headers)
                    answer = connection.getresponse()
                    self.send_response_only(answer.status)
                    for name, value in answer.getheaders():
                        if name.lower() not in outer.HOPS:
                            self.send_header(name, value)
                    self.end_headers()
                    while piece := answer.read1(65536):
                        self.wfile.write(piece)
                        if "/events" in self.path:
                            outer.events += piece
                except (OSError, http.client.HTTPException):
                    pass
                finally:
                    connection.close()

            do_GET = do_POST = do_PUT = do_DELETE = serve

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def below_a_prefix_of_a_proxy_the_page_works(world):
    """Below a proxy's prefix a page lost its assets, its requests or its stream of events.

    NousResearch/hermes-agent#41629, egeominotti/bunqueue-dashboard#20, ClickHouse/librechat-admin-panel#54
    """
    below = Below(world.gateway.port, "/ops/gw")
    with watched(world.browser) as page:
        for at, path in enumerate(["/ops/gw/ui", "/ops/gw/ui/"]):
            world.call(f"before-{at}", "sim-slow")
            world.enter(page, below.port, path)
            expect(page).to_have_url(f"http://127.0.0.1:{below.port}/ops/gw/ui")
            expect(row(page, f"before-{at}")).to_be_visible()
            expect(page.get_by_text("● live")).to_be_visible()
            # The style sheet has come, too.
            assert page.locator(".strip").evaluate("it => getComputedStyle(it).display") == "grid"
            began = time.monotonic()
            call = world.call(f"moves-{at}", "sim-slow")
            row(page, f"moves-{at}").wait_for()
            print(f"    a row below the prefix: {time.monotonic() - began:.2f} s")
            eventually(lambda: f"moves-{at}".encode() in below.events, "the event has not passed the proxy")
            row(page, f"moves-{at}").click()
            confirm(page, "End…", "End 1 run")
            assert "aborted" in call.wait().text
            expect(row(page, f"moves-{at}")).to_have_count(0)
            page.keyboard.press("Escape")
    assert not below.strays, f"asked for beside the prefix: {below.strays}"
    below.server.shutdown()


# An end of each kind: who ends it, by the name of the run.
def ends(gateway):
    own = {"token": KEYS["coder"]}
    return {
        "completed by the operator": lambda run: ask(gateway, "POST", f"/runs/{run}/complete"),
        "completed by its caller": lambda run: ask(gateway, "POST", f"/v1/runs/{run}/complete", **own),
        "aborted by the operator": lambda run: ask(gateway, "POST", f"/runs/{run}/abort"),
        "aborted by its caller": lambda run: ask(gateway, "POST", f"/v1/runs/{run}/abort", **own),
        "aborted with its session": lambda run: ask(gateway, "POST", f"/sessions/of-{run}/abort"),
        "aborted by a selection": lambda run: ask(gateway, "POST", "/abort", {"session": f"of-{run}"}),
    }


def the_list_and_the_panel_agree_about_ends(world):
    """A list went on to say that a run runs, while the run's own view said that it had ended.

    temporalio/ui#2395, temporalio/ui#2826
    """
    config = world.config.replace("[run]\n", '[run]\nstep_timeout = "6s"\n').replace('"25s"', '"5s"')
    config += "[agents.late]\nmax_turns = 1\n"
    with gateway_of(world, config) as gateway, watched(world.browser) as page:
        kinds = {}
        for name, end in ends(gateway).items():
            for _ in range(2):
                run = f"run-{len(kinds)}"
                kinds[run] = (name, end)
                # Half of those that are cut are at work; the others wait for their next turn.
                if len(kinds) % 2 or name.startswith("completed"):
                    open_runs(gateway.port, KEYS["coder"], [run], session=f"of-{run}")
                else:
                    Call(gateway.port, KEYS["coder"], run, "sim-slow", session=f"of-{run}")
        for at in range(2):
            run = f"capped-{at}"
            open_runs(gateway.port, KEYS["late"], [run])
            kinds[run] = ("a turn too many", lambda run: Call(gateway.port, KEYS["late"], run, "sim-healthy"))
        world.enter(page, gateway.port)
        order(page, "newest")

        slowest = 0

        def both_say(run, name, began):
            nonlocal slowest
            reason, _ = eventually(lambda: ask(gateway, "GET", f"/runs/{run}")["reason"], f"{run} ends: {name}")
            expect(page.locator(".sentence")).to_contain_text(f"Ended as {words(reason)}")
            expect(row(page, run)).to_have_count(0)
            took = time.monotonic() - began
            print(f"    {name}: {reason}, after {took:.2f} s")
            slowest = max(slowest, took)
            page.keyboard.press("Escape")

        for run, (name, end) in kinds.items():
            row(page, run).click()
            expect(page.locator(".panel h2")).to_have_text(run)
            began = time.monotonic()
            end(run)
            both_say(run, name, began)

        # Ends that the gateway decides, of runs that the caller has not named.
        def nameless(model):
            known = {it["run"] for it in ask(gateway, "GET", "/runs?state=open")["runs"]}
            call = Call(gateway.port, KEYS["coder"], None, model)
            new = lambda: {it["run"] for it in ask(gateway, "GET", "/runs?state=open")["runs"]} - known
            (run,), _ = eventually(new, "the run opens")
            row(page, run).click()
            expect(page.locator(".panel h2")).to_have_text(run)
            return call, run

        for _ in range(2):
            call, run = nameless("sim-slow")
            began = time.monotonic()
            call.hang_up()
            both_say(run, "its caller leaves", began)
        for _ in range(2):
            # One that has failed rests, and the next call would be served by another.
            ask(gateway, "POST", "/cooldowns/sim-stall-stream/clear")
            call, run = nameless("sim-stall-stream")
            call.wait()
            both_say(run, "its upstream is silent", call.ended)
        held("the list and the panel agree", slowest, 5)

        # Failed calls: those of a named run leave it open, and both say what it does.
        for at, model in enumerate(["sim-cut", "sim-stall-stream"]):
            ask(gateway, "POST", f"/cooldowns/{model}/clear")
            Call(gateway.port, KEYS["coder"], f"failed-{at}", model).wait()
            Call(gateway.port, KEYS["coder"], None, model).wait()
        choose_state = page.get_by_label("state")
        for at in range(2):
            run = f"failed-{at}"
            is_over = ask(gateway, "GET", f"/runs/{run}")["reason"] is not None
            choose_state.select_option(label="ended, 10 minutes" if is_over else "open")
            row(page, run).click()
            expect(page.locator(".panel h2")).to_have_text(run)
            said = row(page, run).locator(".state").inner_text()
            expect(page.locator(".panel .state")).to_have_text(said)
            page.keyboard.press("Escape")
        choose_state.select_option(label="ended, 10 minutes")
        known = ask(gateway, "GET", "/runs?state=ended&limit=100")["runs"]
        assert len(known) >= 20, len(known)
        expect(rows(page)).to_have_count(len(known))
        for it in known:
            expect(row(page, it["run"]).locator(".state")).to_have_text(words(it["reason"]))
        # No row is left among the open ones that the gateway does not call open.
        choose_state.select_option(label="open")
        still = {it["run"] for it in ask(gateway, "GET", "/runs?state=open")["runs"]}
        expect(rows(page)).to_have_count(len(still))
        assert {it.get_attribute("data-run") for it in rows(page).all()} == still


def an_end_leaves_the_row_of_another_owner(world):
    """The list and a run's own view disagreed about who is open: here two owners use one id.

    temporalio/ui#2826
    """
    with watched(world.browser) as page:
        open_runs(world.gateway.port, KEYS["coder"], ["shared"])
        open_runs(world.gateway.port, KEYS["late"], ["shared"])
        world.enter(page)
        expect(row(page, "shared")).to_have_count(2)
        row(page, "shared").filter(has_text="coder").click()
        expect(page.locator(".panel .warning")).to_be_visible()
        page.evaluate("""() => {
            window.missed = 0;
            const look = () => {
                const open = [...document.querySelectorAll('tr[data-run="shared"]')];
                if (!open.some((it) => it.innerText.includes("coder"))) window.missed += 1;
            };
            new MutationObserver(look).observe(document.querySelector(".runs tbody"), { childList: true });
        }""")
        status, answer = world.gateway.ask("POST", "/v1/runs/shared/abort", token=KEYS["late"])
        assert (status, answer) == (200, {"aborted": True})
        expect(row(page, "shared")).to_have_count(1)
        page.wait_for_timeout(1000)
        expect(row(page, "shared")).to_contain_text("coder")
        expect(page.locator(".sentence")).to_contain_text("Open for")
        assert page.evaluate("window.missed") == 0, "the row of the open run went with that of the other owner"


def an_end_asks_once_and_meets_a_run_that_is_gone(world):
    """A terminate asked nothing, left its row as running, and failed with 404 when it was clicked again.

    temporalio/ui#325
    """
    with watched(world.browser) as page:
        sent = []
        page.on("request", lambda it: it.method == "POST" and sent.append((it.url, it.post_data or "")))
        world.enter(page)
        call = world.call("ends-once", "sim-slow")
        row(page, "ends-once").click()
        panel_button(page, "End…").dblclick()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_have_count(1)
        expect(dialog.get_by_text("Ends 1 run, with 1 call in flight.")).to_be_visible()
        assert call.ended is None and not sent, "it has ended before the operator said yes"
        # Who clicks twice ends it once.
        dialog.get_by_role("button", name="End 1 run", exact=True).dblclick()
        expect(page.get_by_text("Ended the run.")).to_be_visible()
        expect(row(page, "ends-once")).to_have_count(0)
        assert "aborted" in call.wait().text
        page.wait_for_timeout(1000)
        assert len(sent) == 1, sent
        nothing_can_be_done_with_the_run(page)
        page.keyboard.press("Escape")

        for end in ["abort", "complete"]:
            run = f"gone-{end}"
            open_runs(world.gateway.port, KEYS["coder"], [run])
            row(page, run).click()
            panel_button(page, "End…").click()
            yes = dialog.get_by_role("button", name="End 1 run", exact=True)
            expect(yes).to_be_enabled()
            world.ask("POST", f"/runs/{run}/{end}")
            # The panel behind the question learns of it, and the question is still there.
            expect(page.locator(".sentence")).to_contain_text("Ended as")
            expect(dialog).to_have_count(1)
            if yes.is_visible():
                yes.click()
            expect(page.get_by_text(re.compile("The run had ended before|The run has ended already"))).to_be_visible()
            assert page.locator(".bad[role=alert]").count() == 0
            if dialog.count():
                page.keyboard.press("Escape")
            page.get_by_role("button", name="Close the message").click()
            page.keyboard.press("Escape")
            expect(page.locator(".panel")).to_have_count(0)


def one_session_of_very_many_runs_stays_bounded(world):
    """A filter by one session with very many entries took all of the browser's memory.

    BerriAI/litellm#16131
    """
    memory = "performance.memory.usedJSHeapSize / 1e6"
    with gateway_of(world) as gateway, watched(world.browser) as page:
        open_runs(gateway.port, KEYS["coder"], ["alone"])
        names = [f"crowd-{at}" for at in range(1500)]
        open_runs(gateway.port, KEYS["coder"], names, session="crowd")
        world.enter(page, gateway.port)
        choose(page, "session", "crowd")
        expect(row(page, "alone")).to_have_count(0)
        expect(rows(page)).to_have_count(PAGE_ROWS)
        before = page.evaluate("document.querySelectorAll('*').length")
        print(f"    {before} elements, {page.evaluate(memory):.1f} MB of script")
        for title in ["silent for longest, idle last", "newest", "most spent"]:
            order(page, title)
            expect(rows(page).first).to_be_visible()
            began = time.monotonic()
            # In one task: which row it is depends on whether the new order has come, and a row of the old one
            # may not be among those of the new.
            run = rows(page).nth(40).evaluate("row => (row.click(), row.dataset.run)")
            expect(page.locator(".panel h2")).to_have_text(run)
            expect(page.locator(".panel .timeline")).to_be_visible()
            held(f"a click on a row, {title}", time.monotonic() - began, 3)
            page.keyboard.press("Escape")
        # It stays so while runs of the session end, and with those that have ended.
        for run in names[:100]:
            ask(gateway, "POST", f"/runs/{run}/abort")
        page.get_by_label("state").select_option(label="all")
        row(page, names[-1]).or_(rows(page).first).first.click()
        page.wait_for_timeout(5000)
        assert rows(page).count() <= MOST_ROWS
        elements = page.evaluate("document.querySelectorAll('*').length")
        print(f"    {elements} elements, {page.evaluate(memory):.1f} MB of script")
        assert elements < before + 2000
        assert page.evaluate(memory) < 200


HIDE = """
window.isHidden = false;
Object.defineProperty(Document.prototype, "hidden", { get: () => window.isHidden });
Object.defineProperty(Document.prototype, "visibilityState", { get: () => (window.isHidden ? "hidden" : "visible") });
"""


def an_idle_page_asks_little(world):
    """A list sent a request for each of its rows, at each refresh.

    BerriAI/litellm#20720
    """
    with gateway_of(world) as gateway, watched(world.browser) as page:
        open_runs(gateway.port, KEYS["coder"], [f"idle-{at}" for at in range(200)])
        sent = []
        page.on("request", lambda it: sent.append(it.url.split("/", 3)[3]))

        def sent_in(seconds, what):
            # What has just been done has its requests behind it.
            page.wait_for_timeout(2000)
            sent.clear()
            page.wait_for_timeout(seconds * 1000)
            counts = Counter(it.split("?")[0] for it in sent)
            print(f"    {what}, {seconds} s: {len(sent)} requests, {dict(counts)}")
            return list(sent)

        page.add_init_script(HIDE)
        world.enter(page, gateway.port)
        expect(rows(page)).to_have_count(PAGE_ROWS)
        seen = sent_in(15, "seen")
        assert len(seen) <= 40, len(seen)
        assert not [it for it in seen if it.startswith("runs/")], seen
        page.evaluate("window.isHidden = true; document.dispatchEvent(new Event('visibilitychange'))")
        hidden = sent_in(15, "hidden")
        assert len(hidden) <= len(seen), len(hidden)
        page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
        # An open run adds its own requests, and no other's.
        row(page, "idle-3").or_(rows(page).first).first.click()
        name = page.locator(".panel h2").inner_text()
        with_panel = sent_in(15, "with an open run")
        assert len(with_panel) <= 60, len(with_panel)
        assert {it for it in with_panel if it.startswith("runs/")} == {f"runs/{name}"}


def a_forgotten_token_ends_the_requests(world):
    """After a logout a page went on to send requests, more with each login.

    kubernetes-retired/dashboard#4096
    """
    with watched(world.browser, allowed=[REFUSED]) as page:
        sent = []
        page.on("request", lambda it: sent.append(it.url))
        world.enter(page)
        page.wait_for_timeout(3000)
        sent.clear()
        page.wait_for_timeout(15_000)
        before = len(sent)
        # The gateway is slow: an answer to the login before comes after the next one.
        waits, is_slow = [], True
        page.route(re.compile("/metrics$"), lambda it: waits.append(it) if is_slow else it.continue_())
        for _ in range(6):
            eventually(lambda: page.wait_for_timeout(50) or waits, "the page has not read /metrics")
            slow, waits[:] = list(waits), []
            page.get_by_role("button", name="Forget the token").click()
            page.get_by_label("The operator's token").fill(TOKEN)
            page.keyboard.press("Enter")
            expect(page.locator(".pages")).to_be_visible()
            for it in slow:
                it.continue_()
        is_slow = False
        for it in waits:
            it.continue_()
        page.wait_for_timeout(3000)
        sent.clear()
        page.wait_for_timeout(15_000)
        counts = dict(Counter(it.split("/", 3)[3].split("?")[0] for it in sent))
        print(f"    in 15 s: {before} requests; after 6 more logins {len(sent)}: {counts}")
        assert len(sent) <= min(40, before + 8), counts
        page.get_by_role("button", name="Forget the token").click()
        expect(page.get_by_label("The operator's token")).to_be_visible()
        page.wait_for_timeout(1000)
        sent.clear()
        page.wait_for_timeout(6000)
        assert not sent, sent


def while_runs_end(page, gateway, names, look):
    """Ends a run every 200 ms, and has `look` assert what stays, again and again, until all have ended."""
    failures = []

    def end():
        try:
            for name in names:
                ask(gateway, "POST", f"/runs/{name}/abort")
                time.sleep(0.2)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    while thread.is_alive():
        page.wait_for_timeout(100)
        look()
    # The list is read once more after the last event.
    page.wait_for_timeout(2500)
    look()
    assert not failures, failures


# The place of a row in the window, and that of the list behind it.
PLACE = """(run) => ({
    at: document.querySelector(`tr[data-run="${run}"]`)?.getBoundingClientRect().top ?? null,
    list: document.querySelector(".scroll").scrollTop,
    panel: document.querySelector(".panel")?.scrollTop ?? 0,
    window: window.scrollY,
})"""


def a_refresh_leaves_what_a_person_does(world):
    """An automatic refresh closed menus, dropped what was selected, and went back to the top.

    idursun/jjui#139, apache/skywalking#8835, datalust/seq-tickets#56
    """
    with gateway_of(world) as gateway:
        open_runs(gateway.port, KEYS["coder"], [f"stays-{at:02}" for at in range(60)])
        # One by one, so that "newest" has them in this order.
        for at in range(120):
            open_runs(gateway.port, KEYS["coder"], [f"goes-{at:03}"])
        goes = [f"goes-{at:03}" for at in range(120)]
        with watched(world.browser, viewport={"width": 1400, "height": 900}) as page:
            world.enter(page, gateway.port)
            order(page, "oldest")
            expect(row(page, "stays-00")).to_be_visible()
            expect(rows(page)).to_have_count(PAGE_ROWS)

            # The panel, its place, a row with the focus, text that is selected, and the place of the list.
            row(page, "stays-20").click()
            expect(page.locator(".panel h2")).to_have_text("stays-20")
            expect(page.locator(".timeline")).to_be_visible()
            row(page, "stays-22").scroll_into_view_if_needed()
            page.locator(".scroll").evaluate("it => { it.scrollTop = 500 }")
            page.locator(".panel").evaluate("it => { it.scrollTop = 60 }")
            row(page, "stays-22").evaluate("it => it.focus({ preventScroll: true })")
            page.evaluate("getSelection().selectAllChildren(document.querySelector('.panel h2'))")
            page.wait_for_timeout(500)
            before = page.evaluate(PLACE, "stays-22")
            assert before["list"] > 400, before

            def stays():
                assert page.locator(".panel h2").inner_text() == "stays-20"
                focus = page.evaluate("document.activeElement.dataset.run ?? document.activeElement.tagName")
                assert focus == "stays-22", f"the focus is on {focus}"
                assert page.evaluate("String(getSelection())") == "stays-20", "the selection is gone"
                now = page.evaluate(PLACE, "stays-22")
                assert all(abs(now[it] - before[it]) <= 2 for it in before), (before, now)

            while_runs_end(page, gateway, goes[:15], stays)
            below = page.evaluate("document.activeElement.nextElementSibling.dataset.run")
            page.keyboard.press("ArrowDown")
            assert page.evaluate("document.activeElement.dataset.run") == below

            # A button of the panel keeps the focus.
            panel_button(page, "Pause…").focus()

            def button_stays():
                assert page.evaluate("document.activeElement.innerText") == "Pause…"

            while_runs_end(page, gateway, goes[15:25], button_stays)

            # A filter that is half typed.
            field = page.get_by_role("searchbox", name="session")
            field.click()
            page.keyboard.type("half-ty")
            page.keyboard.press("ArrowLeft")

            def filter_stays():
                assert field.input_value() == "half-ty", field.input_value()
                assert field.evaluate("it => it === document.activeElement && it.selectionStart") == 6

            while_runs_end(page, gateway, goes[25:35], filter_stays)
            field.fill("")
            page.keyboard.press("Enter")

            # A question that is half filled in.
            page.get_by_role("button", name="End many…").click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label("All open runs").check()
            text = dialog.get_by_label("Session")
            text.click()
            page.keyboard.type("half-ty")
            page.keyboard.press("ArrowLeft")

            def question_stays():
                assert text.input_value() == "half-ty", text.input_value()
                assert text.evaluate("it => it === document.activeElement && it.selectionStart") == 6
                assert dialog.get_by_label("All open runs").is_checked()
                assert page.locator(".panel h2").inner_text() == "stays-20"

            while_runs_end(page, gateway, goes[35:45], question_stays)
            page.keyboard.press("Escape")
            expect(page.locator("dialog")).to_have_count(0)
            page.keyboard.press("Escape")
            expect(page.locator(".panel")).to_have_count(0)

            # The rows that end are above those that are looked at.
            order(page, "newest")
            expect(row(page, "goes-119")).to_be_visible()
            page.locator(".scroll").evaluate("it => { it.scrollTop = 1400 }")
            page.wait_for_timeout(2500)
            view = page.locator(".scroll").evaluate("it => it.getBoundingClientRect().top + 100")
            looked_at = page.evaluate(
                "(y) => document.elementFromPoint(400, y).closest('tr[data-run]').dataset.run", view
            )
            place = page.evaluate(PLACE, looked_at)["at"]
            print(f"    {looked_at} is looked at, {place:.0f} px from the top")

            def row_stays():
                now = page.evaluate(PLACE, looked_at)
                assert now["at"] is not None and abs(now["at"] - place) <= 2, (looked_at, place, now)

            while_runs_end(page, gateway, goes[:104:-1], row_stays)


def a_bulk_end_says_how_many_and_means_these(world):
    """A bulk cancel did not say how many it meant, or meant more than what was seen.

    NVIDIA/OSMO#984, elastic/kibana#260866
    """
    with gateway_of(world) as gateway, watched(world.browser, allowed=[REFUSED]) as page:
        open_runs(gateway.port, KEYS["coder"], [f"a-{at}" for at in range(145)], session="batch-a")
        open_runs(gateway.port, KEYS["late"], [f"late-{at}" for at in range(5)], session="batch-a")
        open_runs(gateway.port, KEYS["coder"], [f"b-{at}" for at in range(12)], session="batch-b")
        open_runs(gateway.port, KEYS["coder"], ["none"])

        def open_of(session):
            return ask(gateway, "POST", "/abort", {"session": session, "dry_run": True})["count"]

        carried_out = []

        def note(request):
            if request.method == "POST" and not json.loads(request.post_data or "{}").get("dry_run"):
                carried_out.append((request.url, request.post_data))

        page.on("request", note)
        world.enter(page, gateway.port)
        choose(page, "session", "batch-a")
        expect(row(page, "none")).to_have_count(0)
        expect(rows(page)).to_have_count(PAGE_ROWS)

        dialog = page.get_by_role("dialog")
        page.get_by_role("button", name="End many…").click()

        # What fits nothing cannot be carried out, by no button and by no key.
        for fields in [{"Session": "no-such"}, {"Session": "batch-b", "Owner (agent)": "late"}]:
            for name, value in fields.items():
                dialog.get_by_label(name).fill(value)
            dialog.get_by_role("button", name="Count first").click()
            expect(dialog.get_by_text("No open run fits.")).to_be_visible()
            enabled = dialog.locator("button:enabled")
            expect(enabled).to_have_count(1)
            expect(enabled).to_have_text("Cancel")
            dialog.get_by_label("Session").press("Enter")
            page.wait_for_timeout(500)
        dialog.get_by_label("Owner (agent)").fill("")
        assert not carried_out, carried_out

        dialog.get_by_label("Session").fill("batch-a")
        dialog.get_by_role("button", name="Count first").click()
        expect(dialog.get_by_text("Ends 150 runs.")).to_be_visible()
        expect(dialog.get_by_text("and 145 more")).to_be_visible()
        assert open_of("batch-a") == 150 and not carried_out
        began = time.monotonic()
        dialog.get_by_role("button", name="End 150 runs", exact=True).click()
        expect(page.get_by_text("Ended 150 runs.")).to_be_visible()
        expect(rows(page)).to_have_count(0)
        held("150 rows go", time.monotonic() - began, PATIENCE)
        assert len(carried_out) == 1 and json.loads(carried_out[0][1]) == {"session": "batch-a"}, carried_out
        assert (open_of("batch-a"), open_of("batch-b")) == (0, 12)
        choose(page, "session", "")
        expect(rows(page)).to_have_count(13)

        # From a run's panel. Runs that came after the count are said, too.
        row(page, "b-3").click()
        panel_button(page, "End its session…").click()
        expect(dialog.get_by_text("Ends 12 runs.")).to_be_visible()
        open_runs(gateway.port, KEYS["coder"], [f"b-more-{at}" for at in range(3)], session="batch-b")
        dialog.get_by_role("button", name="End 12 runs", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("The number has changed: it was 12.")
        assert open_of("batch-b") == 15
        dialog.get_by_role("button", name="End 15 runs", exact=True).click()
        expect(dialog).to_have_count(0)
        expect(page.get_by_text("Ended 15 runs.")).to_be_visible()
        assert open_of("batch-b") == 0
        expect(row(page, "none")).to_be_visible()
        expect(rows(page)).to_have_count(1)


def an_open_run_says_that_it_has_ended(world):
    """A view of one run went on to watch it after its end, until it was loaded anew.

    vercel/workflow#26
    """
    config = world.config + "[agents.late]\nmax_turns = 1\n"
    with gateway_of(world, config) as gateway:
        for is_live in [True, False]:
            with watched(world.browser, allowed=[] if is_live else [CUT]) as page:
                if not is_live:
                    page.route(re.compile(r"/events\?"), lambda it: it.abort())
                world.enter(page, gateway.port)
                by_hand = {name: ends(gateway)[name] for name in ["aborted by the operator", "completed by its caller"]}
                capped = {"a turn too many": lambda run: Call(gateway.port, KEYS["late"], run, "sim-healthy")}
                for at, (name, end) in enumerate({**by_hand, **capped}.items()):
                    run = f"watched-{is_live}-{at}"
                    key = KEYS["late" if name in capped else "coder"]
                    if at == 0:
                        Call(gateway.port, key, run, "sim-slow")
                    else:
                        open_runs(gateway.port, key, [run])
                    row(page, run).click()
                    expect(page.locator(".sentence")).to_contain_text("Open for")
                    expect(panel_button(page, "End…")).to_be_enabled()
                    if at == 0:
                        expect(page.locator(".timeline")).to_contain_text("in flight")
                    page.evaluate("window.isTheSame = true")
                    began = time.monotonic()
                    end(run)
                    reason, _ = eventually(lambda: ask(gateway, "GET", f"/runs/{run}")["reason"], f"{run} ends")
                    # Both are of the same drawing.
                    expect(page.locator(".sentence")).to_contain_text(f"Ended as {words(reason)}")
                    expect(page.locator(".panel .state").first).to_have_text(words(reason))
                    how = "" if is_live else ", without its events"
                    held(f"{name}: the panel says so{how}", time.monotonic() - began, 5)
                    nothing_can_be_done_with_the_run(page)
                    if at == 0:
                        expect(page.locator(".timeline")).not_to_contain_text("in flight")
                    assert page.evaluate("window.isTheSame"), "the page was loaded anew"
                    # It stays so.
                    if at == 0 and reason != "completed":
                        page.wait_for_timeout(3000)
                        expect(page.locator(".sentence")).to_contain_text(f"Ended as {words(reason)}")
                    page.keyboard.press("Escape")


class Hostile(http.server.BaseHTTPRequestHandler):
    """An upstream that asks for a long rest, with markup in its error."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"error": {"message": f"limit {MARKUP}", "type": "rate_limit_error"}}).encode()
        self.send_response(429)
        self.send_header("content-type", "application/json")
        self.send_header("retry-after", "3600")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def hostile_texts_stay_texts_in_titles_and_dialogs(world):
    """HTML in a name ran where the page showed it in a title, a tooltip or a question.

    grafana/grafana#11813
    """
    upstream = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Hostile)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    names = [MARKUP, BREAKOUT, HANDLER, LONG]
    config = world.config.split("[[candidates]]")[0]
    for at, name in enumerate(names):
        # Each at a host of its own, as one rest counts for the whole host.
        url = f"http://127.0.0.{at + 2}:{upstream.server_address[1]}/v1"
        config += f"[[candidates]]\nname = {json.dumps(name)}\nmodel = \"m{at}\"\nbase_url = {json.dumps(url)}\n"
    # Wide enough for all columns beside the panel.
    wide_view = {"width": 1800, "height": 900}
    with gateway_of(world, config) as gateway, watched(world.browser, [REFUSED], viewport=wide_view) as page:
        for at, name in enumerate(names):
            Call(gateway.port, KEYS["coder"], f"hostile-{at}", name, session="hostile").wait()
        world.enter(page, gateway.port)
        dialog = page.get_by_role("dialog")

        # The candidates: their titles, the question, and the notice after it.
        for name in names:
            candidate = page.locator(".candidate").filter(has=page.get_by_text(name, exact=True))
            expect(candidate).to_contain_text("rests")
            assert candidate.locator(".name").get_attribute("title") == name
            candidate.locator(".name").hover()
            candidate.get_by_role("button", name="Clear…").click()
            expect(dialog.get_by_role("heading")).to_have_text(f"End the rest of \u2068{name}\u2069?")
            # The question is within the window, with its buttons.
            yes = dialog.get_by_role("button", name=re.compile(r"^End \d+ cooldowns?$"))
            expect(yes).to_be_in_viewport()
            yes.click()
            expect(page.locator(".done")).to_contain_text("Ended the cooldown.")
            expect(candidate).not_to_contain_text("rests")

        # A run: its error, and the titles of its row.
        row(page, "hostile-0").click()
        expect(page.locator(".panel")).to_contain_text(MARKUP)
        for cell in row(page, "hostile-0").locator("[title]").all():
            assert cell.get_attribute("title") == cell.inner_text()
            cell.hover()

        # What a person types, and what the gateway answers to it.
        panel_button(page, "Extend…").click()
        dialog.get_by_label("Time").fill(BREAKOUT)
        dialog.get_by_label("Why (for the log)").fill(MARKUP)
        dialog.get_by_role("button", name="Extend 1 run").click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        print(f"    to a hostile time: {dialog.get_by_role('alert').inner_text()[:120]}")
        dialog.get_by_label("Time").fill("10m")
        dialog.get_by_role("button", name="Extend 1 run").click()
        expect(dialog).to_have_count(0)
        expect(page.locator(".done")).to_be_visible()
        page.get_by_role("button", name="End many…").click()
        dialog.get_by_label("Open for longer than").fill(MARKUP)
        dialog.get_by_role("button", name="Count first").click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        for name in ["session", "owner", "candidate"]:
            for text in [MARKUP, BREAKOUT, HANDLER]:
                choose(page, name, text)
                page.wait_for_timeout(300)
            choose(page, name, "")
        expect(rows(page)).to_have_count(len(names))
        expect(page.get_by_text("The list is old")).to_have_count(0)

        assert page.locator("img, body script").count() == 0
        assert page.locator("[onmouseover], [onerror]").count() == 0
        assert page.title() != "owned"
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= page.viewport_size["width"], f"the page is {wide} px wide"
    upstream.shutdown()


def a_page_outlives_a_restart_of_the_gateway(world):
    """After a restart of its server an open page looked as before and did nothing, until it was loaded anew.

    digitaldrywood/detent#1856
    """
    with gateway_of(world) as before, gateway_of(world) as after:
        proxy = Proxy(before.port)
        open_runs(before.port, KEYS["coder"], [f"before-{at}" for at in range(30)])
        open_runs(after.port, KEYS["coder"], ["after"])
        with watched(world.browser, allowed=[CUT, UNKNOWN, REFUSED]) as page:
            world.enter(page, proxy.port)
            row(page, "before-3").click()
            expect(page.locator(".panel h2")).to_have_text("before-3")
            expect(page.get_by_text("● live")).to_be_visible()
            proxy.cut()
            before.stop()
            expect(page.get_by_text("○ not live")).to_be_visible()
            expect(page.get_by_text("The list is old")).to_be_visible()
            # What was read last stays, and one line says of when it is.
            expect(row(page, "before-0")).to_be_visible()
            expect(page.locator(".blind .warning")).to_have_count(1)
            page.wait_for_timeout(3000)
            began = time.monotonic()
            proxy.to = after.port
            proxy.mend()
            expect(row(page, "after")).to_be_visible()
            expect(row(page, "before-0")).to_have_count(0)
            expect(page.get_by_text("The list is old")).to_have_count(0)
            expect(page.get_by_text("● live")).to_be_visible()
            print(f"    live again after {time.monotonic() - began:.2f} s")
            expect(page.get_by_text("Another process of the gateway answers since")).to_be_visible()
            # The panel says that its run is unknown, and offers nothing that could only fail.
            expect(page.locator(".panel .warning")).to_contain_text("before-3")
            nothing_can_be_done_with_the_run(page)
            page.keyboard.press("Escape")
            # Events and actions work again.
            call = Call(after.port, KEYS["coder"], "new", "sim-slow")
            row(page, "new").click()
            confirm(page, "End…", "End 1 run")
            assert "aborted" in call.wait().text
            expect(row(page, "new")).to_have_count(0)
            # A run of the same id as one that the page had open.
            open_runs(after.port, KEYS["coder"], ["before-3"])
            row(page, "before-3").click()
            expect(page.locator(".panel .warning")).to_have_count(0)
            expect(page.locator(".sentence")).to_contain_text("Open for")


CASES = [
    below_a_prefix_of_a_proxy_the_page_works,
    the_list_and_the_panel_agree_about_ends,
    an_end_leaves_the_row_of_another_owner,
    an_end_asks_once_and_meets_a_run_that_is_gone,
    one_session_of_very_many_runs_stays_bounded,
    an_idle_page_asks_little,
    a_forgotten_token_ends_the_requests,
    a_refresh_leaves_what_a_person_does,
    a_bulk_end_says_how_many_and_means_these,
    an_open_run_says_that_it_has_ended,
    hostile_texts_stay_texts_in_titles_and_dialogs,
    a_page_outlives_a_restart_of_the_gateway,
]
