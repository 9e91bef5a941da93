"""Conversations built from a few numbers, and every way to break one that was met in the wild.

Nothing here is random and nothing needs hypothesis: ``strategies`` draws the numbers. ``DAMAGE`` names the ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult

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
"""Ids that some API refuses, and ones that look as if a repair had made them."""
ODD_NAMES = ("", " ", "read file", "fs.read", "n" * 65, "n" * 129, "читать", "read\n")
ODD_ARGUMENTS = ("", "null", "[]", "{", '"text"', "{}{}", "[" * 200, '{"a": 1e999}', '{"a":"\\ud83d"}')
BLANKS = ("", " ", "\n\t", "\u00a0", "\u2028", "\x85")
"""Texts without a word; some are blank to Python and not to others."""
ODD_TEXTS = ("\x00", "a\x00b", "\ud83d", "x\udc00y", "\u2028\u2029", "\U0001f980" * 3, "e\u0301", "\ufeff", "</x>")

_PIECES = (
    "def load_config(path): return read_file(path)\n",
    "src/holdfast/state/branch/branch.py:476: error: Name 'Settled' is not defined\n",
    "The parser must never drop a user_message, because the log is the truth.\n",
    "配置文件在 src/config/settings.py 里，请不要修改默认值 max_tokens=4096。\n",
    "- [ ] rename compute_total to total_price in billing/invoice.ts\n",
    "QmFzZTY0IGlzIG5vdCB3b3Jkcywgc28gaXQgY29zdHMgbW9yZSBwZXIgYnl0ZQ==",
    "\U0001f980\U0001f9ea ok\r\n",
    "    at com.example.app.Main.run(Main.java:42)\n",
)
_TOOLS = (
    ("read", '{"path":"src/app/%d.py"}'),
    ("bash", '{"command":"pytest -k case_%d"}'),
    ("edit", '{"file_path":"src/app/%d.py","new":"x"}'),
    ("grep", '{"pattern":"name_%d"}'),
)


def words(seed: int, chars: int) -> str:
    """Return a text of ``chars`` characters that is the same for the same ``seed``: prose, code, Chinese, base64."""
    piece = _PIECES[seed % len(_PIECES)]
    text = f"{seed} " + piece.replace("42", str(seed))
    made = (text * (chars // len(text) + 1))[:chars]
    return f"{made[:-1]}." if made[-1:].isspace() else made


class History(list[Message]):
    """A list of messages that stays readable when it is shown: long ones are told by role, parts and size."""

    LONGEST = 2_000

    def __repr__(self) -> str:
        whole = super().__repr__()
        if len(whole) <= self.LONGEST:
            return whole
        told = [f"{one.role} {[type(part).__name__ for part in one.parts]} {len(repr(one))}" for one in self]
        return f"<{len(self)} messages: {'; '.join(told)}>"[: self.LONGEST]


# -- well-formed conversations -----------------------------------------------------------------------------------------

Step: TypeAlias = tuple[int, int, int, int]
"""Calls, seed, characters of each result, and whether the agent thinks first."""
Turn: TypeAlias = tuple[int, int, list[Step], bool]
"""Seed and characters of the user's words, the steps of the agent, and whether it answers in words at the end."""


def conversation(
    script: list[Turn], *, system: bool = False, pictures: bool = False, api: str = "anthropic"
) -> list[Message]:
    """Return the conversation that ``script`` tells: valid on any API, its thinking sealed by ``api``."""
    out = [Message.of("system", "You write code.")] if system else []
    made = 0
    for seed, chars, steps, ends in script:
        if out and out[-1].role in {"user", "tool"}:
            out.append(Message.of("assistant", "Go on."))
        out.append(_user(seed, chars, pictures))
        for number, step in enumerate(steps):
            if step[0] == 0 and number:
                continue
            out += _step(step, made, pictures, api)
            made += step[0]
            if step[0] == 0:
                break
        if ends and out[-1].role != "assistant":
            out.append(Message.of("assistant", words(seed, 40)))
    return History(out)


def _user(seed: int, chars: int, pictures: bool) -> Message:
    shown = (Media("image", "image/png", 68, "", "iVBORw0KGgo="),) if pictures and seed % 7 == 0 else ()
    return Message("user", (Text(words(seed, max(1, chars))), *shown))


