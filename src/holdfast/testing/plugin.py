"""For pytest: the fixture ``strict_provider``, a server of your own in each test that asks for one.

With Holdfast installed pytest knows the fixture. Nothing of the provider is loaded before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from msgspec import Struct


class ServedProvider(Struct, frozen=True):
    """A strict provider that is being served."""

    url: str
    """Base URL; OpenAI's SDK wants ``/v1`` behind it."""
    provider: Any
    """The ``ProviderInfo``: what it was asked is in ``seen``, what it answered in ``requests``."""


@pytest.fixture
def strict_provider() -> Iterator[Callable[..., ServedProvider]]:
    """Return a function that serves a strict provider until the test ends.

    ``strict_provider(window=32_000, script=[ScriptedAnswer("hello")], faults=["529:head:2"])`` takes the fields of
    ``ProviderSettings``, the answers of a script, and faults as ``ValidationProblem`` or in words.
    """
    from holdfast.testing.provider.faults.faults import parse_fault
    from holdfast.testing.provider.provider import Provider
    from holdfast.testing.provider.server.local_server import serve_provider
    from holdfast.testing.provider.settings import ProviderSettings

    with ExitStack() as stack:

        def serve(*, script: Any = (), faults: Any = (), **settings: Any) -> ServedProvider:
            provider = Provider(ProviderSettings(**settings), script)
            struck = [parse_fault(fault) if isinstance(fault, str) else fault for fault in faults]
            return ServedProvider(stack.enter_context(serve_provider(provider, struck)), provider)

        yield serve
