"""The pytest fixture ``strict_provider``, which serves strict providers for the length of a test.

pytest finds the fixture wherever Holdfast is installed. The provider's modules are loaded only when a test uses it, so
that other test runs do not pay for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from msgspec import Struct


class ServedProvider(Struct, frozen=True):
    """A strict provider with a running server."""

    url: str
    """Base URL; append ``/v1`` for OpenAI's SDK."""
    provider: Any
    """The ``Provider``. Its ``incoming_requests`` are those it received, its ``requests`` those with the replies."""


@pytest.fixture
def strict_provider() -> Iterator[Callable[..., ServedProvider]]:
    """Return a function that serves a strict provider until the test ends.

    ``strict_provider(window=32_000, script=[ScriptedAnswer("hello")], faults=["529:head:2"])`` takes the fields of
    ``ProviderSettings``, the answers of a script, and faults as ``Fault`` or as text (``kind:stage:at:seconds``).
    """
    from holdfast.testing.provider.faults.faults import parse_fault
    from holdfast.testing.provider.provider import Provider
    from holdfast.testing.provider.server.local_server import serve_provider
    from holdfast.testing.provider.settings import ProviderSettings

    with ExitStack() as stack:

        def serve(*, script: Any = (), faults: Any = (), **settings: Any) -> ServedProvider:
            provider = Provider(ProviderSettings(**settings), script)
            parsed_faults = []
            for fault in faults:
                parsed_faults.append(parse_fault(fault) if isinstance(fault, str) else fault)
            url = stack.enter_context(serve_provider(provider, parsed_faults))
            return ServedProvider(url, provider)

        yield serve
