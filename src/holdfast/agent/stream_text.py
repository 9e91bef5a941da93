"""Text of a streamed answer as it arrives, for any API."""

from __future__ import annotations

import msgspec

from holdfast.providers.common.sse import StreamEvent
from holdfast.providers.registry import API_SPECS


def get_event_text(api: str, event: StreamEvent) -> str:
    """Return the model's text in ``event``, without thinking and calls; ``""`` if it is no event of ``api``."""
    try:
        payload = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if api not in API_SPECS or not isinstance(payload, dict):
        return ""
    return "".join(API_SPECS[api].answers.iter_event_text(payload))
