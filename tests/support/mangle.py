"""Histories broken in every way that was met, by the million: what was said must always become a valid request.

Usage: python tests/support/mangle.py [--count N] [--seed S] [--api NAME] [--model NAME]

Everything follows from the seed. Each number is one history: a conversation, a few blows to it, and the ways in which
it reaches an API: as values, out of a body of that API, out of a body of another one. Nothing here needs hypothesis.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Any, TypeAlias

from histories import DAMAGE, ODD_IDS, conversation, damaged
from msgspec import Raw
from msgspec.structs import replace

from holdfast.config import target
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import Slot
from holdfast.messages.strip_foreign import native
from holdfast.normalize import MISSING, repairs
from holdfast.normalize.parts import tells
from holdfast.normalize.projection import repair_projection
from holdfast.providers.registry import APIS
from holdfast.providers.request_body import body, open_body, render
from holdfast.providers.rules import validate
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import patched
from holdfast.state.entries import Entry, Said
from holdfast.state.target import Target

MODELS: dict[str, tuple[str, ...]] = {
    "anthropic": (
        "claude-3-5-sonnet-20241022",
        "claude-sonnet-4-5",
        "claude-opus-5-0",
        "claude-opus-5-5",
        "somebody-else",
    ),
    "openai-chat": ("gpt-5", "mistral-large-latest", "somebody-else"),
    "openai-responses": ("gpt-5.5",),
    "gemini": ("gemini-2.5-pro", "gemini-3.1-pro-preview", "somebody-else"),
}
"""One model of each family that has rules of its own."""
OPTIONS = frozenset({"anthropic.thinking-off", "anthropic.thinking-first", "anthropic.tool-reference"})
"""Rules about what stands beside the messages, which no history can break or mend."""

Blow: TypeAlias = Callable[[list[Message], Random], list[Message]]


# -- conversations -----------------------------------------------------------------------------------------------------


def sound(rng: Random, api: str) -> list[Message]:
    """Return a conversation that is valid on any API; no two results say the same."""
    script = [
        (
            rng.randrange(100),
            rng.choice((1, 30, 120)),
            [
                (rng.randrange(4), rng.randrange(100), rng.choice((1, 40)), rng.randrange(3))
                for _ in range(rng.randrange(4))
            ],
            rng.random() < 0.5,
        )
        for _ in range(rng.randint(1, 3))
    ]
    made = conversation(script, system=rng.random() < 0.3, pictures=rng.random() < 0.3, api=api)
    return [_numbered(message, number) for number, message in enumerate(made)]


def _numbered(message: Message, number: int) -> Message:
    parts = [_marked(part, f"<{number}.{place}>", message.role) for place, part in enumerate(message.parts)]
    return Message(message.role, tuple(parts))


def _marked(part: Part, mark: str, role: str) -> Part:
    """Return what a user or a tool said with a mark that nobody else's words have."""
    if isinstance(part, ToolResult):
        return replace(part, content=(Text(f"{mark} {_first(part)}"), *part.content[1:]))
    return Text(f"{mark} {part.text}") if isinstance(part, Text) and role == "user" else part


def _first(result: ToolResult) -> str:
    """Return the first words of a result."""
    first = result.content[0] if result.content else None
    return first.text if isinstance(first, Text) else ""


# -- blows -------------------------------------------------------------------------------------------------------------


def _at(messages: Sequence[Message], rng: Random) -> int:
    return rng.randrange(len(messages))


def _drop(messages: list[Message], rng: Random) -> list[Message]:
    del messages[_at(messages, rng)]
    return messages


def _repeat(messages: list[Message], rng: Random) -> list[Message]:
    messages.insert(_at(messages, rng), messages[_at(messages, rng)])
    return messages


def _reorder(messages: list[Message], rng: Random) -> list[Message]:
    start = _at(messages, rng)
    some = messages[start : start + 4]
    rng.shuffle(some)
    return [*messages[:start], *some, *messages[start + 4 :]]


def _truncate(messages: list[Message], rng: Random) -> list[Message]:
    at = _at(messages, rng)
    return messages[at:] if rng.random() < 0.5 else messages[: at + 1]


def _interleave(messages: list[Message], rng: Random) -> list[Message]:
    other = iter(sound(rng, rng.choice(APIS)))
    out = [one for message in messages for one in (message, next(other, None)) if one is not None]
    return [*out, *other]


