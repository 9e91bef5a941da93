"""Repairs, case by case: what is wrong, what is sent, and under which rule."""

from __future__ import annotations

import itertools
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
from holdfast.normalize.pairing import SYNTHETIC_RESULT_TEXT
from holdfast.normalize.parts import clean_message, clean_part
from holdfast.normalize.projection import build_messages_to_send
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.state.dialect import Dialect

STRICT = Dialect("unknown")
CLAUDE = get_target("anthropic", "claude-sonnet-4-5").dialect
NEW = get_target("anthropic", "claude-opus-5-5").dialect
CHAT = get_target("openai-chat", "gpt-5").dialect
MISTRAL = get_target("openai-chat", "mistral-large-latest").dialect
RESPONSES = get_target("openai-responses", "gpt-5.5").dialect
GEMINI = get_target("gemini", "gemini-3.1-pro-preview").dialect


def user(text="u"):
    return Message.from_text("user", text)


def words(text="a"):
    return Message.from_text("assistant", text)


def calls(*ids):
    return Message("assistant", tuple(ToolCall(id_, "t") for id_ in ids))


def results(*ids):
    return Message("tool", tuple(ToolResult(id_, "t", (Text(f"r {id_}"),)) for id_ in ids))


def repaired(messages, dialect):
    """Return the messages with their repairs applied, and the rules that made them."""
    out, cursor, rules = [], 0, []
    for edit in normalize_history(messages, dialect):
        out += messages[cursor : edit.span.start]
        out += edit.replacement
        cursor = edit.span.stop
        rules.append(edit.rule)
        assert edit.why
    return [*out, *messages[cursor:]], rules


SOUND = [user(), calls("a", "b"), results("a", "b"), words(), user()]


@pytest.mark.parametrize("dialect", [STRICT, CLAUDE, NEW, CHAT])
def test_a_sound_history_is_tidy(dialect):
    """Nothing is wrong, nothing is edited."""
    assert is_normalized_inside(SOUND, dialect)
    assert normalize_history(SOUND, dialect) == ()
    assert normalize_history([], dialect) == ()


@given(
    conversation_strategy() | broken_history_strategy(max_wounds=2) | wild_history_strategy(max_messages=4),
    st.sampled_from([STRICT, CLAUDE, NEW, CHAT, MISTRAL, RESPONSES, GEMINI]),
)
@example([user(), calls("a", "a"), results("a", "a")], CLAUDE)
@example([user(), calls("a"), Message("user", (*results("a").parts, Text("u"), *results("a").parts))], CLAUDE)
@example([user(), calls("a"), results("a"), calls("a"), results("a")], CHAT)
def test_what_is_tidy_is_not_repaired(messages, dialect):
    """One look at each message says of no history that it is fine where the passes find something to repair."""
    quick = normalize_history(messages, dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalization_module, "is_normalized_inside", lambda *_, **__: False)
        assert normalize_history(messages, dialect) == quick


PARTS = [
    *(Text(text, seal) for text in ("x", " ", "") for seal in (None, ProviderSignature("other", "", "s"))),
    *(ToolCall(id_, name, "[]") for id_ in ("c", "") for name in ("n", "n m", " ")),
    *(
        ToolResult("c", "n", content)
        for content in ((), (Text("x"),), (Text(""),), (Text("x", ProviderSignature("other", "", "s")),))
    ),
]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("dialect", [STRICT, CLAUDE, CHAT, MISTRAL, RESPONSES, GEMINI])
def test_a_message_is_fine_where_its_part_is(dialect, role):
    """A message of one part comes back as it is just where the part does."""
    for part in PARTS:
        message = Message(role, (part,))
        assert (clean_message(message, dialect) is message) == (clean_part(part, dialect, role) is part), part


def test_who_may_not_stand_behind_whom():
    """Nobody speaks right behind results on Mistral, and no call stands behind an answer on Gemini: neither is tidy."""
    asked, mistral = [user(), calls("a" * 9), results("a" * 9)], replace(MISTRAL, merges_same_role=False)
    assert is_normalized_inside([*asked, words()], mistral)
    assert not is_normalized_inside([*asked, user()], mistral)
    gemini = replace(GEMINI, requires_signed_calls=False)
    assert is_normalized_inside([user(), words(), user(), calls("b"), results("b")], gemini)
    assert not is_normalized_inside([user(), words(), calls("b"), results("b")], gemini)


