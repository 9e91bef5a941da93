"""What was wrong with a run: nothing, where the client never noticed its small window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conversation_driver import Run, Said
from msgspec import Struct

from holdfast.testing.provider.calls import ModelAnswer, RefusalReply
from holdfast.testing.provider.checks.token_counter import get_token_counter
from holdfast.testing.provider.provider import JudgedRequest

TOKENS = get_token_counter("auto")
"""Counts as the provider does."""


class Verdict(Struct, frozen=True):
    """A run in numbers."""

    turns: int
    past: int
    """Turns at which all that was said so far no longer fits the window."""
    errors: int
    """Turns whose error reached the client's user."""
    lost: int
    """Answered turns whose words were missing upstream, or whose answer was another's."""
    refused: int
    """Requests that the provider refused, for whatever reason."""
    compactions: int
    """By the client itself."""
    sessions: int
    first_error: str = ""
    wrong: tuple[str, ...] = ()
    """Everything that is no overflow and should not be."""


def judge(run: Run) -> Verdict:
    """Return the verdict on a run."""
    refusals = [(one.turn.name, request.reply) for one in run.turns for request in one.requests if _is_refused(request)]
    failed = [one for one in run.turns if one.answer.error]
    return Verdict(
        turns=len(run.turns),
        past=_past(run),
        errors=len(failed),
        lost=sum(1 for one in run.turns if not one.answer.error and _lost(one)),
        refused=len(refusals),
        compactions=sum(_compactions(run.home)),
        sessions=run.held.sessions,
        first_error=f"turn {failed[0].turn.number}: {failed[0].answer.error}" if failed else "",
        wrong=tuple(_wrong(run)),
    )


def _is_refused(request: JudgedRequest) -> bool:
    return isinstance(request.reply, RefusalReply)


def _past(run: Run) -> int:
    """Return at how many turns all that was said so far, with what the client sends before it, outgrew the window."""
    sent = [request.tokens for said in run.turns[:1] for request in said.requests]
    size = sent[0] - TOKENS(run.turns[0].turn.text) if sent else 0
    past = 0
    for said in run.turns:
        size += TOKENS(said.turn.text) + (TOKENS(said.turn.output) if run.client.tool else 0)
        past += size > run.client.window
    return past


def _lost(said: Said) -> bool:
    """Return whether the user's newest words were not before the model when it answered them."""
    taken = [request for request in said.requests if isinstance(request.reply, ModelAnswer)]
    answering = [request for request in taken if said.turn.name in _words(request.reply)]
    return not answering or said.turn.name not in said.answer.text or not all(_holds(one, said) for one in answering)


def _words(reply: Any) -> str:
    return "".join(getattr(part, "text", "") for part in reply.parts)


def _holds(request: JudgedRequest, said: Said) -> bool:
    return said.turn.text.encode() in request.incoming.body


def _most_sessions(run: Run) -> int:
    """Return how many sessions one conversation may be: one, and one more behind each compaction of its client's own.

    Codex names its threads, so that one is one session all through.
    """
    if run.client.rewrites:
        return run.held.sessions
    return 1 if run.client.name.startswith("codex") else 1 + sum(_compactions(run.home))


OVERFLOWS = ("context", "too long", "token", "rate_limit")


def _wrong(run: Run) -> Iterator[str]:
    """Yield what no run may have: a refusal that is no overflow, two sessions for one conversation, a traceback."""
    for one in run.turns:
        for request in one.requests:
            reply = request.reply
            if isinstance(reply, RefusalReply) and not _is_overflow(reply):
                yield f"turn {one.turn.number}: {reply.status} {reply.message}"
    refused = sum(1 for one in run.turns for request in one.requests if _is_refused(request))
    if run.is_held and run.scenario.is_known and refused:
        yield f"{refused} requests refused though Holdfast knew the window"
    if run.is_held and not 1 <= run.held.sessions <= _most_sessions(run):
        yield f"{run.held.sessions} sessions in the store"
    unrecorded = run.held.stats.get("requests", {}).get("all", {}).get("unrecorded", 0)
    if unrecorded:
        yield f"{unrecorded} requests that Holdfast did not record"
    if "Traceback" in run.held.told:
        yield "Holdfast showed a traceback"
    yield from (f"{count} compaction items to Codex at once" for count in _items(run.home) if count != 1)


def _is_overflow(reply: RefusalReply) -> bool:
    return any(word in f"{reply.code} {reply.message}" for word in OVERFLOWS)


def _compactions(home: Path) -> Iterator[int]:
    """Yield one for each compaction that the client wrote into its own session files."""
    for file in home.rglob("*.jsonl"):
        for line in file.read_text(errors="replace").splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            kinds = (told.get("type"), told.get("subtype"))
            yield int("compacted" in kinds or "compact_boundary" in kinds or kinds[0] == "compaction")


def _items(home: Path) -> Iterator[int]:
    """Yield how many compaction items each remote compaction of Codex brought."""
    for file in (home / ".codex").rglob("rollout-*.jsonl"):
        for line in file.read_text().splitlines():
            told = json.loads(line)
            if told.get("type") == "compacted" and not told["payload"].get("message"):
                items = told["payload"].get("replacement_history") or []
                yield sum(1 for item in items if item.get("type") == "compaction")
