"""Pages that are generated from the code are up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import COMMAND_HELP
from holdfast.cli import holdfast_command as program

DOCS = Path(__file__).parents[2] / "docs"


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date():
    """No page would change if it were generated again; ``python docs/generate.py`` writes them."""
    assert list(load_generator().stale()) == []


def test_every_generated_part_is_on_one_page():
    """Each generated part is on exactly one page."""
    pages = "".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    for name in load_generator().PARTS:
        assert pages.count(f"<!-- generated: {name} -->") == 1


def test_outdated_part_is_replaced():
    """A part with other text is replaced, so the comparison above can fail."""
    page = "before\n<!-- generated: rules -->\nstale words\n<!-- end -->\nafter\n"
    new = load_generator().filled(page)
    assert "stale words" not in new
    assert new.startswith("before\n")
    assert new.endswith("<!-- end -->\nafter\n")


def test_generating_pages_leaves_the_help_option():
    """``-h`` still shows help afterwards: click keeps the help option that a command was first used with."""
    load_generator().PARTS["commands"]()
    for name in COMMAND_HELP:
        assert CliRunner().invoke(program, [name, "-h"]).exit_code == 0, name
