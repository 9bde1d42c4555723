"""Takes the pictures of the page, in front of simulated agents."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from support import Gateway, eventually

# The agents have ended in some ways by then, and the plot has some minutes.
WAIT = 200

WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 360, "height": 800}


def settle(page):
    expect(page.locator("tr[data-run]").first).to_be_visible()
    page.wait_for_timeout(1500)


def open_run(page, gateway):
    """Opens a run whose call fell back."""

    def fallen():
        _, answer = gateway.ask("GET", "/runs?state=open&owner=support")
        for run in answer["runs"]:
            detail = gateway.ask("GET", f"/runs/{run['run']}")[1]
            if sum(it["class"] is not None for it in detail.get("attempts_of_late", [])) >= 1:
                return run["run"]
        return None

    run, _ = eventually(fallen, "no run fell back", 60)
    page.locator(f'tr[data-run="{run}"]').click()
    expect(page.locator(".timeline .failed").first).to_be_visible()


def open_ended(page):
    """Opens a run that a limit has ended."""
    page.get_by_label("state").select_option(label="ended, 10 minutes")
    page.get_by_role("searchbox", name="owner").fill("reviewer")
    page.keyboard.press("Enter")
    page.locator("tr[data-run]", has_text="loop detected").first.click()
    expect(page.locator(".sentence")).to_contain_text("Ended as loop detected")
    expect(page.locator(".timeline li").first).to_be_visible()


def take(browser, gateway, folder, scheme):
    for name, size in [("overview", WIDE), ("narrow", NARROW)]:
        page = browser.new_page(viewport=size, color_scheme=scheme)
        page.goto(f"http://{gateway.address}/ui")
        settle(page)
        page.screenshot(path=folder / f"{name}-{scheme}.png")
        if name == "overview":
            open_run(page, gateway)
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=folder / f"run-{scheme}.png")
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Freeze all…").click()
            expect(page.locator("dialog .found")).to_be_visible()
            page.screenshot(path=folder / f"question-{scheme}.png")
        else:
            page.locator("tr[data-run]").first.scroll_into_view_if_needed()
            page.evaluate("document.querySelector('.runs').scrollIntoView()")
            page.screenshot(path=folder / f"narrow-runs-{scheme}.png")
            open_ended(page)
            page.screenshot(path=folder / f"narrow-run-{scheme}.png")
        page.close()


def main():
    binary, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(binary, "--demo-load")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.wait_for_timeout(WAIT * 1000)
        page.close()
        for scheme in ["light", "dark"]:
            take(browser, gateway, folder, scheme)
        browser.close()
    gateway.stop()
    print("\n".join(sorted(str(it) for it in folder.glob("*.png"))))


main()
