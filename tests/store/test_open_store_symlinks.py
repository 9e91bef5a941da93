"""A store reached through a symbolic link to its file is the same store."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_entries import SAMPLE_KEY, make_message_chain

from holdfast.errors import StoreLocked
from holdfast.store.open_store import open_store


@pytest.mark.usefixtures("short_lease_wait")
def test_open_store_through_links_is_one_store(tmp_path: Path) -> None:
    """one-writer: by its own path and through links a store has the same leases and blobs, and nothing is created
    beside the links.
    """
    file, link, second, folder = (tmp_path / way / "agent.db" for way in ("real", "a", "b", "folder"))
    with open_store(file) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
    for path, target in ((link, file), (second, link)):
        path.parent.mkdir()
        path.symlink_to(target)
    folder.parent.symlink_to(file.parent)
    paths = (file, link, second, folder)
    for first in paths:
        for second_path in paths:
            with open_store(first) as mine, open_store(second_path) as theirs:
                assert theirs.blobs.read_text(mine.blobs.store_content(f"by {first}")) == f"by {first}"
                with (
                    mine.hold_lease(SAMPLE_KEY),
                    pytest.raises(StoreLocked, match=SAMPLE_KEY),
                    theirs.hold_lease(SAMPLE_KEY),
                ):
                    pass
    assert [*link.parent.iterdir(), *second.parent.iterdir()] == [link, second]


def test_open_store_reads_blobs_beside_a_link(tmp_path: Path) -> None:
    """Blobs that an earlier version stored beside a link are still read there."""
    file, link = tmp_path / "real" / "agent.db", tmp_path / "a" / "agent.db"
    with open_store(file) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
        handle = store.blobs.store_content("kelp")
    link.parent.mkdir()
    link.symlink_to(file)
    file.with_name("agent.db.blobs").rename(link.with_name("agent.db.blobs"))
    with open_store(link) as store:
        assert store.blobs.read_text(handle) == "kelp"
