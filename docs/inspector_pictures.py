"""Take the pictures of docs/inspector.md: the demo's session in a real Chromium.

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
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"
PICTURES = {
    "timeline": ("/session?id=demo", "light", 1000, 900),
    "request": ("/request?session=demo&id=60", "light", 1000, 760),
    "message": ("/message?session=demo&id=0", "dark", 1000, 700),
    "raw": ("/raw?session=demo&id=60", "light", 1000, 700),
    "range": ("/session?id=demo&from=30&to=70", "dark", 1000, 900),
    "narrow": ("/session?id=demo", "light", 320, 640),
}
"""Name, page, scheme, and size in pixels."""


def take_picture(browser: Browser, url: str, name: str) -> None:
    """Write the picture of one page."""
    page_path, scheme, width, height = PICTURES[name]
    viewport = {"width": width, "height": height}
    page = browser.new_page(viewport=viewport, color_scheme=scheme)
    page.goto(url + page_path)
    page.screenshot(path=IMAGES / f"inspector-{name}.png")
    page.close()


def main() -> int:
    """Run the demo, serve its session, and take all pictures."""
    chromium = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium")
    holdfast = [sys.executable, "-m", "holdfast"]
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "demo" / "session.db")
        subprocess.run([*holdfast, "demo", "--keep", str(Path(folder) / "demo")], check=True, stdout=subprocess.DEVNULL)
        command = [*holdfast, "inspect", "--store", store, "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"].rstrip("/")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name in PICTURES:
                take_picture(browser, url, name)
            browser.close()
            server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
