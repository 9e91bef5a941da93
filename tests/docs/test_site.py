"""The site that is built from the README and the documentation pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(monkeypatch):
    """Return the script that builds the site as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import build_site

    yield build_site
    sys.modules.pop("build_site")


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "[the proxy](docs/proxy.md)", "[the proxy](proxy.md)"),
        ("README.md", "[all](docs/index.md)", "[all](index.md)"),
        ("docs/index.md", "[README](../README.md)", "[README](index.md)"),
        ("docs/engine.md", "[hooks](#hooks)", "[hooks](#hooks)"),
        ("docs/clients/pi.md", "[the proxy](../proxy.md#limits)", "[the proxy](../proxy.md#limits)"),
        ("docs/tour.md", "[`Run`](../src/holdfast/engine/run/run.py)", "`Run`"),
        ("docs/inspector.md", "[one](../examples/long-session.jsonl)", "[one](example-session.html)"),
        ("README.md", "![demo](docs/images/demo.svg)", "![demo](images/demo.svg)"),
        ("README.md", "[a page](https://example.com/docs/x.md)", "[a page](https://example.com/docs/x.md)"),
    ],
)
def test_rewrite_links_keeps_links_to_pages_only(site, source, link, expected):
    """A link to a page leads to that page in the site; one to any other file of the repository becomes plain text."""
    page = site._get_site_path(ROOT / source)
    assert site.rewrite_links(link, ROOT / source, page) == expected


def test_copy_pages_includes_every_page_in_the_navigation(site, tmp_path):
    """Every page of the repository is in the site, and the navigation names each except those of single clients."""
    site.copy_pages(tmp_path)
    pages = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")}
    assert {"index.md", "contributing.md", "changelog.md", "tour.md", "clients/pi.md"} <= pages
    navigation = (ROOT / "docs" / "zensical.toml").read_text("utf-8")
    assert [page for page in sorted(pages) if "/" not in page and f'"{page}"' not in navigation] == []
