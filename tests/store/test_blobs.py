"""Blobs on disk: whole or not there, private, named by nothing but their hash."""

from __future__ import annotations

import stat
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.errors import StoreCorrupt, UnknownId
from holdfast.store.base import BlobStore
from holdfast.store.blobs import FileBlobs
from holdfast.testing.store import BlobStoreRules


class TestFileBlobs(BlobStoreRules):
    """Every rule of blobs."""

    def open(self, place: Path) -> BlobStore:
        """Return the blobs under ``place``."""
        return FileBlobs(place / "blobs")


def place(root: Path, text: str) -> Path:
    """Return where the blob of ``text`` lies."""
    hash_ = sha256(text.encode()).hexdigest()
    return root / hash_[:2] / hash_[2:]


def test_a_blob_is_one_private_file(tmp_path: Path) -> None:
    """X1, S16: one file under its hash, 0600 in directories of 0700, and nothing beside it."""
    FileBlobs(tmp_path / "blobs").put("text")
    made = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert made == [place(tmp_path / "blobs", "text")]
    assert stat.S_IMODE(made[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(made[0].parent.stat().st_mode) == stat.S_IMODE((tmp_path / "blobs").stat().st_mode) == 0o700


def test_a_torn_file_is_replaced(tmp_path: Path) -> None:
    """A file shorter than its text, left by somebody's crash, does not pass for the text."""
    torn = place(tmp_path, "whole text")
    torn.parent.mkdir(parents=True)
    torn.write_text("whole")
    blobs = FileBlobs(tmp_path)
    assert blobs.get(blobs.put("whole text")) == b"whole text"


def test_damage_is_loud(tmp_path: Path) -> None:
    """A blob whose content is not what its name says is an error when it is read whole."""
    blobs = FileBlobs(tmp_path)
    hash_ = blobs.put("whole text")
    place(tmp_path, "whole text").write_text("other text")
    with pytest.raises(StoreCorrupt, match=hash_):
        blobs.get(hash_)


def test_planted_links_are_not_followed(tmp_path: Path) -> None:
    """X2: a link in the place of a blob is neither read nor written through; storing puts a file there."""
    (tmp_path / "secret").write_text("secret")
    link = place(tmp_path / "blobs", "text")
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "secret")
    blobs = FileBlobs(tmp_path / "blobs")
    hash_ = sha256(b"text").hexdigest()
    assert not blobs.has(hash_)
    with pytest.raises(UnknownId):
        blobs.get(hash_)
    assert blobs.get(blobs.put("text")) == b"text"
    assert (tmp_path / "secret").read_text() == "secret"