def test_roles_at_the_ends():
    """Where a user must start and end, somebody says so in the user's name; elsewhere the ends stay."""
    history = [words("hello"), user(), words("bye")]
    sent, _ = repaired(history, STRICT)
    assert [one.role for one in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert repaired([user(), words()], CLAUDE)[0] == [user(), words()]
    assert repaired(history, CHAT)[0] == history
    behind = [Message.from_text("system", "s"), words(), user()]
    assert [one.role for one in repaired(behind, CLAUDE)[0]] == ["system", "user", "assistant", "user"]


def test_neighbours_are_merged_where_that_is_wanted():
    """Two users in a row become one message on a strict API and stay two on others; no words are lost."""
    history = [user("1"), user("2"), words("3"), words("4"), user("5")]
    sent, rules = repaired(history, STRICT)
    assert [[part.text for part in one.parts] for one in sent] == [["1", "2"], ["3", "4"], ["5"]]
    assert all("merge" in rule for rule in rules)
    assert repaired(history, CLAUDE)[0] == history


def test_blank_things_go():
    """Empty texts, blank ones and messages without parts go where the API refuses them; Chat takes empty texts."""
    blank = Message("user", (Text(" \n"), Text("x"), Text("")))
    history = [blank, Message("assistant"), user("y"), Message.from_text("assistant", " "), user("z")]
    sent, _ = repaired(history, CLAUDE)
    assert [one.text for one in sent] == ["x", "y", "z"]
    assert [one.text for one in repaired(history, CHAT)[0]] == [blank.text, "y", " ", "z"]


def test_results_are_put_behind_their_calls():
    """Late, split and foreign results: each call gets its own, once; what nobody asked for is told by the user."""
    history = [user(), calls("a", "b"), user("hm"), results("b"), results("x"), results("a", "b")]
    sent, rules = repaired(history, CLAUDE)
    assert [[r.call_id for r in one.results] for one in sent] == [[], [], ["a", "b"], [], []]
    assert [one.text for one in sent[3:]] == ["hm", "[Result of a tool call that is not here: t]\nr x"]
    assert any("pairing" in rule for rule in rules)


def test_a_missing_result_is_made_up_as_an_error():
    """A call without a result gets one that says so and is marked as an error; other results stay real."""
    sent, _ = repaired([user(), calls("a", "b"), results("b"), user()], CLAUDE)
    made, real = sent[2].results
    assert (made.call_id, made.is_error, made.content) == ("a", True, (Text(SYNTHETIC_RESULT_TEXT),))
    assert real == results("b").results[0]
    chat, _ = repaired([user(), calls("a", "b"), results("b"), user()], CHAT)
    assert sorted(r.call_id for one in chat for r in one.results) == ["a", "b"]


def test_words_between_results_stand_behind_them():
    """A user who spoke in the message of the results is heard after them."""
    mixed = Message("user", (Text("first"), *results("a").parts, Text("last")))
    sent, _ = repaired([user(), calls("a"), mixed, words(), user()], CLAUDE)
    roles = [(one.role, bool(one.results), one.text) for one in sent[2:4]]
    assert roles == [("tool", True, ""), ("user", False, "first\nlast")]
    good = Message("user", (*results("a").parts, Text("last")))
    assert normalize_history([user(), calls("a"), good, words(), user()], CLAUDE) == ()


@pytest.mark.parametrize("dialect", [CLAUDE, NEW, CHAT])
def test_malformed_calls_go(dialect):
    """A call without a name cannot be sent, nor can one that has no id and no result; what was given back is told."""
    bad = Message("assistant", (Text("look"), ToolCall("", "t"), ToolCall("x", " ")))
    sent, _ = repaired([user(), bad, results("x"), user("y")], dialect)
    assert [call for one in sent for call in one.calls] == []
    assert [r for one in sent for r in one.results] == []
    assert [one.text for one in sent] == ["u", "look", "[Result of a tool call that is not here: t]\nr x", "y"]


@pytest.mark.parametrize("dialect", [CLAUDE, NEW, CHAT, RESPONSES, GEMINI])
def test_what_a_call_without_a_name_gave_back_answers_no_other(dialect):
    """It is told where it stands, as often as it came, whoever calls by its id before or behind, and never taken back.

    Ids repeat where a server numbers the calls of each answer anew.
    """
    nameless = Message("assistant", (ToolCall("x", ""),))
    history = [user(), calls("x"), words(), user("on"), nameless, results("x"), results("x"), words(), user("more")]
    later = {
        (): [],
        (SYNTHETIC_RESULT_TEXT,): [calls("x"), user("y")],
        ("r x",): [calls("x"), results("x"), words(), user("y")],
    }
    for answers, step in later.items():
        sent, _ = repaired([*history, *step], dialect)
        assert [get_result_text(result) for one in sent for result in one.results] == [SYNTHETIC_RESULT_TEXT, *answers]
        assert [part.text for one in sent if one.role == "user" for part in one.parts].count("r x") == 2


@pytest.mark.parametrize("dialect", [CLAUDE, NEW, CHAT, RESPONSES])
@pytest.mark.parametrize("count", [1, 2])
def test_calls_without_ids_are_answered_in_their_order(dialect, count):
    """Servers that send no ids count on the order: call and result are kept, under an id that stays what it is."""
    given = [ToolResult("", "t", (Text(f"r {number}"),)) for number in range(count)]
    step = [calls(*[""] * count), *[Message("tool", (one,)) for one in given]]
    sent, _ = repaired([user(), *step, words(), user("more"), *step, words(), user("y")], dialect)
    told = {r.call_id: r for one in sent for r in one.results}
    asked = [call.id for one in sent for call in one.calls]
    assert [told[id_].content for id_ in asked[:count]] == [one.content for one in given]
    assert [r.content for one in sent for r in one.results] == [one.content for one in given] * 2
    assert "" not in asked
    later, _ = repaired([user("more"), *step, words(), user("y")], dialect)
    assert dialect.unique_ids or [call.id for one in later for call in one.calls] == asked[count:]


@pytest.mark.parametrize("dialect", [CLAUDE, NEW, CHAT, RESPONSES, GEMINI])
def test_a_result_without_its_call_is_told_by_the_user(dialect):
    """Nothing is lost of what stands in the newest turn, nor of what the user said beside it; pictures too."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    stray = ToolResult("x", "", (Text("IMPORTANT"), picture))
    sent, rules = repaired([user(), words(), Message("user", (stray, Text("and now?")))], dialect)
    shown = [part for one in sent[2:] for part in one.parts]
    media = [picture] if dialect.allows_media_in_results else [Text("[Attached image/png: a.png]")]
    assert shown == [Text("[Result of a tool call that is not here]"), Text("IMPORTANT"), *media, Text("and now?")]
    assert {one.role for one in sent[2:]} == {"user"}
    assert all("pairing" in rule for rule in rules)
    empty = [ToolResult("x", "t"), ToolResult("y", "t", (Text(SYNTHETIC_RESULT_TEXT),))]
    assert repaired([user(), words(), Message("tool", tuple(empty)), user()], dialect)[0] == [user(), words(), user()]


def test_ids_are_mapped_with_their_results():
    """An id the API refuses is another one in the request, the same in call and result; results keep their words."""
    odd = "call|1 \u00e9"
    sent, _ = repaired([user(), calls(odd, "b"), results(odd, "b"), user()], CLAUDE)
    mapped = [call.id for call in sent[1].calls]
    assert mapped == [encode_wire_id(odd, CLAUDE), "b"]
    assert [r.call_id for r in sent[2].results] == mapped
    assert [r.content for r in sent[2].results] == [r.content for r in results(odd, "b").results]


@pytest.mark.parametrize("text", ["", " ", "a b", "x" * 300, "\u00e9", "\ud83d", "a\n", "a", "x" * 9, "x" * 10])
@pytest.mark.parametrize("dialect", [STRICT, CLAUDE, CHAT, Dialect("mistral", id_pattern="[A-Za-z0-9]", id_max=9)])
def test_mapped_ids_are_sendable(text, dialect):
    """A mapped id has letters of the alphabet only, at least one, and no more than allowed; others are their own."""
    made = encode_wire_id(text, dialect)
    assert 0 < len(made) <= dialect.id_max
    assert re.fullmatch(f"(?:{dialect.id_pattern})+", made)
    assert has_only_valid_ids([made, text], dialect) is (made == text)


def test_thinking_goes_only_to_its_own_api():
    """Thinking without a seal, or with another API's, stays behind; our own is not touched."""
    own, other, bare = (
        Thinking("1", ProviderSignature("anthropic", "", "s")),
        Thinking("2", ProviderSignature("gemini", "", "s")),
        Thinking("3"),
    )
    message = Message("assistant", (own, other, bare, Text("x")))
    assert clean_message(message, CLAUDE).parts == (own, Text("x"))


def test_loose_thinking_goes():
    """Thinking at a position that is told to be loose goes, the rest of its message stays."""
    thought = Message("assistant", (Thinking("1", ProviderSignature("anthropic", "", "s")), Text("x")))
    found = normalize_history([user(), thought, user(), thought, user()], NEW, 0, frozenset({3}))
    assert [(edit.span.start, edit.replacement[0].parts) for edit in found] == [(3, (Text("x"),))]
    assert found[0].rule == "thinking-binding"


def test_media_in_results():
    """Where results are text only, a line names media, and a user shows them; elsewhere they stay but in an error."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")

    def history(**more):
        return [user(), calls("a"), Message("tool", (ToolResult("a", "t", (Text("r"), picture), **more),)), user()]

    named = (Text("r"), Text("[Attached image/png: a.png]"))
    shown = Message("user", (Text("(from the result of t)"), picture))
    sent, rules = repaired(history(), CHAT)
    assert sent[2].results[0].content == named
    assert (sent[3:], rules) == ([shown, user()], ["result-media", "result-media"])
    assert normalize_history(history(), CLAUDE) == ()
    assert repaired(history(is_error=True), CLAUDE)[0][2].results[0].content == named


@pytest.mark.parametrize("dialect", [CHAT, MISTRAL, get_target("openai-chat", "qwen3-vl").dialect])
def test_a_user_shows_the_media_of_a_batch_behind_it(dialect):
    """Nothing stands between the results of a batch; what came of it is sent once, and repairs to itself."""
    one, two = (Media("image", "image/png", 3, name, "AAAA") for name in ("1.png", "2.png"))
    given = [
        Message("tool", (ToolResult("a12345678", "t", (one,)),)),
        Message("tool", (ToolResult("b12345678", "t", (Text("r"),)),)),
        Message("tool", (ToolResult("c12345678", "t", (two,)),)),
    ]
    sent, _ = repaired([user(), calls("a12345678", "b12345678", "c12345678"), *given, words(), user()], dialect)
    parts = [type(part) for message in sent[2:] for part in message.parts if type(part) is not Text]
    assert parts == [ToolResult] * 3 + [Media] * 2
    assert collect_media_in_messages(*sent) == [one, two]
    assert normalize_history(sent, dialect) == ()


def test_system_messages_inside():
    """Where no system message may stand between others, it is told as the user's, media too; at the start it stays."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    inside = Message("system", (Text("be brief"), picture))
    history = [Message.from_text("system", "s"), user(), inside, words(), user()]
    sent, rules = repaired(history, CLAUDE)
    assert [one.role for one in sent] == ["system", "user", "user", "assistant", "user"]
    assert "[System message]" in sent[2].text
    assert "be brief" in sent[2].text
    assert picture in sent[2].parts
    assert rules == ["system"]
    assert normalize_history([history[0], user(), Message.from_text("system", "be brief"), words()], CHAT) == ()
    unknown = [user(), Message("system", (Opaque("message"),)), words(), user()]
    assert repaired(unknown, CLAUDE)[0] == unknown


def test_a_repair_has_its_place():
    """Edits stand in order and apart, one for each place that is wrong, counted from where the list begins."""
    history = [user(), Message.from_text("assistant", " "), user(), calls("a"), user()]
    found = normalize_history(history, CLAUDE, 10)
    assert [(edit.span.start, edit.span.stop) for edit in found] == [(11, 12), (14, 14)]
    spans = [(edit.span.start, edit.span.stop) for edit in normalize_history(history, STRICT)]
    assert spans == sorted(spans)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


SYSTEM = Message.from_text("system", "be brief")


@pytest.mark.parametrize(
    "history",
    [
        [user(), SYSTEM, words(), user()],
        [user(), words(), SYSTEM, user()],
        [user(), SYSTEM, SYSTEM, words(), user()],
        [user(), SYSTEM, user()],
        [user(), words(), user(), SYSTEM],
        [user(), calls("a"), SYSTEM, results("a"), user()],
        [user(" "), SYSTEM, user()],
    ],
)
@pytest.mark.parametrize("model", ["claude-opus-5-0", "claude-opus-4-8", "claude-opus-5-5"])
def test_system_messages_stand_where_the_api_takes_them(history, model):
    """Behind a user and before the assistant or at the end, on models that take them; elsewhere they are told."""
    where = get_target("anthropic", model, window=100_000)
    made = plan(history, where)
    found = validate_request(
        build_request_body(where.api, where.model, build_messages_to_send(made), options=made.options), "anthropic"
    )
    assert [one for one in found if one.level == "error"] == []
    assert sum("be brief" in one.text for one in apply(history, made)) == history.count(SYSTEM)


@pytest.mark.parametrize("id_", ["functions.read:0", "call|fc_1", "tooluse.A+b/c="])
def test_ids_that_chat_takes_stay(id_):
    """fix-is-idempotent: Chat Completions has no alphabet for ids; servers that number calls in their own way get them
    back.
    """
    assert normalize_history([user(), calls(id_), results(id_), user()], CHAT) == ()


# -- what a server's tool was asked and gave back ----------------------------------------------------------------------


def server(kind, id_="s1"):
    return Opaque(kind, Raw(b'{"type":"%s"}' % kind.encode()), ProviderSignature("anthropic", "", id_))


USE, GIVEN = server("server_tool_use"), server("web_search_tool_result")


def answer(*parts):
    return Message("assistant", parts)


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ((USE, GIVEN, Text("x")), (USE, GIVEN, Text("x"))),
        ((USE, Text("x")), (Text("x"),)),
        ((GIVEN, Text("x")), (Text("x"),)),
        ((GIVEN, USE, Text("x")), (Text("x"),)),
        ((USE, server("web_search_tool_result", "s2"), Text("x")), (Text("x"),)),
        ((USE, GIVEN, USE, Text("x")), (USE, GIVEN, Text("x"))),
    ],
)
def test_a_server_call_and_its_result_stand_together(parts, kept):
    """A server's call goes without its result behind it, a result without its call before it, a second call always."""
    assert repaired([user(), answer(*parts), user()], CLAUDE)[0] == [user(), answer(*kept), user()]


