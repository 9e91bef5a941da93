"""Object storage that fails: what was acknowledged stays, what failed is not there, and each error says what to do."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from email.utils import formatdate
from urllib.parse import urlsplit

import pytest
from fault_proxy import FaultProxy, Faults, make_answer
from msgspec.structs import replace
from swift_server import ACCESS_KEY, SECRET_KEY, SwiftServer, create_bucket, find_swift

from holdfast.errors import StoreError, StoreReadOnly, UnknownId
from holdfast.store.base import SessionInfo
from holdfast.store.blobs import object_blobs
from holdfast.store.blobs.compressed_text import compress_text
from holdfast.store.blobs.object_blobs import ObjectBlobStore
from holdfast.store.blobs.object_location import ObjectLocation, connect_bucket
from holdfast.store.garbage import find_unused_blobs, remove_unused_blobs
from holdfast.store.memory import MemoryStore

QUICK = {
    "client_options": {"allow_http": True, "timeout": timedelta(seconds=1.5), "connect_timeout": timedelta(seconds=1)},
    "retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=4)},
}
"""Settings of the client that give up sooner than ours, and as often."""
LONG_TEXT = "".join(f"{number:x} {random.Random(number).randbytes(20).hex()}\n" for number in range(250_000))
"""A text that is uploaded in several parts."""


def open_quickly(location: ObjectLocation) -> ObjectBlobStore:
    """Return the blobs of a bucket with a client that gives up soon."""
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return ObjectBlobStore(connect_bucket(location, **keys, **QUICK), location.name)


@pytest.fixture
def proxy(bucket):
    """Return a proxy before the server."""
    found = FaultProxy(urlsplit(bucket.endpoint).port)
    yield found
    found.close()


@pytest.fixture
def blobs(bucket, proxy):
    """Return the blobs of the bucket, as they are seen through the proxy."""
    return open_quickly(replace(bucket, endpoint=proxy.endpoint))


def make_error_answer(status: str, code: str) -> bytes:
    """Return an error of an S3 server, which quotes the request as servers do."""
    return make_answer(
        status,
        f"<Error><Code>{code}</Code><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId></Error>",
        content_type="text/xml",
    )


LASTING_FAULTS = {
    "5xx": (Faults(lasting_answer=make_error_answer("503 Service Unavailable", "SlowDown")), "try again later"),
    "429": (Faults(lasting_answer=make_answer("429 Too Many Requests")), "try again later"),
    "full": (Faults(lasting_answer=make_error_answer("507 Insufficient Storage", "InsufficientStorage")), "make room"),
    "clock": (Faults(lasting_answer=make_error_answer("403 Forbidden", "RequestTimeTooSkewed")), "set the clock"),
    "expired": (Faults(lasting_answer=make_error_answer("400 Bad Request", "ExpiredToken")), "AWS_SESSION_TOKEN"),
    "rights": (Faults(lasting_answer=make_error_answer("403 Forbidden", "AccessDenied")), "s3:PutObject"),
    "region": (Faults(lasting_answer=make_error_answer("301 Moved Permanently", "PermanentRedirect")), "AWS_REGION"),
    "no S3": (Faults(lasting_answer=make_answer("404 Not Found", "<html>nginx</html>")), ""),
    "refusing": (Faults(is_refusing=True), "network"),
    "slow": (Faults(delay=3.0), "network"),
    "silent": (Faults(cut_request_after=10), "network"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", LASTING_FAULTS)
def test_a_server_that_fails_is_a_typed_error_and_loses_nothing(blobs, bucket, proxy, fault, monkeypatch):
    """Whatever a server does, an operation ends in a ``StoreError`` with one thing to do and no secret; what was
    stored before is there afterwards, and what was refused can be stored.
    """
    monkeypatch.setattr(object_blobs, "PAUSE_SECONDS", 0.0)
    hash_ = blobs.store_content("stored before")
    faults, advice = LASTING_FAULTS[fault]
    proxy.faults = faults
    began = time.monotonic()
    with pytest.raises(StoreError) as caught:
        blobs.store_content("refused")
    if fault != "no S3":
        with pytest.raises(StoreError, match=advice) as caught:
            blobs.read_text(hash_)
        assert not isinstance(caught.value, UnknownId)
    message = str(caught.value)
    assert time.monotonic() - began < 30
    assert "; " in message
    for secret in (SECRET_KEY, ACCESS_KEY, "X-Amz", "Signature"):
        assert secret not in message
    assert isinstance(caught.value, StoreReadOnly) == (fault == "full")
    proxy.faults = Faults()
    assert open_quickly(bucket).read_text(hash_) == "stored before"
    assert blobs.read_text(blobs.store_content("refused")) == "refused"


@pytest.mark.long
@pytest.mark.parametrize("fault", ["slow", "5xx"])
def test_a_server_that_does_not_answer_is_not_asked_again_for_a_while(blobs, proxy, fault, monkeypatch):
    """A request that needs many texts waits once and not for each; after the pause the server is asked again."""
    monkeypatch.setattr(object_blobs, "PAUSE_SECONDS", 5.0)
    proxy.faults, _ = LASTING_FAULTS[fault]
    with pytest.raises(StoreError):
        blobs.store_content("one")
    count, began = proxy.count, time.monotonic()
    for text in ("two", "three", "four"):
        with pytest.raises(StoreError, match="try again"):
            blobs.store_content(text)
    assert time.monotonic() - began < 1
    assert proxy.count == count
    proxy.faults = Faults()
    time.sleep(max(0.0, began + 5.0 - time.monotonic()))
    assert blobs.read_text(blobs.store_content("two")) == "two"


@pytest.mark.long
def test_a_short_storm_of_errors_is_waited_out(blobs, proxy):
    """A few 5xx and lost connections in a row cost a pause and nothing else."""
    answer = make_error_answer("503 Service Unavailable", "SlowDown")
    proxy.faults = Faults(answers=[answer, answer])
    hash_ = blobs.store_content("text")
    proxy.faults = Faults(answers=[make_error_answer("500 Internal Server Error", "InternalError")])
    assert blobs.read_text(hash_) == "text"


@pytest.mark.long
def test_an_answer_that_is_cut_off_is_no_text(blobs, bucket, proxy, monkeypatch):
    """A connection that ends in the middle of an object is an error, and never a shorter text."""
    monkeypatch.setattr(object_blobs, "PAUSE_SECONDS", 0.0)
    hash_ = blobs.store_content(LONG_TEXT)
    for cut_after in (200, 5_000, 400_000):
        proxy.faults = Faults(cut_answer_after=cut_after)
        for read in (blobs.read_bytes, blobs.read_text):
            try:
                found = read(hash_)
            except StoreError:
                continue
            assert found in {LONG_TEXT, LONG_TEXT.encode()}  # the client asked for the rest
    assert open_quickly(bucket).read_text(hash_) == LONG_TEXT


@pytest.mark.long
def test_an_upload_that_is_cut_off_leaves_no_blob(blobs, bucket, proxy, monkeypatch):
    """A long text whose upload ends midway is not there, not even in part; storing it later works."""
    monkeypatch.setattr(object_blobs, "PAUSE_SECONDS", 0.0)
    proxy.faults = Faults(cut_request_after=1_000_000)
    with pytest.raises(StoreError, match="try again"):
        blobs.store_content(LONG_TEXT)
    assert list(open_quickly(bucket).iter_items()) == []
    proxy.faults = Faults()
    assert blobs.read_text(blobs.store_content(LONG_TEXT), 5_000_000, 5_000_050) == LONG_TEXT[5_000_000:5_000_050]


@pytest.mark.parametrize("offset", [-3_000, 3_000, 1])
def test_a_collector_goes_by_the_clock_of_the_server(offset):
    """nothing-lost: a blob stored ten seconds ago is ten seconds old, however wrong the clock of the server or of this
    machine is; with a grace period of a minute it stays, with one of five seconds it goes.
    """
    now = time.time()
    modified = formatdate(now + offset - 10, usegmt=True)
    body = b"".join(compress_text([b"text"], 4))
    answers = {
        "clock": make_answer("404 Not Found", Date=formatdate(now + offset, usegmt=True)),
        "look": make_answer(
            "206 Partial Content",
            body[:28].decode("latin-1"),
            Last_Modified=modified,
            ETag='"1"',
            Content_Range=f"bytes 0-27/{len(body)}",
        ),
        "deleted": make_answer("204 No Content"),
    }
    # The body has bytes over 127, which the helper would encode as two.
    answers["look"] = answers["look"].partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + body[:28]
    proxy = FaultProxy(1)
    location = ObjectLocation("bucket", "", proxy.endpoint, "us-east-1")
    blobs = open_quickly(location)
    proxy.faults = Faults(answers=[answers["clock"], answers["look"], answers["look"], answers["deleted"]])
    assert not blobs.remove_if_older("a" * 64, now - 60)
    assert blobs.remove_if_older("a" * 64, now - 5)
    assert proxy.count == 4
    proxy.close()


class _StoreInBucket(MemoryStore):
    """Sessions in memory, and blobs in a bucket."""

    def __init__(self, blobs: ObjectBlobStore) -> None:
        super().__init__()
        self._blobs = blobs


@pytest.mark.long
def test_garbage_in_a_bucket_is_collected_after_the_grace_period(bucket):
    """``holdfast gc`` on a bucket: unnamed texts that are old go, young ones stay, and others' objects are ignored."""
    import obstore

    blobs = open_quickly(bucket)
    obstore.put(blobs._objects, "notes.txt", b"mine")
    store = _StoreInBucket(blobs)
    store.create_session("one", SessionInfo("one"))
    hashes = {blobs.store_content(f"text {number}") for number in range(5)}
    assert find_unused_blobs(store).young_count == 5
    unused = find_unused_blobs(store, grace=60, now=time.time() + 120)
    assert {item.name for item in unused.blobs} == hashes
    removed = remove_unused_blobs(store, unused)
    assert {item.name for item in removed.blobs} == hashes
    assert list(blobs.iter_hashes()) == []
    assert bytes(obstore.get(blobs._objects, "notes.txt").bytes()) == b"mine"