def _parts(messages: list[Message], rng: Random) -> list[Message]:
    """Mix or repeat the parts of a message, or take one out."""
    at = _at(messages, rng)
    parts = list(messages[at].parts)
    rng.shuffle(parts)
    messages[at] = Message(messages[at].role, tuple(parts[rng.randrange(2) :] + parts[: rng.randrange(2)]))
    return messages


def _role(messages: list[Message], rng: Random) -> list[Message]:
    at = _at(messages, rng)
    role: Any = rng.choice(("user", "assistant", "tool", "system"))
    messages[at] = Message(role, messages[at].parts)
    return messages


def _put(messages: list[Message], rng: Random, part: Part) -> list[Message]:
    at = _at(messages, rng)
    parts = list(messages[at].parts)
    parts.insert(rng.randrange(len(parts) + 1), part)
    messages[at] = Message(messages[at].role, tuple(parts))
    return messages


_STRANGERS = (
    ("image_url", b'{"type":"image_url","image_url":{"url":"https://example.org/a.png"}}'),
    ("tool_use", b'{"type":"tool_use","id":"x"}'),
    ("reasoning", b'{"type":"reasoning","summary":[]}'),
    ("functionCall", b'{"functionCall":{"name":"f","args":{}}}'),
    ("input_file", b'{"type":"input_file","file_id":"f"}'),
    ("unknown", b"{}"),
    ("message.name", b'"Ann"'),
    ("message.refusal", b'"No."'),
    ("refusal", b'{"type":"refusal","refusal":"No."}'),
)


def _stranger(messages: list[Message], rng: Random) -> list[Message]:
    kind, raw = rng.choice(_STRANGERS)
    return _put(messages, rng, Opaque(kind, Raw(raw)))


def _thought(messages: list[Message], rng: Random) -> list[Message]:
    seal = rng.choice(
        (
            Seal("anthropic", "", "c2ln"),
            Seal("openai-chat", "", "reasoning_content"),
            Seal("openai-responses", "", "gAAAA"),
            Seal("openai-responses", "o-old", "gAAAA"),
            Seal("gemini", "", "c2ln"),
            Seal("gemini", "", ""),
            None,
        )
    )
    return _put(messages, rng, Thinking(rng.choice(("", "hm")), seal))


def _server(messages: list[Message], rng: Random) -> list[Message]:
    """Let a server's tool be called, answered, or both."""
    id_ = f"srvtoolu_{rng.randrange(3)}"
    seal = Seal("anthropic", "", id_)
    use = Opaque(
        "server_tool_use",
        Raw(b'{"type":"server_tool_use","id":"%s","name":"web_search","input":{}}' % id_.encode()),
        seal,
    )
    answer = b'{"type":"web_search_tool_result","tool_use_id":"%s","content":[]}' % id_.encode()
    result = Opaque("web_search_tool_result", Raw(answer), seal)
    at = next((at for at in range(_at(messages, rng), len(messages)) if messages[at].role == "assistant"), None)
    if at is not None:
        pair = ((use,), (result,), (use, result), (use, result))[rng.randrange(4)]
        messages[at] = Message("assistant", (*messages[at].parts, *pair))
    return messages


def _sealed(messages: list[Message], rng: Random) -> list[Message]:
    """Sign calls as Gemini does, some of them for another model."""
    seal = Seal("gemini", rng.choice(("", "", "gemini-old")), "c2ln")

    def signed(part: Part) -> Part:
        return replace(part, seal=seal) if isinstance(part, ToolCall) and rng.random() < 0.7 else part

    return [Message(one.role, tuple(signed(part) for part in one.parts)) for one in messages]


def _ids(messages: list[Message], rng: Random) -> list[Message]:
    """Give calls and results ids that others have, each for itself."""
    names = [f"call_{number}" for number in range(4)] + list(ODD_IDS)

    def named(part: Part) -> Part:
        if rng.random() > 0.2:
            return part
        if isinstance(part, ToolCall):
            return replace(part, id=rng.choice(names))
        return replace(part, call_id=rng.choice(names)) if isinstance(part, ToolResult) else part

    return [Message(one.role, tuple(named(part) for part in one.parts)) for one in messages]


def _cut_off(messages: list[Message], rng: Random) -> list[Message]:
    """End an answer in the middle of a call."""
    at = next((at for at in range(_at(messages, rng), len(messages)) if messages[at].calls), None)
    if at is not None:
        parts = [replace(p, arguments=p.arguments[:-3]) if isinstance(p, ToolCall) else p for p in messages[at].parts]
        messages[at] = Message("assistant", tuple(parts))
    return messages[: at + 1] if at is not None and rng.random() < 0.5 else messages


