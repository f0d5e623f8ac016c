"""The live page in a real browser, before a real router and simulated engines."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Request, expect, sync_playwright

from tests.docs.running import answers, process
from tests.ports import own_port, own_ports
from tests.users import users

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")

PATIENCE_MS = 60_000
"""For a state that must come; only a test that fails waits so long."""

NOTE_TOLD = """() => {
  window.told = [];
  for (const node of document.querySelectorAll("[role=status]")) {
    let text = node.textContent;
    new MutationObserver(() => {
      window.told.push([text, node.textContent]);
      text = node.textContent;
    }).observe(node, {childList: true, characterData: true, subtree: true});
  }
}"""
"""Each change of the screen reader's text: before and after."""

_TROUBLE = r"((decode|prefill) \S+ is [a-z]+|No (decode|prefill) engine can take requests)"
VERDICT = rf"All engines are up|{_TROUBLE}(; {_TROUBLE})*"

HOSTILE = "<img src=x onerror=\"document.body.id='owned'\">"
"""A model's name, as an engine may list it."""


@dataclass
class Site:
    """A router, and its engines."""

    router: str
    prefill: str
    decode: list[str]
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def command(self) -> str:
        """What starts the router."""
        return (
            f"exec pd-router serve --port {self.router.rpartition(':')[2]}"
            f" --prefill {self.prefill} --decode {','.join(self.decode)} --routing-threshold 64"
        )

    @contextlib.contextmanager
    def slow(self, engine: str) -> Iterator[None]:
        """One engine is eight times slower than the others."""
        for method, body in (("POST", b'{"slow": 8.0}'), ("DELETE", None)):
            asked = urllib.request.Request(f"{engine}/sim/faults", body, method=method)
            with urllib.request.urlopen(asked, timeout=60) as response:
                assert response.status == 200
            if method == "POST":
                yield


@pytest.fixture(scope="module")
def engines() -> Iterator[Site]:
    """One prefill engine and four decode engines; one lists a model with a hostile name."""
    router, prefill, *decode = (f"http://127.0.0.1:{port}" for port in own_ports(range(6)))
    simulator = "exec simulator --step-ms 10"
    ports = [url.rpartition(":")[2] for url in (prefill, *decode)]
    with contextlib.ExitStack() as stack:
        site = Site(router, prefill, decode)
        for command in (
            f"{simulator} --role prefill --port {ports[0]}",
            f"{simulator} --role decode --port {ports[1]} --count 3",
            f"{simulator} --role decode --port {ports[4]} --lora '{escaped(HOSTILE)}'",
        ):
            site.processes.append(stack.enter_context(process(command)))
        for url in (prefill, *decode):
            answers(url, *site.processes)
        yield site


def escaped(text: str) -> str:
    """For single quotes of a shell."""
    return text.replace("'", "'\\''")


@pytest.fixture(scope="module")
def site(engines: Site) -> Iterator[Site]:
    """The same with a router that runs."""
    with process(engines.command) as router:
        answers(engines.router, router)
        yield engines


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    """A window for all tests: another one costs a second of CPU time, and a page half of that."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = started.new_context()
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield context
        started.close()


@dataclass
class Seen:
    """A page's errors and requests."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """From now on."""
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)


@contextlib.contextmanager
def looking(browser: BrowserContext, site: Site) -> Iterator[tuple[Page, Seen]]:
    """The live page once it has its first figures."""
    page, seen = browser.new_page(), Seen()
    seen.watch(page)
    page.goto(f"{site.router}/dashboard")
    expect(page.locator("#connection")).to_have_text("live")
    try:
        yield page, seen
    finally:
        page.close()


def test_page_loads_without_foreign_requests(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, seen), users(site.router, 4):
        before = page.locator("#updated").text_content()
        expect(page.locator("#updated")).not_to_have_text(str(before))
        expect(page.locator("#totals")).to_contain_text("tokens/s")
        line = page.locator("#pool-decode [data-field=tokens_per_second] polyline").first
        expect(line).to_have_attribute("points", re.compile(r"\S+ \S+ \S+"))
        expect(page.locator("#decisions")).to_contain_text("below_threshold")
        assert seen.complaints == []
        assert {url.startswith(f"{site.router}/") for url in seen.requests} == {True}


def test_curve_has_full_axes_from_the_start(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, _):
        curve = page.locator("#pool-decode [data-field=in_flight] .spark").first
        expect(curve.locator("polyline")).to_have_attribute("points", re.compile(r"^5\d,"))
        for side in ("left", "bottom"):
            expect(curve).to_have_css(f"border-{side}-width", "1px")
        assert curve.evaluate("(svg) => svg.viewBox.baseVal.width") == 59
        expect(page.locator("main")).to_contain_text("Curves: the last minute")


