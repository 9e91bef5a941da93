"""A store that this user may read but not write: reading commands work, writing ones say what to do."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

UNPRIVILEGED_UID = 65_534
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
def read_only_store(edited_session, home, make_session_lines, write_lines, run, monkeypatch):
    """Move the store to a place that this user may read but not write, and return its path."""
    for arguments in READING:  # who may not write may not read where Python's own modules lie either
        run(*arguments)
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(home / "store", folder / "store")
    write_lines(folder / "more.jsonl", make_session_lines(2, session="1a7e-dddd"))
    blobs = folder / "store" / "holdfast.db.blobs"
    shutil.copytree(next(blobs.iterdir()), blobs / "ff")  # a text that nothing names
    for name, value in {"HOME": str(folder), "HOLDFAST_STORE": str(folder / "store" / "holdfast.db")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    is_root = os.geteuid() == 0
    for path in [folder, *folder.rglob("*")]:
        if is_root:
            os.chown(path, UNPRIVILEGED_UID, -1)
        path.chmod(0o500 if path.is_dir() else 0o400)
    if is_root:
        os.seteuid(UNPRIVILEGED_UID)
    yield folder / "store" / "holdfast.db"
    if is_root:
        os.seteuid(0)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_reading_commands_work_on_a_read_only_store(read_only_store, run, arguments):
    """Commands that only read need no write permission."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout


@pytest.mark.parametrize("arguments", WRITING, ids=" ".join)
def test_writing_commands_are_refused_on_a_read_only_store(read_only_store, run, arguments):
    """One message names the path and what to do, and nothing is changed."""
    bytes_before = read_only_store.read_bytes()
    result = run(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert len(result.stderr.splitlines()) == 1
    assert str(read_only_store) in result.stderr
    assert "give yourself access to it and its folder, or another path with --store" in result.stderr
    assert "Errno" not in result.stderr
    assert read_only_store.read_bytes() == bytes_before
