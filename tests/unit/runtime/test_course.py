"""The modules of the engine: which of them knows which."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import holdfast.runtime

PACKAGE = holdfast.runtime.__name__
STEPS = ("course", "compacting", "deciding", "beginning", "running", "session", "engine")
"""Modules that must come in this order, whatever stands between them."""


def imported(module: Path) -> set[str]:
    """Return the modules of the same package that ``module`` imports anywhere, for type checkers alone too."""
    found = [node for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    named = [f"{node.module}.{alias.name}" for node in found for alias in node.names]
    return {name.split(".")[2] for name in named if name.startswith(f"{PACKAGE}.")}


def test_no_two_modules_know_each_other():
    """A run's steps are given the course of a session and know no session: imports have an order, types included."""
    modules = Path(holdfast.runtime.__file__).parent.glob("*.py")
    order = list(TopologicalSorter({module.stem: imported(module) for module in modules}).static_order())
    places = [order.index(step) for step in STEPS]
    assert places == sorted(places)
