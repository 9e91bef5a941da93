"""The pages in a real Chromium: no code of theirs fails, nothing loads from elsewhere, and they can be used by anybody.

Needs Chromium and Playwright; skipped where one is missing. ``HOLDFAST_CHROMIUM`` names the program,
``HOLDFAST_SCREENSHOTS`` a folder for pictures of every page.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from served_inspector import MODEL, RULE, make_long_session, make_recorded_session, say, serve, write_session

from holdfast.inspector.comparison.values import ComparisonQuestion
from holdfast.inspector.export import export_session
from holdfast.inspector.rendering import PageWriter
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.parts import Text
from holdfast.messages.text.masking import keep_text
from holdfast.state.entries import CompactionEntry, Entry
from holdfast.store.open_store import open_store

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (dependency group browser)")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

CHROMIUM = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; install it, or name it with HOLDFAST_CHROMIUM"),
    pytest.mark.long,
]
COMPACTION_INDEX = next(index for index, body in enumerate(make_long_session()) if isinstance(body, CompactionEntry))
PAGES = {
    "sessions": ("", {}),
    "timeline": ("session", {"id": "long"}),
    "request": ("request", {"session": "long", "id": "40"}),
    "raw": ("raw", {"session": "long", "id": "40"}),
    "range": ("session", {"id": "long", "from": "28", "to": "40"}),
    "sorted": ("", {"sort": "compactions"}),
    "message": ("message", {"session": "long", "id": "0"}),
    "diff": ("diff", {"session": "long", "from": "55", "to": "56"}),
    "search": ("search", {"q": "daytime"}),
    "undo": ("undo", {"session": "long", "decision": f"{COMPACTION_INDEX:08x}", "message": "0"}),
    "compare": ("compare", {"id": "long"}),
    "comparison": ("compare", {"id": "compared"}),
    "wrong choice": ("compare", {"id": "long", "policies": "nonsense"}),
    "error": ("session", {"id": "nothing"}),
}
"""A page of each kind."""


@pytest.fixture(scope="module")
def chromium():
    """Start Chromium once."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(chromium, served, name, **options):
    """Open a page; return it with what its console said and what it asked other machines for."""
    if name == "comparison":
        write_compared_session(served.source)
    context = chromium.new_context(**options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda request: complaints.append(request.url) if not request.url.startswith(served.url) else None
    )
    path, parameters = PAGES[name]
    page.goto(served.url + PageWriter().make_url(path, **parameters))
    # What Chromium says of the status of a page that is an error on purpose.
    complaints[:] = [text for text in complaints if name not in {"error", "wrong choice"} or "status of 40" not in text]
    return page, complaints


