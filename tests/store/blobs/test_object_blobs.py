"""Blobs in object storage: the rules of all blobs, over obstore's own stores and a real S3-compatible server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from hashlib import sha256
from pathlib import Path

import obstore
import pytest
import zstandard
from click.testing import CliRunner
from forked_child import wait_for_child
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore
from store_conformance import BlobStoreRules
from swift_server import ACCESS_KEY, SECRET_KEY

from holdfast.cli import holdfast_command
from holdfast.errors import ConfigError, QuotaExceeded, StoreCorrupt, StoreError, UnknownId
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.base import BlobStore, Quota
from holdfast.store.blobs import object_blobs
from holdfast.store.blobs.blob_names import NOTE_CAPPED
from holdfast.store.blobs.compressed_text import (
    HEADER_BYTES,
    MAX_PIECE_BYTES,
    DamagedObject,
    compress_text,
    iter_text_frames,
    read_text_length,
)
from holdfast.store.blobs.object_blobs import ObjectBlobStore
from holdfast.store.blobs.object_location import ObjectLocation, connect_bucket, parse_object_location
from holdfast.store.open_store import open_store

MIXED_TEXT = "line of some tool \u89e3 output\n" * 60_000
"""A text of several frames; pieces end inside of characters."""


def open_local(folder: Path) -> ObjectBlobStore:
    """Return blobs as objects in a folder."""
    (folder / "objects").mkdir(exist_ok=True)
    return ObjectBlobStore(LocalStore(folder / "objects"), "the folder")


def open_bucket(location: ObjectLocation, quota: Quota = Quota(), **options) -> ObjectBlobStore:
    """Return the blobs in a bucket of the server of the tests."""
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return ObjectBlobStore(connect_bucket(location, **(keys | options)), location.name, quota)


class TestLocalObjects(BlobStoreRules):
    """The common rules of blobs, with objects as files."""

    def open(self, place: Path) -> BlobStore:
        """Return the blobs under ``place``."""
        return open_local(place)


class TestObjectsInMemory(BlobStoreRules):
    """The common rules of blobs, with objects in memory."""

    def open(self, place: Path) -> BlobStore:
        """Return new blobs."""
        return ObjectBlobStore(MemoryStore(), "the memory")


@pytest.mark.long
class TestObjectsInSwift(BlobStoreRules):
    """The common rules of blobs, on a real server."""

    @pytest.fixture(autouse=True)
    def _use_bucket(self, bucket):
        self.bucket = bucket

    def open(self, place: Path) -> BlobStore:
        """Return the blobs in the bucket of the test."""
        return open_bucket(self.bucket)


@pytest.fixture(params=["local", pytest.param("swift", marks=pytest.mark.long)])
def open_blobs(request, tmp_path):
    """Return a function that opens the same blobs again, as another process does."""
    if request.param == "local":
        return lambda **options: ObjectBlobStore(open_local(tmp_path)._objects, "the folder", **options)
    location = request.getfixturevalue("bucket")
    return lambda **options: open_bucket(location, **options)


# -- the form of an object ---------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=400_000), max_size=6), st.integers(1, 9_999))
@settings(max_examples=40, deadline=None)
def test_iter_text_frames_returns_what_was_compressed(pieces, chunk):
    """loads-what-was-saved: any bytes in any pieces come back, whatever the pieces in which the object arrives, and
    the frames say where they begin.
    """
    text = b"".join(pieces)
    data = b"".join(compress_text(pieces, len(text)))
    chunks = [data[at : at + chunk * 100] for at in range(0, len(data), chunk * 100)]
    frames = list(iter_text_frames(chunks))
    assert b"".join(frame.text for frame in frames) == text
    assert read_text_length(data[:HEADER_BYTES]) == len(text)
    for frame in frames:
        later = iter_text_frames([data[frame.object_start :]], frame.text_start, frame.object_start)
        assert b"".join(piece.text for piece in later) == text[frame.text_start :]


def test_an_object_is_a_file_of_zstd(tmp_path):
    """Whoever has only the bucket can read it: an object is a zstd stream whose text has the hash of its name."""
    hash_ = open_local(tmp_path).store_content(MIXED_TEXT)
    data = (tmp_path / "objects" / hash_[:2] / hash_[2:]).read_bytes()
    plain = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    assert sha256(plain).hexdigest() == hash_
    assert len(data) < len(plain) / 10


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_iter_text_frames_refuses_altered_bytes_or_finds_another_text(data):
    """A byte that is changed, or an end that is missing, is noticed by the form or by the hash, never by a crash."""
    text = b"some text \xff\n" * 40_000
    whole = b"".join(compress_text([text], len(text)))
    at = data.draw(st.integers(0, len(whole) - 1))
    altered = data.draw(
        st.sampled_from(
            [whole[:at], whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :]]
        )
    )
    try:
        found = b"".join(frame.text for frame in iter_text_frames([altered]))
    except DamagedObject:
        return
    # The only bytes that may change unnoticed are the length and the random ones of the header, and a whole last frame.
    is_in_header = 12 <= at < HEADER_BYTES
    assert found == text if is_in_header and len(altered) == len(whole) else found != text or altered == whole


def test_iter_text_frames_refuses_a_frame_that_would_fill_the_memory():
    """A planted frame of a few bytes that stands for gigabytes is refused before any of it is decompressed."""
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (MAX_PIECE_BYTES * 64))
    planted = b"".join(compress_text([], 0)) + (0x184D2A5F).to_bytes(4, "little") + (4).to_bytes(4, "little")
    planted += len(bomb).to_bytes(4, "little") + bomb
    tracemalloc.start()
    with pytest.raises(DamagedObject):
        list(iter_text_frames([planted]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MAX_PIECE_BYTES


# -- reading and writing -----------------------------------------------------------------------------------------------


def test_pages_of_a_text_ask_for_their_frames_only(open_blobs, monkeypatch):
    """The first page verifies the whole text; a later one downloads the frames it needs and no others."""
    blobs = open_blobs()
    monkeypatch.setattr(object_blobs, "WHOLE_BYTES", 0)  # the text is compressed to less than that
    text = "".join(f"{number:x} {os.urandom(9).hex()}\n" for number in range(120_000))
    hash_ = blobs.store_content(text)
    assert blobs.read_text(hash_, 0, 10) == text[:10]
    asked = []
    get_range = ObjectBlobStore._get_range

    def note_range(self, hash_, e_tag, start, stop):
        asked.append(stop - start)
        return get_range(self, hash_, e_tag, start, stop)

    monkeypatch.setattr(ObjectBlobStore, "_get_range", note_range)
    for start in (0, 5, 1_000_000, len(text) - 50_000, 700_001):
        assert blobs.read_text(hash_, start, start + 50_000) == text[start : start + 50_000]
        assert blobs.read_bytes(hash_, start, start + 50_000) == text[start : start + 50_000].encode()
    (item,) = blobs.iter_items()
    assert max(asked) < item.size / 2
    asked.clear()
    assert blobs.read_text(hash_, 17) == text[17:]
    assert len(asked) < 6


def test_a_long_text_is_stored_and_paged_in_bounded_memory(open_blobs):
    """A text of 24 MB is uploaded in parts and read in pages with the memory of a few frames."""
    blobs = open_blobs()
    text = "".join(f"{number:x} {os.urandom(20).hex()}\n" for number in range(500_000))
    tracemalloc.start()
    hash_ = blobs.store_content(text)
    assert blobs.read_text(hash_, len(text) - 50_000) == text[-50_000:]
    assert blobs.read_text(hash_, 9_000_000, 9_050_000) == text[9_000_000:9_050_000]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000
    assert open_blobs().get_size(hash_) == len(text)


def replace_object(blobs: ObjectBlobStore, hash_: str, change) -> None:
    """Replace the object of a blob by what ``change`` makes of its bytes."""
    key = f"{hash_[:2]}/{hash_[2:]}"
    data = bytes(obstore.get(blobs._objects, key).bytes())
    obstore.put(blobs._objects, key, change(data))


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "truncated in its header": lambda data: data[:9],
    "empty": lambda data: b"",
    "altered": lambda data: data[:-9] + bytes([data[-9] ^ 255]) + data[-8:],
    "another text": lambda data: b"".join(compress_text([b"whole lies"], 10)),
    "no object of ours": lambda data: b"<html>an error page of some proxy</html>",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_object_is_an_error_on_every_way_of_reading(open_blobs, damage):
    """stored-once-verified: no page of a damaged object is returned, also if a page of it was read before; storing
    the text again repairs it.
    """
    blobs = open_blobs()
    hash_ = blobs.store_content("whole text")
    assert blobs.read_text(hash_, 0, 5) == "whole"
    replace_object(blobs, hash_, DAMAGE[damage])
    for reader in (blobs, open_blobs()):
        for read in (
            lambda reader=reader: reader.read_text(hash_, 6, 10),
            lambda reader=reader: reader.read_bytes(hash_, 6, 10),
            lambda reader=reader: reader.read_bytes(hash_),
            lambda reader=reader: reader.count_characters(hash_),
        ):
            with pytest.raises(StoreCorrupt, match=hash_):
                read()
        assert reader.has_blob(hash_)
    assert blobs.store_content("whole text") == hash_
    assert blobs.read_bytes(hash_) == open_blobs().read_text(hash_).encode() == b"whole text"


def test_a_text_that_is_stored_again_during_reading_is_read(open_blobs):
    """A reader whose object was written again meanwhile makes a new index and goes on."""
    blobs = open_blobs()
    hash_ = blobs.store_content(MIXED_TEXT)
    assert blobs.read_text(hash_, 0, 5) == MIXED_TEXT[:5]
    open_blobs().store_content(MIXED_TEXT)
    assert blobs.read_text(hash_, 900_000, 900_009) == MIXED_TEXT[900_000:900_009]


@pytest.mark.long
def test_a_collector_does_not_remove_what_is_stored_again_after_its_look(bucket, monkeypatch):
    """nothing-lost: between a collector's look at an old blob and its deletion another process stores the text; on a
    server with conditional deletions the blob stays.
    """
    collector, writer = open_bucket(bucket), open_bucket(bucket)
    hash_ = writer.store_content("text")
    delete = ObjectBlobStore._delete_if_unchanged

    def store_again_and_delete(self, *arguments):
        writer.store_content("text")
        return delete(self, *arguments)

    monkeypatch.setattr(ObjectBlobStore, "_delete_if_unchanged", store_again_and_delete)
    assert not collector.remove_if_older(hash_, 4e9)
    assert writer.read_text(hash_) == "text"
    monkeypatch.undo()
    assert collector.remove_if_older(hash_, 4e9)
    assert not writer.has_blob(hash_)
    assert not collector.remove_if_older(hash_, 4e9)


def test_a_quota_counts_what_all_have_stored(open_blobs):
    """A text that does not fit is refused before it is sent; one that is there already takes no room."""
    first = open_blobs()
    stored = first.store_content("x" * 60)
    size = sum(item.size for item in first.iter_items())
    second = open_blobs(quota=Quota(blob_bytes=size + 100))
    assert second.store_content("x" * 60) == stored
    assert second.store_content("y" * 60)
    with pytest.raises(QuotaExceeded):
        second.store_content(os.urandom(60))
    assert len(list(first.iter_items())) == 2


@pytest.mark.long
def test_a_store_in_a_file_has_its_blobs_in_a_bucket(bucket, tmp_path, monkeypatch):
    """``open_store(path, blobs="s3://…")`` keeps the log in the file and no text beside it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    url = f"s3://{bucket.bucket}/{bucket.prefix}?endpoint={bucket.endpoint}&region=us-east-1"
    with open_store(tmp_path / "agent.db", blobs=url) as store:
        store.create_session("one")
        hash_ = store.blobs.store_content(MIXED_TEXT)
    with open_store(tmp_path / "agent.db", readonly=True) as store:
        assert store.blobs.read_text(hash_) == MIXED_TEXT
    assert [path.name for path in (tmp_path / "agent.db.blobs").iterdir()] == ["location"]


