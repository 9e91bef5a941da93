"""A store that this user may read and not write: reading commands work, writing ones say what to do."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

NOBODY = 65_534
READING = [
    ("ls",),
    ("show", "5e55"),
    ("context", "5e55"),
    ("why", "5e55", "6"),
    ("diff", "5e55", "0.."),
    ("stats",),
    ("stats", "5e55"),
    ("recall", "5e55"),
    ("recall", "5e55", "--search", "function_1"),
    ("export", "5e55"),
    ("branch", "5e55"),
    ("undo", "5e55", "--list"),
    ("gc", "--dry-run"),
]
WRITING = [
    ("import", "more.jsonl"),
    ("undo", "5e55"),
    ("branch", "5e55", "u3"),
    ("branch", "5e55", "u3", "--name", "here"),
    ("rm", "-y", "5e55"),
    ("gc", "--grace", "0"),
]


@pytest.fixture
def closed(decided, home, talk, write, run, monkeypatch):
    """Move the store to where this user may read and not write, and return its path."""
    for arguments in READING:  # who may not write may not read where Python's own modules lie either
        run(*arguments)
    place = Path(tempfile.mkdtemp())
    shutil.copytree(home / "store", place / "store")
    write(place / "more.jsonl", talk(2, session="1a7e-dddd"))
    blobs = place / "store" / "holdfast.db.blobs"
    shutil.copytree(next(blobs.iterdir()), blobs / "ff")  # a text that nothing names
    for name, value in {"HOME": str(place), "HOLDFAST_STORE": str(place / "store" / "holdfast.db")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place)
    is_root = os.geteuid() == 0
    for path in [place, *place.rglob("*")]:
        if is_root:
            os.chown(path, NOBODY, -1)
        path.chmod(0o500 if path.is_dir() else 0o400)
    if is_root:
        os.seteuid(NOBODY)
    yield place / "store" / "holdfast.db"
    if is_root:
        os.seteuid(0)
    for path in [place, *place.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(place)


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_reading_needs_no_access_to_write(closed, run, arguments):
    """What can be read is read."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout


@pytest.mark.parametrize("arguments", WRITING, ids=" ".join)
def test_writing_is_refused_with_one_thing_to_do(closed, run, arguments):
    """What cannot be written is one message with the path and what to do, and nothing is changed."""
    before = closed.read_bytes()
    result = run(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert len(result.stderr.splitlines()) == 1
    assert str(closed) in result.stderr
    assert "give yourself access to it and its folder, or another path with --store" in result.stderr
    assert "Errno" not in result.stderr
    assert closed.read_bytes() == before
