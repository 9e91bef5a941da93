"""Histories broken in every way that was met, by the million: what was said must always become a valid request.

Usage: python tests/support/history_fuzzer.py [--count N] [--seed S] [--api NAME] [--model NAME]

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

from msgspec import Raw
from msgspec.structs import replace
from sample_conversations import DAMAGE_BY_NAME, ODD_IDS, build_conversation, damage_history

from holdfast.config import get_target
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.normalize.normalize_history import normalize_history
from holdfast.normalize.pairing import SYNTHETIC_RESULT_TEXT
from holdfast.normalize.parts import has_nonblank_content
from holdfast.normalize.projection import normalize_projection
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.request_body import build_request_body, parse_request, render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.target import Target
from holdfast.state.view import apply_normalization

MANGLE_MODELS: dict[str, tuple[str, ...]] = {
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
OPTION_RULES = frozenset({"anthropic.thinking-off", "anthropic.thinking-first", "anthropic.tool-reference"})
"""Rules about what stands beside the messages, which no history can break or mend."""

MutationFunction: TypeAlias = Callable[[list[Message], Random], list[Message]]


# -- conversations -----------------------------------------------------------------------------------------------------


def make_valid_conversation(rng: Random, api: str) -> list[Message]:
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
    messages = build_conversation(script, system=rng.random() < 0.3, pictures=rng.random() < 0.3, api=api)
    return [_number_parts(message, number) for number, message in enumerate(messages)]


def _number_parts(message: Message, number: int) -> Message:
    parts = [_mark_part(part, f"<{number}.{place}>", message.role) for place, part in enumerate(message.parts)]
    return Message(message.role, tuple(parts))


def _mark_part(part: Part, mark: str, role: str) -> Part:
    """Return what a user or a tool said with a mark that nobody else's words have."""
    if isinstance(part, ToolResult):
        return replace(part, content=(Text(f"{mark} {_get_first_result_text(part)}"), *part.content[1:]))
    return Text(f"{mark} {part.text}") if isinstance(part, Text) and role == "user" else part


def _get_first_result_text(result: ToolResult) -> str:
    """Return the first words of a result."""
    first = result.content[0] if result.content else None
    return first.text if isinstance(first, Text) else ""


# -- blows -------------------------------------------------------------------------------------------------------------


def _pick_position(messages: Sequence[Message], rng: Random) -> int:
    return rng.randrange(len(messages))


def _mutate_drop(messages: list[Message], rng: Random) -> list[Message]:
    del messages[_pick_position(messages, rng)]
    return messages


def _mutate_repeat(messages: list[Message], rng: Random) -> list[Message]:
    messages.insert(_pick_position(messages, rng), messages[_pick_position(messages, rng)])
    return messages


def _mutate_reorder(messages: list[Message], rng: Random) -> list[Message]:
    start = _pick_position(messages, rng)
    block = messages[start : start + 4]
    rng.shuffle(block)
    return [*messages[:start], *block, *messages[start + 4 :]]


def _mutate_truncate(messages: list[Message], rng: Random) -> list[Message]:
    at = _pick_position(messages, rng)
    return messages[at:] if rng.random() < 0.5 else messages[: at + 1]


def _mutate_interleave(messages: list[Message], rng: Random) -> list[Message]:
    foreign_messages = iter(make_valid_conversation(rng, rng.choice(API_NAMES)))
    out = [
        mixed_message
        for message in messages
        for mixed_message in (message, next(foreign_messages, None))
        if mixed_message is not None
    ]
    return [*out, *foreign_messages]


def _mutate_parts(messages: list[Message], rng: Random) -> list[Message]:
    """Mix or repeat the parts of a message, or take one out."""
    at = _pick_position(messages, rng)
    parts = list(messages[at].parts)
    rng.shuffle(parts)
    messages[at] = Message(messages[at].role, tuple(parts[rng.randrange(2) :] + parts[: rng.randrange(2)]))
    return messages


def _mutate_role(messages: list[Message], rng: Random) -> list[Message]:
    at = _pick_position(messages, rng)
    role: Any = rng.choice(("user", "assistant", "tool", "system"))
    messages[at] = Message(role, messages[at].parts)
    return messages


def _insert_random_part(messages: list[Message], rng: Random, part: Part) -> list[Message]:
    at = _pick_position(messages, rng)
    parts = list(messages[at].parts)
    parts.insert(rng.randrange(len(parts) + 1), part)
    messages[at] = Message(messages[at].role, tuple(parts))
    return messages