@pytest.mark.long
def test_store_copy_moves_the_texts_into_a_bucket_and_back(bucket, tmp_path, monkeypatch):
    """``holdfast store copy --to-blobs``: both copies are equal and sound; ``check`` and ``gc`` find the bucket by
    themselves.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    url = f"s3://{bucket.bucket}/{bucket.prefix}?endpoint={bucket.endpoint}&region=us-east-1"
    with open_store("agent.db") as store:
        note = NoteEntry(NOTE_CAPPED, data={"blobs": [store.blobs.store_content(MIXED_TEXT)]})
        store.import_entries("one", [Entry("a", None, note)])

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(holdfast_command, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    run("store", "copy", "agent.db", "new.db", "--to-blobs", url)
    assert [path.name for path in Path("new.db.blobs").iterdir()] == ["location"]
    run("store", "copy", "new.db", "back.db")
    with open_store("agent.db") as first, open_store("back.db") as second:
        assert first.list_sessions() == second.list_sessions()
        assert list(first.blobs.iter_hashes()) == list(second.blobs.iter_hashes())
    assert "1 text, " in run("store", "check", "--store", "new.db")
    assert "removed: 0 texts, 0 bytes; in use: 1" in run("gc", "--store", "new.db", "--grace", "0")
    run("rm", "one", "--yes", "--store", "new.db")
    time.sleep(2.1)  # a bucket knows whole seconds, and some round them up
    assert "removed: 1 text, " in run("gc", "--store", "new.db", "--grace", "0")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of newer Pythons, about threads
def test_a_forked_child_is_told_so_and_does_not_hang(tmp_path):
    """obstore's threads do not run in a forked child: there every operation is an error at once."""
    blobs = open_local(tmp_path)
    hash_ = blobs.store_content("text")

    def read_in_child():
        with pytest.raises(StoreError, match="start this one by spawn"):
            blobs.read_text(hash_)

    assert wait_for_child(read_in_child) == 0
    assert blobs.read_text(hash_) == "text"


