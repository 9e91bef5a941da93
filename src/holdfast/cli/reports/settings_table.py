"""The numbers behind the policies: settings in their groups, and the constants of the planner, read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from msgspec import Struct

from holdfast.planning.settings import Settings

_PACKAGES = ("planning", "normalize", "recovery", "messages", "state", "engine")
"""Where the planner and its runner keep their numbers."""
_SECTION = re.compile(r"\s*# -- (.+?) -{3,}")
_FIELD = re.compile(r"\s{4}(\w+): Annotated\[")
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_LONGEST = 200
"""Characters of a value; longer ones are tables and no numbers that anybody chose."""


class Constant(Struct, frozen=True):
    """A number or a text in the source that no setting changes."""

    name: str
    value: Any
    about: str
    """What it is and where it came from."""
    module: str


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """Return the names of all settings by the group they stand in, in order."""
    found: dict[str, list[str]] = {}
    title = "Settings"
    for line in _source(files("holdfast") / "planning" / "settings.py").splitlines():
        section, field = _SECTION.match(line), _FIELD.match(line)
        if section:
            title = f"{section[1][0].upper()}{section[1][1:]}"
        elif field and field[1] in Settings.__struct_fields__:
            found.setdefault(title, []).append(field[1])
    left = [name for name in Settings.__struct_fields__ if not any(name in names for names in found.values())]
    return {name: tuple(names) for name, names in (found | ({"Others": left} if left else {})).items()}


@cache
def constants() -> tuple[Constant, ...]:
    """Return every constant of the planner that has a line about it, module by module."""
    root = files("holdfast")
    return tuple(one for package in _PACKAGES for one in _in_folder(root / package, package))


def _in_folder(folder: Traversable, name: str) -> Iterator[Constant]:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_dir():
            yield from _in_folder(path, f"{name}/{path.name}")
        elif path.name.endswith(".py"):
            yield from _in_module(_source(path), f"{name}/{path.name}")


def _source(path: Traversable) -> str:
    return path.read_text("utf-8")


def _in_module(source: str, module: str) -> Iterator[Constant]:
    """Yield the constants of one module: plain values with a text below them."""
    body = ast.parse(source).body
    for at, node in enumerate(body):
        about = _text(body[at + 1]) if at + 1 < len(body) else ""
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from _assigned(node.targets[0], node.value, about, module)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _assigned(node.target, node.value, about, module)


def _assigned(target: ast.expr, value: ast.expr, about: str, module: str) -> Iterator[Constant]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, one in zip(target.elts, value.elts, strict=False):
            yield from _assigned(name, one, about, module)
        return
    held = _value(value)
    if isinstance(target, ast.Name) and _NAME.fullmatch(target.id) and about and held is not None:
        yield Constant(target.id, held, " ".join(about.split()), module)


def _value(node: ast.expr) -> Any:
    """Return what ``node`` says if it is a plain value that is short enough to show, else nothing."""
    try:
        held = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return held if not isinstance(held, bytes) and len(repr(held)) <= _LONGEST else None


def _text(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return str(node.value.value) if is_text else ""  # type: ignore[attr-defined]
