"""A request made one that its API takes: its history by hygiene, what stands around it by what the validator says.

A valid request keeps its very bytes. The history is repaired first; of what is still refused, only that is changed
which has one right way to be mended: a message is written anew from what it says, a field or a block that is refused
goes. A change stays only if fewer rules are broken with it than without, and no word of a user goes with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.model.branch import patched
from holdfast.model.dialect import Dialect
from holdfast.model.parts import Opaque, Text
from holdfast.policy.hygiene import repairs
from holdfast.wire.apis import Form, form_of
from holdfast.wire.lens import open_body, render, system_field
from holdfast.wire.models import traits
from holdfast.wire.pieces import Step, at, listed, placed, steps_of
from holdfast.wire.recognise import body_fields, recognise
from holdfast.wire.rules import Finding, validate
from holdfast.wire.splice import fields, spliced, write


class Mend(Struct, frozen=True, omit_defaults=True):
    """One change: the rule it keeps, why, and where it was made."""

    rule: str
    why: str
    path: str = ""


class Mended(Struct, frozen=True):
    """A request as it may be sent, what was changed, and what is still refused."""

    api: str
    body: bytes
    edits: tuple[Mend, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether the API takes it."""
        return not _errors(self.findings)


def mend(
    body: bytes,
    api: str | None = None,
    *,
    model: str = "",
    dialect: Callable[[str, str], Dialect] | None = None,
    betas: Sequence[str] | None = None,
) -> Mended:
    """Return ``body`` made valid for its API; the very same object when it is valid already.

    ``model`` is whose rules hold where the body names none; ``dialect`` tells them from API and model. Raises
    ``FormatError`` for what is no JSON object of this shape, and ``Unrecognised`` for one of no API.
    """
    found = body_fields(body)
    api = api or recognise(found)
    known = model or _text(found.get("model"))
    work = _Work(form_of(api), known, tuple(betas) if betas is not None else None)
    findings = work.judge(body)
    if not _errors(findings):
        return Mended(api, body, (), findings)
    rules = (dialect or (lambda _, name: work.form.dialect(name)))(api, known)
    edits: list[Mend] = []
    repaired = partial(_repaired, dialect=rules)
    for step in (_shaped, repaired, _guided, repaired):
        body, more = step(body, work, findings)
        edits += more
        findings = work.judge(body)
        if not _errors(findings):
            break
    return Mended(api, body, tuple(edits), findings)


class _Work(Struct, frozen=True):
    """What a request is judged by."""

    form: Form
    model: str
    betas: tuple[str, ...] | None

    def judge(self, body: bytes) -> tuple[Finding, ...]:
        """Return what is wrong with ``body``."""
        return validate(body, self.form.api, betas=self.betas, model=self.model)


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error"]


def _text(raw: Raw | None) -> str:
    data = b"" if raw is None else bytes(raw)
    return str(msgspec.json.decode(data)) if data.startswith(b'"') else ""


# -- the shape of the list ---------------------------------------------------------------------------------------------


_ASSISTANT = {"anthropic": "assistant", "openai-chat": "assistant", "openai-responses": "assistant", "gemini": "model"}
_SPEAKERS = {"assistant": "assistant", "model": "assistant", "ai": "assistant", "bot": "assistant", "human": "user"}
"""Roles that others use, and whose they are."""
_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text"})
"""Types under which some API writes words."""


