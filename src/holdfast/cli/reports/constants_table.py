"""The constants of the planner, which no setting changes, read from its source files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from msgspec import Struct

_PACKAGES_WITH_CONSTANTS = ("planning", "normalize", "recovery", "messages", "state", "engine")
"""The packages of the planner and its runner."""
_CONSTANT_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_MAX_VALUE_LENGTH = 200
"""Characters of a value; longer ones are tables, not chosen numbers."""


class SourceConstant(Struct, frozen=True):
    """A number or text in the source that no setting changes."""

    name: str
    value: Any
    about: str
    """Its meaning and origin."""
    module: str


@cache
def list_constants() -> tuple[SourceConstant, ...]:
    """List every documented constant of the planner, module by module."""
    root = files("holdfast")
    constants: list[SourceConstant] = []
    for package in _PACKAGES_WITH_CONSTANTS:
        constants += _iterate_folder_constants(root / package, package)
    return tuple(constants)


def _iterate_folder_constants(folder: Traversable, name: str) -> Iterator[SourceConstant]:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_dir():
            yield from _iterate_folder_constants(path, f"{name}/{path.name}")
        elif path.name.endswith(".py"):
            yield from _iterate_module_constants(_read_source(path), f"{name}/{path.name}")


def _read_source(path: Traversable) -> str:
    return path.read_text("utf-8")


def _iterate_module_constants(source: str, module: str) -> Iterator[SourceConstant]:
    """Yield the constants of one module: literal values with a docstring below them."""
    body = ast.parse(source).body
    for at, node in enumerate(body):
        about = _get_docstring(body[at + 1]) if at + 1 < len(body) else ""
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from _iterate_assigned_constants(node.targets[0], node.value, about, module)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _iterate_assigned_constants(node.target, node.value, about, module)


def _iterate_assigned_constants(
    target: ast.expr,
    value: ast.expr,
    about: str,
    module: str,
) -> Iterator[SourceConstant]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, element in zip(target.elts, value.elts, strict=False):
            yield from _iterate_assigned_constants(name, element, about, module)
        return
    constant_value = _evaluate_literal(value)
    if isinstance(target, ast.Name) and _CONSTANT_NAME.fullmatch(target.id) and about and constant_value is not None:
        yield SourceConstant(target.id, constant_value, " ".join(about.split()), module)


def _evaluate_literal(node: ast.expr) -> Any:
    """Evaluate ``node`` if it is a short literal, else return None."""
    try:
        literal = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    if not isinstance(literal, bytes) and len(repr(literal)) <= _MAX_VALUE_LENGTH:
        return literal
    return None


def _get_docstring(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return str(node.value.value) if is_text else ""  # type: ignore[attr-defined]