def _late(messages: list[Message], rng: Random) -> list[Message]:
    """Let results come late, or a made-up one stand where a real one comes later."""
    at = next((at for at in range(_at(messages, rng), len(messages)) if messages[at].results), None)
    if at is None:
        return messages
    real = messages[at]
    made = tuple(
        replace(part, content=(Text(MISSING),), is_error=True) if isinstance(part, ToolResult) else part
        for part in real.parts
    )
    place = rng.randint(at, len(messages))
    stand_in = [Message(real.role, made)] if rng.random() < 0.5 else []
    return [*messages[:at], *stand_in, *messages[at + 1 : place + 1], real, *messages[place + 1 :]]


def _damage(messages: list[Message], rng: Random) -> list[Message]:
    kind = rng.choice(_KINDS)
    return damaged(messages, [(kind, rng.randrange(40), rng.randrange(100))])


_KINDS = tuple(DAMAGE)
BLOWS: tuple[Blow, ...] = (
    _drop, _repeat, _reorder, _truncate, _interleave, _parts, _role, _stranger, _thought, _server, _sealed, _ids,
    _cut_off, _late, _damage, _damage, _damage,
)  # fmt: skip
"""What may happen to a conversation."""


def mangled(rng: Random, api: str) -> list[Message]:
    """Return a conversation with up to six blows; one in eight has none. There is always a message."""
    messages = sound(rng, api)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        messages = list(rng.choice(BLOWS)(messages, rng)) or sound(rng, api)
    return messages


# -- laws --------------------------------------------------------------------------------------------------------------


def broken_laws(messages: Sequence[Message], api: str, model: str, *, other: str = "") -> Iterator[str]:
    """Yield each law that the repair of a history breaks, in words; ``other`` is the API whose body held it."""
    where = _where(api, model)
    if not any(map(tells, messages)):
        return  # nobody said anything: there is no request to make
    yield from _from_values(messages, where)
    yield from _from_body(messages, where)
    if other not in {"", api}:
        yield from _from_another(messages, where, other)


@cache
def _where(api: str, model: str) -> Target:
    return target(api, model, window=200_000)


def _from_values(messages: Sequence[Message], where: Target) -> Iterator[str]:
    """Yield the laws that are broken when a history is given as values."""
    slots = [Slot(message) for message in messages]
    sent = patched(slots, repairs(messages, where.dialect))
    yield from _valid(body(where.api, where.model, sent), where, "as values")
    kept = [slot.message for slot in sent]
    again = repairs(kept, where.dialect)
    if again:
        yield f"as values: repaired twice: {again}"
    yield from _lost(messages, kept)
    yield from _replaced(messages, kept)


def _from_body(messages: Sequence[Message], where: Target) -> Iterator[str]:
    """Yield the laws that are broken when a history comes out of a body of the API itself."""
    raw = body(where.api, where.model, [Slot(_speakable(message, where.api)) for message in messages])
    lens = open_body(raw, where.api)
    if not any(tells(slot.message) for slot in lens.slots):
        return
    edits = repairs([slot.message for slot in lens.slots], where.dialect, lead=False)
    out = render(lens, patched(list(lens.slots), edits))
    yield from _valid(out, where, "out of a body")
    if edits and not _findings(raw, where) and not _is_strict(where) and not _has_twins(lens.slots):
        yield f"out of a body: a valid request was edited: {edits}"
    if not edits and out is not raw:
        yield "out of a body: other bytes came back though nothing was edited"
    once = open_body(out, where.api)
    again = repairs([slot.message for slot in once.slots], where.dialect, lead=False)
    if again:
        yield f"out of a body: repaired twice: {again}"


def _has_twins(slots: Sequence[Slot]) -> bool:
    """Return whether two results in one message answer the same call, which the rules of Gemini do not see."""
    return any(len({one.call_id for one in s.message.results}) < len(s.message.results) for s in slots)


_ONLY = {
    "message.name": ("openai-chat",),
    "message.refusal": ("openai-chat",),
    "refusal": ("openai-chat",),
    "unknown": ("anthropic", "gemini"),
    "functionCall": ("anthropic", "openai-chat", "gemini"),
    "server_tool_use": ("anthropic",),
    "web_search_tool_result": ("anthropic",),
}
"""Opaque parts that only the bodies of some APIs can hold."""


