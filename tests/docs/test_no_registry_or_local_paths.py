"""Committed files name no package registry and no path of a developer's machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from committed_files import list_committed_files

ROOT = Path(__file__).parents[2]
_REGISTRIES = ("py" + r"pi\.org", "python" + r"hosted\.org", r"npm" + r"js\.(?:org|com)", "crates" + r"\.io")
_MACHINE = (
    r"/ho" + r"me/(?!user\b|me\b|dev\b)\w+/",
    r"/Use" + r"rs/(?!me\b)\w+/",
    r"/ro" + "ot/",
    "/wo" + r"rk/(?:main|shared)\b",
)
PATTERN = re.compile("|".join((*_REGISTRIES, *_MACHINE)))


def test_committed_files_name_no_registry_or_local_path():
    """No committed file names a package registry's host or a folder of a machine."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in list_committed_files()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if PATTERN.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["see py" + "pi.org", "/ro" + "ot/.cache", "/ho" + "me/ann/src", "/wo" + "rk/main/src"]
)
def test_pattern_finds_registries_and_local_paths(text):
    """The pattern finds what it is for."""
    assert PATTERN.search(text)


def test_lock_file_is_not_committed():
    """``uv.lock`` records download addresses, so it is not committed; the requirements have hashes and no address."""
    assert "uv.lock" not in {path.name for path in list_committed_files()}
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text("utf-8")
        assert "--hash=sha256:" in text, path.name
        assert not re.search(r"://|--(?:extra-)?index|--find-links", text), path.name
