"""``holdfast gc``: unused texts are listed or removed, and young ones kept."""

from __future__ import annotations

import json
import os

import pytest

from holdfast.store.open_store import open_store


@pytest.fixture
def blobs(home):
    """Return the folder of the stored texts."""
    return home / "store" / "holdfast.db.blobs"


@pytest.fixture
def unused_text(home, edited_session, blobs):
    """Store a text that no session uses, and a draft, both two hours old; return the text's hash."""
    with open_store(home / "store" / "holdfast.db") as store:
        hash_ = store.blobs.store_content("nobody's text")
    paths = [blobs / hash_[:2] / hash_[2:], blobs / hash_[:2] / ".0123456789abcdef.tmp"]
    paths[1].write_text("half")
    for path in paths:
        os.utime(path, (path.stat().st_mtime - 7_200,) * 2)
    return hash_


def count_files(blobs):
    """Return the number of stored texts and drafts."""
    return sum(path.is_file() for path in blobs.rglob("*"))


def test_gc_dry_run_lists_unused_texts_and_changes_nothing(run, blobs, unused_text):
    """The list has each unused text with its size, and the total."""
    result = run("gc", "--dry-run")
    assert result.exit_code == 0
    assert unused_text[:40] in result.stdout
    assert "would be removed: 1 text and 1 draft, 17 bytes; in use: 1" in result.stdout
    assert count_files(blobs) == 3


def test_gc_removes_only_unused_texts(run, home, blobs, unused_text, edited_session):
    """Unused texts are removed; what a session refers to stays readable."""
    report = json.loads(run("gc", "--json").stdout)
    assert [blob["name"] for blob in report["blobs"]] == [unused_text]
    assert (report["bytes"], report["in_use"], report["young"], report["dry_run"]) == (17, 1, 0, False)
    assert len(report["drafts"]) == 1
    assert count_files(blobs) == 1
    again = run("gc")
    assert "removed: 0 texts, 0 bytes; in use: 1" in again.stdout
    with open_store(home / "store" / "holdfast.db") as store:
        edit = store.read_entries(edited_session, "decision")[0].body.edits[0]
        assert store.blobs.read_text(edit.blob_hash)


def test_gc_keeps_young_texts_for_the_grace_period(run, blobs, edited_session):
    """After ``rm`` the session's texts are kept for an hour unless a shorter grace is given."""
    run("rm", edited_session, "--yes")
    result = run("gc")
    assert "removed: 0 texts" in result.stdout
    assert "1 more unused, kept" in result.stdout
    assert count_files(blobs) == 1
    assert run("gc", "--grace", "0").exit_code == 0
    assert count_files(blobs) == 0


def test_gc_checks_the_grace_period(run, home, unused_text):
    """The grace period is a number from 0 up; a missing store is not created."""
    for wrong in ("-1", "soon", "", "nan"):
        assert run("gc", "--grace", wrong).exit_code == 2
    for odd in ("inf", "1e300"):
        assert run("gc", "--grace", odd).exit_code == 0
    result = run("gc", "--store", str(home / "none.db"))
    assert result.exit_code == 0
    assert "removed: 0 texts" in result.stdout
    assert not (home / "none.db").exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--json",)])
def test_gc_reports_a_missing_store(run, home, options):
    """A wrong path is reported instead of looking like an empty store, exits with 0, and no store is created."""
    result = run("gc", "--store", home / "typo.db", *options)
    assert (result.exit_code, f"there is no store at {home / 'typo.db'}" in result.stderr) == (0, True)
    assert not (home / "typo.db").exists()
