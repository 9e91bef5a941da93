"""``holdfast store``: copies are verified, faults are found, sizes are shown, schemas are migrated."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from sample_entries import make_message_chain, make_message_entry_body

from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.blobs.blob_names import NOTE_CAPPED
from holdfast.store.maintenance.check_store import check_store
from holdfast.store.open_store import open_store
from holdfast.store.sql.migrations import APPLICATION_ID, MIGRATIONS


@pytest.fixture
def filled_store(home):
    """Fill the user's store with two sessions and a blob; return the blob's hash."""
    with open_store(home / "store" / "holdfast.db") as store:
        hash_ = store.blobs.store_content("a text " * 1_000)
        store.import_entries("first", make_message_chain("abc"))
        note = Entry("n", "c", NoteEntry(NOTE_CAPPED, data={"blobs": [hash_]}))
        store.append_entries("first", [note])
        store.label_entry("first", "b", "before")
        store.import_entries("second", make_message_chain("xy"))
    return hash_


def get_blob_file(home, hash_):
    """Return the file of a blob of the user's store."""
    return home / "store" / "holdfast.db.blobs" / hash_[:2] / hash_[2:]


# -- copy --------------------------------------------------------------------------------------------------------------


def test_store_copy_copies_verifies_and_goes_on(run, home, filled_store):
    """The first copy copies all, a second nothing, and one after a write only what is new."""
    source, target = home / "store" / "holdfast.db", home / "copy.db"
    first = run("store", "copy", source, target)
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout == (
        "2 sessions copied, 0 extended, 0 unchanged, 0 failed\n"
        "7 entries and 1 text (7,000 bytes) added; 7 entries and 1 texts verified\n"
    )
    assert "0 sessions copied, 0 extended, 2 unchanged" in run("store", "copy", source, target).stdout
    with open_store(source) as store:
        store.append_entries("second", make_message_chain("z", parent="y"))
    report = json.loads(run("store", "copy", source, target, "--json").stdout)
    assert {session["key"]: session["outcome"] for session in report["sessions"]} == {
        "first": "unchanged",
        "second": "extended",
    }
    assert (report["sum"]["added_entries"], report["sum"]["stored_blobs"]) == (1, 0)
    with open_store(target, readonly=True) as store:
        assert check_store(store).is_sound
        assert store.read_labels("first") == {"b": "before"}


def test_store_copy_takes_single_sessions(run, home, filled_store):
    """``--session`` copies only those, by the beginning of their ids."""
    result = run("store", "copy", home / "store" / "holdfast.db", home / "copy.db", "--session", "sec")
    assert result.exit_code == 0
    with open_store(home / "copy.db") as store:
        assert [info.key for info in store.list_sessions()] == ["second"]
    assert run("store", "copy", home / "store" / "holdfast.db", home / "copy.db", "--session", "zzz").exit_code == 2


