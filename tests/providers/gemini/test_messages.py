"""Gemini contents are decoded to values and encoded again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy, wild_history_strategy
from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

CALL = {"functionCall": {"name": "ls", "args": {"p": 1}}}
ANSWER = {"functionResponse": {"name": "ls", "response": {"output": "a.py"}}}


def decode(wire: Any) -> Message:
    return gemini.decode_message(json.dumps(wire).encode())


def encode(message: Message, base: Any = None) -> list[Any]:
    raw = None if base is None else Raw(json.dumps(base).encode())
    return [json.loads(element) for element in gemini.encode_message(message, raw)]


def build_user_content(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def build_model_content(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def decode_part(wire: Any) -> Part:
    """Decode a content with one part, and return the part without its raw bytes."""
    (found,) = decode(build_model_content(wire)).parts
    return replace(found, raw=None)


# -- roles -------------------------------------------------------------------------------------------------------------


def test_decode_message_maps_roles() -> None:
    """``model`` is the assistant, a missing role is the user, and responses alone are a tool message."""
    assert decode(build_model_content({"text": "a"})).role == "assistant"
    assert decode({"parts": [{"text": "a"}]}).role == "user"
    assert decode({"role": "", "parts": [{"text": "a"}]}).role == "user"
    assert decode(build_user_content(ANSWER, ANSWER)).role == "tool"
    assert decode(build_user_content(ANSWER, {"text": "a"})).role == "user"


def test_decode_message_keeps_an_unknown_role_byte_for_byte() -> None:
    """A content of an unknown role starts no turn and keeps its bytes."""
    raw = b'{"role": "assistant",\n "parts": [{"text": "a"}]}'
    message = gemini.decode_message(raw)
    assert message == Message("system", (Opaque("message", Raw(raw)),))
    assert gemini.encode_message(message) == [raw]


def test_encode_message_keeps_an_absent_role_absent() -> None:
    """A content without a role gets none when one of its parts is edited."""
    base = {"parts": [{"text": "a"}, {"text": "b"}]}
    first, _ = decode(base).parts
    assert encode(Message("user", (first, Text("c"))), base) == [{"parts": [{"text": "a"}, {"text": "c"}]}]


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        ({"text": "a"}, Text("a")),
        ({"text": "a", "thoughtSignature": "s"}, Text("a", ProviderSignature("gemini", "", "s"))),
        ({"text": "a", "thought": True}, Thinking("a", ProviderSignature("gemini", "", ""))),
        ({"text": "a", "thought": True, "thought_signature": "s"}, Thinking("a", ProviderSignature("gemini", "", "s"))),
        ({"text": "", "thoughtSignature": "s"}, Thinking("", ProviderSignature("gemini", "", "s"))),
        ({"thoughtSignature": "s"}, Thinking("", ProviderSignature("gemini", "", "s"))),
        ({"text": ""}, Text("")),
        ({}, Text("")),
        ({"thought": True}, Text("")),
        (CALL, ToolCall("ls#1", "ls", '{"p": 1}')),
        ({"function_call": {"id": "7", "name": "ls"}}, ToolCall("7", "ls", "{}")),
        (
            {"functionCall": {"name": "ls", "args": None}, "thoughtSignature": "s"},
            ToolCall("ls#1", "ls", "{}", ProviderSignature("gemini", "", "s")),
        ),
        ({"functionCall": {"name": "ls"}, "text": None}, ToolCall("ls#1", "ls")),
        (
            {"inlineData": {"mimeType": "image/png", "data": "__-7"}},
            Media("image", "image/png", 3, "", "//+7"),
        ),
        (
            {"inline_data": {"mime_type": "application/pdf", "display_name": "a.pdf", "data": "QUJDRA=="}},
            Media("document", "application/pdf", 4, "a.pdf", "QUJDRA=="),
        ),
        (
            {"file_data": {"file_uri": "gs://b/a.mp4", "mime_type": "video/mp4"}},
            Media("video", "video/mp4", 0, "", "gs://b/a.mp4"),
        ),
        ({"fileData": {"fileUri": "https://e.org/a"}}, Media("document", "", 0, "", "https://e.org/a")),
        ({"executableCode": {"code": "1"}}, Opaque("executableCode")),
        (
            {"partMetadata": {"a": 1}, "code_execution_result": {"output": "1"}, "thoughtSignature": "s"},
            Opaque("codeExecutionResult", None, ProviderSignature("gemini", "", "s")),
        ),
        ({"videoMetadata": {"fps": 1}, "toolCall": {"id": "1"}}, Opaque("toolCall")),
        ({"text": "a", **CALL}, Opaque("unknown")),
        ({"text": 5}, Opaque("unknown")),
        ("just words", Opaque("unknown")),
    ],
)
def test_decode_message_reads_every_kind_of_part(wire: Any, value: Part) -> None:
    """Each kind of part is read in both spellings of its fields, with its signature."""
    assert decode_part(wire) == value


@pytest.mark.parametrize(
    ("response", "texts", "failed"),
    [
        ({"output": "ok"}, ["ok"], False),
        ({"result": "ok"}, ["ok"], False),
        ({"output": {"a": 1}}, ['{"a":1}'], False),
        ({"output": " \n"}, [], False),
        ({}, [], False),
        ({"error": "no"}, ["no"], True),
        ({"output": "ok", "error": None}, ["ok"], False),
        ({"output": "some", "error": "no"}, ['{"output":"some","error":"no"}'], True),
        ({"a": 1, "b": "x"}, ['{"a":1,"b":"x"}'], False),
    ],
)
def test_decode_message_reads_the_output_or_error_of_a_response(response: Any, texts: list[str], failed: bool) -> None:
    """The text of a response is its output or error alone, else the whole object; blank text counts as none."""
    result = decode_part({"functionResponse": {"name": "ls", "response": response}})
    assert result == ToolResult("ls#1", "ls", tuple(map(Text, texts)), failed)


@pytest.mark.parametrize("response", ["ok", ["ok"], None, 5])
def test_encode_message_writes_a_response_as_an_object(response: Any) -> None:
    """Beside its text the invalid response is kept as an opaque part; written anew it is an object."""
    base = build_user_content({"functionResponse": {"name": "ls", "response": response}})
    (result,) = decode(base).results
    *words, wrong = result.content
    assert wrong == Opaque("functionResponse", Raw(json.dumps(response).encode()))
    (out,) = encode(Message("tool", (replace(result, content=tuple(words), raw=None),)), base)
    output = "" if response is None else response if response == "ok" else json.dumps(response)
    assert encode(Message("tool", (replace(result, raw=None),))) == [out]
    assert out == build_user_content({"functionResponse": {"name": "ls", "response": {"output": output}}})


def test_decode_message_reads_media_in_a_response() -> None:
    """Media inside a response are media of the result, and are written there again."""
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJDRA=="}}
    wire = build_user_content(
        {"functionResponse": {"name": "shot", "response": {"output": "here"}, "parts": [image, {"x": 1}]}}
    )
    (result,) = decode(wire).results
    shown, other = result.content[1:]
    assert (shown, other) == (Media("image", "image/png", 4, "", "QUJDRA==", shown.raw), Opaque("x", other.raw))
    assert encode(Message("tool", (replace(result, raw=None),))) == [wire]


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_decode_message_numbers_calls_and_responses_without_ids() -> None:
    """Calls and responses without an id are named by function and occurrence, and are sent without an id."""
    other = {"functionCall": {"name": "cat", "args": {}}}
    wire = build_model_content(CALL, other, {"functionCall": {"id": "own", "name": "ls", "args": {}}}, CALL)
    message = decode(wire)
    assert [call.id for call in message.calls] == ["ls#1", "cat#1", "own", "ls#2"]
    assert encode(Message("assistant", tuple(replace(call, raw=None) for call in message.calls))) == [wire]


def test_encode_message_omits_only_ids_made_up_for_the_function() -> None:
    """An id is omitted only if it was made up for this very function."""
    (out,) = encode(Message("assistant", (ToolCall("cat#1", "ls"), ToolCall("ls#x", "ls"))))
    assert [part["functionCall"].get("id") for part in out["parts"]] == ["cat#1", "ls#x"]


def build_response(name: str, said: str, id_: str | None = None) -> dict[str, Any]:
    return {"functionResponse": ({"id": id_} if id_ else {}) | {"name": name, "response": {"output": said}}}


def build_call(name: str, id_: str | None = None) -> dict[str, Any]:
    return {"functionCall": ({"id": id_} if id_ else {}) | {"name": name, "args": {}}}


@pytest.mark.parametrize(
    ("calls", "contents", "answers"),
    [
        (
            [build_call("a", "x"), build_call("b", "y")],
            [[build_response("b", "2"), build_response("a", "1")]],
            ["y", "x"],
        ),
        (
            [build_call("a"), build_call("a")],
            [[build_response("a", "1", "p"), build_response("a", "2", "q")]],
            ["a#1", "a#2"],
        ),
        (
            [build_call("a", "x"), build_call("a", "y")],
            [[build_response("a", "2", "y"), build_response("a", "1")]],
            ["y", "x"],
        ),
        ([build_call("a"), build_call("a")], [[build_response("a", "1")], [build_response("a", "2")]], ["a#1", "a#2"]),
        ([build_call("a", "x")], [[build_response("a", "1", "z")]], ["z"]),
        ([build_call("a", "x")], [[build_response("b", "1")]], ["b#1"]),
        ([build_call("a", "x")], [[build_response("a", "1"), build_response("a", "2")]], ["x", "a#2"]),
    ],
)
def test_decode_messages_pairs_responses_by_id_else_by_name(calls: Any, contents: Any, answers: list[str]) -> None:
    """A response without an id belongs to the first open call of its name; unknown ids belong to no call."""
    wire = [
        build_user_content({"text": "go"}),
        build_model_content(*calls),
        *(build_user_content(*parts) for parts in contents),
    ]
    found = decode_messages("gemini", wire)
    assert [result.call_id for message in found for result in message.results] == answers
    assert encode_messages("gemini", found) == wire


def test_encode_messages_gives_results_the_names_of_their_calls() -> None:
    """A result without a name, as other APIs leave them, gets that of its call."""
    values = [
        Message("assistant", (ToolCall("c1", "ls"), ToolCall("c2", "cat"))),
        Message("tool", (ToolResult("c2", content=(Text("2"),)), ToolResult("c1", content=(Text("1"),)))),
    ]
    out = encode_messages("gemini", values)[1]["parts"]
    assert [(item["functionResponse"]["id"], item["functionResponse"]["name"]) for item in out] == [
        ("c2", "cat"),
        ("c1", "ls"),
    ]


def test_link_results_to_calls_returns_linked_messages_unchanged() -> None:
    """Messages in which every result has its call come back as the same objects."""
    found = decode_messages(
        "gemini",
        [
            build_user_content({"text": "go"}),
            build_model_content(build_call("a"), build_call("b", "x")),
            build_user_content(ANSWER, build_response("b", "1")),
        ],
    )
    assert all(new is old for new, old in zip(gemini.link_results_to_calls(found), found, strict=True))


def test_link_results_to_calls_keeps_made_up_ids_that_fit() -> None:
    """Results whose made-up ids are those of the calls keep them, in any order."""
    calls = Message("assistant", (ToolCall("a#1", "a"), ToolCall("a#2", "a")))
    results = Message("tool", (ToolResult("a#2", "a"), ToolResult("a#1", "a")))
    assert gemini.link_results_to_calls([calls, results])[1] is results


# -- edited parts ------------------------------------------------------------------------------------------------------


def test_encode_message_keeps_the_bytes_of_unedited_parts() -> None:
    """In a content with one edited part every other part is written byte for byte."""
    kept = [b'{ "text" : "\\u4f60" }', b'{"functionCall":{"args":{"n":1e400,"big":12345678901234567890},"name":"ls"}}']
    raw = Raw(b'{"parts": [' + kept[0] + b', {"text": "b"}, ' + kept[1] + b'], "x": [ 1 ], "role": "model"}')
    first, _, last = gemini.decode_message(raw).parts
    (out,) = gemini.encode_message(Message("assistant", (first, Text("c"), last)), raw)
    assert out == b'{"parts":[' + kept[0] + b',{"text":"c"},' + kept[1] + b'],"x":[ 1 ],"role":"model"}'


@pytest.mark.parametrize(
    ("base", "new", "out"),
    [
        (
            {"function_call": {"id": "7", "name": "ls", "args": {"a": 1}}, "thought_signature": "s"},
            ToolCall("8", "ls", "{}", ProviderSignature("gemini", "", "t")),
            {"function_call": {"id": "8", "name": "ls", "args": {}}, "thought_signature": "t"},
        ),
        (
            {"functionCall": {"name": "ls", "args": {"a": 1}}, "thoughtSignature": "s", "partMetadata": {"k": 1}},
            ToolCall("ls#1", "ls", '{"a": 2}'),
            {"functionCall": {"name": "ls", "args": {"a": 2}}, "partMetadata": {"k": 1}},
        ),
        (
            {"function_response": {"name": "ls", "response": {"result": "long"}, "will_continue": False}},
            ToolResult("ls#1", "ls", (Text("short"),)),
            {"function_response": {"name": "ls", "response": {"result": "short"}, "will_continue": False}},
        ),
        (
            {"functionResponse": {"id": "7", "name": "ls", "response": {"output": "long"}, "scheduling": "SILENT"}},
            ToolResult("7", "", (Text("no"),), is_error=True),
            {"functionResponse": {"id": "7", "name": "ls", "response": {"error": "no"}, "scheduling": "SILENT"}},
        ),
        (
            {"functionResponse": {"id": "7", "name": "ls", "response": {"a": 1, "b": [2]}}},
            ToolResult("8", "ls", (Text('{"a":1,"b":[2]}'),)),
            {"functionResponse": {"id": "8", "name": "ls", "response": {"a": 1, "b": [2]}}},
        ),
        (
            {"inline_data": {"mime_type": "image/png", "data": "QUJDRA==", "display_name": "a"}, "videoMetadata": {}},
            Media("image", "image/jpeg", 3, "", "QUJD"),
            {"inline_data": {"mime_type": "image/jpeg", "data": "QUJD"}},
        ),
        ({"text": "a", "thoughtSignature": "s"}, Text("b"), {"text": "b"}),
        ({"text": "a", "thought": True}, Text("b"), {"text": "b"}),
    ],
)
def test_encode_message_keeps_other_fields_of_an_edited_part(base: Any, new: Part, out: Any) -> None:
    """A rewritten part keeps the spelling and other fields of the one it replaces; the old signature is dropped."""
    assert encode(Message("assistant", (new,)), build_user_content(base)) == [build_model_content(out)]


def test_encode_message_matches_an_edited_part_by_id() -> None:
    """If parts were removed, the original of a call or response is found by its id."""
    base = build_model_content({"text": "a"}, CALL, {"function_call": {"name": "ls", "args": {}, "willContinue": True}})
    (out,) = encode(Message("assistant", (ToolCall("ls#2", "ls", '{"q": 2}'),)), base)
    assert out == build_model_content({"function_call": {"name": "ls", "args": {"q": 2}, "willContinue": True}})


# -- from values of other APIs -----------------------------------------------------------------------------------------


def test_encode_message_drops_foreign_thinking_and_names_media() -> None:
    """Thinking of other APIs is dropped; media that cannot be shown are named in text."""
    foreign = Thinking("hm", ProviderSignature("anthropic", "", "s"))
    assert encode(Message("assistant", (foreign,))) == []
    assert encode(Message("user", (Media("image", "image/png", 0, "a.png", "file_1"), Opaque("x")))) == [
        build_user_content({"text": "[Attached image/png: a.png]"})
    ]
    (out,) = encode(Message("tool", (ToolResult("c", "ls", (Text("see"), Media("image", "", 4, "", "QUJDRA=="))),)))
    assert out["parts"][0]["functionResponse"]["response"] == {"output": "see\n[Attached image]"}


def test_encode_message_writes_a_bare_signature_on_an_empty_text() -> None:
    """A signature that came on an empty text is sent back on one."""
    (out,) = encode(Message("assistant", (Thinking("", ProviderSignature("gemini", "", "s")),)))
    assert out == build_model_content({"text": "", "thoughtSignature": "s"})


def test_encode_message_writes_arguments_as_an_object() -> None:
    """Arguments that are a string are parsed; an object is the only form this API has."""
    for arguments in ('"{\\"a\\": 1}"', '{"a": 1}'):
        assert encode(Message("assistant", (ToolCall("c", "ls", arguments),)))[0]["parts"][0]["functionCall"] == {
            "id": "c",
            "name": "ls",
            "args": {"a": 1},
        }


def test_decode_message_accepts_contents_without_parts() -> None:
    """A content may be empty or have no parts field: nothing is added or lost."""
    for wire in ({"role": "user", "parts": []}, {"role": "model"}, {}):
        message = decode(wire)
        assert message.parts == ()
        assert encode(message, wire) == [wire]
    assert encode(Message("user")) == [build_user_content()]


@pytest.mark.parametrize("raw", [b"", b"[]", b"5", b'"hi"', b'{"parts": {"text": "a"}}', b'{"role": 5}', b"{"])
def test_decode_message_rejects_what_is_no_content(raw: bytes) -> None:
    """A content that is no object, or whose parts are no list, is a ``FormatError``."""
    with pytest.raises(FormatError, match="the content cannot be read"):
        gemini.decode_message(raw)


def test_decode_message_keeps_parts_with_invalid_utf_8() -> None:
    """Parts with bytes that are not UTF-8 stay opaque."""
    raw = b'{"parts":[{"functionCall":{"name":"a","args":{"x":"\xff"}}},{"text":"\xff"},{"functionResponse":"\xff"}]}'
    try:
        message = gemini.decode_message(raw)
    except FormatError:
        return
    assert [type(part) for part in message.parts] == [Opaque] * 3


# -- laws --------------------------------------------------------------------------------------------------------------


def drop_raw_bytes(message: Message) -> Message:
    """Return a message without the raw bytes of its parts."""
    parts = []
    for part in message.parts:
        content = tuple(replace(inner, raw=None) for inner in part.content) if isinstance(part, ToolResult) else ()
        parts.append(replace(part, raw=None, **({"content": content} if isinstance(part, ToolResult) else {})))
    return Message(message.role, tuple(parts))


_NAMES = st.sampled_from(["ls", "cat"])
_IDS = st.sampled_from([{}, {"id": "x"}, {"id": "y"}])
_SEALS = st.sampled_from([{}, {"thoughtSignature": "c2ln"}, {"thought_signature": "c2ln"}])
_OBJECTS = st.dictionaries(st.sampled_from(["output", "error", "result", "a"]), st.text(max_size=3) | st.none())
_BLOBS = st.sampled_from(
    [
        {"inlineData": {"mimeType": "image/png", "data": "QUJDRA=="}},
        {"file_data": {"file_uri": "gs://b/a.pdf", "mime_type": "application/pdf"}},
    ]
)


def _build_call(spelt: str, name: str, id_: dict[str, str], args: Any) -> dict[str, Any]:
    return {spelt: {**id_, "name": name, "args": args}}


def _build_response(spelt: str, name: str, id_: dict[str, str], said: Any, shown: list[Any]) -> dict[str, Any]:
    return {spelt: {**id_, "name": name, "response": said, **({"parts": shown} if shown else {})}}


_DATA = st.one_of(
    st.builds(
        lambda text, thought: {"text": text, **thought}, st.text(max_size=4), st.sampled_from([{}, {"thought": True}])
    ),
    st.builds(_build_call, st.sampled_from(["functionCall", "function_call"]), _NAMES, _IDS, _OBJECTS),
    st.builds(
        _build_response,
        st.sampled_from(["functionResponse", "function_response"]),
        _NAMES,
        _IDS,
        _OBJECTS,
        st.lists(_BLOBS, max_size=1),
    ),
    _BLOBS,
    st.sampled_from([{}, {"executableCode": {"code": "1"}}, {"text": "a", "functionCall": {"name": "b"}}, "words", 5]),
)
_PARTS = st.builds(lambda data, seal: {**data, **seal} if isinstance(data, dict) else data, _DATA, _SEALS)
_CONTENTS = st.builds(
    lambda role, parts, more: {**role, "parts": parts, **more},
    st.sampled_from([{}, {"role": "user"}, {"role": "model"}]),
    st.lists(_PARTS, max_size=4),
    st.sampled_from([{}, {"x": 1}]),
)


@given(st.lists(_CONTENTS, max_size=5))
def test_encode_messages_inverts_decode_messages(wire: list[dict[str, Any]]) -> None:
    """Any list of contents survives decoding and encoding, except unknown fields of contents."""
    shown = [{"role": "user"} | {key: content[key] for key in ("role", "parts") if key in content} for content in wire]
    assert encode_messages("gemini", decode_messages("gemini", wire)) == shown


@given(_CONTENTS)
def test_encode_message_over_its_base_changes_nothing(wire: dict[str, Any]) -> None:
    """Encoded over the content it came from, a message is that content."""
    assert encode(decode(wire), wire) == [wire]


@given(_CONTENTS)
def test_encode_message_without_raw_bytes_decodes_the_same(wire: dict[str, Any]) -> None:
    """Without raw bytes a message is written so that it decodes to the same parts."""
    known = tuple(part for part in decode(wire).parts if not isinstance(part, Opaque))
    message = drop_raw_bytes(Message(decode(wire).role, known))
    again = [drop_raw_bytes(gemini.decode_message(element)) for element in gemini.encode_message(message)]
    assert [message.parts for message in again] == [message.parts]


@given(st.lists(_PARTS, min_size=1, max_size=4), st.data())
def test_encode_message_of_one_edit_keeps_all_other_bytes(parts: list[Any], data: st.DataObject) -> None:
    """With any one part edited, the bytes of every other part are in the content unchanged."""
    wires = [json.dumps(part, indent=1).encode() for part in parts]
    raw = Raw(b'{"role":"model","parts":[' + b",".join(wires) + b"]}")
    message = gemini.decode_message(raw)
    place = data.draw(st.integers(0, len(parts) - 1))
    edited = (*message.parts[:place], Text("new"), *message.parts[place + 1 :])
    (out,) = gemini.encode_message(Message(message.role, edited), raw)
    before, after = wires[:place], wires[place + 1 :]
    assert out.startswith(b'{"role":"model","parts":[' + b",".join([*before, b'{"text":"new"']))
    assert out.endswith(b",".join([b"}", *after]) + b"]}")


@given(conversation_strategy(api="gemini"))
def test_encode_messages_keeps_conversations(messages: list[Message]) -> None:
    """A conversation says the same after encoding and decoding."""
    words = [message for message in messages if message.role != "system"]
    back = decode_messages("gemini", encode_messages("gemini", words))
    assert [message.role for message in back] == [message.role for message in words]
    assert [[c.id for c in message.calls] for message in back] == [[c.id for c in message.calls] for message in words]
    assert [[r.call_id for r in message.results] for message in back] == [
        [r.call_id for r in message.results] for message in words
    ]
    assert [message.text for message in back] == [message.text for message in words]


@given(wild_history_strategy())
def test_encode_message_accepts_any_message(messages: list[Message]) -> None:
    """Whatever a message holds, it is written as contents that can be decoded."""
    wires = [wire for message in gemini.link_results_to_calls(messages) for wire in gemini.encode_message(message)]
    assert all(gemini.encode_message(gemini.decode_message(wire), Raw(wire)) for wire in wires)


def test_encode_messages_rejects_numbers_out_of_range() -> None:
    """A number that Python cannot represent keeps its digits on the wire; as dicts it is a typed error."""
    message = Message("assistant", (ToolCall("c", "ls", '{"a": 1e999}'),))
    assert b"1e999" in gemini.encode_message(message)[0]
    with pytest.raises(FormatError, match="Number out of range"):
        encode_messages("gemini", [message])


def test_digest_ignores_the_spacing_of_a_response():
    """One library writes the same conversation compactly or with spaces, streaming or not: the digest is the same."""
    compact = b'{"role":"user","parts":[{"functionResponse":{"name":"run","response":{"content":"a b","n":[1,2]}}}]}'
    spaced = json.dumps(json.loads(compact), indent=2).encode()
    first, other = (
        build_sized_message(gemini.decode_message(compact)),
        build_sized_message(gemini.decode_message(spaced)),
    )
    assert first.digest == other.digest
    assert first.message.results[0].content == other.message.results[0].content