def test_one_look_shows_the_slow_engine(browser: BrowserContext, site: Site) -> None:
    slow = site.decode[1]
    name = slow.removeprefix("http://")
    with looking(browser, site) as (page, _), users(site.router, 16):
        row = page.locator("#pool-decode tr", has=page.get_by_text(name, exact=True))
        with site.slow(slow):
            expect(row).to_have_class("warn")
            expect(row).to_contain_text("times the pool's median")
            expect(page.locator("#verdict")).to_contain_text(f"decode {name} is slow")
            expect(page).to_have_title(re.compile(r"^\(\d\) pd-router$"))
            expect(page.locator("#changes")).to_contain_text(f"decode {slow} is slow")


def test_without_any_engine_the_page_is_red(
    browser: BrowserContext, engines: Site, tmp_path: Path
) -> None:
    port = own_port()
    file = tmp_path / "engines.json"

    def names(*decode: str) -> None:
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"decode": decode}))
        new.replace(file)

    names(engines.decode[0])
    other = Site(f"http://127.0.0.1:{port}", "", [])
    command = f"exec pd-router serve --port {port} --engines-file {file}"
    with process(command) as router:
        answers(other.router, router)
        with looking(browser, other) as (page, seen):
            verdict = page.locator("#verdict")
            expect(verdict).to_have_class("good")
            names()
            expect(verdict).to_have_class("bad")
            expect(verdict).to_have_text("No decode engine can take requests")
            expect(page).to_have_title("(1) pd-router")
            expect(page.locator("#pool-decode tbody tr")).to_have_count(0)
            expect(page.locator("#pool-decode")).to_be_visible()
            assert seen.complaints == []


def test_it_goes_on_when_the_router_was_restarted(browser: BrowserContext, engines: Site) -> None:
    port = own_port()
    other = Site(f"http://127.0.0.1:{port}", engines.prefill, engines.decode)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(process(other.command))
        answers(other.router, first)
        page, _ = stack.enter_context(looking(browser, other))
        first.terminate()
        expect(page.locator("#connection")).to_contain_text("trying again")
        first.wait()
        answers(other.router, stack.enter_context(process(other.command)))
        expect(page.locator("#connection")).to_have_text("live")
        before = page.locator("#updated").text_content()
        expect(page.locator("#updated")).not_to_have_text(str(before))


def test_silent_connection_is_reopened(browser: BrowserContext, engines: Site) -> None:
    """The router hangs, and so does its answer; the page's clock continues."""
    port = own_port()
    other = Site(f"http://127.0.0.1:{port}", engines.prefill, engines.decode)
    events = f"{other.router}/dashboard/events"
    itself = other.command.replace("pd-router", f"{sys.executable} -m router")
    assert browser.browser is not None
    with process(itself) as router, browser.browser.new_context() as context:  # with its own clock
        answers(other.router, router)
        page = context.new_page()
        page.clock.install()
        page.goto(f"{other.router}/dashboard")
        state = page.locator("#connection")
        expect(state).to_have_text("live", timeout=PATIENCE_MS)
        router.send_signal(signal.SIGSTOP)
        try:
            with page.expect_request(events, timeout=PATIENCE_MS):
                page.clock.fast_forward(12_000)
            expect(state).to_contain_text("trying again", timeout=PATIENCE_MS)
        finally:
            router.send_signal(signal.SIGCONT)
        expect(state).to_have_text("live", timeout=PATIENCE_MS)


def test_names_of_models_are_text(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, seen):
        row = page.locator("#pool-decode tbody tr").nth(3)
        row.locator("summary").click()
        expect(row.locator(".more")).to_contain_text(HOSTILE)
        assert page.locator("img").count() == 0
        assert page.locator("#owned").count() == 0
        assert seen.complaints == []


KEY = "a-key-of-an-operator"


def test_an_operator_with_the_admin_key_drains_an_engine(
    browser: BrowserContext, engines: Site, tmp_path: Path
) -> None:
    admin, port = own_ports([0, 1])
    keys = tmp_path / "keys"
    keys.write_text(f"operator {KEY}\n")
    guarded = f"--admin-port {admin} --admin-key-file {keys}"
    other = Site(f"http://127.0.0.1:{port}", engines.prefill, engines.decode)
    with process(f"{other.command} {guarded}") as router, browser.new_page() as page:
        answers(other.router, router)
        page.goto(f"http://127.0.0.1:{admin}/dashboard")
        state, key = page.locator("#connection"), page.get_by_label("Admin key")
        expect(state).to_have_text("The router wants an admin key")
        expect(key).to_be_focused()
        key.fill("another-key-than-this")
        page.keyboard.press("Enter")
        expect(state).to_have_text("The router does not know this key")
        assert page.locator("#pools").text_content() == ""
        key.fill(KEY)
        page.keyboard.press("Enter")
        expect(state).to_have_text("live")
        expect(key).to_be_hidden()
        url = engines.decode[0]
        row = page.locator("#pool-decode tbody tr").first
        page.get_by_role("button", name=f"drain decode {url}", exact=True).click()
        expect(page.locator("#told")).to_have_text(f"drain decode {url}: done")
        expect(row.locator(".status")).to_have_text("draining")
        page.get_by_role("button", name=f"undrain decode {url}", exact=True).click()
        expect(row.locator(".status")).to_have_text("up")