def test_a_paused_answer_is_sent_as_it_is():
    """The last answer may end in a server's call: it is resumed, and no user speaks behind it."""
    for dialect in (CLAUDE, NEW):
        assert normalize_history([user(), answer(Text("x"), USE)], dialect) == ()
    assert repaired([user(), answer(Text("x"), USE), user()], NEW)[0][1] == answer(Text("x"))


def test_a_server_call_may_wait_for_a_client():
    """Code on a server that called a client's tool gets its result in a later answer."""
    call = ToolCall("t1", "read", "{}", ProviderSignature("anthropic", "", "s1"))
    history = [user(), answer(USE, call), results("t1"), answer(GIVEN, Text("x")), user()]
    assert normalize_history(history, CLAUDE) == ()


def test_an_id_that_a_server_used_is_no_clients():
    """Ids of clients' and servers' calls share one space on Anthropic."""
    sent, _ = repaired([user(), answer(USE, GIVEN), user(), calls("s1"), results("s1"), user()], CLAUDE)
    assert sent[3].calls[0].id == sent[4].results[0].call_id != "s1"


# -- ids, orders, budgets ----------------------------------------------------------------------------------------------


def test_an_id_stands_once_in_what_is_read_as_one_answer():
    """Answers that the API reads as one share no id, also where ids are unique in their message only; others may."""
    alone = replace(CLAUDE, server_joins_same_role=False, unique_ids=False)
    apart = [user(), calls("a"), results("a"), calls("a"), results("a"), user()]
    beside = [user(), calls("a"), calls("a"), results("a", "a"), user()]
    assert is_normalized_inside(apart, alone)
    assert is_normalized_inside(apart, replace(alone, server_joins_same_role=True))
    assert not is_normalized_inside(beside, replace(alone, server_joins_same_role=True))
    sent, rules = repaired(beside, replace(alone, server_joins_same_role=True))
    assert len({call.id for message in sent for call in message.calls}) == 2
    assert rules == ["call-id", "call-id"]


