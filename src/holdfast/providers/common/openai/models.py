"""Recognize OpenAI's own models by their names."""

from __future__ import annotations

import re

_OPENAI_MODEL_NAME = re.compile(r"(?:^|[/:.@])(?:gpt-|chatgpt-|codex-|computer-use-|o[1-9](?:-|$))")
"""Matches ``gpt-5.5``, ``openai/o4-mini``, ``ft:gpt-4o:acme``, and the names of open models as well."""
# These run on servers of all kinds, with rules of their own.
_OPEN_WEIGHTS_NAME = re.compile(r"gpt-(?:oss|j|neo)")


def is_openai_model(name: str) -> bool:
    """Return whether ``name``, in lower case, is a model that OpenAI itself serves."""
    return bool(_OPENAI_MODEL_NAME.search(name)) and not _OPEN_WEIGHTS_NAME.search(name)
