"""A store is opened by a path, a URL, or in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_entries import SAMPLE_KEY, make_message_chain

from holdfast.errors import ConfigError
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store


def test_open_store_has_three_names_for_memory() -> None:
    """``:memory:``, ``sqlite://`` and ``sqlite:///:memory:`` open a memory store."""
    for name in (":memory:", "sqlite://", "sqlite:///:memory:"):
        assert isinstance(open_store(name), MemoryStore)


def test_open_store_accepts_urls_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes start a relative path and four an absolute one, and special characters in a path have no
    meaning.
    """
    monkeypatch.chdir(tmp_path)
    names = ["sqlite:///a b?mode=memory#%41.db", f"sqlite:///{tmp_path / 'a b?mode=memory#%41.db'}"]
    for count, name in enumerate([*names, tmp_path / "a b?mode=memory#%41.db"], 1):
        with open_store(name) as store:
            store.import_entries(f"{SAMPLE_KEY}-{count}", make_message_chain("a"))
            assert len(store.list_sessions()) == count
    assert (tmp_path / "a b?mode=memory#%41.db").exists()


@pytest.mark.parametrize("name", ["mysql://localhost/x", "http://x", "sqlite://host/x.db", ""])
def test_open_store_rejects_other_schemes(name: str) -> None:
    """An unsupported scheme, a host or an empty name is an error that says what is allowed."""
    with pytest.raises(ConfigError, match="path"):
        open_store(name)
