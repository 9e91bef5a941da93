"""The package as users import and install it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points, requires
from importlib.resources import files
from types import FunctionType
from typing import get_args, get_type_hints

import pytest

import holdfast
from holdfast import types

HEAVY = (
    "sqlite3",
    "psycopg",
    "click",
    "rich",
    "platformdirs",
    "httpx2",
    "starlette",
    "prometheus_client",
    "anyio",
    "asyncio",
)
"""Modules that ``import holdfast`` must not load: databases, terminals, networks."""


def list_loaded_modules(code: str) -> set[str]:
    """Return the modules that ``code`` loads in a fresh interpreter."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_public_names_are_exactly_these():
    """The public names are exactly these and sorted; users notice every change here."""
    assert holdfast.__all__ == sorted(holdfast.__all__)
    assert holdfast.__all__ == [
        "ConversationState",
        "Engine",
        "HoldfastError",
        "HttpUpstream",
        "Media",
        "Message",
        "Opaque",
        "Plan",
        "PlanInputs",
        "Policy",
        "Report",
        "Session",
        "Stage",
        "SummaryRequest",
        "SummaryResult",
        "Target",
        "Text",
        "Thinking",
        "ToolCall",
        "ToolResult",
        "Usage",
        "apply",
        "classify_error",
        "decode_messages",
        "encode_messages",
        "fix",
        "get_target",
        "lint",
        "open_store",
        "plan",
    ]


INNER_TYPES = {"CompactionTracker", "EngineResources", "Journal"}
"""Internal types of a session; attributes that hold them are not part of the public API."""


def iter_holdfast_types(annotation: object) -> Iterator[type]:
    """Yield Holdfast's classes in an annotation, at any depth."""
    if isinstance(annotation, type) and annotation.__module__.startswith("holdfast."):
        yield annotation
    for argument in get_args(annotation):
        yield from iter_holdfast_types(argument)


def iter_signatures(value: object) -> Iterator[object]:
    """Yield the annotated objects of a public name: a function, or a class and its public methods."""
    if isinstance(value, FunctionType | type):
        yield value
    if not isinstance(value, type):
        return
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            yield member.__func__
        elif isinstance(member, property):
            yield member.fget
        elif callable(member):
            yield member


def test_types_in_public_signatures_are_public():
    """Each type that a public name accepts or returns can be imported from a public module."""
    modules = [holdfast, *(import_module(f"holdfast.{name}") for name in holdfast.PUBLIC_MODULES)]
    exported = {name: getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}
    public_classes = [value for value in exported.values() if isinstance(value, type)]
    only_types = set(types.__all__)
    seen = set()
    for name, value in exported.items():
        if name in only_types:
            continue
        for signature in iter_signatures(value):
            for annotation in get_type_hints(signature, localns=vars(types)).values():
                for kind in iter_holdfast_types(annotation):
                    seen.add(kind)
                    is_public = kind in public_classes or kind.__name__ in INNER_TYPES
                    assert is_public, f"{name}: {kind.__module__}.{kind.__name__}"
    assert {getattr(types, name) for name in ("Run", "Verdict", "PlanBuilder", "SessionStore")} <= seen


def test_public_names_can_be_imported():
    """Each public name, also a lazy one, can be imported, and an unknown one is an ``AttributeError``."""
    assert all(getattr(holdfast, name) is not None for name in holdfast.__all__)
    assert {*holdfast.__all__, "__version__"} <= {*dir(holdfast)}
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = holdfast.Motor


def test_modules_load_as_attributes():
    """``except holdfast.errors.StoreError`` needs no import of its own: a module loads when it is named."""
    script = "import holdfast; print(holdfast.errors.HoldfastError is holdfast.HoldfastError)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"


def test_import_loads_no_heavy_modules():
    """``import holdfast`` loads only the standard library; ``plan`` adds msgspec and nothing heavy."""
    assert [name for name in list_loaded_modules("import holdfast") if name.startswith(("msgspec", "holdfast."))] == []
    modules = list_loaded_modules("from holdfast import plan")
    assert "msgspec" in modules
    assert [name for name in HEAVY if name in modules] == []


def test_open_store_loads_the_database_on_use():
    """``sqlite3`` is loaded by ``open_store`` on a file and not before."""
    assert "sqlite3" not in list_loaded_modules("import holdfast; holdfast.open_store")
    assert "sqlite3" in list_loaded_modules("import holdfast; holdfast.open_store('agent.db').close()")


def test_package_contains_its_data_and_command():
    """The tables and the type marker are in the package, and the command is installed."""
    for name in ("data/catalog.toml", "data/prices.toml", "data/common_references.txt", "py.typed"):
        assert files("holdfast").joinpath(name).is_file(), name
    assert [entry_point.value for entry_point in entry_points(group="console_scripts", name="holdfast")] == [
        "holdfast.__main__:main"
    ]


def test_requirements_are_few():
    """The package requires no more than it needs: fifteen packages. Two of them, httptools and uvloop, are
    installed only where they have wheels.
    """
    names = sorted(line.split(">")[0] for line in requires("holdfast") or () if "extra ==" not in line)
    assert names == [
        "anyio",
        "click",
        "h11",
        "httpcore2",
        "httptools",
        "httpx2",
        "jinja2",
        "msgspec",
        "platformdirs",
        "prometheus-client",
        "rich",
        "starlette",
        "uvicorn",
        "uvloop",
        "zstandard",
    ]


def test_version_is_printed():
    """``python -m holdfast --version`` prints the version."""
    result = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"holdfast {holdfast.__version__}\n"
