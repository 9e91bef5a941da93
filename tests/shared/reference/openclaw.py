"""What OpenClaw asks of a summary, and how much of it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.policy.summary.keeping import exact, is_hex, missing, reflects

HEADINGS = ("## Decisions", "## Open TODOs", "## Constraints/Rules", "## Pending user asks", "## Exact identifiers")
"""[O] What its summary is made of."""
IDENTIFIERS = 12
"""[O] Most identifiers that are looked for in a text."""


def identifiers(text: str) -> tuple[str, ...]:
    """Return the first exact identifiers in ``text``, each once, hexadecimal ones in capitals."""
    found = (one.upper() if is_hex(one) else one for one in exact(text))
    return tuple(dict.fromkeys(found))[:IDENTIFIERS]


def complaints(
    summary: str, identifiers: Sequence[str] = (), ask: str | None = None, policy: str = "strict"
) -> list[str]:
    """Return what ``summary`` lacks, in OpenClaw's words: sections, identifiers (``strict`` alone), the newest ask."""
    lines = {line.strip() for line in summary.splitlines()}
    told = [f"missing_section:{heading}" for heading in HEADINGS if heading not in lines]
    lost = missing(summary, identifiers) if policy == "strict" else ()
    told += [f"missing_identifiers:{','.join(lost)}"] if lost else []
    return told + ([] if reflects(summary, ask or "") else ["latest_user_ask_not_reflected"])
