"""``gc``: what nothing names is shown or removed, and nothing that is young."""

from __future__ import annotations

import json
import os

import pytest

from holdfast.store.open_store import open_store


@pytest.fixture
def blobs(home):
    """Return the folder of the blobs."""
    return home / "store" / "holdfast.db.blobs"


@pytest.fixture
def loose(home, decided, blobs):
    """Store a text that nothing names and a draft, both two hours old; return the text's hash."""
    with open_store(home / "store" / "holdfast.db") as store:
        hash_ = store.blobs.store_content("nobody's text")
    paths = [blobs / hash_[:2] / hash_[2:], blobs / hash_[:2] / ".0123456789abcdef.tmp"]
    paths[1].write_text("half")
    for path in paths:
        os.utime(path, (path.stat().st_mtime - 7_200,) * 2)
    return hash_


def files(blobs):
    """Return how many files there are."""
    return sum(path.is_file() for path in blobs.rglob("*"))


def test_a_dry_run_shows_and_changes_nothing(run, blobs, loose):
    """The list has each text with its size, and the sum."""
    result = run("gc", "--dry-run")
    assert result.exit_code == 0
    assert loose[:40] in result.stdout
    assert "would be removed: 1 text and 1 draft, 17 bytes; in use: 1" in result.stdout
    assert files(blobs) == 3


def test_what_nothing_names_goes(run, home, blobs, loose, decided):
    """It is removed, and what the session names stays and can be read."""
    told = json.loads(run("gc", "--json").stdout)
    assert [one["name"] for one in told["blobs"]] == [loose]
    assert (told["bytes"], told["in_use"], told["young"], told["dry_run"]) == (17, 1, 0, False)
    assert len(told["drafts"]) == 1
    assert files(blobs) == 1
    again = run("gc")
    assert "removed: 0 texts, 0 bytes; in use: 1" in again.stdout
    with open_store(home / "store" / "holdfast.db") as store:
        edit = store.read_entries(decided, "decision")[0].body.edits[0]
        assert store.blobs.read_text(edit.blob_hash)


def test_what_is_young_stays_and_is_told(run, blobs, decided):
    """After ``rm`` the texts of the session are young for an hour; a shorter grace takes them."""
    run("rm", decided, "--yes")
    result = run("gc")
    assert "removed: 0 texts" in result.stdout
    assert "1 more unused, kept" in result.stdout
    assert files(blobs) == 1
    assert run("gc", "--grace", "0").exit_code == 0
    assert files(blobs) == 0


def test_wrong_use_is_told(run, home, loose):
    """A time of grace is a number from 0 up; a store that is not there has nothing and is not made."""
    for wrong in ("-1", "soon", "", "nan"):
        assert run("gc", "--grace", wrong).exit_code == 2
    for odd in ("inf", "1e300"):
        assert run("gc", "--grace", odd).exit_code == 0
    result = run("gc", "--store", str(home / "none.db"))
    assert result.exit_code == 0
    assert "removed: 0 texts" in result.stdout
    assert not (home / "none.db").exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--json",)])
def test_a_store_that_is_not_there_is_told(run, home, options):
    """A wrong path is no store with nothing in it; the exit code is fine, and none is made."""
    done = run("gc", "--store", home / "typo.db", *options)
    assert (done.exit_code, f"there is no store at {home / 'typo.db'}" in done.stderr) == (0, True)
    assert not (home / "typo.db").exists()