def _step(step: Step, made: int, pictures: bool, api: str) -> list[Message]:
    calls, seed, chars, thinks = step
    parts: list[Part] = []
    if thinks:
        text = "" if thinks == 2 and api == "anthropic" else words(seed, 60)
        parts.append(Thinking(text, Seal(api, "", "reasoning_content" if api == "openai-chat" else f"sig{made}")))
    if calls == 0 or seed % 2:
        parts.append(Text(words(seed + 1, 50)))
    done = [_TOOLS[(seed + number) % len(_TOOLS)] for number in range(calls)]
    parts += [ToolCall(f"call_{made + n}", name, form % (seed + n)) for n, (name, form) in enumerate(done)]
    shown = (Media("image", "image/png", 68, "", "iVBORw0KGgo="),) if pictures and seed % 11 == 0 else ()
    results = tuple(
        ToolResult(f"call_{made + n}", name, (Text(words(seed + n, max(1, chars))), *shown))
        for n, (name, _) in enumerate(done)
    )
    return [Message("assistant", tuple(parts)), *([Message("tool", results)] if results else [])]


# -- damage ------------------------------------------------------------------------------------------------------------

Damage: TypeAlias = Callable[[list[Message], int, int], list[Message]]
"""Breaks a history at a place, in a way that a number picks."""


def damaged(messages: list[Message], wounds: Sequence[tuple[str, int, int]]) -> list[Message]:
    """Return ``messages`` with each of ``wounds`` done: kind, place and number."""
    for kind, place, number in wounds:
        if messages:
            messages = DAMAGE[kind](list(messages), place % len(messages), number)
    return History(messages)


def _pick(options: Sequence[Any], number: int) -> Any:
    return options[number % len(options)]


def _put(messages: list[Message], at: int, part: Part, number: int) -> list[Message]:
    """Put a part into message ``at``, at a place that ``number`` picks."""
    parts = list(messages[at].parts)
    parts.insert(number % (len(parts) + 1), part)
    messages[at] = replace(messages[at], parts=tuple(parts))
    return messages


def _nearest(messages: list[Message], at: int, wanted: Callable[[Message], bool]) -> int | None:
    """Return the first message from ``at`` on, and then from the start, that is ``wanted``."""
    places = [*range(at, len(messages)), *range(at)]
    return next((place for place in places if wanted(messages[place])), None)


def _has_calls(message: Message) -> bool:
    return bool(message.calls)


def _has_results(message: Message) -> bool:
    return bool(message.results)


def _with_results(messages: list[Message], at: int, change: Callable[[ToolResult], ToolResult | None]) -> list[Message]:
    """Change, or take out, the results of the first message from ``at`` on that has some."""
    home = _nearest(messages, at, _has_results)
    if home is None:
        return messages
    parts = [change(part) if isinstance(part, ToolResult) else part for part in messages[home].parts]
    messages[home] = replace(messages[home], parts=tuple(part for part in parts if part is not None))
    return messages


def _missing(messages: list[Message], at: int, number: int) -> list[Message]:
    left = [number % 3]

    def gone(result: ToolResult) -> ToolResult | None:
        left[0] -= 1
        return None if left[0] < 0 else result

    return [message for message in _with_results(messages, at, gone) if message.parts]


def _dropped(messages: list[Message], at: int, _number: int) -> list[Message]:
    return messages[:at] + messages[at + 1 :]


def _orphan(messages: list[Message], at: int, number: int) -> list[Message]:
    result = ToolResult(f"nobody_{number}", "read", (Text(words(number, 20)),))
    return [*messages[:at], Message("tool", (result,)), *messages[at:]]


