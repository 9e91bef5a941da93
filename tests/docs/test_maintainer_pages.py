"""Everything that the pages for maintainers name exists: files, folders, classes, functions, settings."""

from __future__ import annotations

import keyword
import re
from functools import cache
from pathlib import Path

import pytest

from holdfast import events

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/tour.md")
SEARCHED_FOLDERS = ("src", "tests", "docs", "bench", "examples", "requirements", "integrations", ".ci")
BUILT_PATHS = frozenset({"build/site/html"})
"""Paths that a command on the page makes."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_PATH = re.compile(r"[\w-]*(?:\.?[\w-]+/)+[\w.-]*|[\w-]+\.(?:py|md|toml|json|txt|sh)")
_IDENTIFIER = re.compile(
    r"""(?<![\w$./-])(?:
        (?P<dotted>\w+(?:\.[A-Za-z_]\w*)+)       # Session.branch, compaction.breaker_failures
      | (?P<called>[a-z_]\w*)(?=\()              # make_json_option(…)
      | (?P<name>_?[A-Z]+[a-z]\w*|\w*_\w*|[A-Z]{3,})  # ParsedRequest, spill_large_results, AGENTS
    )(?![\w/-])""",
    re.VERBOSE,
)
pytestmark = pytest.mark.skipif(not PACKAGE.exists(), reason="these tests also run beside an installed wheel")


def list_spans(page: str) -> list[str]:
    """Return the text in backticks of a page, without its blocks of code; a line end inside counts as a space."""
    text = _FENCE.sub("", (ROOT / page).read_text("utf-8"))
    return [re.sub(r"\s+", " ", span) for span in _SPAN.findall(text)]


@cache
def list_repository_paths() -> frozenset[str]:
    """Return every file and folder of the repository, relative to its root; folders end in a slash."""
    paths = set()
    for path in [*ROOT.iterdir(), *(path for name in SEARCHED_FOLDERS for path in (ROOT / name).rglob("*"))]:
        if "__pycache__" not in path.parts:
            paths.add(f"{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}")
    return frozenset(paths)


@cache
def list_defined_names() -> frozenset[str]:
    """Return what the code defines: classes, functions, attributes, constants, modules, and one-word strings."""
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    names = {*keyword.kwlist} | {path.stem for path in files}
    names |= {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
    definition = re.compile(
        r"\b(?:def|class) (\w+)|^\s*(\w+)(?:, \w+)*\s*(?::[^\n]*|(?::[^\n=]+)?=[^=])|\bself\.(\w+)\s*[:=]|\"(\w+)\"",
        re.MULTILINE,
    )
    for path in files:
        for found in definition.findall(path.read_text("utf-8")):
            names |= set(filter(None, found))
    return frozenset(names)


def does_path_exist(name: str) -> bool:
    """Return whether ``name`` is a path from the root or in the package, or alone the name of a file or folder."""
    paths = list_repository_paths()
    if "/" in name.rstrip("/"):
        return any(path in paths for base in ("", "src/holdfast/") for path in (f"{base}{name}", f"{base}{name}/"))
    return any(path == name or path.endswith(f"/{name}") for path in paths)


def list_missing_paths(spans: list[str]) -> list[str]:
    missing = []
    for span in spans:
        # Addresses of the proxy and places beside the checkout are no paths in it; NAME stands for any name.
        if span.startswith(("/", "../", "{")) or "NAME" in span:
            continue
        # In a command, the arguments may be paths.
        for word in span.split(" "):
            if _PATH.fullmatch(word) and word not in BUILT_PATHS and not does_path_exist(word):
                missing.append(word)
    return missing


def list_missing_identifiers(spans: list[str]) -> list[str]:
    missing = []
    for span in spans:
        # NAME stands for any name. Words in capitals are placeholders in a command.
        if "NAME" in span or _PATH.fullmatch(span) or span.startswith("holdfast "):
            continue
        for found in _IDENTIFIER.finditer(span):
            identifier = found[0]
            # In a dotted name the last part is defined somewhere, and so is a class before it. Anything else there may
            # be a variable.
            *owners, name = identifier.split(".")
            names = [name, *(owner for owner in owners if owner[0].isupper())]
            if not list_defined_names().issuperset(names):
                missing.append(identifier)
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_named_paths_exist(page):
    """Each path in backticks is a file or folder, from the root of the repository or in the package."""
    assert list_missing_paths(list_spans(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_named_identifiers_exist(page):
    """Each class, function, constant, setting and method in backticks is defined in the code."""
    assert list_missing_identifiers(list_spans(page)) == []


def test_wrong_names_are_found():
    """A path that does not exist and a method that nobody defines are reported; right ones are not."""
    assert list_missing_paths(["planning/order.py", "planning/stages/order.py", "order.py", "rules/", "rulez/"]) == [
        "planning/order.py",
        "rulez/",
    ]
    spans = [
        "session.tell",
        "SessionRuntime.emit_event",
        "SessionRun.emit_event",
        "OWN_STAGE",
        "OWN_STAGES",
        "ParsedRequests",
        "send(sent)",
    ]
    assert list_missing_identifiers(spans) == [
        "session.tell",
        "SessionRun.emit_event",
        "OWN_STAGE",
        "ParsedRequests",
    ]


def test_tree_on_the_page_exists():
    """Each folder and file in the left column of the tree in docs/architecture.md exists."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tree = page.partition("```\nsrc/holdfast/\n")[2].partition("\ntests/")[0]
    parent = ""
    checked = []
    for indent, names in re.findall(r"^( {2}| {4})([\w.]+/?(?:, [\w.]+)*) +", tree, re.MULTILINE):
        for name in names.split(", "):
            path = f"{name}" if len(indent) == 2 else f"{parent}{name}"
            assert f"src/holdfast/{path}" in list_repository_paths(), path
            checked.append(path)
        if len(indent) == 2:
            parent = names
    assert len(checked) > 40


def test_table_of_events_is_complete():
    """The table names each event once, and as its senders exactly the files of the engine that construct it."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## Who emits which event")[2].partition("\n## ")[0]
    listed = {}
    for row in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        names, files, _ = row.split(" | ")
        for name in _SPAN.findall(names):
            assert name not in listed
            listed[name] = set(_SPAN.findall(files))
    emitted = {name: set() for name in (event.__name__ for event in events.Event.__args__)}
    for path in (PACKAGE / "engine").rglob("*.py"):
        text = path.read_text("utf-8")
        for name, files in emitted.items():
            if re.search(rf"\b{name}\(", text):
                files.add(str(path.relative_to(PACKAGE)))
    assert listed == emitted
