"""Words of a streamed answer as they come, whichever API it comes over."""

from __future__ import annotations

import msgspec

from holdfast.providers.common.sse import StreamEvent
from holdfast.providers.registry import API_SPECS


def get_event_text(api: str, event: StreamEvent) -> str:
    """Return what the model says in ``event``: no thinking, no calls; nothing for what is no event of ``api``."""
    try:
        payload = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if api not in API_SPECS or not isinstance(payload, dict):
        return ""
    return "".join(API_SPECS[api].answers.iter_event_text(payload))