def test_store_copy_reports_what_the_source_has_lost(run, home, filled_store):
    """Exit code 1 and a line for the missing text; the rest is copied."""
    get_blob_file(home, filled_store).unlink()
    result = run("store", "copy", home / "store" / "holdfast.db", home / "copy.db")
    assert result.exit_code == 1
    assert filled_store in result.stderr
    assert "2 sessions copied" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.db", "copy.db"), "there is no store at missing.db; check FROM"),
        (("store/holdfast.db", "store/holdfast.db"), "are the same store"),
        (("store/holdfast.db", "link.db"), "are the same store"),
        (("store/holdfast.db", "copy.db", "--to-blobs", "http://x"), "s3://BUCKET/PREFIX"),
        (("store/holdfast.db", "copy.db", "--to-blobs", "s3://me:secret-word@bucket"), "AWS_ACCESS_KEY_ID"),
        (("store/holdfast.db", "store"), "is a folder"),
    ],
)
def test_store_copy_refuses_wrong_places(run, home, filled_store, arguments, words):
    """A place that cannot be is a message with one thing to do, and nothing is written."""
    (home / "link.db").symlink_to(home / "store" / "holdfast.db")
    result = run("store", "copy", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "secret-word" not in result.output
    assert not (home / "copy.db").exists()


@pytest.mark.long
def test_store_copy_survives_kill_at_random_moments(home):
    """nothing-lost: a copy that is killed again and again leaves a sound store each time, and ends equal."""
    source = home / "source.db"
    with open_store(source) as store:
        for number in range(60):
            hash_ = store.blobs.store_content(f"text {number} " * 20_000)
            entries = make_message_chain([f"{number}-{step}" for step in range(40)])
            note = Entry(f"{number}-n", entries[-1].id, NoteEntry(NOTE_CAPPED, data={"blobs": [hash_]}))
            store.import_entries(f"session-{number:02}", [*entries, note])
    command = [sys.executable, "-m", "holdfast", "store", "copy", str(source), str(home / "copy.db")]
    generator = random.Random(3)
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            time.sleep(0.3 + generator.random())
            process.send_signal(signal.SIGKILL)
        with open_store(home / "copy.db", readonly=True) as store:
            assert check_store(store).is_sound
            assert {info.entry_count for info in store.list_sessions()} <= {41}
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    with open_store(source) as store, open_store(home / "copy.db") as copy:
        assert store.list_sessions() == copy.list_sessions()
        assert check_store(copy).blob_count == 60


# -- check -------------------------------------------------------------------------------------------------------------


def test_store_check_of_a_sound_store(run, filled_store):
    """Nothing wrong: exit code 0 and the counts."""
    result = run("store", "check")
    assert result.exit_code == 0
    assert result.stdout == (
        "2 sessions with 7 entries: none damaged\n1 text, 7,000 bytes: none missing, none altered\n"
    )


def test_store_check_names_altered_missing_and_unnamed_texts(run, home, filled_store):
    """An altered or missing text is a fault with the entry that names it; an unnamed one is none."""
    with open_store(home / "store" / "holdfast.db") as store:
        store.blobs.store_content("nobody's")
    get_blob_file(home, filled_store).write_text("something else")
    result = run("store", "check")
    assert result.exit_code == 1
    assert f"altered: text {filled_store} of entry n in session first; restore it from a backup" in result.stdout
    assert "1 text of no session, 8 bytes; holdfast gc removes them" in result.stdout
    get_blob_file(home, filled_store).unlink()
    record = json.loads(run("store", "check", "--json").stdout)
    assert not record["is_sound"]
    assert record["missing_blobs"] == [{"hash": filled_store, "session": "first", "entry_id": "n"}]


def test_store_check_names_damaged_entries(run, home, filled_store):
    """An entry that cannot be read is a fault of its session; the others are counted as fine."""
    path = home / "store" / "holdfast.db"
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entries SET raw = NULL, body = x'00' WHERE id = 'x'")
    db.close()
    result = run("store", "check")
    assert result.exit_code == 1
    assert result.stdout.startswith("session second: ")
    assert "1 damaged" in result.stdout


def test_store_check_calls_no_text_garbage_while_a_session_is_damaged(run, home, filled_store):
    """The damaged session may name it: neither the command nor ``holdfast gc`` takes it for unused."""
    with open_store(home / "store" / "holdfast.db") as store:
        store.blobs.store_content("nobody's")
    with sqlite3.connect(home / "store" / "holdfast.db") as db:
        db.execute("UPDATE entries SET raw = NULL, body = x'00' WHERE id = 'x'")
    db.close()
    result = run("store", "check")
    assert "that no readable session names" in result.stdout
    assert "holdfast gc removes nothing until it is repaired" in result.stdout
    assert "of no session" not in result.stdout


@pytest.mark.parametrize("command", ["check", "stats", "migrate"])
def test_store_commands_need_a_store(run, command):
    """Without a store there is nothing to look at, and none is made."""
    result = run("store", command)
    assert result.exit_code == 2
    assert "there is no store at" in result.stderr


# -- stats -------------------------------------------------------------------------------------------------------------


def test_store_stats_counts_everything_once(run, home, filled_store):
    """Entries and bytes by kind add up to the sums, and the largest come first."""
    with open_store(home / "store" / "holdfast.db") as store:
        store.append_entries("second", [Entry("big", "y", make_message_entry_body("word " * 5_000))])
    size = json.loads(run("store", "stats", "--json").stdout)
    assert (size["session_count"], size["entry_count"], size["blob_count"]) == (2, 8, 1)
    assert sum(kind["count"] for kind in size["kinds"]) == 8
    assert sum(kind["bytes"] for kind in size["kinds"]) == size["entry_bytes"]
    assert size["largest_entries"][0]["name"] == "second/big"
    assert size["largest_sessions"][0]["name"] == "second"
    assert size["largest_blobs"] == [{"name": filled_store, "bytes": 7_000, "count": 0}]
    assert len(size["largest_entries"]) == 5
    text = run("store", "stats").stdout
    assert text.startswith("2 sessions, 8 entries (")
    assert "largest texts" in text


# -- migrate -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def older_store(home):
    """Lay the store of an older version as the user's; return its path."""
    path = home / "store" / "holdfast.db"
    path.parent.mkdir()
    db = sqlite3.connect(path, isolation_level=None)
    for step in MIGRATIONS[:3]:
        step(db)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA user_version = 3")
    db.close()
    return path


def test_store_migrate_shows_and_migrates(run, older_store):
    """``--dry-run`` shows the versions and changes nothing; without it the schema is the newest afterwards."""
    newest = len(MIGRATIONS)
    before = older_store.read_bytes()
    dry = run("store", "migrate", "--dry-run")
    assert dry.exit_code == 1
    assert dry.stdout == f"the schema is version 3, and {newest} is the newest; nothing was changed\n"
    assert older_store.read_bytes() == before
    assert run("store", "migrate").stdout == f"the schema was version 3 and is now {newest}, the newest\n"
    again = run("store", "migrate", "--json")
    assert json.loads(again.stdout) == {"dry_run": False, "before": newest, "after": newest, "newest": newest}
    assert again.exit_code == 0


def test_store_migrate_leaves_a_newer_store_alone(run, home, older_store):
    """A store of a newer program is refused with the versions, and not touched."""
    db = sqlite3.connect(older_store)
    db.execute("PRAGMA user_version = 999")
    db.close()
    shutil.copy(older_store, home / "before.db")
    result = run("store", "migrate")
    assert result.exit_code == 2
    assert "999" in result.stderr
    assert older_store.read_bytes() == (home / "before.db").read_bytes()


def test_store_migrate_of_a_store_in_memory(run):
    """A store without a schema says so."""
    result = run("store", "migrate", "--store", ":memory:")
    assert result.exit_code == 2
    assert "no schema" in result.stderr