# -- faults ------------------------------------------------------------------------------------------------------------


def list_operations(blobs: ObjectBlobStore, hash_: str):
    """Return every operation that asks the server, by name."""
    return {
        "store": lambda: blobs.store_content("another text"),
        "store in parts": lambda: blobs.store_content(MIXED_TEXT * 4),
        "read": lambda: blobs.read_bytes(hash_),
        "read a page": lambda: blobs.read_text(hash_, 3, 9),
        "count": lambda: blobs.count_characters(hash_),
        "look": lambda: blobs.has_blob(hash_),
        "size": lambda: blobs.get_size(hash_),
        "list": lambda: list(blobs.iter_items()),
        "remove": lambda: blobs.remove_blob(hash_),
        "remove if older": lambda: blobs.remove_if_older(hash_, 4e9),
    }


OPERATIONS = tuple(list_operations(ObjectBlobStore(MemoryStore(), ""), ""))


def check_message(error: StoreError, *words: str) -> None:
    """Assert that a message has ``words``, one thing to do and no secret."""
    message = str(error)
    for word in words:
        assert word in message
    assert "; " in message
    for secret in (SECRET_KEY, ACCESS_KEY, "Signature=", "X-Amz", "wrong-secret"):
        assert secret not in message.replace("AWS_ACCESS_KEY_ID", "")
    assert error.__cause__ is None


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_wrong_credentials_are_a_typed_error_without_them(bucket, operation):
    """A wrong key is told apart from a missing blob, in words that say what to check."""
    hash_ = open_bucket(bucket).store_content("text")
    blobs = open_bucket(bucket, secret_access_key="wrong-secret")
    with pytest.raises(StoreError, match="credentials") as caught:
        list_operations(blobs, hash_)[operation]()
    check_message(caught.value, "403", bucket.bucket)


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_bucket_that_vanished_is_no_missing_blob(bucket, operation):
    """A blob in a bucket that is gone is never reported as absent: a collector or a copy would believe it."""
    missing = ObjectLocation("bucket-that-is-gone", "blobs", bucket.endpoint, "us-east-1")
    blobs = open_bucket(missing)
    with pytest.raises(StoreError, match="bucket") as caught:
        list_operations(blobs, "a" * 64)[operation]()
    assert not isinstance(caught.value, UnknownId)
    check_message(caught.value, "create it")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://", "BUCKET"),
        ("s3://key:secret-word@bucket/x", "credentials"),
        ("s3://bucket/x?secret_access_key=secret-word", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/../x", "folders"),
        ("s3://bucket/a//x", "folders"),
        ("s3://bucket/x?endpoint=localhost", "http://"),
        ("s3://bucket/x?endpoint", "URL"),
        ("gs://bucket", "s3://"),
        ("/some/path", "s3://"),
    ],
)
def test_a_wrong_location_is_refused_without_being_quoted(tmp_path, url, words):
    """A location that cannot be is an error that says the form, and never repeats a credential."""
    with pytest.raises(ConfigError, match=words) as caught:
        open_store(tmp_path / "agent.db", blobs=url)
    assert "secret-word" not in str(caught.value)
    assert "s3://BUCKET/PREFIX" in str(caught.value) or "AWS_ACCESS_KEY_ID" in str(caught.value)


def test_parse_object_location_takes_all_its_parts():
    """Bucket, prefix, endpoint and region are read; the name has neither endpoint nor region."""
    location = parse_object_location("s3://bucket/a/b/?endpoint=http://127.0.0.1:9000&region=eu-1")
    assert location == ObjectLocation("bucket", "a/b", "http://127.0.0.1:9000", "eu-1")
    assert location.name == "s3://bucket/a/b"


def test_without_obstore_the_error_says_what_to_install(tmp_path):
    """Where the extra is not installed, opening says so in one line; nothing else needs it."""
    script = (
        "import sys; sys.modules['obstore'] = None\n"
        "from holdfast import open_store\n"
        "from holdfast.errors import ConfigError\n"
        "open_store(':memory:')\n"
        "try: open_store('x.db', blobs='s3://bucket/x')\n"
        "except ConfigError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "pip install 'holdfast[s3]'" in found.stdout