_FOREIGN_PARTS = (
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


def _mutate_foreign_part(messages: list[Message], rng: Random) -> list[Message]:
    kind, raw = rng.choice(_FOREIGN_PARTS)
    return _insert_random_part(messages, rng, Opaque(kind, Raw(raw)))


def _mutate_thinking(messages: list[Message], rng: Random) -> list[Message]:
    seal = rng.choice(
        (
            ProviderSignature("anthropic", "", "c2ln"),
            ProviderSignature("openai-chat", "", "reasoning_content"),
            ProviderSignature("openai-responses", "", "gAAAA"),
            ProviderSignature("openai-responses", "o-old", "gAAAA"),
            ProviderSignature("gemini", "", "c2ln"),
            ProviderSignature("gemini", "", ""),
            None,
        )
    )
    return _insert_random_part(messages, rng, Thinking(rng.choice(("", "hm")), seal))


def _mutate_server_tool(messages: list[Message], rng: Random) -> list[Message]:
    """Let a server's tool be called, answered, or both."""
    id_ = f"srvtoolu_{rng.randrange(3)}"
    seal = ProviderSignature("anthropic", "", id_)
    use = Opaque(
        "server_tool_use",
        Raw(b'{"type":"server_tool_use","id":"%s","name":"web_search","input":{}}' % id_.encode()),
        seal,
    )
    answer = b'{"type":"web_search_tool_result","tool_use_id":"%s","content":[]}' % id_.encode()
    result = Opaque("web_search_tool_result", Raw(answer), seal)
    at = next(
        (at for at in range(_pick_position(messages, rng), len(messages)) if messages[at].role == "assistant"), None
    )
    if at is not None:
        pair = ((use,), (result,), (use, result), (use, result))[rng.randrange(4)]
        messages[at] = Message("assistant", (*messages[at].parts, *pair))
    return messages


def _mutate_signatures(messages: list[Message], rng: Random) -> list[Message]:
    """Sign calls as Gemini does, some of them for another model."""
    seal = ProviderSignature("gemini", rng.choice(("", "", "gemini-old")), "c2ln")

    def signed(part: Part) -> Part:
        return replace(part, signature=seal) if isinstance(part, ToolCall) and rng.random() < 0.7 else part

    return [Message(message.role, tuple(signed(part) for part in message.parts)) for message in messages]


def _mutate_ids(messages: list[Message], rng: Random) -> list[Message]:
    """Give calls and results ids that others have, each for itself."""
    names = [f"call_{number}" for number in range(4)] + list(ODD_IDS)

    def named(part: Part) -> Part:
        if rng.random() > 0.2:
            return part
        if isinstance(part, ToolCall):
            return replace(part, id=rng.choice(names))
        return replace(part, call_id=rng.choice(names)) if isinstance(part, ToolResult) else part

    return [Message(message.role, tuple(named(part) for part in message.parts)) for message in messages]


def _mutate_cut_call(messages: list[Message], rng: Random) -> list[Message]:
    """End an answer in the middle of a call."""
    at = next((at for at in range(_pick_position(messages, rng), len(messages)) if messages[at].calls), None)
    if at is not None:
        parts = [replace(p, arguments=p.arguments[:-3]) if isinstance(p, ToolCall) else p for p in messages[at].parts]
        messages[at] = Message("assistant", tuple(parts))
    return messages[: at + 1] if at is not None and rng.random() < 0.5 else messages


def _mutate_late_result(messages: list[Message], rng: Random) -> list[Message]:
    """Let results come late, or a made-up one stand where a real one comes later."""
    at = next((at for at in range(_pick_position(messages, rng), len(messages)) if messages[at].results), None)
    if at is None:
        return messages
    real = messages[at]
    missing_parts = tuple(
        replace(part, content=(Text(SYNTHETIC_RESULT_TEXT),), is_error=True) if isinstance(part, ToolResult) else part
        for part in real.parts
    )
    place = rng.randint(at, len(messages))
    stand_in = [Message(real.role, missing_parts)] if rng.random() < 0.5 else []
    return [*messages[:at], *stand_in, *messages[at + 1 : place + 1], real, *messages[place + 1 :]]


def _mutate_damage(messages: list[Message], rng: Random) -> list[Message]:
    kind = rng.choice(_DAMAGE_KINDS)
    return damage_history(messages, [(kind, rng.randrange(40), rng.randrange(100))])


_DAMAGE_KINDS = tuple(DAMAGE_BY_NAME)
MUTATIONS: tuple[MutationFunction, ...] = (
    _mutate_drop,
    _mutate_repeat,
    _mutate_reorder,
    _mutate_truncate,
    _mutate_interleave,
    _mutate_parts,
    _mutate_role,
    _mutate_foreign_part,
    _mutate_thinking,
    _mutate_server_tool,
    _mutate_signatures,
    _mutate_ids,
    _mutate_cut_call,
    _mutate_late_result,
    _mutate_damage,
    _mutate_damage,
    _mutate_damage,
)
"""What may happen to a conversation."""


def mangle_conversation(rng: Random, api: str) -> list[Message]:
    """Return a conversation with up to six blows; one in eight has none. There is always a message."""
    messages = make_valid_conversation(rng, api)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        messages = list(rng.choice(MUTATIONS)(messages, rng)) or make_valid_conversation(rng, api)
    return messages


# -- laws --------------------------------------------------------------------------------------------------------------


def find_broken_invariants(
    messages: Sequence[Message], api: str, model: str, *, foreign_api: str = ""
) -> Iterator[str]:
    """Yield each law that the repair of a history breaks, in words; ``foreign_api`` is the API whose body held it."""
    where = _get_mangle_target(api, model)
    if not any(map(has_nonblank_content, messages)):
        return  # nobody said anything: there is no request to make
    yield from _check_values(messages, where)
    yield from _check_own_body(messages, where)
    if foreign_api not in {"", api}:
        yield from _check_foreign_body(messages, where, foreign_api)


@cache
def _get_mangle_target(api: str, model: str) -> Target:
    return get_target(api, model, window=200_000)


def _check_values(messages: Sequence[Message], target: Target) -> Iterator[str]:
    """Yield the laws that are broken when a history is given as values."""
    slots = [SizedMessage(message) for message in messages]
    sent_slots = apply_normalization(slots, normalize_history(messages, target.dialect))
    yield from _report_findings(build_request_body(target.api, target.model, sent_slots), target, "as values")
    sent_messages = [slot.message for slot in sent_slots]
    again = normalize_history(sent_messages, target.dialect)
    if again:
        yield f"as values: repaired twice: {again}"
    yield from _report_lost_words(messages, sent_messages)
    yield from _report_lost_results(messages, sent_messages)


def _check_own_body(messages: Sequence[Message], target: Target) -> Iterator[str]:
    """Yield the laws that are broken when a history comes out of a body of the API itself."""
    raw = build_request_body(
        target.api, target.model, [SizedMessage(_drop_unspeakable_parts(message, target.api)) for message in messages]
    )
    lens = parse_request(raw, target.api)
    if not any(has_nonblank_content(slot.message) for slot in lens.messages):
        return
    edits = normalize_history([slot.message for slot in lens.messages], target.dialect, has_system_field=False)
    out = render_request(lens, apply_normalization(list(lens.messages), edits))
    yield from _report_findings(out, target, "out of a body")
    if (
        edits
        and not _list_findings(raw, target)
        and not _is_stricter_than_validator(target)
        and not _has_duplicate_results(lens.messages)
    ):
        yield f"out of a body: a valid request was edited: {edits}"
    if not edits and out is not raw:
        yield "out of a body: other bytes came back though nothing was edited"
    once = parse_request(out, target.api)
    again = normalize_history([slot.message for slot in once.messages], target.dialect, has_system_field=False)
    if again:
        yield f"out of a body: repaired twice: {again}"


def _has_duplicate_results(messages: Sequence[SizedMessage]) -> bool:
    """Return whether two results in one message answer the same call, which the rules of Gemini do not see."""
    return any(len({result.call_id for result in s.message.results}) < len(s.message.results) for s in messages)


_APIS_OF_PART = {
    "message.name": ("openai-chat",),
    "message.refusal": ("openai-chat",),
    "refusal": ("openai-chat",),
    "unknown": ("anthropic", "gemini"),
    "functionCall": ("anthropic", "openai-chat", "gemini"),
    "server_tool_use": ("anthropic",),
    "web_search_tool_result": ("anthropic",),
}
"""Opaque parts that only the bodies of some APIs can hold."""


def _drop_unspeakable_parts(message: Message, api: str) -> Message:
    """Return the message without parts that no body of ``api`` gives."""
    parts = (
        part for part in message.parts if not isinstance(part, Opaque) or api in _APIS_OF_PART.get(part.kind, API_NAMES)
    )
    return Message(message.role, tuple(parts))


def _is_stricter_than_validator(target: Target) -> bool:
    """Return whether the validator knows less of the model than its dialect demands."""
    return target.model in {"somebody-else", "mistral-large-latest"}


def _check_foreign_body(messages: Sequence[Message], target: Target, api: str) -> Iterator[str]:
    """Yield the laws that are broken when a history comes out of a body of another API."""
    lens = parse_request(
        build_request_body(
            api, MANGLE_MODELS[api][0], [SizedMessage(_drop_unspeakable_parts(message, api)) for message in messages]
        ),
        api,
    )
    branch = ConversationState.from_entries(Entry("", None, MessageEntry(slot)) for slot in lens.messages)
    if not any(has_nonblank_content(strip_foreign_content(slot.message, target.api)) for slot in lens.messages):
        return
    edits, _ = normalize_projection(branch, target.dialect)
    sent_slots = apply_normalization(list(lens.messages), edits)
    yield from _report_findings(
        build_request_body(target.api, target.model, sent_slots), target, f"out of a body of {api}"
    )


def _report_findings(raw: bytes, target: Target, source: str) -> Iterator[str]:
    for finding in _list_findings(raw, target):
        if finding.level == "error":
            yield f"{source}: {finding.rule} at {finding.path}: {finding.message}"


def _list_findings(raw: bytes, target: Target) -> list[Any]:
    findings = validate_request(raw, target.api, model=target.model)
    return [finding for finding in findings if finding.rule not in OPTION_RULES]


def _count_user_texts(messages: Sequence[Message]) -> Counter[str]:
    return Counter(
        part.text
        for message in messages
        if message.role in {"user", "system"}
        for part in message.parts
        if isinstance(part, Text) and part.text.strip()
    )


def _report_lost_words(messages: Sequence[Message], sent_messages: Sequence[Message]) -> Iterator[str]:
    missing_words = _count_user_texts(messages) - _count_user_texts(sent_messages)
    if missing_words:
        yield f"words of the user are missing: {list(missing_words)[:3]}"


def _report_lost_results(messages: Sequence[Message], sent_messages: Sequence[Message]) -> Iterator[str]:
    """Yield the results that were there and are not sent, of calls that are sent and share their id with none."""
    sent_results = {_get_first_result_text(result) for message in sent_messages for result in message.results}
    calls = [call for message in messages if message.role == "assistant" for call in message.calls]
    used = Counter(call.id for call in calls)
    fine = {call.id for call in calls if call.id and call.name.strip() and used[call.id] == 1}
    real: dict[str, list[str]] = {}
    for message in messages:
        for result in message.results:
            text = _get_first_result_text(result)
            if result.call_id in fine and SYNTHETIC_RESULT_TEXT not in text:
                real.setdefault(result.call_id, []).append(text)
    for id_, texts in real.items():
        if sent_results.isdisjoint(texts) and all(texts):
            yield f"the result of {id_!r} was there and is not sent: {texts}"


# -- by the million ----------------------------------------------------------------------------------------------------


def find_failing_histories(
    count: int, seed: int, apis: Sequence[str] = API_NAMES, models: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the name of each history that breaks a law, and the law; all follow from ``seed``."""
    families = [(api, model) for api in apis for model in models or MANGLE_MODELS[api]]
    for number in range(seed, seed + count):
        api, model = families[number % len(families)]
        for law in check_seed_history(number, api, model):
            yield f"{number} {api} {model}", law


def check_seed_history(seed: int, api: str, model: str) -> Iterator[str]:
    """Yield each law that history ``seed`` breaks on ``model``."""
    rng = Random(seed)
    messages = mangle_conversation(rng, rng.choice((api, api, *API_NAMES)))
    foreign_api = rng.choice(API_NAMES) if seed % 4 == 0 else ""
    try:
        yield from find_broken_invariants(messages, api, model, foreign_api=foreign_api)
    except FormatError as error:
        yield f"nothing came of it: {error}"


def main() -> int:
    """Break histories and say which laws they break; exit code 1 when there is one."""
    parser = argparse.ArgumentParser(
        prog="python tests/support/history_fuzzer.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--api", choices=API_NAMES)
    parser.add_argument("--model")
    parser.add_argument("--most", type=int, default=10, help="broken laws to show")
    args = parser.parse_args()
    began = time.perf_counter()
    violations = 0
    for name, law in find_failing_histories(
        args.count, args.seed, [args.api] if args.api else API_NAMES, [args.model] if args.model else ()
    ):
        violations += 1
        if violations <= args.most:
            sys.stdout.write(f"{name}: {law}\n")
    spent = time.perf_counter() - began
    headline = f"{args.count:,} histories from seed {args.seed}: {violations:,} broken laws"
    sys.stderr.write(f"{headline}; {spent:.0f} s, {1e3 * spent / max(1, args.count):.2f} ms each\n")
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