def test_without_a_key_the_page_is_read_only(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, _):
        assert page.locator(".pool tbody tr").count() == 1 + len(site.decode)
        assert page.get_by_role("button").count() == 0


POOLS_WITHOUT_PREFILL = """() => new Promise((done) => {
  const source = new EventSource("dashboard/events");
  source.addEventListener("message", (event) => {
    source.close();
    const sample = JSON.parse(event.data);
    sample.pools = sample.pools.filter((pool) => pool.role === "decode");
    show(sample);
    done([...document.getElementById("pools").children].map((section) => section.id));
  });
})"""


def test_a_pool_without_engines_is_not_shown(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, _):
        expect(page.locator("#pool-prefill")).to_have_count(1)
        assert page.evaluate(POOLS_WITHOUT_PREFILL) == ["pool-decode"]


INJECTED = """(text) => new Promise((done) => {
  document.querySelector("#pools").innerHTML = text;
  document.querySelector("#pools img").addEventListener("error", () => done());
})"""
"""Resolves when the image has failed. Not wait_for_function(): a text that it must try twice is
given to eval(), which the policy forbids."""


def test_an_injected_script_would_not_run(browser: BrowserContext, site: Site) -> None:
    """The policy is a second line: the first is that no text becomes markup."""
    with looking(browser, site) as (page, seen):
        page.evaluate(INJECTED, HOSTILE)
        assert page.locator("#owned").count() == 0
        assert any("Content Security Policy" in complaint for complaint in seen.complaints)


def test_details_are_opened_by_keyboard_and_stay_open(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, _):
        page.keyboard.press("Tab")  # the pool's table, which may have to be scrolled
        assert page.evaluate("document.activeElement.getAttribute('role')") == "region"
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        opened = page.locator("#pool-prefill details[open]")
        expect(opened).to_have_count(1)
        before = page.locator("#updated").text_content()
        expect(page.locator("#updated")).not_to_have_text(str(before))
        expect(opened).to_have_count(1)
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_screen_readers_find_tables_and_announce_only_changes(
    browser: BrowserContext, site: Site
) -> None:
    with looking(browser, site) as (page, _), users(site.router, 4):
        region = page.get_by_role("region", name="decode engines")
        assert region.get_by_role("rowheader").count() == len(site.decode)
        heads = region.get_by_role("columnheader").all_text_contents()
        assert heads[:3] == ["engine", "slowdown", "in flight"]
        told = page.get_by_role("status")
        assert told.count() == 2
        page.evaluate(NOTE_TOLD)
        for _ in range(2):
            before = page.locator("#updated").text_content()
            expect(page.locator("#updated")).not_to_have_text(str(before))
        # On a busy machine an engine may truly have become slow; that announcement is news.
        for before, now in page.evaluate("window.told"):
            assert now != before
            assert re.fullmatch(VERDICT, now)


def test_only_tables_scroll_sideways(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, _):
        first = page.locator("#pool-decode tbody tr").first
        for width in (390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for part in ("th", "[data-field=slowdown] span"):
                box = first.locator(part).bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= width


def test_it_is_dark_where_the_system_is(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, _):
        colours = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]


def test_nothing_moves_where_motion_is_not_wanted(browser: BrowserContext, site: Site) -> None:
    with looking(browser, site) as (page, _):
        page.emulate_media(reduced_motion="reduce")
        moving = "[...document.querySelectorAll('*')].map((e) => getComputedStyle(e))"
        assert page.evaluate(f"{moving}.every((s) => s.transitionDuration === '0s')")
        assert page.evaluate(f"{moving}.every((s) => s.animationName === 'none')")


def test_a_hidden_page_requests_nothing(browser: BrowserContext, site: Site) -> None:
    hide = """(is) => {
      Object.defineProperty(document, "hidden", {configurable: true, get: () => is});
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with looking(browser, site) as (page, _):
        with page.expect_event("requestfailed"):  # the events' connection is closed
            page.evaluate(hide, True)
        with page.expect_request(f"{site.router}/dashboard/events"):
            page.evaluate(hide, False)
        assert json.dumps(page.evaluate("document.hidden")) == "false"
