"""The verdict on a run: nothing is wrong if the client never noticed its small window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conversation_driver import Run, TurnRecord
from msgspec import Struct

from holdfast.testing.provider.calls import ModelAnswer, RefusalReply
from holdfast.testing.provider.checks.token_counter import get_token_counter
from holdfast.testing.provider.provider import JudgedRequest

TOKENS = get_token_counter("auto")
"""Counts as the provider does."""


class Verdict(Struct, frozen=True):
    """The figures of a run."""

    turns: int
    past: int
    """Turns at which the whole conversation no longer fits the window."""
    errors: int
    """Turns whose error reached the client's user."""
    lost: int
    """Answered turns whose text was missing upstream, or whose answer was that of another turn."""
    refused: int
    """Requests that the provider refused, for any reason."""
    compactions: int
    """By the client itself."""
    sessions: int
    first_error: str = ""
    wrong: tuple[str, ...] = ()
    """Faults other than overflows."""


def judge(run: Run) -> Verdict:
    """Return the verdict on a run."""
    refusals = [
        (turn_record.turn.name, request.reply)
        for turn_record in run.turns
        for request in turn_record.requests
        if _is_refused(request)
    ]
    failed_turns = [turn_record for turn_record in run.turns if turn_record.answer.error]
    return Verdict(
        turns=len(run.turns),
        past=_count_turns_past_window(run),
        errors=len(failed_turns),
        lost=sum(1 for turn_record in run.turns if not turn_record.answer.error and _is_lost(turn_record)),
        refused=len(refusals),
        compactions=sum(_iterate_compactions(run.home)),
        sessions=run.route.sessions,
        first_error=f"turn {failed_turns[0].turn.number}: {failed_turns[0].answer.error}" if failed_turns else "",
        wrong=tuple(_iterate_faults(run)),
    )


def _is_refused(request: JudgedRequest) -> bool:
    return isinstance(request.reply, RefusalReply)


def _count_turns_past_window(run: Run) -> int:
    """Return at how many turns the conversation, with the client's own prompt, was over the window."""
    request_tokens = [request.tokens for turn_record in run.turns[:1] for request in turn_record.requests]
    size = request_tokens[0] - TOKENS(run.turns[0].turn.text) if request_tokens else 0
    turns_past = 0
    for turn_record in run.turns:
        size += TOKENS(turn_record.turn.text) + (TOKENS(turn_record.turn.output) if run.client.tool else 0)
        turns_past += size > run.client.window
    return turns_past


def _is_lost(turn_record: TurnRecord) -> bool:
    """Return whether the turn's text was missing from the request that was answered."""
    accepted = [request for request in turn_record.requests if isinstance(request.reply, ModelAnswer)]
    answering = [request for request in accepted if turn_record.turn.name in _get_reply_text(request.reply)]
    return (
        not answering
        or turn_record.turn.name not in turn_record.answer.text
        or not all(_contains_turn(request, turn_record) for request in answering)
    )


def _get_reply_text(reply: Any) -> str:
    return "".join(getattr(part, "text", "") for part in reply.parts)


def _contains_turn(request: JudgedRequest, turn_record: TurnRecord) -> bool:
    return turn_record.turn.text.encode() in request.incoming.body


def _get_max_sessions(run: Run) -> int:
    """Return how many sessions one conversation may be: one, and one more after each compaction by the client.

    Codex sends a thread id, so its conversation stays one session.
    """
    if run.client.rewrites:
        return run.route.sessions
    return 1 if run.client.name.startswith("codex") else 1 + sum(_iterate_compactions(run.home))


OVERFLOWS = ("context", "too long", "token", "rate_limit")


def _iterate_faults(run: Run) -> Iterator[str]:
    """Yield each fault: a refusal that is no overflow, a second session, a traceback and others."""
    for turn_record in run.turns:
        for request in turn_record.requests:
            reply = request.reply
            if isinstance(reply, RefusalReply) and not _is_overflow(reply):
                yield f"turn {turn_record.turn.number}: {reply.status} {reply.message}"
    refused = sum(1 for turn_record in run.turns for request in turn_record.requests if _is_refused(request))
    if run.is_with_holdfast and run.scenario.is_known and refused:
        yield f"{refused} requests refused though Holdfast knew the window"
    if run.is_with_holdfast and not 1 <= run.route.sessions <= _get_max_sessions(run):
        yield f"{run.route.sessions} sessions in the store"
    unrecorded = run.route.stats.get("requests", {}).get("all", {}).get("unrecorded", 0)
    if unrecorded:
        yield f"{unrecorded} requests that Holdfast did not record"
    if "Traceback" in run.route.stderr:
        yield "Holdfast showed a traceback"
    yield from (
        f"{count} compaction items to Codex at once" for count in _iterate_compaction_items(run.home) if count != 1
    )


def _is_overflow(reply: RefusalReply) -> bool:
    return any(word in f"{reply.code} {reply.message}" for word in OVERFLOWS)


def _iterate_compactions(home: Path) -> Iterator[int]:
    """Yield one for each compaction that the client wrote into its own session files."""
    for file in home.rglob("*.jsonl"):
        for line in file.read_text(errors="replace").splitlines():
            record = json.loads(line) if line.startswith("{") else {}
            kinds = (record.get("type"), record.get("subtype"))
            yield int("compacted" in kinds or "compact_boundary" in kinds or kinds[0] == "compaction")


def _iterate_compaction_items(home: Path) -> Iterator[int]:
    """Yield the number of compaction items in each remote compaction of Codex."""
    for file in (home / ".codex").rglob("rollout-*.jsonl"):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if record.get("type") == "compacted" and not record["payload"].get("message"):
                items = record["payload"].get("replacement_history") or []
                yield sum(1 for item in items if item.get("type") == "compaction")
