"""Pages that are made from the code are up to date with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import COMMAND_HELP
from holdfast.cli import command as program

DOCS = Path(__file__).parents[2] / "docs"


def generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date():
    """No page would change if it were made anew; ``python docs/generate.py`` writes them."""
    assert list(generate().stale()) == []


def test_every_part_is_on_a_page():
    """Each generated part stands on one page, so that none is forgotten."""
    pages = "".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    for name in generate().PARTS:
        assert pages.count(f"<!-- generated: {name} -->") == 1


def test_an_old_part_is_noticed():
    """A part with other words in it is replaced: the comparison can fail."""
    page = "before\n<!-- generated: rules -->\nstale words\n<!-- end -->\nafter\n"
    new = generate().filled(page)
    assert "stale words" not in new
    assert new.startswith("before\n")
    assert new.endswith("<!-- end -->\nafter\n")


def test_making_pages_changes_no_command():
    """``-h`` is still help behind it: click keeps the help option that a command was first asked with."""
    generate().PARTS["commands"]()
    for name in COMMAND_HELP:
        assert CliRunner().invoke(program, [name, "-h"]).exit_code == 0, name
