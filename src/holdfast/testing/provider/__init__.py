"""A strict provider: it refuses, counts, caches and signs as the real ones do, without network or cost.

``Provider`` answers requests without any transport; ``server.local_server`` serves it over HTTP on this machine.
"""

from __future__ import annotations

from holdfast.testing.provider.calls import (
    CompactReply,
    IncomingRequest,
    ModelAnswer,
    RefusalReply,
    ScriptedAnswer,
    TokenCountReply,
    TokenUse,
)
from holdfast.testing.provider.dialects.registry import SERVER_NAMES
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

__all__ = [
    "SERVER_NAMES",
    "CompactReply",
    "Fault",
    "IncomingRequest",
    "ModelAnswer",
    "Provider",
    "ProviderSettings",
    "RefusalReply",
    "ScriptedAnswer",
    "TokenCountReply",
    "TokenUse",
]
