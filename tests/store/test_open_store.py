"""Where a store is: a path, a URL, or memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_entries import SAMPLE_KEY, make_message_chain

from holdfast.errors import ConfigError
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store


def test_memory_has_three_names() -> None:
    """``:memory:`` and the two URLs that say the same make a store in memory."""
    for name in (":memory:", "sqlite://", "sqlite:///:memory:"):
        assert isinstance(open_store(name), MemoryStore)


def test_urls_and_paths_name_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are a relative path, four an absolute one; odd characters in a path are only characters."""
    monkeypatch.chdir(tmp_path)
    names = ["sqlite:///a b?mode=memory#%41.db", f"sqlite:///{tmp_path / 'a b?mode=memory#%41.db'}"]
    for count, name in enumerate([*names, tmp_path / "a b?mode=memory#%41.db"], 1):
        with open_store(name) as store:
            store.import_entries(f"{SAMPLE_KEY}-{count}", make_message_chain("a"))
            assert len(store.list_sessions()) == count
    assert (tmp_path / "a b?mode=memory#%41.db").exists()


@pytest.mark.parametrize("name", ["postgresql://localhost/x", "http://x", "sqlite://host/x.db", ""])
def test_other_places_are_an_error(name: str) -> None:
    """A scheme that is not there yet, a host, or nothing: an error that says what can be given."""
    with pytest.raises(ConfigError, match="path"):
        open_store(name)