def test_mistral_ids_have_nine_letters():
    """Mistral takes nine letters and digits; what has them already stays."""
    sent, _ = repaired([user(), calls("call_1", "abcDEF123"), results("call_1", "abcDEF123"), user()], MISTRAL)
    ids = [call.id for call in sent[1].calls]
    assert ids[1] == "abcDEF123"
    assert re.fullmatch("[a-zA-Z0-9]{9}", ids[0])
    assert [r.call_id for one in sent for r in one.results] == ids


def test_mistral_answers_results_before_a_user_speaks():
    """Mistral refuses a user's words right behind results: the assistant says a word between them."""
    history = [user(), calls("abcDEF123"), results("abcDEF123"), user("and?")]
    sent, rules = repaired(history, MISTRAL)
    assert [one.role for one in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert rules == ["answer"]
    assert normalize_history(history, CHAT) == ()
    assert normalize_history(sent, MISTRAL) == ()


def test_a_real_result_wins_over_a_made_up_one():
    """A synthetic result that came back with the history gives way to the real one that came late."""
    made = Message("tool", (ToolResult("a", "t", (Text(SYNTHETIC_RESULT_TEXT),), is_error=True),))
    for dialect in (CLAUDE, CHAT, RESPONSES, GEMINI):
        sent, _ = repaired([user(), calls("a"), made, user("x"), results("a"), user()], dialect)
        assert [r.content for one in sent for r in one.results] == [results("a").results[0].content]


def test_a_result_before_its_call_moves_behind_it():
    """A result that stands too early is real all the same; one whose id two calls of one answer have is nobody's."""
    sent, _ = repaired([user(), results("a"), calls("a"), user()], CLAUDE)
    assert sent[2] == results("a")
    sent, _ = repaired([user(), results("a"), calls("a"), results("a"), user("x"), calls("a"), user()], CLAUDE)
    assert [SYNTHETIC_RESULT_TEXT in str(r) for one in sent for r in one.results] == [False, True]
    sent, _ = repaired([user(), results("a"), calls("a", "a"), user()], CLAUDE)
    assert [SYNTHETIC_RESULT_TEXT in str(r) for one in sent for r in one.results] == [True, True]


@pytest.mark.parametrize("dialect", [CLAUDE, CHAT, RESPONSES, GEMINI])
def test_an_id_that_is_used_again_changes_no_answer_before(dialect):
    """prefix-only-grows: servers that count from call_0 in each answer use ids again; what was shown for the first call
    stays.
    """
    made, late = Message("tool", (ToolResult("a", "t", (Text(SYNTHETIC_RESULT_TEXT),)),)), results("a")
    more = Message("tool", (ToolResult("a", "t", (Text("another"),)),))
    for before in ([user(), calls("a"), made, user(), late], [user(), late, calls("a"), user()]):
        alone, _ = repaired([*before, words()], dialect)
        again, _ = repaired([*before, words(), user(), calls("a"), made, user(), more, user()], dialect)
        assert [get_result_text(r) for one in alone for r in one.results] == ["r a"]
        assert [get_result_text(r) for one in again for r in one.results] == ["r a", "another"]


def test_neighbours_that_the_api_reads_as_one_stay_two():
    """Anthropic merges neighbours itself: calls and results over several messages are fine as they stand."""
    history = [user(), calls("a"), calls("b"), results("b"), results("a"), user("x"), words(), user()]
    assert normalize_history(history, CLAUDE) == ()
    assert normalize_history(history, CHAT) != ()


def test_results_anywhere_behind_their_calls():
    """Responses: a result that comes late stays where it is, a missing one is made up right behind the call."""
    history = [user(), calls("a"), user("x"), results("a"), user()]
    assert normalize_history(history, RESPONSES) == ()
    sent, _ = repaired([user(), calls("a", "b"), user("x"), results("a"), user()], RESPONSES)
    assert [(one.role, [r.call_id for r in one.results]) for one in sent[2:5]] == [
        ("tool", ["b"]),
        ("user", []),
        ("tool", ["a"]),
    ]


def test_results_of_calls_that_the_server_holds():
    """Where a part of the history lies with the server, a result without a call is no orphan."""
    history = [results("x"), user()]
    assert not any(one.results for one in repaired(history, RESPONSES)[0])
    assert repaired(history, replace(RESPONSES, has_server_history=True))[0] == history


def test_gemini_joins_what_was_split():
    """A call behind other words of the model goes into one content with them, and so do the results."""
    history = [user(), words("look"), calls("a", "b"), results("a"), results("b"), user()]
    sent, _ = repaired(history, replace(GEMINI, requires_signed_calls=False))
    assert [one.role for one in sent] == ["user", "assistant", "tool", "user"]
    assert sent[1].text == "look"
    assert [r.call_id for r in sent[2].results] == ["a", "b"]


def test_too_many_media_give_way_oldest_first():
    """media-budget: over the number or the bytes of a request, the oldest media are named by a line; no more than it
    takes.
    """
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    history = [Message("user", (Text(f"{number}"), picture)) for number in range(5)]
    sent, rules = repaired(history, replace(CLAUDE, max_images=3))
    assert [picture in one.parts for one in sent] == [False, False, True, True, True]
    assert rules == ["media-budget"] * 2
    large = Media("image", "image/png", 300, "a.png", "A" * 400)
    history = [Message("user", (Text(f"{number}"), large)) for number in range(5)]
    sent, _ = repaired(history, replace(CLAUDE, max_bytes=1_000))
    assert [large in one.parts for one in sent] == [False, False, False, True, True]


def test_media_of_the_newest_message_stay():
    """What the user shows now stays, and where that alone is too much all else does: only the provider knows."""
    picture = Media("image", "image/png", 3, "a.png", "AAAA")
    few = replace(CLAUDE, max_images=3)
    history = [Message("user", (Text("a"), picture)), words("so"), Message("user", (Text("b"), *[picture] * 3))]
    sent, rules = repaired(history, few)
    assert ([len(collect_media_in_messages(one)) for one in sent], rules) == ([0, 0, 3], ["media-budget"])
    history[-1] = Message("user", (Text("b"), *[picture] * 4))
    assert repaired(history, few) == (history, [])


@pytest.mark.parametrize("dialect", [CLAUDE, CHAT, RESPONSES, GEMINI])
def test_blocks_of_another_api(dialect):
    """A part that only another API has is named to the user's place and taken out of the assistant's."""
    stranger = Opaque("toolResult", Raw(b'{"type":"toolResult"}'))
    sent, _ = repaired([Message("user", (Text("a"), stranger)), answer(Text("b"), stranger), user()], dialect)
    assert sent[0].parts == (Text("a"), Text("[Attached toolResult]"))
    assert sent[1] == words("b")


def test_changes_of_tools_stay_behind():
    """A system message that changes tools goes where no such message may stand; its words are told."""
    change = Opaque("tool_addition", Raw(b'{"type":"tool_addition"}'))
    inside = Message("system", (Text("now with"), change))
    sent, _ = repaired([user(), inside, words(), user()], CLAUDE)
    assert sent[1].text == "[System message]\nnow with"
    assert repaired([user(), Message("system", (change,)), words(), user()], CLAUDE)[0] == [user(), words(), user()]
    fine = get_target("anthropic", "claude-opus-5-0").dialect
    assert normalize_history([user(), inside, words(), user()], fine) == ()


def test_options_of_a_turn_stay_where_a_system_message_may_stand():
    """A system message that sets options and says nothing is no empty message; where none may stand it is left out."""
    options = Message("system", (Opaque("options", Raw(b'{"role":"system","output_config":{"effort":"high"}}')),))
    fine = get_target("anthropic", "claude-opus-5-5").dialect
    assert normalize_history([user(), options, words(), user(), options], fine) == ()
    assert repaired([user(), options, user(), words(), user()], fine)[0] == [user(), user(), words(), user()]
    assert repaired([user(), options, words(), user(), options], CLAUDE)[0] == [user(), words(), user()]


def test_nothing_left_is_still_a_request():
    """Where all that was said may not be sent, somebody asks to go on; of nothing nothing is made."""
    sent, _ = repaired([results("x")], CLAUDE)
    assert [one.role for one in sent] == ["user"]
    assert normalize_history([], CLAUDE) == ()
