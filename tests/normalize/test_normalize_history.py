"""``normalize_history``, case by case: what is wrong, what is sent instead, and under which rule."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy, wild_history_strategy
from msgspec import Raw
from msgspec.structs import replace

from holdfast import apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, collect_media_in_messages, get_result_text
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.normalize import normalize_history as normalization_module
from holdfast.normalize.fast_path import is_normalized_inside
from holdfast.normalize.ids import encode_wire_id, has_only_valid_ids
from holdfast.normalize.normalize_history import normalize_history
from holdfast.normalize.parts import clean_message, clean_part
from holdfast.normalize.projection import build_messages_to_send
from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.providers.openai_responses.messages import group_items_by_message
from holdfast.providers.registry import get_api_dialect
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.state.dialect import Dialect

STRICT = Dialect("unknown")
CLAUDE = get_target("anthropic", "claude-sonnet-4-5").dialect
OPUS = get_target("anthropic", "claude-opus-5-5").dialect
CHAT = get_target("openai-chat", "gpt-5").dialect
MISTRAL = get_target("openai-chat", "mistral-large-latest").dialect
RESPONSES = get_target("openai-responses", "gpt-5.5").dialect
GEMINI = get_target("gemini", "gemini-3.1-pro-preview").dialect


def user(text="u"):
    return Message.from_text("user", text)


def assistant(text="a"):
    return Message.from_text("assistant", text)


def calls(*ids):
    return Message("assistant", tuple(ToolCall(id_, "t") for id_ in ids))


def results(*ids):
    return Message("tool", tuple(ToolResult(id_, "t", (Text(f"r {id_}"),)) for id_ in ids))


def apply_normalization(messages, dialect):
    """Return the messages with their normalization edits applied, and the rules of the edits."""
    out, cursor, rules = [], 0, []
    for edit in normalize_history(messages, dialect):
        out += messages[cursor : edit.span.start]
        out += edit.replacement
        cursor = edit.span.stop
        rules.append(edit.rule)
        assert edit.why
    return [*out, *messages[cursor:]], rules


VALID_HISTORY = [user(), calls("a", "b"), results("a", "b"), assistant(), user()]


@pytest.mark.parametrize("dialect", [STRICT, CLAUDE, OPUS, CHAT])
def test_normalize_history_returns_no_edits_for_a_valid_history(dialect):
    """A valid history gets no edits, and the fast path recognizes it as normalized."""
    assert is_normalized_inside(VALID_HISTORY, dialect)
    assert normalize_history(VALID_HISTORY, dialect) == ()
    assert normalize_history([], dialect) == ()


@given(
    conversation_strategy() | broken_history_strategy(max_damages=2) | wild_history_strategy(max_messages=4),
    st.sampled_from([STRICT, CLAUDE, OPUS, CHAT, MISTRAL, RESPONSES, GEMINI]),
)
@example([user(), calls("a", "a"), results("a", "a")], CLAUDE)
@example([user(), calls("a"), Message("user", (*results("a").parts, Text("u"), *results("a").parts))], CLAUDE)
@example([user(), calls("a"), results("a"), calls("a"), results("a")], CHAT)
def test_normalize_history_fast_path_agrees_with_the_full_passes(messages, dialect):
    """The fast path calls no history normalized in which the full passes find something to edit."""
    quick = normalize_history(messages, dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalization_module, "is_normalized_inside", lambda *_, **__: False)
        assert normalize_history(messages, dialect) == quick


PARTS = [
    *(Text(text, signature) for text in ("x", " ", "") for signature in (None, ProviderSignature("other", "", "s"))),
    *(ToolCall(id_, name, "[]") for id_ in ("c", "") for name in ("n", "n m", " ")),
    *(
        ToolResult("c", "n", content)
        for content in ((), (Text("x"),), (Text(""),), (Text("x", ProviderSignature("other", "", "s")),))
    ),
]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("dialect", [STRICT, CLAUDE, CHAT, MISTRAL, RESPONSES, GEMINI])
def test_clean_message_agrees_with_clean_part(dialect, role):
    """A message with one part comes back unchanged exactly where its part does."""
    for part in PARTS:
        message = Message(role, (part,))
        assert (clean_message(message, dialect) is message) == (clean_part(part, dialect, role) is part), part


def test_is_normalized_inside_rejects_forbidden_neighbours():
    """Mistral forbids a user message right after results, and Gemini a call right after an answer."""
    history, mistral = [user(), calls("a" * 9), results("a" * 9)], replace(MISTRAL, merges_same_role=False)
    assert is_normalized_inside([*history, assistant()], mistral)
    assert not is_normalized_inside([*history, user()], mistral)
    gemini = replace(GEMINI, requires_signed_calls=False)
    assert is_normalized_inside([user(), assistant(), user(), calls("b"), results("b")], gemini)
    assert not is_normalized_inside([user(), assistant(), calls("b"), results("b")], gemini)


def test_normalize_history_adds_user_messages_at_the_ends_where_required():
    """Where the first and last message must be a user's, one is inserted; other APIs keep the ends as they are."""
    history = [assistant("hello"), user(), assistant("bye")]
    normalized, _ = apply_normalization(history, STRICT)
    assert [message.role for message in normalized] == ["user", "assistant", "user", "assistant", "user"]
    assert apply_normalization([user(), assistant()], CLAUDE)[0] == [user(), assistant()]
    assert apply_normalization(history, CHAT)[0] == history
    history_with_system = [Message.from_text("system", "s"), assistant(), user()]
    assert [message.role for message in apply_normalization(history_with_system, CLAUDE)[0]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_normalize_history_merges_same_role_neighbours_where_required():
    """Two user messages in a row become one on a strict API and stay two on others; no text is lost."""
    history = [user("1"), user("2"), assistant("3"), assistant("4"), user("5")]
    normalized, rules = apply_normalization(history, STRICT)
    assert [[part.text for part in message.parts] for message in normalized] == [["1", "2"], ["3", "4"], ["5"]]
    assert all("merge" in rule for rule in rules)
    assert apply_normalization(history, CLAUDE)[0] == history


def test_normalize_history_drops_blank_texts_and_empty_messages():
    """Empty texts, blank texts and messages without parts are dropped where the API refuses them; Chat takes empty
    texts.
    """
    blank = Message("user", (Text(" \n"), Text("x"), Text("")))
    history = [blank, Message("assistant"), user("y"), Message.from_text("assistant", " "), user("z")]
    normalized, _ = apply_normalization(history, CLAUDE)
    assert [message.text for message in normalized] == ["x", "y", "z"]
    assert [message.text for message in apply_normalization(history, CHAT)[0]] == [blank.text, "y", " ", "z"]


def test_normalize_history_places_each_result_after_its_call():
    """Each call gets its result once, also a late or split one; an orphan result becomes a user's text."""
    history = [user(), calls("a", "b"), user("hm"), results("b"), results("x"), results("a", "b")]
    normalized, rules = apply_normalization(history, CLAUDE)
    assert [[r.call_id for r in message.results] for message in normalized] == [[], [], ["a", "b"], [], []]
    assert [message.text for message in normalized[3:]] == ["hm", "[Result of a tool call that is not here: t]\nr x"]
    assert any("pairing" in rule for rule in rules)


def test_normalize_history_adds_an_error_result_for_an_unanswered_call():
    """A call without a result gets a synthetic one that says so and is marked as an error; real results stay."""
    normalized, _ = apply_normalization([user(), calls("a", "b"), results("b"), user()], CLAUDE)
    synthetic, real = normalized[2].results
    assert (synthetic.call_id, synthetic.is_error, synthetic.content) == ("a", True, (Text(SYNTHETIC_RESULT_TEXT),))
    assert real == results("b").results[0]
    chat, _ = apply_normalization([user(), calls("a", "b"), results("b"), user()], CHAT)
    assert sorted(r.call_id for message in chat for r in message.results) == ["a", "b"]


def test_normalize_history_moves_user_text_after_the_results():
    """User text in the same message as the results is sent after them."""
    mixed = Message("user", (Text("first"), *results("a").parts, Text("last")))
    normalized, _ = apply_normalization([user(), calls("a"), mixed, assistant(), user()], CLAUDE)
    roles = [(message.role, bool(message.results), message.text) for message in normalized[2:4]]
    assert roles == [("tool", True, ""), ("user", False, "first\nlast")]
    good = Message("user", (*results("a").parts, Text("last")))
    assert normalize_history([user(), calls("a"), good, assistant(), user()], CLAUDE) == ()


@pytest.mark.parametrize("dialect", [CLAUDE, OPUS, CHAT])
def test_normalize_history_drops_malformed_calls_and_keeps_their_results_as_text(dialect):
    """A call without a name, or without both id and result, cannot be sent; its result becomes a user's text."""
    bad = Message("assistant", (Text("look"), ToolCall("", "t"), ToolCall("x", " ")))
    normalized, _ = apply_normalization([user(), bad, results("x"), user("y")], dialect)
    assert [call for message in normalized for call in message.calls] == []
    assert [r for message in normalized for r in message.results] == []
    assert [message.text for message in normalized] == [
        "u",
        "look",
        "[Result of a tool call that is not here: t]\nr x",
        "y",
    ]


@pytest.mark.parametrize("dialect", [CLAUDE, OPUS, CHAT, RESPONSES, GEMINI])
def test_normalize_history_never_pairs_the_result_of_a_nameless_call(dialect):
    """The results of a nameless call become text where they stand, each of them, whichever call has the same id
    elsewhere: ids repeat where a server numbers the calls of each answer anew.
    """
    nameless = Message("assistant", (ToolCall("x", ""),))
    history = [
        user(),
        calls("x"),
        assistant(),
        user("on"),
        nameless,
        results("x"),
        results("x"),
        assistant(),
        user("more"),
    ]
    later_steps = {
        (): [],
        (SYNTHETIC_RESULT_TEXT,): [calls("x"), user("y")],
        ("r x",): [calls("x"), results("x"), assistant(), user("y")],
    }
    for answers, step in later_steps.items():
        normalized, _ = apply_normalization([*history, *step], dialect)
        assert [get_result_text(result) for message in normalized for result in message.results] == [
            SYNTHETIC_RESULT_TEXT,
            *answers,
        ]
        assert [part.text for message in normalized if message.role == "user" for part in message.parts].count(
            "r x"
        ) == 2


@pytest.mark.parametrize("dialect", [CLAUDE, OPUS, CHAT, RESPONSES])
@pytest.mark.parametrize("count", [1, 2])
def test_normalize_history_pairs_calls_without_ids_by_order(dialect, count):
    """Servers that send no ids rely on the order: call and result are kept under a generated id that stays the same."""
    originals = [ToolResult("", "t", (Text(f"r {number}"),)) for number in range(count)]
    step = [calls(*[""] * count), *[Message("tool", (result,)) for result in originals]]
    normalized, _ = apply_normalization(
        [user(), *step, assistant(), user("more"), *step, assistant(), user("y")], dialect
    )
    results_by_id = {r.call_id: r for message in normalized for r in message.results}
    call_ids = [call.id for message in normalized for call in message.calls]
    assert [results_by_id[id_].content for id_ in call_ids[:count]] == [result.content for result in originals]
    assert [r.content for message in normalized for r in message.results] == [
        result.content for result in originals
    ] * 2
    assert "" not in call_ids
    later, _ = apply_normalization([user("more"), *step, assistant(), user("y")], dialect)
    assert dialect.unique_ids or [call.id for message in later for call in message.calls] == call_ids[count:]


@pytest.mark.parametrize("dialect", [CLAUDE, OPUS, CHAT, RESPONSES, GEMINI])
def test_normalize_history_turns_orphan_results_into_user_text(dialect):
    """An orphan result becomes a user message with all its text and media, beside what the user said there."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    stray = ToolResult("x", "", (Text("IMPORTANT"), picture))
    normalized, rules = apply_normalization([user(), assistant(), Message("user", (stray, Text("and now?")))], dialect)
    parts = [part for message in normalized[2:] for part in message.parts]
    media = [picture] if dialect.allows_media_in_results else [Text("[Attached image/png: a.png]")]
    assert parts == [Text("[Result of a tool call that is not here]"), Text("IMPORTANT"), *media, Text("and now?")]
    assert {message.role for message in normalized[2:]} == {"user"}
    assert all("pairing" in rule for rule in rules)
    empty = [ToolResult("x", "t"), ToolResult("y", "t", (Text(SYNTHETIC_RESULT_TEXT),))]
    assert apply_normalization([user(), assistant(), Message("tool", tuple(empty)), user()], dialect)[0] == [
        user(),
        assistant(),
        user(),
    ]


def test_normalize_history_maps_ids_of_call_and_result_alike():
    """An id that the API refuses is replaced by the same id in call and result; the result's content stays."""
    odd = "call|1 \u00e9"
    normalized, _ = apply_normalization([user(), calls(odd, "b"), results(odd, "b"), user()], CLAUDE)
    mapped = [call.id for call in normalized[1].calls]
    assert mapped == [encode_wire_id(odd, CLAUDE), "b"]
    assert [r.call_id for r in normalized[2].results] == mapped
    assert [r.content for r in normalized[2].results] == [r.content for r in results(odd, "b").results]


@pytest.mark.parametrize("text", ["", " ", "a b", "x" * 300, "\u00e9", "\ud83d", "a\n", "a", "x" * 9, "x" * 10])
@pytest.mark.parametrize(
    "dialect", [STRICT, CLAUDE, CHAT, Dialect("mistral", id_character_pattern="[A-Za-z0-9]", id_max=9)]
)
def test_encode_wire_id_returns_an_id_the_dialect_allows(text, dialect):
    """A mapped id uses the allowed alphabet and length; a valid id stays as it is."""
    wire_id = encode_wire_id(text, dialect)
    assert 0 < len(wire_id) <= dialect.id_max
    assert re.fullmatch(f"(?:{dialect.id_character_pattern})+", wire_id)
    assert has_only_valid_ids([wire_id, text], dialect) is (wire_id == text)


def test_clean_message_drops_unsigned_and_foreign_thinking():
    """Thinking without a signature, or with another API's, is dropped; the API's own is unchanged."""
    own, foreign, bare = (
        Thinking("1", ProviderSignature("anthropic", "", "s")),
        Thinking("2", ProviderSignature("gemini", "", "s")),
        Thinking("3"),
    )
    message = Message("assistant", (own, foreign, bare, Text("x")))
    assert clean_message(message, CLAUDE).parts == (own, Text("x"))


def test_normalize_history_drops_thinking_at_the_given_positions():
    """Thinking at a position that the caller lists as unbound is dropped; the rest of its message stays."""
    thought = Message("assistant", (Thinking("1", ProviderSignature("anthropic", "", "s")), Text("x")))
    edits = normalize_history([user(), thought, user(), thought, user()], OPUS, 0, frozenset({3}))
    assert [(edit.span.start, edit.replacement[0].parts) for edit in edits] == [(3, (Text("x"),))]
    assert edits[0].rule == "thinking-binding"


def test_normalize_history_moves_media_out_of_results_where_required():
    """Where results are text only, a line names the media and a user message shows them; elsewhere they stay, except in
    an error.
    """
    picture = Media("image", "image/png", 3, "a.png", "AAAA")

    def history(**more):
        return [user(), calls("a"), Message("tool", (ToolResult("a", "t", (Text("r"), picture), **more),)), user()]

    content_with_line = (Text("r"), Text("[Attached image/png: a.png]"))
    media_message = Message("user", (Text("(from the result of t)"), picture))
    normalized, rules = apply_normalization(history(), CHAT)
    assert normalized[2].results[0].content == content_with_line
    assert (normalized[3:], rules) == ([media_message, user()], ["result-media", "result-media"])
    assert normalize_history(history(), CLAUDE) == ()
    assert apply_normalization(history(is_error=True), CLAUDE)[0][2].results[0].content == content_with_line


@pytest.mark.parametrize("dialect", [CHAT, MISTRAL, get_target("openai-chat", "qwen3-vl").dialect])
def test_normalize_history_shows_media_after_all_results_of_a_batch(dialect):
    """No message separates the results of a batch: their media follow once after the last one, and normalizing again
    changes nothing.
    """
    first_picture, second_picture = (Media("image", "image/png", 3, name, "AAAA") for name in ("1.png", "2.png"))
    result_messages = [
        Message("tool", (ToolResult("a12345678", "t", (first_picture,)),)),
        Message("tool", (ToolResult("b12345678", "t", (Text("r"),)),)),
        Message("tool", (ToolResult("c12345678", "t", (second_picture,)),)),
    ]
    normalized, _ = apply_normalization(
        [user(), calls("a12345678", "b12345678", "c12345678"), *result_messages, assistant(), user()], dialect
    )
    parts = [type(part) for message in normalized[2:] for part in message.parts if type(part) is not Text]
    assert parts == [ToolResult] * 3 + [Media] * 2
    assert collect_media_in_messages(*normalized) == [first_picture, second_picture]
    assert normalize_history(normalized, dialect) == ()


def test_normalize_history_turns_inner_system_messages_into_user_messages():
    """Where no system message may stand between others, a user message has its text and media; a leading one stays."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    inside = Message("system", (Text("be brief"), picture))
    history = [Message.from_text("system", "s"), user(), inside, assistant(), user()]
    normalized, rules = apply_normalization(history, CLAUDE)
    assert [message.role for message in normalized] == ["system", "user", "user", "assistant", "user"]
    assert "[System message]" in normalized[2].text
    assert "be brief" in normalized[2].text
    assert picture in normalized[2].parts
    assert rules == ["system"]
    assert normalize_history([history[0], user(), Message.from_text("system", "be brief"), assistant()], CHAT) == ()
    unknown = [user(), Message("system", (Opaque("message"),)), assistant(), user()]
    assert apply_normalization(unknown, CLAUDE)[0] == unknown


def test_normalize_history_returns_ordered_disjoint_edits():
    """Edits are in order and never overlap, one for each wrong place, with spans counted from the given start."""
    history = [user(), Message.from_text("assistant", " "), user(), calls("a"), user()]
    edits = normalize_history(history, CLAUDE, 10)
    assert [(edit.span.start, edit.span.stop) for edit in edits] == [(11, 12), (14, 14)]
    spans = [(edit.span.start, edit.span.stop) for edit in normalize_history(history, STRICT)]
    assert spans == sorted(spans)
    assert all(span[1] <= next_span[0] for span, next_span in itertools.pairwise(spans))


SYSTEM = Message.from_text("system", "be brief")


@pytest.mark.parametrize(
    "history",
    [
        [user(), SYSTEM, assistant(), user()],
        [user(), assistant(), SYSTEM, user()],
        [user(), SYSTEM, SYSTEM, assistant(), user()],
        [user(), SYSTEM, user()],
        [user(), assistant(), user(), SYSTEM],
        [user(), calls("a"), SYSTEM, results("a"), user()],
        [user(" "), SYSTEM, user()],
    ],
)
@pytest.mark.parametrize("model", ["claude-opus-5-0", "claude-opus-4-8", "claude-opus-5-5"])
def test_plan_places_system_messages_where_the_model_allows_them(history, model):
    """A system message may follow a user message and precede the assistant or the end on models that allow it;
    elsewhere it becomes user text.
    """
    target = get_target("anthropic", model, window=100_000)
    planned = plan(history, target)
    problems = validate_request(
        build_request_body(target.api, target.model, build_messages_to_send(planned), options=planned.options),
        "anthropic",
    )
    assert [problem for problem in problems if problem.level == "error"] == []
    assert sum("be brief" in message.text for message in apply(history, planned)) == history.count(SYSTEM)


@pytest.mark.parametrize("id_", ["functions.read:0", "call|fc_1", "tooluse.A+b/c="])
def test_normalize_history_keeps_any_id_on_chat_completions(id_):
    """fix-is-idempotent: Chat Completions has no alphabet for ids, so servers that number calls in their own way get
    their ids back.
    """
    assert normalize_history([user(), calls(id_), results(id_), user()], CHAT) == ()


# -- calls and results of server tools ---------------------------------------------------------------------------------


def build_server_part(kind, id_="s1"):
    return Opaque(kind, Raw(b'{"type":"%s"}' % kind.encode()), ProviderSignature("anthropic", "", id_))


SERVER_CALL, SERVER_RESULT = build_server_part("server_tool_use"), build_server_part("web_search_tool_result")


def answer(*parts):
    return Message("assistant", parts)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((SERVER_CALL, SERVER_RESULT, Text("x")), (SERVER_CALL, SERVER_RESULT, Text("x"))),
        ((SERVER_CALL, Text("x")), (Text("x"),)),
        ((SERVER_RESULT, Text("x")), (Text("x"),)),
        ((SERVER_RESULT, SERVER_CALL, Text("x")), (Text("x"),)),
        ((SERVER_CALL, build_server_part("web_search_tool_result", "s2"), Text("x")), (Text("x"),)),
        ((SERVER_CALL, SERVER_RESULT, SERVER_CALL, Text("x")), (SERVER_CALL, SERVER_RESULT, Text("x"))),
    ],
)
def test_normalize_history_drops_unpaired_server_calls_and_results(parts, expected):
    """A server call needs its result after it and a result its call before it; a repeated call is always dropped."""
    assert apply_normalization([user(), answer(*parts), user()], CLAUDE)[0] == [user(), answer(*expected), user()]


def test_normalize_history_keeps_a_server_call_that_ends_the_history():
    """The last answer may end in a server call, which is resumed: no user message is added after it."""
    for dialect in (CLAUDE, OPUS):
        assert normalize_history([user(), answer(Text("x"), SERVER_CALL)], dialect) == ()
    assert apply_normalization([user(), answer(Text("x"), SERVER_CALL), user()], OPUS)[0][1] == answer(Text("x"))


def test_normalize_history_accepts_a_server_result_in_a_later_answer():
    """Code on a server that called a client's tool gets its result in a later answer."""
    call = ToolCall("t1", "read", "{}", ProviderSignature("anthropic", "", "s1"))
    history = [user(), answer(SERVER_CALL, call), results("t1"), answer(SERVER_RESULT, Text("x")), user()]
    assert normalize_history(history, CLAUDE) == ()


def test_normalize_history_renames_a_client_call_with_a_server_calls_id():
    """The ids of client and server calls share one space on Anthropic."""
    normalized, _ = apply_normalization(
        [user(), answer(SERVER_CALL, SERVER_RESULT), user(), calls("s1"), results("s1"), user()], CLAUDE
    )
    assert normalized[3].calls[0].id == normalized[4].results[0].call_id != "s1"


# -- ids, orders, budgets ----------------------------------------------------------------------------------------------


def test_normalize_history_makes_ids_unique_within_a_joined_answer():
    """Answers that the API reads as one share no id, also where ids need only be unique within a message."""
    dialect = replace(CLAUDE, server_joins_same_role=False, unique_ids=False)
    separate = [user(), calls("a"), results("a"), calls("a"), results("a"), user()]
    adjacent = [user(), calls("a"), calls("a"), results("a", "a"), user()]
    assert is_normalized_inside(separate, dialect)
    assert is_normalized_inside(separate, replace(dialect, server_joins_same_role=True))
    assert not is_normalized_inside(adjacent, replace(dialect, server_joins_same_role=True))
    normalized, rules = apply_normalization(adjacent, replace(dialect, server_joins_same_role=True))
    assert len({call.id for message in normalized for call in message.calls}) == 2
    assert rules == ["call-id", "call-id"]


def test_normalize_history_maps_mistral_ids_to_nine_characters():
    """Mistral takes nine letters and digits; an id that already fits stays."""
    normalized, _ = apply_normalization(
        [user(), calls("call_1", "abcDEF123"), results("call_1", "abcDEF123"), user()], MISTRAL
    )
    ids = [call.id for call in normalized[1].calls]
    assert ids[1] == "abcDEF123"
    assert re.fullmatch("[a-zA-Z0-9]{9}", ids[0])
    assert [r.call_id for message in normalized for r in message.results] == ids


def test_normalize_history_inserts_an_answer_after_results_on_mistral():
    """Mistral refuses a user message right after results, so an assistant message is inserted between them."""
    history = [user(), calls("abcDEF123"), results("abcDEF123"), user("and?")]
    normalized, rules = apply_normalization(history, MISTRAL)
    assert [message.role for message in normalized] == ["user", "assistant", "tool", "assistant", "user"]
    assert rules == ["answer"]
    assert normalize_history(history, CHAT) == ()
    assert normalize_history(normalized, MISTRAL) == ()


def test_normalize_history_prefers_a_real_result_to_a_synthetic_one():
    """A synthetic result that came back with the history gives way to the real one that came late."""
    synthetic = Message("tool", (ToolResult("a", "t", (Text(SYNTHETIC_RESULT_TEXT),), is_error=True),))
    for dialect in (CLAUDE, CHAT, RESPONSES, GEMINI):
        normalized, _ = apply_normalization([user(), calls("a"), synthetic, user("x"), results("a"), user()], dialect)
        assert [r.content for message in normalized for r in message.results] == [results("a").results[0].content]


def test_normalize_history_moves_an_early_result_after_its_call():
    """A result before its call is used for it; one whose id two calls of one answer share is used for neither."""
    normalized, _ = apply_normalization([user(), results("a"), calls("a"), user()], CLAUDE)
    assert normalized[2] == results("a")
    normalized, _ = apply_normalization(
        [user(), results("a"), calls("a"), results("a"), user("x"), calls("a"), user()], CLAUDE
    )
    assert [SYNTHETIC_RESULT_TEXT in str(r) for message in normalized for r in message.results] == [False, True]
    normalized, _ = apply_normalization([user(), results("a"), calls("a", "a"), user()], CLAUDE)
    assert [SYNTHETIC_RESULT_TEXT in str(r) for message in normalized for r in message.results] == [True, True]


@pytest.mark.parametrize("dialect", [CLAUDE, CHAT, RESPONSES, GEMINI])
def test_normalize_history_keeps_earlier_results_when_an_id_is_reused(dialect):
    """prefix-only-grows: if a server counts from call_0 in each answer, the result shown for the first call stays."""
    synthetic, late = Message("tool", (ToolResult("a", "t", (Text(SYNTHETIC_RESULT_TEXT),)),)), results("a")
    another_result = Message("tool", (ToolResult("a", "t", (Text("another"),)),))
    for history in ([user(), calls("a"), synthetic, user(), late], [user(), late, calls("a"), user()]):
        before_reuse, _ = apply_normalization([*history, assistant()], dialect)
        after_reuse, _ = apply_normalization(
            [*history, assistant(), user(), calls("a"), synthetic, user(), another_result, user()], dialect
        )
        assert [get_result_text(r) for message in before_reuse for r in message.results] == ["r a"]
        assert [get_result_text(r) for message in after_reuse for r in message.results] == ["r a", "another"]


def test_normalize_history_leaves_neighbours_that_anthropic_joins():
    """Anthropic merges neighbours itself: calls and results spread over several messages are valid as they are."""
    history = [user(), calls("a"), calls("b"), results("b"), results("a"), user("x"), assistant(), user()]
    assert normalize_history(history, CLAUDE) == ()
    assert normalize_history(history, CHAT) != ()


def test_normalize_history_leaves_late_results_on_responses():
    """Responses accepts a late result where it stands; a missing one is added right after its call."""
    history = [user(), calls("a"), user("x"), results("a"), user()]
    assert normalize_history(history, RESPONSES) == ()
    normalized, _ = apply_normalization([user(), calls("a", "b"), user("x"), results("a"), user()], RESPONSES)
    assert [(message.role, [r.call_id for r in message.results]) for message in normalized[2:5]] == [
        ("tool", ["b"]),
        ("user", []),
        ("tool", ["a"]),
    ]


def test_normalize_history_keeps_results_of_calls_stored_on_the_server():
    """Where part of the history is stored on the server, a result without a call is no orphan."""
    history = [results("x"), user()]
    assert not any(message.results for message in apply_normalization(history, RESPONSES)[0])
    assert apply_normalization(history, replace(RESPONSES, has_server_history=True))[0] == history


def test_normalize_history_joins_split_answers_and_results_on_gemini():
    """Gemini takes a call in one content with the text before it, and all its results in one content."""
    history = [user(), assistant("look"), calls("a", "b"), results("a"), results("b"), user()]
    normalized, _ = apply_normalization(history, replace(GEMINI, requires_signed_calls=False))
    assert [message.role for message in normalized] == ["user", "assistant", "tool", "user"]
    assert normalized[1].text == "look"
    assert [r.call_id for r in normalized[2].results] == ["a", "b"]


def test_normalize_history_replaces_the_oldest_media_over_the_limit():
    """media-budget: over the image count or byte limit, a line of text replaces the oldest media, and no more than
    needed.
    """
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    history = [Message("user", (Text(f"{number}"), picture)) for number in range(5)]
    normalized, rules = apply_normalization(history, replace(CLAUDE, max_images=3))
    assert [picture in message.parts for message in normalized] == [False, False, True, True, True]
    assert rules == ["media-budget"] * 2
    large = Media("image", "image/png", 300, "a.png", "A" * 400)
    history = [Message("user", (Text(f"{number}"), large)) for number in range(5)]
    normalized, _ = apply_normalization(history, replace(CLAUDE, max_bytes=1_000))
    assert [large in message.parts for message in normalized] == [False, False, False, True, True]


def test_normalize_history_keeps_the_media_of_the_newest_message():
    """The media of the newest message stay; if they alone exceed the limit nothing is replaced, and the provider
    decides.
    """
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    few = replace(CLAUDE, max_images=3)
    history = [Message("user", (Text("a"), picture)), assistant("so"), Message("user", (Text("b"), *[picture] * 3))]
    normalized, rules = apply_normalization(history, few)
    assert ([len(collect_media_in_messages(message)) for message in normalized], rules) == ([0, 0, 3], ["media-budget"])
    history[-1] = Message("user", (Text("b"), *[picture] * 4))
    assert apply_normalization(history, few) == (history, [])


@pytest.mark.parametrize("dialect", [CLAUDE, CHAT, RESPONSES, GEMINI])
def test_normalize_history_replaces_foreign_parts(dialect):
    """A foreign part becomes a line of text in a user message and is dropped from an assistant message."""
    stranger = Opaque("toolResult", Raw(b'{"type":"toolResult"}'))
    normalized, _ = apply_normalization(
        [Message("user", (Text("a"), stranger)), answer(Text("b"), stranger), user()], dialect
    )
    assert normalized[0].parts == (Text("a"), Text("[Attached toolResult]"))
    assert normalized[1] == assistant("b")


def test_normalize_history_drops_tool_changes_where_not_allowed():
    """A system message that changes tools is dropped where the model takes none; its text becomes user text."""
    change = Opaque("tool_addition", Raw(b'{"type":"tool_addition"}'))
    inside = Message("system", (Text("now with"), change))
    normalized, _ = apply_normalization([user(), inside, assistant(), user()], CLAUDE)
    assert normalized[1].text == "[System message]\nnow with"
    assert apply_normalization([user(), Message("system", (change,)), assistant(), user()], CLAUDE)[0] == [
        user(),
        assistant(),
        user(),
    ]
    supporting = get_target("anthropic", "claude-opus-5-0").dialect
    assert normalize_history([user(), inside, assistant(), user()], supporting) == ()


def test_normalize_history_keeps_option_messages_where_allowed():
    """A system message that only sets options is not empty; it is dropped where no system message may stand."""
    options = Message("system", (Opaque("options", Raw(b'{"role":"system","output_config":{"effort":"high"}}')),))
    supporting = get_target("anthropic", "claude-opus-5-5").dialect
    assert normalize_history([user(), options, assistant(), user(), options], supporting) == ()
    assert apply_normalization([user(), options, user(), assistant(), user()], supporting)[0] == [
        user(),
        user(),
        assistant(),
        user(),
    ]
    assert apply_normalization([user(), options, assistant(), user(), options], CLAUDE)[0] == [
        user(),
        assistant(),
        user(),
    ]


def test_normalize_history_asks_to_go_on_if_nothing_is_left():
    """If no message may be sent, a user message asks the model to go on; an empty history stays empty."""
    normalized, _ = apply_normalization([results("x")], CLAUDE)
    assert [message.role for message in normalized] == ["user"]
    assert normalize_history([], CLAUDE) == ()


# -- calls that are answered in a later request ------------------------------------------------------------------------


def build_async_history(*after):
    call = {"type": "function_call", "call_id": "c1", "name": "build", "arguments": "{}", "async": True}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It runs."}]}
    items = [{"role": "user", "content": "Build it."}, call, said, {"role": "user", "content": "Meanwhile?"}, *after]
    raws = [Raw(json.dumps(item).encode()) for item in items]
    return [message for _, _, message in group_items_by_message(raws)]


def test_normalize_history_leaves_an_async_call_open():
    """A call with ``async`` may wait for its output over many turns, so no result is made up for it."""
    dialect = get_api_dialect("openai-responses", "gpt-6-sol")
    assert normalize_history(build_async_history(), dialect) == ()
    output = {"type": "function_call_output", "call_id": "c1", "output": "built"}
    assert normalize_history(build_async_history(output), dialect) == ()


def test_normalize_history_answers_an_open_call_beside_an_async_one():
    """Only the call that has to be answered gets a result."""
    call = {"type": "function_call", "call_id": "c2", "name": "ls", "arguments": "{}"}
    history = build_async_history(call, {"role": "user", "content": "And?"})
    [edit] = normalize_history(history, get_api_dialect("openai-responses", "gpt-6-sol"))
    assert [result.call_id for message in edit.replacement for result in message.results] == ["c2"]