def write_compared_session(source):
    """Write a session in which policies differ, and compare them on it."""
    with open_store(source.name) as store:
        write_session(store, "compared", make_recorded_session(60), title="A slow server, compared")
    question = ComparisonQuestion(
        "compared", source.get_session("compared").leaf_id, ("holdfast", "opencode", "append-only"), 24_000, MODEL
    )
    source.comparisons.start(question)
    while source.comparisons.get_running() is not None:
        time.sleep(0.1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_can_be_read_by_anybody(chromium, inspected, name, scheme):
    """axe-core finds nothing to complain of (contrast, names, landmarks, keyboard), and the console says nothing."""
    page, complaints = open_page(chromium, inspected, name, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    violations = axe.Axe().run(page).response["violations"]
    assert [(found["id"], found["nodes"][0]["html"][:200]) for found in violations] == []
    assert complaints == []
    folder = os.environ.get("HOLDFAST_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}-{scheme}.png", full_page=True)
    page.context.close()


@pytest.mark.parametrize("width", [320, 768, 1920])
@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_every_screen(chromium, inspected, name, width):
    """Nothing stands out to the right, on the narrowest phone and on the widest screen."""
    page, _ = open_page(chromium, inspected, name, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    folder = os.environ.get("HOLDFAST_SCREENSHOTS")
    if folder and width == 320:
        page.screenshot(path=Path(folder) / f"{name}-narrow.png", full_page=True)
    page.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_pages_work_without_javascript(chromium, inspected, name):
    """Every page says the same without code, and its search leads on."""
    page, _ = open_page(chromium, inspected, name, java_script_enabled=False)
    page.get_by_placeholder("Search everything that was said").fill("daytime")
    page.get_by_role("button", name="Search").click()
    assert page.get_by_role("link", name="A slow server", exact=True).count() == 1
    page.context.close()


def test_a_forgotten_rule_is_found_by_clicking(chromium, inspected):
    """From the list to the answer: the session, a request after the compaction, the hidden messages, the first one."""
    page, _ = open_page(chromium, inspected, "sessions")
    page.get_by_role("link", name="A slow server").click()
    page.locator("#request-60 a.request").click()
    page.get_by_role("link", name="#0", exact=True).click()
    assert page.locator(".quoted li", has_text=RULE).count() == 1
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_exported_page_opens_from_disk(chromium, inspected, tmp_path, scheme):
    """Without a server: style and script run, a link opens its message, axe-core is content, nothing is loaded."""
    page_path = tmp_path / "page.html"
    page_path.write_text(export_session(inspected.source, inspected.source.get_session("long"), keep_text))
    context = chromium.new_context(color_scheme=scheme, viewport={"width": 320, "height": 800})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto(page_path.as_uri())
    page.locator("#request-60 summary").click()
    page.locator("#request-60 a", has_text="#0").click()
    assert page.locator("#message-0 details[open]").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert [found["id"] for found in axe.Axe().run(page).response["violations"]] == []
    assert complaints == [page_path.as_uri()]
    context.close()


def test_dragging_over_the_overview_zooms_in(chromium, inspected):
    """A drag selects the requests below it; a click still leads to one request, and the range stays."""
    page, complaints = open_page(chromium, inspected, "timeline")
    box = page.locator(".overview").bounding_box()
    column = box["width"] / 60
    page.mouse.move(box["x"] + 10.5 * column, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 15.5 * column, box["y"] + 40, steps=4)
    assert page.locator(".overview .selection").count() == 1
    page.mouse.move(box["x"] + 29.5 * column, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=11&to=30")
    assert page.locator(".overview a").count() == 20
    page.mouse.click(box["x"] + box["width"] / 40, box["y"] + 40)
    page.wait_for_url("**#request-11")
    assert page.locator(".overview a").count() == 20
    page.get_by_role("link", name="whole session").click()
    page.get_by_role("heading", name="All requests").wait_for()
    assert complaints == []
    page.context.close()


def test_a_range_is_chosen_without_javascript(chromium, inspected):
    """The form with two numbers, and the links to the halves and back, work alone."""
    page, _ = open_page(chromium, inspected, "timeline", java_script_enabled=False)
    page.get_by_label("Requests", exact=True).fill("20")
    page.get_by_label("to", exact=True).fill("39")
    page.get_by_role("button", name="Show").click()
    assert page.locator(".overview a").count() == 20
    page.get_by_role("link", name="30–39").click()
    assert page.locator(".overview a").count() == 10
    assert page.get_by_text("or drag over the columns").is_hidden()
    page.get_by_role("link", name="whole session").click()
    assert page.locator(".overview a").count() == 60
    page.context.close()


def test_a_raw_body_is_copied_and_downloaded(chromium, inspected):
    """The button copies the whole body, and the link keeps it as a file of the same bytes."""
    page, complaints = open_page(chromium, inspected, "raw", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy all of it").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as JSON").click()
    assert download.value.suggested_filename == "request-40.json"
    assert download.value.path().read_text() == copied
    assert complaints == []
    page.context.close()


def test_a_list_is_sorted_by_its_headings(chromium, inspected):
    """A heading sorts, once more the other way round, and says so."""
    page, _ = open_page(chromium, inspected, "sessions")
    names = page.locator(".sessions tbody th a")
    page.get_by_role("link", name="requests").click()
    page.wait_for_url("**sort=requests")
    assert names.all_inner_texts() == ["A slow server", "A greeting"]
    page.get_by_role("link", name="requests").click()
    page.wait_for_url("**order=up")
    assert names.all_inner_texts() == ["A greeting", "A slow server"]
    assert page.locator('th[aria-sort="ascending"]', has_text="requests").count() == 1
    page.context.close()


def test_a_reader_finds_the_summary_that_dropped_a_rule(chromium, tmp_path, configuration):
    """By clicking what is visible: from the list to the broken rule, what the model saw, and the summary's text."""
    script = Path(__file__).parents[2] / "docs" / "forgotten_rule.py"
    rule = runpy.run_path(str(script))["RULE"]
    url = str(tmp_path / "rule.db")
    # In a process of its own, since Playwright runs an event loop in this thread.
    subprocess.run([sys.executable, str(script), url], check=True)
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        page = chromium.new_page()
        page.goto(served.url)
        page.get_by_role("link", name="Amounts with two digits").click()
        page.get_by_role("searchbox").fill("vendor")
        page.keyboard.press("Enter")
        hit = page.get_by_role("listitem").filter(has_text="so I correct it there").first
        hit.get_by_role("link").click()
        page.get_by_role("link", name="in answer to request 84").click()
        page.get_by_role("link", name="#0", exact=True).click()
        page.get_by_text(f"dropped here {rule}").wait_for()
        assert [found["id"] for found in axe.Axe().run(page).response["violations"]] == []
        page.get_by_role("link", name="request 65").click()
        # The browser opens what the address names, without a script.
        page.get_by_role("region", name="Text of the summary").wait_for()
        page.close()


def test_keys_lead_through_the_pages(chromium, inspected):
    """``/`` searches, ``j`` and ``k`` go forward and back; in a field they are letters."""
    page, _ = open_page(chromium, inspected, "request")
    page.keyboard.press("j")
    page.wait_for_url("**/request?*")
    page.get_by_role("heading", name="Request 41").wait_for()
    page.keyboard.press("k")
    page.get_by_role("heading", name="Request 40").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("jk")
    assert page.get_by_placeholder("Search everything that was said").input_value() == "jk"
    page.context.close()


def test_a_decision_is_undone_and_restored_by_clicking(chromium, inspected):
    """A page asks, the compaction is undone, and the same way it is put in force again."""
    page, _ = open_page(chromium, inspected, "message")
    page.get_by_text("undo…").click()
    page.get_by_role("heading", name="Undo this decision?").wait_for()
    assert [found["id"] for found in axe.Axe().run(page).response["violations"]] == []
    page.get_by_role("button", name="Undo this decision").click()
    page.wait_for_url("**/message?*")
    assert inspected.source.store.open_state("long").view.compaction is None
    page.get_by_text("restore…").click()
    page.get_by_role("button", name="Restore this decision").click()
    page.wait_for_url("**/message?*")
    assert inspected.source.store.open_state("long").view.compaction is not None
    assert any(isinstance(entry.body, CompactionEntry) for entry in inspected.source.store.read_path("long"))
    page.context.close()


def test_a_running_session_is_followed(chromium, inspected):
    """The page of a session shows what another process adds, without being loaded again."""
    page, _ = open_page(chromium, inspected, "timeline")
    page.get_by_text("121", exact=True).wait_for()
    page.wait_for_timeout(1_500)
    with open_store(inspected.source.name) as store:
        leaf = store.get_session("long").leaf_id
        store.append_entries("long", [Entry("newest", leaf, say("user", Text("Go on.")))])
    page.get_by_text("122", exact=True).wait_for(timeout=15_000)
    page.context.close()


@pytest.mark.parametrize("has_javascript", [True, False])
def test_policies_are_compared_by_clicking(chromium, inspected, has_javascript):
    """From the session to the figures: the form, the bar that moves, the table; with and without code."""
    with open_store(inspected.source.name) as store:
        write_session(store, "recorded", make_recorded_session(200), title="To be compared")
    page, complaints = open_page(chromium, inspected, "sessions", java_script_enabled=has_javascript)
    page.get_by_role("link", name="To be compared").click()
    page.get_by_role("link", name="Compare policies on this session").click()
    page.get_by_label("Window in tokens").fill("24000")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("progressbar").wait_for()
    page.get_by_role("columnheader", name="facts kept").wait_for(timeout=90_000)
    names = [name.split()[0] for name in page.get_by_role("rowheader").all_inner_texts()]
    assert names == ["holdfast", "opencode", "claude-code"]
    assert page.get_by_role("progressbar").count() == 0
    assert complaints == []
    page.context.close()


def test_a_comparison_is_cancelled_by_clicking(chromium, inspected):
    """The button keeps the focus while the bar moves, and leads back to the form."""
    with open_store(inspected.source.name) as store:
        write_session(store, "recorded", make_recorded_session(1_500))
    page, complaints = open_page(chromium, inspected, "sessions")
    page.goto(inspected.url + PageWriter().make_url("compare", id="recorded"))
    for policy in ("append-only", "sliding", "pi", "openclaw"):
        page.locator(f'input[value="{policy}"]').check()
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("button", name="Cancel").focus()
    page.get_by_text("request ").wait_for(timeout=60_000)
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    assert [found["id"] for found in axe.Axe().run(page).response["violations"]] == []
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Compare").wait_for()
    assert inspected.source.comparisons.get_running() is None
    assert complaints == []
    page.context.close()
