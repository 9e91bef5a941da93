"""A fuzzer for damaged histories: each must become a valid request without losing content.

Usage: python tests/support/history_fuzzer.py [--count N] [--seed S] [--api NAME] [--model NAME]

Everything follows from the seed. Each seed is one history: a conversation, a few mutations of it, and the ways in which
it reaches an API: as messages, parsed from a body of that API, or parsed from a body of another API.
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
from holdfast.normalize.parts import has_nonblank_content
from holdfast.normalize.projection import normalize_projection
from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
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
"""Rules about request fields beside the messages, which no history can break or fix."""

MutationFunction: TypeAlias = Callable[[list[Message], Random], list[Message]]


# -- conversations -----------------------------------------------------------------------------------------------------


def make_valid_conversation(rng: Random, api: str) -> list[Message]:
    """Return a conversation that is valid on any API and whose results are all different."""
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
    """Return the part with a unique mark in its text if a user or a tool wrote it."""
    if isinstance(part, ToolResult):
        return replace(part, content=(Text(f"{mark} {_get_first_result_text(part)}"), *part.content[1:]))
    return Text(f"{mark} {part.text}") if isinstance(part, Text) and role == "user" else part


def _get_first_result_text(result: ToolResult) -> str:
    """Return the first text of a result, or an empty one."""
    first = result.content[0] if result.content else None
    return first.text if isinstance(first, Text) else ""


# -- mutations ---------------------------------------------------------------------------------------------------------


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
    """Shuffle the parts of a message, and maybe repeat or remove one."""
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
    signature = rng.choice(
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
    return _insert_random_part(messages, rng, Thinking(rng.choice(("", "hm")), signature))


def _mutate_server_tool(messages: list[Message], rng: Random) -> list[Message]:
    """Add the call of a server tool, its result, or both."""
    id_ = f"srvtoolu_{rng.randrange(3)}"
    signature = ProviderSignature("anthropic", "", id_)
    use = Opaque(
        "server_tool_use",
        Raw(b'{"type":"server_tool_use","id":"%s","name":"web_search","input":{}}' % id_.encode()),
        signature,
    )
    answer = b'{"type":"web_search_tool_result","tool_use_id":"%s","content":[]}' % id_.encode()
    result = Opaque("web_search_tool_result", Raw(answer), signature)
    at = next(
        (at for at in range(_pick_position(messages, rng), len(messages)) if messages[at].role == "assistant"), None
    )
    if at is not None:
        new_parts = ((use,), (result,), (use, result), (use, result))[rng.randrange(4)]
        messages[at] = Message("assistant", (*messages[at].parts, *new_parts))
    return messages


def _mutate_signatures(messages: list[Message], rng: Random) -> list[Message]:
    """Sign calls as Gemini does, sometimes for another model."""
    signature = ProviderSignature("gemini", rng.choice(("", "", "gemini-old")), "c2ln")

    def signed(part: Part) -> Part:
        return replace(part, signature=signature) if isinstance(part, ToolCall) and rng.random() < 0.7 else part

    return [Message(message.role, tuple(signed(part) for part in message.parts)) for message in messages]


def _mutate_ids(messages: list[Message], rng: Random) -> list[Message]:
    """Give calls and results random ids, which other calls may have too."""
    names = [f"call_{number}" for number in range(4)] + list(ODD_IDS)

    def named(part: Part) -> Part:
        if rng.random() > 0.2:
            return part
        if isinstance(part, ToolCall):
            return replace(part, id=rng.choice(names))
        return replace(part, call_id=rng.choice(names)) if isinstance(part, ToolResult) else part

    return [Message(message.role, tuple(named(part) for part in message.parts)) for message in messages]


def _mutate_cut_call(messages: list[Message], rng: Random) -> list[Message]:
    """Cut the arguments of a call, as an interrupted answer does, and maybe everything after it."""
    at = next((at for at in range(_pick_position(messages, rng), len(messages)) if messages[at].calls), None)
    if at is not None:
        parts = [replace(p, arguments=p.arguments[:-3]) if isinstance(p, ToolCall) else p for p in messages[at].parts]
        messages[at] = Message("assistant", tuple(parts))
    return messages[: at + 1] if at is not None and rng.random() < 0.5 else messages


def _mutate_late_result(messages: list[Message], rng: Random) -> list[Message]:
    """Move results to a later place, and maybe put synthetic ones in their old place."""
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
"""Every mutation of a conversation; damages are listed three times to be drawn more often."""


def mangle_conversation(rng: Random, api: str) -> list[Message]:
    """Return a conversation with up to six mutations; one in eight has none. It has at least one message."""
    messages = make_valid_conversation(rng, api)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        messages = list(rng.choice(MUTATIONS)(messages, rng)) or make_valid_conversation(rng, api)
    return messages


# -- invariants --------------------------------------------------------------------------------------------------------


def find_broken_invariants(
    messages: Sequence[Message], api: str, model: str, *, foreign_api: str = ""
) -> Iterator[str]:
    """Yield a description of each invariant that the normalization of a history violates.

    ``foreign_api`` is another API, whose request body the history is parsed from as well.
    """
    target = _get_mangle_target(api, model)
    if not any(map(has_nonblank_content, messages)):
        return  # without content there is no request to make
    yield from _check_values(messages, target)
    yield from _check_own_body(messages, target)
    if foreign_api not in {"", api}:
        yield from _check_foreign_body(messages, target, foreign_api)


@cache
def _get_mangle_target(api: str, model: str) -> Target:
    return get_target(api, model, window=200_000)


def _check_values(messages: Sequence[Message], target: Target) -> Iterator[str]:
    """Yield the violations when a history is given as messages."""
    sized_messages = [SizedMessage(message) for message in messages]
    sent_sized_messages = apply_normalization(sized_messages, normalize_history(messages, target.dialect))
    yield from _report_findings(
        build_request_body(target.api, target.model, sent_sized_messages), target, "as messages"
    )
    sent_messages = [sized.message for sized in sent_sized_messages]
    second_edits = normalize_history(sent_messages, target.dialect)
    if second_edits:
        yield f"as messages: normalized twice: {second_edits}"
    yield from _report_lost_user_texts(messages, sent_messages)
    yield from _report_lost_results(messages, sent_messages)


def _check_own_body(messages: Sequence[Message], target: Target) -> Iterator[str]:
    """Yield the violations when a history is parsed from a request body of the API itself."""
    raw = build_request_body(
        target.api, target.model, [SizedMessage(drop_unsupported_parts(message, target.api)) for message in messages]
    )
    parsed = parse_request(raw, target.api)
    if not any(has_nonblank_content(sized.message) for sized in parsed.messages):
        return
    edits = normalize_history([sized.message for sized in parsed.messages], target.dialect, has_system_field=False)
    out = render_request(parsed, apply_normalization(list(parsed.messages), edits))
    yield from _report_findings(out, target, "from a body")
    if (
        edits
        and not _list_findings(raw, target)
        and not _is_stricter_than_validator(target)
        and not _has_duplicate_results(parsed.messages)
    ):
        yield f"from a body: a valid request was edited: {edits}"
    if not edits and out is not raw:
        yield "from a body: other bytes were rendered although nothing was edited"
    parsed_again = parse_request(out, target.api)
    second_edits = normalize_history(
        [sized.message for sized in parsed_again.messages], target.dialect, has_system_field=False
    )
    if second_edits:
        yield f"from a body: normalized twice: {second_edits}"


def _has_duplicate_results(messages: Sequence[SizedMessage]) -> bool:
    """Return whether two results in one message answer the same call, which the rules of Gemini do not detect."""
    return any(len({result.call_id for result in s.message.results}) < len(s.message.results) for s in messages)


_APIS_BY_PART_KIND = {
    "message.name": ("openai-chat",),
    "message.refusal": ("openai-chat",),
    "refusal": ("openai-chat",),
    "unknown": ("anthropic", "gemini"),
    "functionCall": ("anthropic", "openai-chat", "gemini"),
    "server_tool_use": ("anthropic",),
    "web_search_tool_result": ("anthropic",),
}
"""Opaque parts that only the bodies of some APIs can hold."""


def drop_unsupported_parts(message: Message, api: str) -> Message:
    """Return the message without the parts that no body of ``api`` can hold."""
    parts = (
        part
        for part in message.parts
        if not isinstance(part, Opaque) or api in _APIS_BY_PART_KIND.get(part.kind, API_NAMES)
    )
    return Message(message.role, tuple(parts))


def _is_stricter_than_validator(target: Target) -> bool:
    """Return whether the model's dialect has requirements that the validator does not know."""
    return target.model in {"somebody-else", "mistral-large-latest"}


