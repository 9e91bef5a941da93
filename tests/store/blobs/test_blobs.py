"""Blobs on disk are complete or absent, private, and named only by their hash."""

from __future__ import annotations

import os
import stat
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from store_conformance import BlobStoreRules

from holdfast.errors import QuotaExceeded, StoreCorrupt, StoreError, UnknownId
from holdfast.store.base import BlobStore, Quota
from holdfast.store.blobs.blobs import FileBlobStore, MemoryBlobStore


class TestFileBlobs(BlobStoreRules):
    """The common rules of blobs."""

    def open(self, place: Path) -> BlobStore:
        """Return the blobs under ``place``."""
        return FileBlobStore(place / "blobs")


def get_blob_path(root: Path, text: str) -> Path:
    """Return the path of the blob of ``text``."""
    hash_ = sha256(text.encode()).hexdigest()
    return root / hash_[:2] / hash_[2:]


def test_store_content_writes_one_private_file(tmp_path: Path) -> None:
    """private-files, stored-once-verified: a blob is one file named by its hash, 0600 in directories of 0700, with
    nothing beside it.
    """
    FileBlobStore(tmp_path / "blobs").store_content("text")
    assert [item.size for item in FileBlobStore(tmp_path / "blobs").iter_items()] == [4]
    created = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert created == [get_blob_path(tmp_path / "blobs", "text")]
    assert stat.S_IMODE(created[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(created[0].parent.stat().st_mode) == stat.S_IMODE((tmp_path / "blobs").stat().st_mode) == 0o700


def test_store_content_replaces_a_truncated_file(tmp_path: Path) -> None:
    """A file shorter than its text, left by a crash, is not taken for the text."""
    truncated = get_blob_path(tmp_path, "whole text")
    truncated.parent.mkdir(parents=True)
    truncated.write_text("whole")
    blobs = FileBlobStore(tmp_path)
    assert blobs.read_bytes(blobs.store_content("whole text")) == b"whole text"


def test_store_content_replaces_damaged_content(tmp_path: Path) -> None:
    """A file of the right length with other content is not taken for the text either."""
    blobs = FileBlobStore(tmp_path)
    hash_ = blobs.store_content("whole text")
    get_blob_path(tmp_path, "whole text").write_text("other text")
    assert FileBlobStore(tmp_path).store_content("whole text") == hash_
    assert blobs.read_bytes(hash_) == b"whole text"


def test_read_text_raises_on_damage_on_every_page(tmp_path: Path) -> None:
    """A page of a damaged blob is an error, also after its first page was read."""
    blobs = FileBlobStore(tmp_path)
    hash_ = blobs.store_content("whole text")
    assert blobs.read_text(hash_, 0, 5) == "whole"
    get_blob_path(tmp_path, "whole text").write_text("whole lies")
    for page in (
        lambda: blobs.read_text(hash_, 6, 10),
        lambda: blobs.read_bytes(hash_, 6, 10),
        lambda: blobs.count_characters(hash_),
    ):
        with pytest.raises(StoreCorrupt, match=hash_):
            page()


def test_store_content_replaces_a_planted_fifo(tmp_path: Path) -> None:
    """no-outside-paths: a FIFO in a blob's place is replaced and never waited for; a folder is a typed error, and no
    draft is left.
    """
    for text, create in (("pipe", os.mkfifo), ("folder", os.mkdir)):
        path = get_blob_path(tmp_path, text)
        path.parent.mkdir(parents=True)
        create(path)
        assert not FileBlobStore(tmp_path).has_blob(sha256(text.encode()).hexdigest())
    blobs = FileBlobStore(tmp_path)
    assert blobs.read_bytes(blobs.store_content("pipe")) == b"pipe"
    with pytest.raises(StoreError, match="was not stored"):
        blobs.store_content("folder")
    assert list(tmp_path.rglob("*.tmp")) == []
    assert [item.size for item in blobs.iter_items()] == [4]


def test_blob_store_ignores_a_linked_folder(tmp_path: Path) -> None:
    """no-outside-paths: where a link to another folder replaces a folder of blobs nothing is read, written or deleted
    in it.
    """
    (tmp_path / "elsewhere").mkdir()
    path = get_blob_path(tmp_path / "blobs", "text")
    (tmp_path / "elsewhere" / path.name).write_text("text")
    (tmp_path / "blobs").mkdir()
    path.parent.symlink_to(tmp_path / "elsewhere")
    blobs = FileBlobStore(tmp_path / "blobs")
    hash_ = sha256(b"text").hexdigest()
    with pytest.raises(StoreError):
        blobs.store_content("text")
    with pytest.raises(UnknownId):
        blobs.read_text(hash_)
    assert list(blobs.iter_items()) == []
    assert not blobs.remove_if_older(hash_, 1e12)
    blobs.remove_blob(hash_)
    assert [entry.name for entry in (tmp_path / "elsewhere").iterdir()] == [path.name]


def test_blob_store_pages_20_mb_in_bounded_memory(tmp_path: Path) -> None:
    """A text of 20 MB is stored, recognized and read in pages with the memory of a few pieces."""
    text = "line of some tool \u89e3 output\n" * 700_000
    blobs = FileBlobStore(tmp_path)
    tracemalloc.start()
    hash_ = blobs.store_content(text)
    assert FileBlobStore(tmp_path).store_content(text) == hash_
    assert blobs.read_text(hash_, len(text) - 50_000) == text[-50_000:]
    assert blobs.read_text(hash_, 9_000_000, 9_050_000) == text[9_000_000:9_050_000]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000


def test_iter_items_lists_drafts(tmp_path: Path) -> None:
    """A draft is listed as one and can be removed by its name; nothing else in the folder can."""
    blobs = FileBlobStore(tmp_path)
    blobs.store_content("text")
    folder = get_blob_path(tmp_path, "text").parent
    (folder / ".0123456789abcdef.tmp").write_text("half")
    (folder / "notes.txt").write_text("mine")
    (draft,) = (item for item in blobs.iter_items() if item.is_draft)
    assert (draft.name, draft.size) == (f"{folder.name}/.0123456789abcdef.tmp", 4)
    assert not blobs.remove_if_older(draft.name, draft.stored_at)
    assert blobs.remove_if_older(draft.name, draft.stored_at + 1)
    for name in (f"{folder.name}/notes.txt", f"{folder.name}/../x", "notes.txt"):
        with pytest.raises(UnknownId):
            blobs.remove_if_older(name, 1e12)
    assert (folder / "notes.txt").exists()


def test_blob_quota_is_shared_by_all_writers(tmp_path: Path) -> None:
    """Writers share one count, and it is counted again after a writer without a quota or a truncated count file."""
    first, second = (FileBlobStore(tmp_path, Quota(blob_bytes=100)) for _ in range(2))
    first.store_content("x" * 60)
    with pytest.raises(QuotaExceeded, match="100"):
        second.store_content("y" * 60)
    FileBlobStore(tmp_path).store_content("z" * 30)
    with pytest.raises(QuotaExceeded, match="101"):
        first.store_content("w" * 11)
    total = tmp_path / ".total"
    assert int(total.read_text()) == 90
    total.write_text("9")
    with pytest.raises(QuotaExceeded, match="101"):
        second.store_content("w" * 11)
    assert second.store_content("w" * 10)
    assert stat.S_IMODE(total.stat().st_mode) == 0o600


def test_read_bytes_raises_on_damage(tmp_path: Path) -> None:
    """A blob whose content does not match its hash is an error when it is read whole."""
    blobs = FileBlobStore(tmp_path)
    hash_ = blobs.store_content("whole text")
    get_blob_path(tmp_path, "whole text").write_text("other text")
    with pytest.raises(StoreCorrupt, match=hash_):
        blobs.read_bytes(hash_)


@pytest.mark.uncounted
@pytest.mark.parametrize("open_blobs", [FileBlobStore, lambda _: MemoryBlobStore()], ids=["files", "memory"])
@pytest.mark.parametrize("read", ["read_bytes", "read_text", "count_characters", "get_size"])
def test_blob_removed_during_a_read_is_whole_or_unknown(
    tmp_path: Path, read: str, open_blobs: Callable[[Path], BlobStore], run_interleaved: Callable[..., Any]
) -> None:
    """At whatever line another thread removes it, a blob is read whole or is unknown."""
    results: set[object] = set()
    for at in count(1):
        blobs, removed = open_blobs(tmp_path), []
        hash_ = blobs.store_content("whole text")
        try:
            found, removed = run_interleaved(
                partial(getattr(blobs, read), hash_), partial(blobs.remove_blob, hash_), at
            )
            results.add(found)
        except UnknownId:
            removed = [hash_]
            results.add("gone")
        if not removed:
            break
    assert len(results) == 2
    assert "gone" in results


def run_before_step(work: Callable[[], Any], other: Callable[[], object], at: int, code: CodeType) -> tuple[Any, bool]:
    """Run ``other`` before step ``at`` of ``code`` while ``work`` runs; return its result and whether that step
    exists.
    """
    steps, before = 0, sys.gettrace()

    def step(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = frame.f_code is code
        steps += event == "opcode"
        if event == "opcode" and steps == at:
            other()
        return step

    sys.settrace(step)
    try:
        return work(), steps >= at
    finally:
        sys.settrace(before)


def test_read_text_is_safe_while_another_thread_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any step of a reader another thread may read: each gets its own text, whichever index is evicted."""
    monkeypatch.setattr("holdfast.store.blobs.blobs.MAX_TEXT_INDEXES", 1)
    for at in count(1):
        blobs, others = FileBlobStore(tmp_path), list[str]()
        known, first, other = (blobs.store_content(text * 9) for text in ("known", "first", "other"))
        blobs.read_text(known)
        read = partial(run_before_step, partial(blobs.read_text, first), lambda: others.append(blobs.read_text(other)))  # noqa: B023
        found, has_step = read(at, FileBlobStore._get_text_index.__code__)
        assert (found, others) == ("first" * 9, ["other" * 9] * has_step)
        if not has_step:
            break
    assert at > 50


def test_blob_store_does_not_follow_planted_links(tmp_path: Path) -> None:
    """no-outside-paths: a link in a blob's place is neither read nor written through; storing replaces it with a
    file.
    """
    (tmp_path / "secret").write_text("secret")
    link = get_blob_path(tmp_path / "blobs", "text")
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "secret")
    blobs = FileBlobStore(tmp_path / "blobs")
    hash_ = sha256(b"text").hexdigest()
    assert not blobs.has_blob(hash_)
    with pytest.raises(UnknownId):
        blobs.read_bytes(hash_)
    assert blobs.read_bytes(blobs.store_content("text")) == b"text"
    assert (tmp_path / "secret").read_text() == "secret"
