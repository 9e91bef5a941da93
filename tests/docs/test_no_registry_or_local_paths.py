"""Committed files name no package registry and no path of a developer's machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_REGISTRIES = ("py" + r"pi\.org", "python" + r"hosted\.org", r"npm" + r"js\.(?:org|com)", "crates" + r"\.io")
_MACHINE = (
    r"/ho" + r"me/(?!user\b|me\b|dev\b)\w+/",
    r"/Use" + r"rs/(?!me\b)\w+/",
    r"/ro" + "ot/",
    "/wo" + r"rk/(?:main|shared)\b",
)
PATTERN = re.compile("|".join((*_REGISTRIES, *_MACHINE)))
IGNORED = {".git", ".venv", "__pycache__", "dist", "build", "uv.lock"}


def list_committed_files() -> list[Path]:
    """Return the files in git, or without git the files that would be committed."""
    try:
        result = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return _list_all_files()
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()] or _list_all_files()


def _list_all_files() -> list[Path]:
    names = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [ROOT / name for name in names if not IGNORED & set(name.parts) and not _is_cache(name)]


def _is_cache(name: Path) -> bool:
    return name.suffix in {".pyc", ".egg-info"} or any(
        part.endswith("_cache") or part == ".hypothesis" for part in name.parts
    )


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