def _speakable(message: Message, api: str) -> Message:
    """Return the message without parts that no body of ``api`` gives."""
    parts = (part for part in message.parts if not isinstance(part, Opaque) or api in _ONLY.get(part.kind, APIS))
    return Message(message.role, tuple(parts))


def _is_strict(where: Target) -> bool:
    """Return whether the validator knows less of the model than its dialect demands."""
    return where.model in {"somebody-else", "mistral-large-latest"}


def _from_another(messages: Sequence[Message], where: Target, api: str) -> Iterator[str]:
    """Yield the laws that are broken when a history comes out of a body of another API."""
    lens = open_body(body(api, MODELS[api][0], [Slot(_speakable(message, api)) for message in messages]), api)
    branch = Branch.build(Entry("", None, Said(slot)) for slot in lens.slots)
    if not any(tells(native(slot.message, where.api)) for slot in lens.slots):
        return
    edits, _ = repair_projection(branch, where.dialect)
    sent = patched(list(lens.slots), edits)
    yield from _valid(body(where.api, where.model, sent), where, f"out of a body of {api}")


def _valid(raw: bytes, where: Target, how: str) -> Iterator[str]:
    for finding in _findings(raw, where):
        if finding.level == "error":
            yield f"{how}: {finding.rule} at {finding.path}: {finding.message}"


def _findings(raw: bytes, where: Target) -> list[Any]:
    found = validate(raw, where.api, model=where.model)
    return [one for one in found if one.rule not in OPTIONS]


def _words(messages: Sequence[Message]) -> Counter[str]:
    return Counter(
        part.text
        for one in messages
        if one.role in {"user", "system"}
        for part in one.parts
        if isinstance(part, Text) and part.text.strip()
    )


def _lost(messages: Sequence[Message], sent: Sequence[Message]) -> Iterator[str]:
    gone = _words(messages) - _words(sent)
    if gone:
        yield f"words of the user are missing: {list(gone)[:3]}"


def _replaced(messages: Sequence[Message], sent: Sequence[Message]) -> Iterator[str]:
    """Yield the results that were there and are not sent, of calls that are sent and share their id with none."""
    said = {_first(result) for message in sent for result in message.results}
    calls = [call for message in messages if message.role == "assistant" for call in message.calls]
    used = Counter(call.id for call in calls)
    fine = {call.id for call in calls if call.id and call.name.strip() and used[call.id] == 1}
    real: dict[str, list[str]] = {}
    for message in messages:
        for result in message.results:
            text = _first(result)
            if result.call_id in fine and MISSING not in text:
                real.setdefault(result.call_id, []).append(text)
    for id_, texts in real.items():
        if said.isdisjoint(texts) and all(texts):
            yield f"the result of {id_!r} was there and is not sent: {texts}"


# -- by the million ----------------------------------------------------------------------------------------------------


def run(count: int, seed: int, apis: Sequence[str] = APIS, models: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the name of each history that breaks a law, and the law; all follow from ``seed``."""
    families = [(api, model) for api in apis for model in models or MODELS[api]]
    for number in range(seed, seed + count):
        api, model = families[number % len(families)]
        for law in of_seed(number, api, model):
            yield f"{number} {api} {model}", law


def of_seed(seed: int, api: str, model: str) -> Iterator[str]:
    """Yield each law that history ``seed`` breaks on ``model``."""
    rng = Random(seed)
    messages = mangled(rng, rng.choice((api, api, *APIS)))
    other = rng.choice(APIS) if seed % 4 == 0 else ""
    try:
        yield from broken_laws(messages, api, model, other=other)
    except FormatError as error:
        yield f"nothing came of it: {error}"


def main() -> int:
    """Break histories and say which laws they break; exit code 1 when there is one."""
    parser = argparse.ArgumentParser(prog="python tests/support/mangle.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--api", choices=APIS)
    parser.add_argument("--model")
    parser.add_argument("--most", type=int, default=10, help="broken laws to show")
    args = parser.parse_args()
    began = time.perf_counter()
    found = 0
    for name, law in run(args.count, args.seed, [args.api] if args.api else APIS, [args.model] if args.model else ()):
        found += 1
        if found <= args.most:
            sys.stdout.write(f"{name}: {law}\n")
    spent = time.perf_counter() - began
    said = f"{args.count:,} histories from seed {args.seed}: {found:,} broken laws"
    sys.stderr.write(f"{said}; {spent:.0f} s, {1e3 * spent / max(1, args.count):.2f} ms each\n")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
