"""Conversations built from a few numbers, and every kind of damage to a history that was seen in practice.

Nothing here is random: ``hypothesis_strategies`` and ``history_fuzzer`` draw the numbers. ``DAMAGE_BY_NAME`` names the
kinds of damage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult

ODD_IDS = (
    "",
    " ",
    "call 1",
    "call|fc_1",
    "функция",
    "a" * 41,
    "b" * 65,
    "c" * 256,
    "d" * 300,
    "toolu_01\n",
    "x_1",
    "call_0",
    "call_1_3",
    "é",
    "\u0300",
    "\ud83d",
)
"""Ids that some API refuses, and ids that look as if normalization had made them."""
ODD_NAMES = ("", " ", "read file", "fs.read", "n" * 65, "n" * 129, "читать", "read\n")
ODD_ARGUMENTS = ("", "null", "[]", "{", '"text"', "{}{}", "[" * 200, '{"a": 1e999}', '{"a":"\\ud83d"}')
BLANK_TEXTS = ("", " ", "\n\t", "\u00a0", "\u2028", "\x85")
"""Texts without a word; some are blank to Python and not to others."""
ODD_TEXTS = ("\x00", "a\x00b", "\ud83d", "x\udc00y", "\u2028\u2029", "\U0001f980" * 3, "e\u0301", "\ufeff", "</x>")

_TEXT_PIECES = (
    "def load_config(path): return read_file(path)\n",
    "src/holdfast/state/fold/apply.py:476: error: Name 'Settled' is not defined\n",
    "The parser must never drop a user_message, because the log is the truth.\n",
    "配置文件在 src/config/settings.py 里，请不要修改默认值 max_tokens=4096。\n",
    "- [ ] rename compute_total to total_price in billing/invoice.ts\n",
    "QmFzZTY0IGlzIG5vdCB3b3Jkcywgc28gaXQgY29zdHMgbW9yZSBwZXIgYnl0ZQ==",
    "\U0001f980\U0001f9ea ok\r\n",
    "    at com.example.app.Main.run(Main.java:42)\n",
)
_TOOL_SCRIPTS = (
    ("read", '{"path":"src/app/%d.py"}'),
    ("bash", '{"command":"pytest -k case_%d"}'),
    ("edit", '{"file_path":"src/app/%d.py","new":"x"}'),
    ("grep", '{"pattern":"name_%d"}'),
)


def make_text(seed: int, chars: int) -> str:
    """Return a text of ``chars`` characters that is the same for the same ``seed``: prose, code, Chinese, base64."""
    piece = _TEXT_PIECES[seed % len(_TEXT_PIECES)]
    text = f"{seed} " + piece.replace("42", str(seed))
    result = (text * (chars // len(text) + 1))[:chars]
    return f"{result[:-1]}." if result[-1:].isspace() else result


class ReadableHistory(list[Message]):
    """A list of messages with a short ``repr``: long histories are described by role, parts and size."""

    LONGEST = 2_000

    def __repr__(self) -> str:
        full_repr = super().__repr__()
        if len(full_repr) <= self.LONGEST:
            return full_repr
        descriptions = [
            f"{message.role} {[type(part).__name__ for part in message.parts]} {len(repr(message))}" for message in self
        ]
        return f"<{len(self)} messages: {'; '.join(descriptions)}>"[: self.LONGEST]


# -- well-formed conversations -----------------------------------------------------------------------------------------

AgentStepScript: TypeAlias = tuple[int, int, int, int]
"""Number of calls, seed, characters of each result, and whether the agent thinks first."""
TurnScript: TypeAlias = tuple[int, int, list[AgentStepScript], bool]
"""Seed and characters of the user message, the steps of the agent, and whether it ends with a text answer."""


def build_conversation(
    script: list[TurnScript], *, system: bool = False, pictures: bool = False, api: str = "anthropic"
) -> list[Message]:
    """Return the conversation that ``script`` describes: valid on any API, its thinking signed by ``api``."""
    messages = [Message.from_text("system", "You write code.")] if system else []
    call_count = 0
    for seed, chars, steps, has_final_answer in script:
        if messages and messages[-1].role in {"user", "tool"}:
            messages.append(Message.from_text("assistant", "Go on."))
        messages.append(_make_user_message(seed, chars, pictures))
        for number, step in enumerate(steps):
            if step[0] == 0 and number:
                continue
            messages += _make_agent_step(step, call_count, pictures, api)
            call_count += step[0]
            if step[0] == 0:
                break
        if has_final_answer and messages[-1].role != "assistant":
            messages.append(Message.from_text("assistant", make_text(seed, 40)))
    return ReadableHistory(messages)


def _make_user_message(seed: int, chars: int, pictures: bool) -> Message:
    media = (Media("image", "image/png", 68, "", "iVBORw0KGgo="),) if pictures and seed % 7 == 0 else ()
    return Message("user", (Text(make_text(seed, max(1, chars))), *media))


def _make_agent_step(step: AgentStepScript, call_count: int, pictures: bool, api: str) -> list[Message]:
    calls, seed, chars, thinks = step
    parts: list[Part] = []
    if thinks:
        text = "" if thinks == 2 and api == "anthropic" else make_text(seed, 60)
        parts.append(
            Thinking(
                text, ProviderSignature(api, "", "reasoning_content" if api == "openai-chat" else f"sig{call_count}")
            )
        )
    if calls == 0 or seed % 2:
        parts.append(Text(make_text(seed + 1, 50)))
    tools_used = [_TOOL_SCRIPTS[(seed + number) % len(_TOOL_SCRIPTS)] for number in range(calls)]
    parts += [ToolCall(f"call_{call_count + n}", name, form % (seed + n)) for n, (name, form) in enumerate(tools_used)]
    media = (Media("image", "image/png", 68, "", "iVBORw0KGgo="),) if pictures and seed % 11 == 0 else ()
    results = tuple(
        ToolResult(f"call_{call_count + n}", name, (Text(make_text(seed + n, max(1, chars))), *media))
        for n, (name, _) in enumerate(tools_used)
    )
    return [Message("assistant", tuple(parts)), *([Message("tool", results)] if results else [])]


# -- damage ------------------------------------------------------------------------------------------------------------

DamageFunction: TypeAlias = Callable[[list[Message], int, int], list[Message]]
"""Damages a history at a place; the number picks a variant."""


def damage_history(messages: list[Message], damages: Sequence[tuple[str, int, int]]) -> list[Message]:
    """Return ``messages`` after each of ``damages``, given as kind, place and number."""
    for kind, place, number in damages:
        if messages:
            messages = DAMAGE_BY_NAME[kind](list(messages), place % len(messages), number)
    return ReadableHistory(messages)


def _pick_option(options: Sequence[Any], number: int) -> Any:
    return options[number % len(options)]


def _insert_part(messages: list[Message], at: int, part: Part, number: int) -> list[Message]:
    """Insert a part into message ``at``, at a position that ``number`` picks."""
    parts = list(messages[at].parts)
    parts.insert(number % (len(parts) + 1), part)
    messages[at] = replace(messages[at], parts=tuple(parts))
    return messages


def _find_nearest(messages: list[Message], at: int, is_wanted: Callable[[Message], bool]) -> int | None:
    """Return the index of the first message that is wanted, from ``at`` on and then from the start, or None."""
    places = [*range(at, len(messages)), *range(at)]
    return next((place for place in places if is_wanted(messages[place])), None)


def _has_calls(message: Message) -> bool:
    return bool(message.calls)


def _has_results(message: Message) -> bool:
    return bool(message.results)


def _change_results(
    messages: list[Message], at: int, change: Callable[[ToolResult], ToolResult | None]
) -> list[Message]:
    """Change or remove the results of the first message from ``at`` on that has any."""
    home = _find_nearest(messages, at, _has_results)
    if home is None:
        return messages
    parts = [change(part) if isinstance(part, ToolResult) else part for part in messages[home].parts]
    messages[home] = replace(messages[home], parts=tuple(part for part in parts if part is not None))
    return messages


def _remove_result(messages: list[Message], at: int, number: int) -> list[Message]:
    remaining = [number % 3]

    def remove_after_count(result: ToolResult) -> ToolResult | None:
        remaining[0] -= 1
        return None if remaining[0] < 0 else result

    return [message for message in _change_results(messages, at, remove_after_count) if message.parts]


def _drop_message(messages: list[Message], at: int, _number: int) -> list[Message]:
    return messages[:at] + messages[at + 1 :]


def _insert_orphan(messages: list[Message], at: int, number: int) -> list[Message]:
    result = ToolResult(f"nobody_{number}", "read", (Text(make_text(number, 20)),))
    return [*messages[:at], Message("tool", (result,)), *messages[at:]]


def _repeat_result(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _find_nearest(messages, at, _has_results)
    if home is None:
        return messages
    again = replace(_pick_option(messages[home].results, number), content=(Text(f"again {number}"),))
    place = home + number % (len(messages) - home + 1)
    return [*messages[:place], Message("tool", (again,)), *messages[place:]]


def _move_results(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _find_nearest(messages, at, lambda message: message.role == "tool")
    if home is None:
        return messages
    tool_message = messages.pop(home)
    place = number % (len(messages) + 1)
    return [*messages[:place], tool_message, *messages[place:]]


def _swap_neighbours(messages: list[Message], at: int, _number: int) -> list[Message]:
    messages[at : at + 2] = messages[at : at + 2][::-1]
    return messages


def _split_results(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _find_nearest(messages, at, lambda message: message.role == "tool" and len(message.results) > 1)
    if home is None:
        return messages
    between = [Message.from_text("user", "hurry")] if number % 3 == 0 else []
    first, other_parts = messages[home].parts[:1], messages[home].parts[1:]
    return [*messages[:home], Message("tool", first), *between, Message("tool", other_parts), *messages[home + 1 :]]


def _reverse_results(messages: list[Message], at: int, _number: int) -> list[Message]:
    home = _find_nearest(messages, at, lambda message: len(message.results) > 1)
    if home is not None:
        messages[home] = replace(messages[home], parts=messages[home].parts[::-1])
    return messages


def _interleave_batches(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _find_nearest(messages, at, _has_calls)
    later = None if home is None else _find_nearest(messages[home + 1 :], 0, _has_calls)
    if home is None or later is None:
        return messages
    call_message = messages.pop(home + 1 + later)
    place = home + number % 2
    return [*messages[:place], call_message, *messages[place:]]


def _mix_user_text(messages: list[Message], at: int, number: int) -> list[Message]:
    """Add user text to the message with the results, before or after them."""
    home = _find_nearest(messages, at, lambda message: message.role == "tool")
    if home is not None:
        remark = (Text(make_text(number, 15)),)
        parts = messages[home].parts
        messages[home] = Message("user", remark + parts if number % 2 else parts + remark)
    return messages


def _reuse_ids(messages: list[Message], at: int, number: int) -> list[Message]:
    """Give all calls and results from ``at`` on one to three ids, so that ids repeat over turns."""
    id_count = 1 + number % 3
    new_ids: dict[str, str] = {}

    def get_new_id(id_: str) -> str:
        return new_ids.setdefault(id_, f"call_{len(new_ids) % id_count}")

    return [*messages[:at], *[_rename_ids(message, get_new_id) for message in messages[at:]]]


def _share_id(messages: list[Message], at: int, number: int) -> list[Message]:
    """Give all calls of one message, and their results, the same id."""
    home = _find_nearest(messages, at, lambda message: len(message.calls) > 1)
    if home is None:
        return messages
    ids = {call.id for call in messages[home].calls}
    new = _pick_option(messages[home].calls, number).id
    return [_rename_ids(message, lambda id_: new if id_ in ids else id_) for message in messages]


def _use_odd_id(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _find_nearest(messages, at, _has_calls)
    if home is None:
        return messages
    old, new = _pick_option(messages[home].calls, number // 3).id, _pick_option(ODD_IDS, number)
    return [_rename_ids(message, lambda id_: new if id_ == old else id_) for message in messages]


def _rename_ids(message: Message, get_new_id: Callable[[str], str]) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts.append(replace(part, id=get_new_id(part.id)))
        elif isinstance(part, ToolResult):
            parts.append(replace(part, call_id=get_new_id(part.call_id)))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))


def _change_calls(messages: list[Message], at: int, change: Callable[[ToolCall], ToolCall]) -> list[Message]:
    home = _find_nearest(messages, at, _has_calls)
    if home is not None:
        parts = [change(part) if isinstance(part, ToolCall) else part for part in messages[home].parts]
        messages[home] = replace(messages[home], parts=tuple(parts))
    return messages


def _use_odd_name(messages: list[Message], at: int, number: int) -> list[Message]:
    return _change_calls(messages, at, lambda call: replace(call, name=_pick_option(ODD_NAMES, number)))


def _use_odd_arguments(messages: list[Message], at: int, number: int) -> list[Message]:
    return _change_calls(messages, at, lambda call: replace(call, arguments=_pick_option(ODD_ARGUMENTS, number)))


def _insert_blank_text(messages: list[Message], at: int, number: int) -> list[Message]:
    return _insert_part(messages, at, Text(_pick_option(BLANK_TEXTS, number)), number // 7)


def _insert_blank_message(messages: list[Message], at: int, number: int) -> list[Message]:
    new = Message.from_text(
        _pick_option(("user", "assistant", "system"), number // 7), _pick_option(BLANK_TEXTS, number)
    )
    return [*messages[:at], new, *messages[at:]]


def _blank_results(messages: list[Message], at: int, number: int) -> list[Message]:
    content = () if number % 2 else (Text(_pick_option(BLANK_TEXTS, number // 2)),)
    return _change_results(messages, at, lambda result: replace(result, content=content))


def _insert_empty_message(messages: list[Message], at: int, number: int) -> list[Message]:
    new = Message(_pick_option(("user", "assistant", "tool", "system"), number))
    return [*messages[:at], new, *messages[at:]]


def _insert_extra_message(messages: list[Message], at: int, number: int) -> list[Message]:
    """Insert a user or assistant text anywhere."""
    return [
        *messages[:at],
        Message.from_text(_pick_option(("user", "assistant"), number), make_text(number, 20)),
        *messages[at:],
    ]


def _insert_system_message(messages: list[Message], at: int, number: int) -> list[Message]:
    return [*messages[:at], Message.from_text("system", make_text(number, 20)), *messages[at:]]


def _insert_thinking(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _find_nearest(messages, at, lambda message: message.role == "assistant")
    choices = [
        Thinking("hm"),
        Thinking("", ProviderSignature("anthropic", "", "c2ln")),
        Thinking("hm", ProviderSignature("openai-chat", "", "reasoning_content")),
        Thinking("hm", ProviderSignature("gemini", "g", "x")),
        Thinking("hm", ProviderSignature("anthropic", "claude-old", "c2ln")),
    ]
    return messages if home is None else _insert_part(messages, home, _pick_option(choices, number), number // 5)


def _insert_thinking_only(messages: list[Message], at: int, number: int) -> list[Message]:
    signatures = [
        ProviderSignature("anthropic", "", "c2ln"),
        ProviderSignature("openai-chat", "", "reasoning_content"),
        None,
    ]
    return [*messages[:at], Message("assistant", (Thinking("hm", _pick_option(signatures, number)),)), *messages[at:]]


_SAMPLE_IMAGE = Media("image", "image/png", 68, "", "iVBORw0KGgo=")


def _insert_picture(messages: list[Message], at: int, number: int) -> list[Message]:
    """Insert an image where an API accepts it: into a user message or a result."""
    home = _find_nearest(messages, at, lambda message: message.role == "user")
    if number % 2 and home is not None:
        return _insert_part(messages, home, _SAMPLE_IMAGE, number // 2)
    return _change_results(messages, at, lambda result: replace(result, content=(*result.content, _SAMPLE_IMAGE)))


def _insert_odd_picture(messages: list[Message], at: int, number: int) -> list[Message]:
    """Insert media where no API accepts it: into an error result or an answer, or of an unknown kind."""
    if number % 3 == 0:
        return _change_results(messages, at, lambda result: replace(result, content=(_SAMPLE_IMAGE,), is_error=True))
    role = "assistant" if number % 3 == 1 else "user"
    home = _find_nearest(messages, at, lambda message: message.role == role)
    odd = _SAMPLE_IMAGE if role == "assistant" else Media("audio", "audio/wav", 44, "", "UklGRg==")
    return messages if home is None else _insert_part(messages, home, odd, number // 3)


def _mark_results_as_errors(messages: list[Message], at: int, _number: int) -> list[Message]:
    return _change_results(messages, at, lambda result: replace(result, is_error=True))


def _insert_opaque_part(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _find_nearest(messages, at, lambda message: message.role == "user")
    part = Opaque("x_future", Raw(b'{"type":"x_future","n":%d}' % number))
    return messages if home is None else _insert_part(messages, home, part, number)


def _insert_odd_text(messages: list[Message], at: int, number: int) -> list[Message]:
    return _insert_part(messages, at, Text(_pick_option(ODD_TEXTS, number)), number // 9)


def _append_trailing_space(messages: list[Message], _at: int, _number: int) -> list[Message]:
    return [*messages, Message.from_text("assistant", "So the answer is \n")]


DAMAGE_BY_NAME: dict[str, DamageFunction] = {
    "missing result": _remove_result,
    "dropped message": _drop_message,
    "orphan": _insert_orphan,
    "second result": _repeat_result,
    "misplaced result": _move_results,
    "swapped neighbours": _swap_neighbours,
    "split results": _split_results,
    "reversed results": _reverse_results,
    "interleaved batches": _interleave_batches,
    "words among results": _mix_user_text,
    "repeated id": _reuse_ids,
    "same id in a message": _share_id,
    "odd id": _use_odd_id,
    "odd name": _use_odd_name,
    "odd arguments": _use_odd_arguments,
    "blank text": _insert_blank_text,
    "blank message": _insert_blank_message,
    "blank result": _blank_results,
    "empty message": _insert_empty_message,
    "speaker out of turn": _insert_extra_message,
    "system inside": _insert_system_message,
    "thinking": _insert_thinking,
    "thinking alone": _insert_thinking_only,
    "media": _insert_picture,
    "odd media": _insert_odd_picture,
    "error result": _mark_results_as_errors,
    "opaque part": _insert_opaque_part,
    "odd text": _insert_odd_text,
    "trailing space": _append_trailing_space,
}
"""Every kind of damage to a history, by name."""
