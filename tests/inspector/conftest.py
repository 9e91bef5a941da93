"""A served inspector with two sessions."""

from __future__ import annotations

import pytest
from served_inspector import make_long_session, say, serve, write_session

from holdfast.config import load_shipped_catalog
from holdfast.config.files import Configuration
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.parts import Text
from holdfast.store.open_store import open_store


@pytest.fixture
def configuration():
    """The shipped configuration alone."""
    return Configuration(catalog=load_shipped_catalog())


@pytest.fixture
def inspected(tmp_path, configuration):
    """Return a function that serves the store of ``tmp_path``."""
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        write_session(store, "long", make_long_session(), title="A slow server", cwd="/srv/app", format="claude-code")
        write_session(store, "short", [say("user", Text("hello"))], title="A greeting", cwd="/srv/other")
    with open_store(url, readonly=True) as store:
        source = InspectedStore(store, configuration, name=url, open_writer=lambda: open_store(url), location=url)
        with serve(source) as served:
            yield served
