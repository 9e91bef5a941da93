"""Take the pictures of docs/inspector.md and docs/forgotten-rule.md in a real Chromium.

    uv run --group browser python docs/inspector_pictures.py

Needs Chromium, named by HOLDFAST_CHROMIUM if it is not ``chromium``. Nothing leaves this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"
HOLDFAST = [sys.executable, "-m", "holdfast"]
RULE_SCRIPT = Path(__file__).parent / "forgotten_rule.py"
EXAMPLE = Path(__file__).parents[1] / "examples" / "long-session.jsonl"
PICTURES = {
    "timeline": ("/session?id=demo", "light", 1000, 900),
    "request": ("/request?session=demo&id=60", "light", 1000, 760),
    "message": ("/message?session=demo&id=0", "dark", 1000, 700),
    "raw": ("/raw?session=demo&id=60", "light", 1000, 700),
    "range": ("/session?id=demo&from=30&to=70", "dark", 1000, 900),
    "narrow": ("/session?id=demo", "light", 320, 640),
}
"""Name, page, scheme, and size in pixels."""
RULE_PICTURES = {
    "dropped": ("/message?session=forgotten&id=0", "light", 1000, 900),
    "changed-summary": ("/diff?session=forgotten&from=64&to=65", "light", 1000, 720),
    "read-back": ("/message?session=guide&id=2", "dark", 1000, 620),
}
"""The same of the sessions of docs/forgotten-rule.md."""
COMPARE_MILLISECONDS = 120_000
"""How long a comparison may take. Chosen by judgement: ten times as long as it takes."""


def take_picture(browser: Browser, url: str, name: str) -> None:
    """Write the picture of one page."""
    page_path, scheme, width, height = (PICTURES | RULE_PICTURES)[name]
    viewport = {"width": width, "height": height}
    page = browser.new_page(viewport=viewport, color_scheme=scheme)
    page.goto(url + page_path)
    page.screenshot(path=IMAGES / f"inspector-{name}.png")
    page.close()


def take_picture_of_comparison(browser: Browser, session_url: str) -> None:
    """Compare policies on a session and write the picture of the result."""
    page = browser.new_page(viewport={"width": 1000, "height": 1200})
    page.goto(session_url)
    page.get_by_role("link", name="Compare policies on this session").click()
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("columnheader", name="facts kept").wait_for(timeout=COMPARE_MILLISECONDS)
    page.screenshot(path=IMAGES / "inspector-compare.png")
    page.close()


@contextmanager
def serve(*arguments: str) -> Iterator[str]:
    """Run ``holdfast inspect`` and return the address that it prints."""
    command = [*HOLDFAST, "inspect", *arguments, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


def main() -> int:
    """Run the demo, serve both sessions, and take all pictures."""
    chromium = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        demo = Path(folder) / "demo"
        subprocess.run([*HOLDFAST, "demo", "--keep", str(demo)], check=True, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with serve("--store", str(demo / "session.db")) as url:
            for name in PICTURES:
                take_picture(browser, url.rstrip("/"), name)
        rule_store = str(Path(folder) / "forgotten-rule.db")
        subprocess.run([sys.executable, str(RULE_SCRIPT), rule_store], check=True)
        with serve("--store", rule_store) as url:
            for name in RULE_PICTURES:
                take_picture(browser, url.rstrip("/"), name)
        with serve(str(EXAMPLE)) as session_url:
            take_picture_of_comparison(browser, session_url)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
