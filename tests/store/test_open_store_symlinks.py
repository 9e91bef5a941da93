"""A store that is reached by a symbolic link to its file is the same store."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_entries import SAMPLE_KEY, make_message_chain

from holdfast.errors import StoreLocked
from holdfast.store.open_store import open_store


@pytest.mark.usefixtures("impatient")
def test_all_ways_to_a_file_lead_to_one_store(tmp_path: Path) -> None:
    """one-writer: by its own path and by links to it a store has the same leases and the same texts, and nothing beside
    them.

    A link to a folder on the way was the same place already.
    """
    file, link, second, folder = (tmp_path / way / "agent.db" for way in ("real", "a", "b", "folder"))
    with open_store(file) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
    for place, aim in ((link, file), (second, link)):
        place.parent.mkdir()
        place.symlink_to(aim)
    folder.parent.symlink_to(file.parent)
    ways = (file, link, second, folder)
    for one in ways:
        for other in ways:
            with open_store(one) as mine, open_store(other) as theirs:
                assert theirs.blobs.read_text(mine.blobs.store_content(f"by {one}")) == f"by {one}"
                with (
                    mine.hold_lease(SAMPLE_KEY),
                    pytest.raises(StoreLocked, match=SAMPLE_KEY),
                    theirs.hold_lease(SAMPLE_KEY),
                ):
                    pass
    assert [*link.parent.iterdir(), *second.parent.iterdir()] == [link, second]


def test_texts_beside_a_link_are_found(tmp_path: Path) -> None:
    """What lies beside a link alone, where texts were put once, is read there."""
    file, link = tmp_path / "real" / "agent.db", tmp_path / "a" / "agent.db"
    with open_store(file) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
        handle = store.blobs.store_content("kelp")
    link.parent.mkdir()
    link.symlink_to(file)
    file.with_name("agent.db.blobs").rename(link.with_name("agent.db.blobs"))
    with open_store(link) as store:
        assert store.blobs.read_text(handle) == "kelp"