def _second(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _nearest(messages, at, _has_results)
    if home is None:
        return messages
    again = replace(_pick(messages[home].results, number), content=(Text(f"again {number}"),))
    place = home + number % (len(messages) - home + 1)
    return [*messages[:place], Message("tool", (again,)), *messages[place:]]


def _misplaced(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _nearest(messages, at, lambda message: message.role == "tool")
    if home is None:
        return messages
    moved = messages.pop(home)
    place = number % (len(messages) + 1)
    return [*messages[:place], moved, *messages[place:]]


def _swapped(messages: list[Message], at: int, _number: int) -> list[Message]:
    messages[at : at + 2] = messages[at : at + 2][::-1]
    return messages


def _split(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _nearest(messages, at, lambda message: message.role == "tool" and len(message.results) > 1)
    if home is None:
        return messages
    between = [Message.of("user", "hurry")] if number % 3 == 0 else []
    first, rest = messages[home].parts[:1], messages[home].parts[1:]
    return [*messages[:home], Message("tool", first), *between, Message("tool", rest), *messages[home + 1 :]]


def _reversed(messages: list[Message], at: int, _number: int) -> list[Message]:
    home = _nearest(messages, at, lambda message: len(message.results) > 1)
    if home is not None:
        messages[home] = replace(messages[home], parts=messages[home].parts[::-1])
    return messages


def _interleaved(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _nearest(messages, at, _has_calls)
    later = None if home is None else _nearest(messages[home + 1 :], 0, _has_calls)
    if home is None or later is None:
        return messages
    moved = messages.pop(home + 1 + later)
    place = home + number % 2
    return [*messages[:place], moved, *messages[place:]]


def _mixed(messages: list[Message], at: int, number: int) -> list[Message]:
    """Let a user speak in the message that holds the results, before or behind them."""
    home = _nearest(messages, at, lambda message: message.role == "tool")
    if home is not None:
        said = (Text(words(number, 15)),)
        parts = messages[home].parts
        messages[home] = Message("user", said + parts if number % 2 else parts + said)
    return messages


def _repeated_id(messages: list[Message], at: int, number: int) -> list[Message]:
    """Give all calls and results from ``at`` on few ids, so that they repeat over turns."""
    few = 1 + number % 3
    names: dict[str, str] = {}

    def name(id_: str) -> str:
        return names.setdefault(id_, f"call_{len(names) % few}")

    return [*messages[:at], *[_renamed(message, name) for message in messages[at:]]]


def _same_id(messages: list[Message], at: int, number: int) -> list[Message]:
    """Give the calls of one message the same id, and their results too."""
    home = _nearest(messages, at, lambda message: len(message.calls) > 1)
    if home is None:
        return messages
    ids = {call.id for call in messages[home].calls}
    new = _pick(messages[home].calls, number).id
    return [_renamed(message, lambda id_: new if id_ in ids else id_) for message in messages]


def _odd_id(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _nearest(messages, at, _has_calls)
    if home is None:
        return messages
    old, new = _pick(messages[home].calls, number // 3).id, _pick(ODD_IDS, number)
    return [_renamed(message, lambda id_: new if id_ == old else id_) for message in messages]


def _renamed(message: Message, name: Callable[[str], str]) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts.append(replace(part, id=name(part.id)))
        elif isinstance(part, ToolResult):
            parts.append(replace(part, call_id=name(part.call_id)))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))


def _with_calls(messages: list[Message], at: int, change: Callable[[ToolCall], ToolCall]) -> list[Message]:
    home = _nearest(messages, at, _has_calls)
    if home is not None:
        parts = [change(part) if isinstance(part, ToolCall) else part for part in messages[home].parts]
        messages[home] = replace(messages[home], parts=tuple(parts))
    return messages


def _odd_name(messages: list[Message], at: int, number: int) -> list[Message]:
    return _with_calls(messages, at, lambda call: replace(call, name=_pick(ODD_NAMES, number)))


def _odd_arguments(messages: list[Message], at: int, number: int) -> list[Message]:
    return _with_calls(messages, at, lambda call: replace(call, arguments=_pick(ODD_ARGUMENTS, number)))


def _blank(messages: list[Message], at: int, number: int) -> list[Message]:
    return _put(messages, at, Text(_pick(BLANKS, number)), number // 7)


def _blank_message(messages: list[Message], at: int, number: int) -> list[Message]:
    new = Message.of(_pick(("user", "assistant", "system"), number // 7), _pick(BLANKS, number))
    return [*messages[:at], new, *messages[at:]]


def _blank_result(messages: list[Message], at: int, number: int) -> list[Message]:
    content = () if number % 2 else (Text(_pick(BLANKS, number // 2)),)
    return _with_results(messages, at, lambda result: replace(result, content=content))


def _empty_message(messages: list[Message], at: int, number: int) -> list[Message]:
    new = Message(_pick(("user", "assistant", "tool", "system"), number))
    return [*messages[:at], new, *messages[at:]]


def _extra_message(messages: list[Message], at: int, number: int) -> list[Message]:
    """Let somebody speak out of turn."""
    return [*messages[:at], Message.of(_pick(("user", "assistant"), number), words(number, 20)), *messages[at:]]


def _system_inside(messages: list[Message], at: int, number: int) -> list[Message]:
    return [*messages[:at], Message.of("system", words(number, 20)), *messages[at:]]


def _thinking(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _nearest(messages, at, lambda message: message.role == "assistant")
    made = [
        Thinking("hm"),
        Thinking("", Seal("anthropic", "", "c2ln")),
        Thinking("hm", Seal("openai-chat", "", "reasoning_content")),
        Thinking("hm", Seal("gemini", "g", "x")),
        Thinking("hm", Seal("anthropic", "claude-old", "c2ln")),
    ]
    return messages if home is None else _put(messages, home, _pick(made, number), number // 5)


def _thinking_only(messages: list[Message], at: int, number: int) -> list[Message]:
    made = [Seal("anthropic", "", "c2ln"), Seal("openai-chat", "", "reasoning_content"), None]
    return [*messages[:at], Message("assistant", (Thinking("hm", _pick(made, number)),)), *messages[at:]]


_PICTURE = Media("image", "image/png", 68, "", "iVBORw0KGgo=")


def _picture(messages: list[Message], at: int, number: int) -> list[Message]:
    """Put media where it may stand: into a user's message or a result that is no error."""
    home = _nearest(messages, at, lambda message: message.role == "user")
    if number % 2 and home is not None:
        return _put(messages, home, _PICTURE, number // 2)
    return _with_results(messages, at, lambda result: replace(result, content=(*result.content, _PICTURE)))


def _odd_picture(messages: list[Message], at: int, number: int) -> list[Message]:
    """Put media where no API takes it: an error's result, the agent's words, a kind nobody knows."""
    if number % 3 == 0:
        return _with_results(messages, at, lambda result: replace(result, content=(_PICTURE,), is_error=True))
    wanted = "assistant" if number % 3 == 1 else "user"
    home = _nearest(messages, at, lambda message: message.role == wanted)
    odd = _PICTURE if wanted == "assistant" else Media("audio", "audio/wav", 44, "", "UklGRg==")
    return messages if home is None else _put(messages, home, odd, number // 3)


def _error(messages: list[Message], at: int, _number: int) -> list[Message]:
    return _with_results(messages, at, lambda result: replace(result, is_error=True))


def _opaque(messages: list[Message], at: int, number: int) -> list[Message]:
    home = _nearest(messages, at, lambda message: message.role == "user")
    part = Opaque("x_future", Raw(b'{"type":"x_future","n":%d}' % number))
    return messages if home is None else _put(messages, home, part, number)


def _odd_text(messages: list[Message], at: int, number: int) -> list[Message]:
    return _put(messages, at, Text(_pick(ODD_TEXTS, number)), number // 9)


def _trailing_space(messages: list[Message], _at: int, _number: int) -> list[Message]:
    return [*messages, Message.of("assistant", "So the answer is \n")]


DAMAGE: dict[str, Damage] = {
    "missing result": _missing,
    "dropped message": _dropped,
    "orphan": _orphan,
    "second result": _second,
    "misplaced result": _misplaced,
    "swapped neighbours": _swapped,
    "split results": _split,
    "reversed results": _reversed,
    "interleaved batches": _interleaved,
    "words among results": _mixed,
    "repeated id": _repeated_id,
    "same id in a message": _same_id,
    "odd id": _odd_id,
    "odd name": _odd_name,
    "odd arguments": _odd_arguments,
    "blank text": _blank,
    "blank message": _blank_message,
    "blank result": _blank_result,
    "empty message": _empty_message,
    "speaker out of turn": _extra_message,
    "system inside": _system_inside,
    "thinking": _thinking,
    "thinking alone": _thinking_only,
    "media": _picture,
    "odd media": _odd_picture,
    "error result": _error,
    "opaque part": _opaque,
    "odd text": _odd_text,
    "trailing space": _trailing_space,
}
"""Every way of breaking a history, by name."""