WRITER = """
import sys
from holdfast.store.blobs.object_blobs import ObjectBlobStore
from holdfast.store.blobs.object_location import ObjectLocation, connect_bucket
location = ObjectLocation(sys.argv[1], "blobs", sys.argv[2], "us-east-1")
blobs = ObjectBlobStore(connect_bucket(location, access_key_id=sys.argv[3], secret_access_key=sys.argv[4]), "it")
for number in range(10_000):
    text = f"{sys.argv[5]} {number} " * 40_000
    print(number, blobs.store_content(text), flush=True)
"""


def start_writer(location: ObjectLocation, name: str) -> subprocess.Popen[str]:
    """Start a process that stores texts one after the other and prints the hash of each that was acknowledged."""
    command = [sys.executable, "-c", WRITER, location.bucket, location.endpoint, ACCESS_KEY, SECRET_KEY, name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def check_acknowledged(location: ObjectLocation, name: str, lines: list[str]) -> None:
    """Assert that every acknowledged text can be read."""
    blobs = open_quickly(location)
    for line in lines:
        number, hash_ = line.split()
        assert blobs.read_text(hash_, 0, 50) == (f"{name} {number} " * 40)[:50]


@pytest.mark.long
def test_writers_killed_at_random_moments_lose_nothing(bucket):
    """nothing-lost: after kill -9 every acknowledged text is there, and every blob that is there is whole."""
    generator = random.Random(7)
    for round_number in range(5):
        name = f"round {round_number}"
        with start_writer(bucket, name) as writer:
            lines = [writer.stdout.readline() for _ in range(generator.randrange(1, 4))]
            time.sleep(generator.random() / 5)
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        check_acknowledged(bucket, name, lines)
    blobs = open_quickly(bucket)
    for hash_ in blobs.iter_hashes():
        assert blobs.read_bytes(hash_)


@pytest.mark.long
def test_a_server_killed_in_the_middle_of_writing_loses_nothing(tmp_path):
    """nothing-lost: after kill -9 of the whole server and a new start, every acknowledged text is there."""
    programs = find_swift()
    if programs is None:
        pytest.skip("there is no Swift; name it with HOLDFAST_SWIFT")
    server = SwiftServer(programs, tmp_path)
    server.start()
    try:
        create_bucket(server.endpoint, "one")
        location = ObjectLocation("one", "blobs", server.endpoint, "us-east-1")
        with start_writer(location, "text") as writer:
            lines = [writer.stdout.readline() for _ in range(4)]
            server.kill()
            writer.kill()
            lines += writer.stdout.readlines()
        with pytest.raises(StoreError, match="network"):
            open_quickly(location).has_blob(lines[0].split()[1])
        server.start()
        check_acknowledged(location, "text", lines)
    finally:
        server.kill()
