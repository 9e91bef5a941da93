"""The pages about the proxy and its clients name everything there is to name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click
import pytest

from holdfast.cli import command as program
from holdfast.cli.clients.launch import CLIENT_LAUNCHERS
from holdfast.config.providers import ADDRESS_VARIABLES
from holdfast.proxy.http import headers
from holdfast.proxy.settings import BYPASS_VARIABLE, TOKEN_VARIABLE, Settings

DOCS = Path(__file__).parents[2] / "docs"
PROXY, CLIENTS, FORMATS = ((DOCS / name).read_text("utf-8") for name in ("proxy.md", "clients.md", "formats.md"))
PAGES = {path.name: path.read_text("utf-8") for path in (DOCS / "clients").glob("*.md")}
"""A page for each client."""


@pytest.mark.parametrize("name", ["serve", "run"])
def test_options(name):
    """Each option of the commands is told on the page, those that all commands have too."""
    found = program.get_command(click.Context(program), name)
    assert found is not None
    for option in (one for one in found.params if isinstance(one, click.Option)):
        for spelling in (*option.opts, *option.secondary_opts):
            assert re.search(rf"(?<![\w-]){spelling}(?![\w-])", PROXY), spelling


def test_headers_and_variables():
    """Each header of ours, each state that it tells and each variable of ours stands on the page."""
    for name in (headers.STATE_HEADER, headers.SESSION_HEADER, headers.REQUEST_HEADER, headers.TOKEN_HEADER):
        assert f"`{name.decode()}`" in PROXY
    for word in (*get_args(headers.RequestState), BYPASS_VARIABLE, TOKEN_VARIABLE):
        assert word in PROXY, word


def test_settings():
    """Each setting of the table has its line."""
    for name in Settings.__struct_fields__:
        assert re.search(rf"^{name} = ", FORMATS, re.MULTILINE), name


def test_clients():
    """Each client that is started in a way of its own has a page that shows how, and each variable is told."""
    for client in CLIENT_LAUNCHERS:
        assert any(f"holdfast run -- {client}" in text for text in PAGES.values()), client
    for name in ADDRESS_VARIABLES:
        assert any(name in text for text in PAGES.values()), name


def test_pages():
    """The overview leads to each page, and each page back to what holds for all."""
    assert set(re.findall(r"\(clients/([\w-]+\.md)\)", CLIENTS)) == set(PAGES)
    for name, text in PAGES.items():
        assert "(../clients.md)" in text, name
