"""The proxy and client pages name every option, header, setting and client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click
import pytest

from holdfast.cli import holdfast_command as program
from holdfast.cli.clients.launch import CLIENT_LAUNCHERS
from holdfast.config.providers import ADDRESS_VARIABLES
from holdfast.proxy.http import headers
from holdfast.proxy.settings import BYPASS_VARIABLE, TOKEN_VARIABLE, Settings

DOCS = Path(__file__).parents[2] / "docs"
PROXY, CLIENTS, FORMATS = ((DOCS / name).read_text("utf-8") for name in ("proxy.md", "clients.md", "formats.md"))
PAGES = {path.name: path.read_text("utf-8") for path in (DOCS / "clients").glob("*.md")}
"""A page for each client."""


@pytest.mark.parametrize("name", ["serve", "run"])
def test_proxy_page_names_every_option(name):
    """Each option of the commands is on the page, including those common to all commands."""
    command = program.get_command(click.Context(program), name)
    assert command is not None
    for option in (param for param in command.params if isinstance(param, click.Option)):
        for spelling in (*option.opts, *option.secondary_opts):
            assert re.search(rf"(?<![\w-]){spelling}(?![\w-])", PROXY), spelling


def test_proxy_page_names_headers_states_and_variables():
    """Each Holdfast header, each state that it reports and each Holdfast variable is on the page."""
    for name in (headers.STATE_HEADER, headers.SESSION_HEADER, headers.REQUEST_HEADER, headers.TOKEN_HEADER):
        assert f"`{name.decode()}`" in PROXY
    for word in (*get_args(headers.RequestState), BYPASS_VARIABLE, TOKEN_VARIABLE):
        assert word in PROXY, word


def test_formats_page_names_every_proxy_setting():
    """Each proxy setting has its line."""
    for name in Settings.__struct_fields__:
        assert re.search(rf"^{name} = ", FORMATS, re.MULTILINE), name


def test_client_pages_cover_every_launcher_and_variable():
    """Each client with a launcher of its own has a page that shows how, and each address variable is named."""
    for client in CLIENT_LAUNCHERS:
        assert any(f"holdfast run -- {client}" in text for text in PAGES.values()), client
    for name in ADDRESS_VARIABLES:
        assert any(name in text for text in PAGES.values()), name


def test_client_overview_links_every_page():
    """The overview links to each page, and each page back to the overview."""
    assert set(re.findall(r"\(clients/([\w-]+\.md)\)", CLIENTS)) == set(PAGES)
    for name, text in PAGES.items():
        assert "(../clients.md)" in text, name