def _check_foreign_body(messages: Sequence[Message], target: Target, api: str) -> Iterator[str]:
    """Yield the violations when a history is parsed from a request body of another API."""
    parsed = parse_request(
        build_request_body(
            api, MANGLE_MODELS[api][0], [SizedMessage(drop_unsupported_parts(message, api)) for message in messages]
        ),
        api,
    )
    state = ConversationState.from_entries(Entry("", None, MessageEntry(sized)) for sized in parsed.messages)
    if not any(has_nonblank_content(strip_foreign_content(sized.message, target.api)) for sized in parsed.messages):
        return
    edits, _ = normalize_projection(state, target.dialect)
    sent_sized_messages = apply_normalization(list(parsed.messages), edits)
    yield from _report_findings(
        build_request_body(target.api, target.model, sent_sized_messages), target, f"from a body of {api}"
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


def _report_lost_user_texts(messages: Sequence[Message], sent_messages: Sequence[Message]) -> Iterator[str]:
    missing_texts = _count_user_texts(messages) - _count_user_texts(sent_messages)
    if missing_texts:
        yield f"texts of the user are missing: {list(missing_texts)[:3]}"


def _report_lost_results(messages: Sequence[Message], sent_messages: Sequence[Message]) -> Iterator[str]:
    """Yield the real results that are not sent although their call has an id of its own."""
    sent_results = {_get_first_result_text(result) for message in sent_messages for result in message.results}
    calls = [call for message in messages if message.role == "assistant" for call in message.calls]
    uses = Counter(call.id for call in calls)
    unique_ids = {call.id for call in calls if call.id and call.name.strip() and uses[call.id] == 1}
    real_texts: dict[str, list[str]] = {}
    for message in messages:
        for result in message.results:
            text = _get_first_result_text(result)
            if result.call_id in unique_ids and SYNTHETIC_RESULT_TEXT not in text:
                real_texts.setdefault(result.call_id, []).append(text)
    for id_, texts in real_texts.items():
        if sent_results.isdisjoint(texts) and all(texts):
            yield f"the result of {id_!r} is missing from the request: {texts}"


# -- many histories ----------------------------------------------------------------------------------------------------


def find_failing_histories(
    count: int, seed: int, apis: Sequence[str] = API_NAMES, models: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the name of each failing history from ``seed`` on, and the invariant that it violates."""
    families = [(api, model) for api in apis for model in models or MANGLE_MODELS[api]]
    for number in range(seed, seed + count):
        api, model = families[number % len(families)]
        for violation in check_seed_history(number, api, model):
            yield f"{number} {api} {model}", violation


def check_seed_history(seed: int, api: str, model: str) -> Iterator[str]:
    """Yield each invariant that history ``seed`` violates on ``model``."""
    rng = Random(seed)
    messages = mangle_conversation(rng, rng.choice((api, api, *API_NAMES)))
    foreign_api = rng.choice(API_NAMES) if seed % 4 == 0 else ""
    try:
        yield from find_broken_invariants(messages, api, model, foreign_api=foreign_api)
    except FormatError as error:
        yield f"no request could be built: {error}"


def main() -> int:
    """Check many histories and print the violations; return 1 if there is any, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="python tests/support/history_fuzzer.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--api", choices=API_NAMES)
    parser.add_argument("--model")
    parser.add_argument("--most", type=int, default=10, help="violations to print")
    args = parser.parse_args()
    began = time.perf_counter()
    violation_count = 0
    for name, violation in find_failing_histories(
        args.count, args.seed, [args.api] if args.api else API_NAMES, [args.model] if args.model else ()
    ):
        violation_count += 1
        if violation_count <= args.most:
            sys.stdout.write(f"{name}: {violation}\n")
    spent = time.perf_counter() - began
    headline = f"{args.count:,} histories from seed {args.seed}: {violation_count:,} violations"
    sys.stderr.write(f"{headline}; {spent:.0f} s, {1e3 * spent / max(1, args.count):.2f} ms each\n")
    return int(violation_count > 0)


if __name__ == "__main__":
    sys.exit(main())
