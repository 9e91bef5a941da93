"""A store keeps the place of its blobs, and each store has one of its own."""

from __future__ import annotations

import threading

import pytest

from holdfast import Engine, Message, Policy, config
from holdfast.errors import StoreError, StoreReplaced, UnknownId
from holdfast.state.entries import MessageEntry
from holdfast.store.blobs.blob_place import LOCATION_FILE, read_blob_location
from holdfast.store.blobs.blobs import FileBlobStore
from holdfast.store.open_store import open_store
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedUpstream

URL = "s3://bucket/prefix?endpoint=http%3A%2F%2F127.0.0.1%3A9&region=us-east-1"
"""A place where nobody listens: choosing it asks nobody."""


@pytest.fixture(autouse=True)
def _set_credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setattr("holdfast.store.blobs.object_location.MAX_RETRIES", 0)


def choose_place(path) -> str:
    """Store a text in a new store whose blobs shall be in the bucket; return the place that was recorded."""
    with open_store(path, blobs=URL) as store, pytest.raises(StoreError):
        store.blobs.store_content("text")  # nobody listens
    found = read_blob_location(path.with_name(path.name + ".blobs"))
    assert found is not None
    return found


def test_each_store_has_a_folder_of_its_own_and_keeps_it(tmp_path):
    """Two stores with the same setting never share blobs, since the collector of one would remove the other's; a store
    that is opened with another setting, or none, has the place that it had.
    """
    first, second = choose_place(tmp_path / "a.db"), choose_place(tmp_path / "b.db")
    assert first != second
    assert first.startswith("s3://bucket/prefix/")
    assert choose_place(tmp_path / "a.db") == first
    for blobs in (None, "s3://other/place"):
        with open_store(tmp_path / "a.db", blobs=blobs) as store, pytest.raises(StoreError, match=first[:35]):
            store.blobs.has_blob("a" * 64)


def test_opening_and_reading_choose_no_place(tmp_path):
    """Nothing is created before the first text is stored; until then there are no blobs."""
    with open_store(tmp_path / "a.db", blobs=URL) as store:
        assert list(store.blobs.iter_items()) == list(store.blobs.iter_hashes()) == []
        assert not store.blobs.has_blob("a" * 64)
        for read in (store.blobs.read_bytes, store.blobs.read_text, store.blobs.get_size, store.blobs.count_characters):
            with pytest.raises(UnknownId):
                read("a" * 64)
        assert not store.blobs.remove_if_older("a" * 64, 1e12)
        store.blobs.remove_blob("a" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_store_with_blobs_beside_it_keeps_them_there(tmp_path):
    """The setting is for stores without blobs: those of an older store would be out of reach."""
    with open_store(tmp_path / "a.db") as store:
        hash_ = store.blobs.store_content("text")
    with open_store(tmp_path / "a.db", blobs=URL) as store:
        assert isinstance(store.blobs, FileBlobStore)
        assert store.blobs.read_text(hash_) == "text"


def test_processes_that_choose_at_the_same_time_have_one_place(tmp_path):
    """Of any number of writers one chooses; the others use what it has chosen, and none writes beside the file."""
    barrier = threading.Barrier(6)
    places = []

    def choose(_: int) -> None:
        with open_store(tmp_path / "a.db", blobs=URL) as store:
            barrier.wait()
            with pytest.raises(StoreError):
                store.blobs.store_content("text")
            places.append(store.blobs._blobs.name)

    threads = [threading.Thread(target=choose, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(places) == 6
    assert len(set(places)) == 1
    assert [path.name for path in (tmp_path / "a.db.blobs").iterdir()] == [LOCATION_FILE]


def test_a_writer_that_was_not_told_of_the_place_does_not_write_beside_the_file(tmp_path):
    """A process that opened the store before another one chose a place is told to open it again; the other way round
    the blobs beside the file are found.
    """
    with open_store(tmp_path / "a.db") as untold:
        choose_place(tmp_path / "a.db")
        with pytest.raises(StoreReplaced, match="open the store again"):
            untold.blobs.store_content("text")
    with open_store(tmp_path / "b.db", blobs=URL) as told, open_store(tmp_path / "b.db") as untold:
        hash_ = untold.blobs.store_content("text")
        assert told.blobs.read_text(hash_) == "text"
        assert told.blobs.read_text(told.blobs.store_content("more")) == "more"
    assert read_blob_location(tmp_path / "b.db.blobs") is None


def test_a_location_that_is_a_link_or_no_location_is_refused(tmp_path):
    """no-outside-paths: a link in the place of the file is not followed, and other text in it is a clear error."""
    folder = tmp_path / "a.db.blobs"
    folder.mkdir()
    (tmp_path / "elsewhere").write_text("s3://attacker/x")
    (folder / LOCATION_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="location"):
        open_store(tmp_path / "a.db")
    (folder / LOCATION_FILE).unlink()
    (folder / LOCATION_FILE).write_text("nonsense")
    with open_store(tmp_path / "a.db") as store, pytest.raises(StoreError, match="s3://BUCKET/PREFIX"):
        store.blobs.has_blob("a" * 64)


@pytest.mark.parametrize("blobs", [None, URL])
def test_a_conversation_goes_on_while_its_bucket_is_silent(tmp_path, blobs):
    """nothing-lost: a text over the append limit that no bucket takes stays in its message, in full; one that is stored
    is cut there.
    """
    text = "line of a tool\n" * 2_000
    policy = Policy().with_settings(results={"append_chars": 5_000})

    async def ask() -> None:
        target = config.get_target("anthropic", "claude-opus-5")
        with open_store(tmp_path / "a.db", blobs=blobs) as store:
            async with Engine.open(store, upstream=ScriptedUpstream(["fine"]), target=target, policy=policy) as engine:
                await (await engine.session("one")).ask(text)
            bodies = [entry.body for entry in store.read_path("one")]
        messages = [body.sized_message.message for body in bodies if isinstance(body, MessageEntry)]
        assert len(messages) == 2
        assert (messages[0] == Message.from_text("user", text)) == (blobs is not None)

    run_on_fake_clock(ask)
    has_place = read_blob_location(tmp_path / "a.db.blobs") is not None
    assert has_place == (blobs is not None)
