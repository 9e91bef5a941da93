"""An extract of ours that a client sends back at the beginning of a new conversation is read as what it quotes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sample_conversations import make_text

from holdfast import PlanInputs, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.extract.extract import build_extract
from holdfast.planning.extract.previous_summary import EXTRACT_OPENING, PREVIOUS_SUMMARY_OPENING, iter_user_texts
from holdfast.planning.extract.returned_extract import expand_returned_extracts

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
FORCED = PlanInputs(force_compaction=True)
words = st.text("abcdefgh ,.!?#[]", min_size=1, max_size=60).filter(str.strip)


def expand(*messages: Message) -> list[Message]:
    """Return the messages as an extract is made of them."""
    sized_messages = [build_sized_message(message) for message in messages]
    return [sized_message.message for sized_message in expand_returned_extracts(sized_messages)]


def make_extract(messages: list[Message], budget: int = 20_000) -> str:
    return build_extract([build_sized_message(message) for message in messages], [], budget)


def build_chat(requests: list[str]) -> list[Message]:
    messages = []
    for request in requests:
        messages += [Message.from_text("user", request), Message.from_text("assistant", "Noted.")]
    return messages


@given(st.lists(words, min_size=1, max_size=12))
def test_returned_extract_gives_the_users_words_back(requests):
    """Every request that the extract quotes whole is a message of the user again, in the order they were made."""
    said = list(iter_user_texts(build_chat(requests)))
    newest = said[-1]
    expanded = expand(Message.from_text("user", make_extract(build_chat(requests))))
    expected = [*(text for text in dict.fromkeys(said) if text != newest), newest]
    assert sorted(iter_user_texts(expanded)) == sorted(expected)
    assert list(iter_user_texts(expanded))[-1] == newest


def test_returned_extract_tells_the_agents_part_from_the_users():
    """Commands, decisions and quoted lines come back as the agent's and as a result; nothing of them is the user's."""
    call = ToolCall("a", "bash", '{"command":"pytest -k totals"}')
    messages = [
        Message.from_text("user", "Fix the totals. Never touch data/holy."),
        Message("assistant", (call,)),
        Message("tool", (ToolResult("a", "", (Text("error: total_price is 3, see src/app/billing.py:40"),)),)),
        Message.from_text("assistant", "Fixed, because the root cause is an off-by-one in total_price."),
    ]
    extract = make_extract(messages)
    expanded = expand(Message.from_text("user", extract), Message.from_text("user", "thanks"))
    assert list(iter_user_texts(expanded)) == ["Fix the totals. Never touch data/holy.", "thanks"]
    agent_text = "\n".join(message.text for message in expanded if message.role == "assistant")
    assert "$ pytest -k totals" in agent_text
    assert "root cause is an off-by-one" in agent_text
    assert "## " not in agent_text
    again = make_extract(expanded)
    assert "- - " not in again
    assert "total_price is 3" in again


def test_returned_extract_keeps_what_stands_beside_it():
    """An earlier summary in the same text or message, and the user's new words, stay; open work is listed anew."""
    extract = make_extract(build_chat(["Build the importer."]))
    carried = f"{PREVIOUS_SUMMARY_OPENING}The lexer is done."
    parts = (Text(extract), Text(carried), Text("## Still Open\n- shell b1"), Text("Now the parser."))
    for message in (Message("user", parts), Message("user", (Text(f"{extract}\n{carried}"), *parts[2:]))):
        expanded = expand(message)
        assert list(iter_user_texts(expanded)) == ["Build the importer.", "Now the parser."]
        new_extract = plan([message, *build_chat(["Go on."] * 40)], TARGET, inputs=FORCED).compaction.summary
        text = "\n".join(part.text for part in new_extract.parts)
        assert text.count("The lexer is done.") == 1
        assert "shell b1" not in text.split("## Still Open")[0]


def test_plan_keeps_rules_through_many_generations_of_conversations():
    """A client that begins anew with the last request's messages keeps the user's rules in the tenth generation."""
    rules = [f"Rule {number}: never call service_{number} before nightfall." for number in range(12)]
    messages = []
    for number, rule in enumerate(rules):
        messages += [Message.from_text("user", rule), Message.from_text("assistant", make_text(number, 2_000))]
    for generation in range(10):
        messages = [*messages, *build_chat([f"Generation {generation} begins with this sentence."])]
        messages = apply(messages, plan(messages, TARGET, inputs=FORCED))
        text = "\n".join(message.text for message in messages)
        assert [rule for rule in rules if rule not in text] == []


def test_plan_asked_again_and_again_keeps_what_the_first_compaction_kept():
    """A compaction on request takes a share of what there is, but has room for all that the extract in force holds."""
    places = [f"harbour_{number} is at pier {number + 100}." for number in range(30)]
    messages = build_chat([f"Remember that {place}" for place in places])
    state, kept, sizes = None, [], []
    for _ in range(6):
        new_plan = plan(messages, TARGET, state=state, inputs=FORCED)
        state = new_plan.state
        sizes.append(new_plan.after)
        texts = "\n".join(message.text for message in apply(messages, new_plan))
        kept.append({place for place in places if place in texts})
    assert len(kept[0]) > 10
    assert len(kept[-1]) >= len(kept[0])
    assert sizes[-1] == sizes[-2]


def test_returned_extract_takes_back_no_second_rule():
    """Where "scratch that" took back the rule before it, the extract of that extract keeps the rules before both."""
    rules = [f"Never push to branch rel-{number}." for number in range(8)]
    chat = build_chat([*rules, "Never rename a table.", "Scratch that.", "Run the tests."])
    text = make_extract(chat)
    for number in range(4):
        returned = Message.from_text("user", text)
        later = build_chat([f"Look at part {number}.", f"Go on with part {number}."])
        work = [Message.from_text("assistant", make_text(number, 40_000))]
        messages = [returned, *work, *later]
        shown = apply(messages, plan(messages, TARGET, inputs=FORCED))
        text = next(message.text for message in shown if message.text.startswith(EXTRACT_OPENING))
        for rule in rules:
            assert rule in text