def _shaped(body: bytes, work: _Work, findings: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with elements that are messages, of known roles, and with words in this API's own form."""
    form, found = work.form, body_fields(body)
    raws: list[Raw | None] = [*listed(found.get(form.field, Raw(b"[]")))]
    edits = []
    for finding in _errors(findings):
        steps = steps_of(finding.path)
        index = steps[1] if len(steps) > 1 and steps[0] == form.field else None
        raw = raws[index] if isinstance(index, int) and index < len(raws) else None
        new = None if raw is None or not isinstance(index, int) else _reshaped(raw, steps[2:], form)
        if isinstance(index, int) and new is not None and new != raw:
            raws[index] = Raw(new) if new else None
            edits.append(Mend(finding.rule, finding.message, finding.path))
    if edits:
        body = spliced(body, found, {form.field: write([raw for raw in raws if raw is not None])})
    body, more = _hoisted(body, form)
    return body, [*edits, *more]


def _reshaped(message: Raw, steps: tuple[Step, ...], form: Form) -> bytes | None:
    """Return a message with its role, or the words at ``steps``, in the form they should have; empty when it goes.

    Nothing when there is nothing to do.
    """
    if not bytes(message).startswith(b"{"):
        return _as_message(message, form)
    if steps == ("role",):
        role = at(message, steps)
        return None if role is None else placed(message, steps, _role(role, form))
    for end in range(len(steps), 0, -1):
        block = at(message, steps[:end])
        if block is not None and bytes(block).startswith((b"{", b'"')) and isinstance(steps[end - 1], int):
            new = _own_words(block, fields(message), form)
            return None if new is None else placed(message, steps[:end], new)
    return None


def _as_message(raw: Raw, form: Form) -> bytes:
    """Return a bare text as a user's message; anything else that is no message goes."""
    text = _text(raw)
    return b"".join(form.encode(form.decode(_said(text, form)), None)) if text.strip() else b""


def _said(text: str, form: Form) -> bytes:
    return write(
        {"role": "user", "parts": [{"text": text}]} if form.api == "gemini" else {"role": "user", "content": text}
    )


def _role(raw: Raw, form: Form) -> bytes:
    mine = _ASSISTANT[form.api]
    return write(mine if _SPEAKERS.get(_text(raw).lower()) == "assistant" else "user")


def _own_words(block: Raw, message: dict[str, Raw], form: Form) -> bytes | None:
    """Return a bare text, or a block of words of another API, as one of this; nothing when it is none."""
    if bytes(block).startswith(b'"'):
        return _words(_text(block), message, form)
    held = fields(block)
    kind = _text(held.get("type"))
    text = _text(held.get("text"))
    return _words(text, message, form) if text and (kind in _TEXTS or not kind) else None


def _words(text: str, message: dict[str, Raw], form: Form) -> bytes:
    if form.api == "gemini":
        return write({"text": text})
    answer = _text(message.get("role")) == "assistant"
    kind = ("output_text" if answer else "input_text") if form.api == "openai-responses" else "text"
    return write({"type": kind, "text": text})


def _hoisted(body: bytes, form: Form) -> tuple[bytes, list[Mend]]:
    """Return the body with system messages that stand first in the field that is theirs, where there is one."""
    found = body_fields(body)
    if not form.system or any(name in found for name in form.system) or form.field not in found:
        return body, []
    raws = listed(found[form.field])
    words: list[str] = []
    while len(words) < len(raws) and (said := _system_words(raws[len(words)])):
        words.append(said)
    if not words:
        return body, []
    made: dict[str, Any] = {**found, **system_field(form, words), form.field: raws[len(words) :]}
    why = f"{len(words)} system message(s) at the start moved into {form.system[0]!r}"
    return write(made), [Mend("system", why, f"$.{form.field}[0]")]


def _system_words(raw: Raw) -> str:
    """Return what a system message says in words; nothing when it is none."""
    held = fields(raw) if bytes(raw).startswith(b"{") else {}
    if _text(held.get("role")) not in {"system", "developer"}:
        return ""
    content = held.get("content", held.get("parts", Raw(b"[]")))
    pieces = [_text(fields(one).get("text")) for one in listed(content) if bytes(one).startswith(b"{")]
    return _text(content) or "\n".join(pieces)


# -- the history -------------------------------------------------------------------------------------------------------


def _repaired(body: bytes, work: _Work, _findings: Sequence[Finding], dialect: Dialect) -> tuple[bytes, list[Mend]]:
    """Return the body with its history repaired."""
    found = body_fields(body)
    elsewhere = any(key in found for key in ("previous_response_id", "conversation", "thread"))
    if elsewhere:
        dialect = replace(dialect, elsewhere=True)
    lens = open_body(body, work.form.api)
    edits = repairs([slot.message for slot in lens.slots], dialect, lead=False)
    if not edits:
        return body, []
    told = [Mend(edit.rule, edit.why, f"$.{work.form.field}[{edit.span.start}]") for edit in edits]
    return render(lens, patched(list(lens.slots), edits)), told


# -- what the validator still says -------------------------------------------------------------------------------------


_KEPT = frozenset({"model", "messages", "contents", "input", "tools", "anthropic_version"})
"""Fields that are never taken out whole; an empty list of tools is."""
_MENDABLE = frozenset(
    {"foreign-field", "sampling", "stop-sequences", "system-prompt", "system-instruction", "tool-choice",
     "thinking-mode", "thinking-budget", "thinking-company", "thinking-first", "binding-beta", "cache-count",
     "cache-shape", "cache-order", "cache-place", "tools", "one-limit", "limits", "stream-options", "truncation",
     "limit", "thinking", "cached-content", "edit-thinking", "edit-trigger", "edit-order", "compaction-exclusive",
     "context-management"}
)  # fmt: skip
"""Rules about options that are kept when what breaks them goes; all others stay as findings."""
_TRIES, _BYTES = 300, 300_000_000
"""Changes that are tried, and bytes that are judged for it, before the rest stays as it is."""


def _guided(body: bytes, work: _Work, findings: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with one change after the other that breaks fewer rules."""
    edits: list[Mend] = []
    left = min(_TRIES, max(8, _BYTES // max(1, len(body))))
    errors = _errors(findings)
    while errors and left > 0:
        for mine, new in _proposals(body, work.form, work.model, errors):
            left -= 1
            judged = _errors(work.judge(new))
            if len(judged) < len(errors) and _keeps_words(body, new, work.form):
                edits += [Mend(finding.rule, finding.message, finding.path) for finding in mine]
                body, errors = new, judged
                break
            if left <= 0:
                break
        else:
            break
    return body, edits


def _all_gone(body: Raw, form: Form, errors: Sequence[Finding]) -> Iterator[tuple[list[Finding], bytes]]:
    """Yield, for each rule that is broken in many messages, the body without all the fields that break it."""
    found = fields(body)
    for rule, count in Counter(finding.rule for finding in errors).items():
        if count < _MANY:
            continue
        raws = listed(found.get(form.field, Raw(b"[]")))
        mine = [finding for finding in errors if finding.rule == rule]
        for finding in reversed(mine):
            steps = steps_of(finding.path)
            if len(steps) > 2 and steps[0] == form.field and isinstance(steps[1], int) and steps[1] < len(raws):
                inner = raws[steps[1]]
                raws[steps[1]] = Raw(placed(inner, steps[2:], None)) if at(inner, steps[2:]) is not None else inner
        yield mine, spliced(bytes(body), found, {form.field: write(raws)})


_MANY = 4
"""Findings of one rule from which on all are tried at once."""


def _proposals(body: bytes, form: Form, model: str, errors: Sequence[Finding]) -> Iterator[tuple[list[Finding], bytes]]:
    """Yield changes that may keep a rule, with what they are for: many at once, then the smallest first."""
    raw = Raw(body)
    yield from _all_gone(raw, form, errors)
    for finding in errors:
        steps = steps_of(finding.path)
        name = finding.rule.partition(".")[2]
        inside = bool(steps) and steps[0] == form.field
        if not inside and name not in _MENDABLE:
            continue
        better = _INSTEAD[name](body_fields(body), model, steps) if name in _INSTEAD else None
        if better is not None and at(raw, better[0]) is not None:
            yield [finding], placed(raw, *better)
        least = 1 if inside else 0
        ends = [end for end in range(len(steps), least, -1) if _may_go(raw, steps[:end])]
        if ends and len(steps) > 2:  # the field itself, before all that stands around it
            yield [finding], placed(raw, steps[: ends.pop(0)], None)
        if inside and len(steps) > 1 and (anew := _written_anew(raw, steps[:2], form)) is not None:
            yield [finding], anew
        for end in ends:
            yield [finding], placed(raw, steps[:end], None)


def _may_go(body: Raw, steps: tuple[Step, ...]) -> bool:
    """Return whether what stands at ``steps`` may be taken out."""
    place = at(body, steps)
    return place is not None and (len(steps) > 1 or steps[0] not in _KEPT or bytes(place) == b"[]")


def _written_anew(body: Raw, steps: tuple[Step, ...], form: Form) -> bytes | None:
    """Return the body with one message made anew from what it says, its bytes left behind."""
    raw = at(body, steps)
    try:
        message = form.decode(raw) if raw is not None else None
    except FormatError:
        return None
    if message is None:
        return None
    bare = tuple(part if isinstance(part, Opaque) else replace(part, raw=None) for part in message.parts)
    new = form.encode(replace(message, parts=bare), None)
    return placed(body, steps, new[0]) if len(new) == 1 else None


Better: TypeAlias = tuple[tuple[Step, ...], bytes | None]
"""A place, and what must stand there; nothing when it goes."""


def _budget(found: dict[str, Raw], _model: str, _steps: tuple[Step, ...]) -> Better | None:
    """Return thinking with a budget under ``max_tokens``, if there is room for one."""
    most = _number(found.get("max_tokens"))
    if most <= _LEAST or "thinking" not in found:
        return None
    return ("thinking", "budget_tokens"), str(max(_LEAST, most - _LEAST)).encode()


_LEAST = 1024
"""Tokens of the smallest budget for thinking."""


def _number(raw: Raw | None) -> int:
    data = b"" if raw is None else bytes(raw)
    return int(data) if data.isdigit() and len(data) < 16 else 0


def _mode(_found: dict[str, Raw], model: str, _steps: tuple[Step, ...]) -> Better | None:
    """Return the kind of thinking that a model takes instead, if it takes the adaptive one."""
    known = traits(model)
    return (("thinking",), b'{"type":"adaptive"}') if known is not None and known.adaptive else None


def _first_edit(found: dict[str, Raw], _model: str, steps: tuple[Step, ...]) -> Better | None:
    """Return the context edits with the one at ``steps`` in front."""
    raws = listed(at(Raw(write(found)), steps[:2]) or Raw(b"[]"))
    place = steps[2] if len(steps) > 2 else None
    if not isinstance(place, int) or place >= len(raws):
        return None
    return steps[:2], write([raws[place], *raws[:place], *raws[place + 1 :]])


_INSTEAD: dict[str, Callable[[dict[str, Raw], str, tuple[Step, ...]], Better | None]] = {
    "thinking-budget": _budget,
    "thinking-mode": _mode,
    "thinking-first": lambda _found, _model, _steps: (("thinking",), None),
    "edit-order": _first_edit,
    "edit-trigger": lambda _found, _model, steps: (steps, b"50000"),
    "context-management": lambda _found, _model, steps: (steps, b"1000"),
    "limit": lambda _found, _model, steps: (steps, b"16") if steps == ("max_output_tokens",) else None,
}
"""Values that keep a rule better than none: the smallest that are taken, or what was meant."""


def _keeps_words(before: bytes, after: bytes, form: Form) -> bool:
    """Return whether everything that users said is still said."""
    return not _heard(before, form) - _heard(after, form)


def _heard(body: bytes, form: Form) -> Counter[str]:
    try:
        slots = open_body(body, form.api).slots
    except FormatError:
        return Counter()
    parts = (part for slot in slots if slot.message.role in {"user", "system"} for part in slot.message.parts)
    return Counter(part.text for part in parts if isinstance(part, Text) and part.text.strip())
