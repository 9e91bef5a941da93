"""What an extract quotes of the user: rules outlive small talk, and every quote is verbatim."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.extract.extract import build_extract
from holdfast.planning.extract.user_words import (
    MAX_LISTED_HANDLES,
    MESSAGE_SHARE,
    MIN_OLDER_TOKENS,
    OMISSION_MARK,
    compute_grown_share,
    quote_user_messages,
)
from holdfast.planning.settings import Settings

RULE = "Never touch anything under vendor/, and amounts are integer cents."
TALK = "The billing service moves to its own repository. Anna looks at it on Thursday. "


def strip_client_notes(text: str) -> str:
    return split_client_notes(text)[0]


def build_conversation(*texts: str) -> list[Message]:
    """Return a conversation in which the user sends ``texts`` and each is answered."""
    return [
        Message.from_text(role, text) for request in texts for role, text in (("user", request), ("assistant", "Done."))
    ]


def quote_as_text(budget: int, *texts: str, is_open: bool = True) -> str:
    goal, constraints = quote_user_messages(build_conversation(*texts), budget, is_open=is_open)
    return "\n".join([*goal, *constraints])


@pytest.mark.parametrize("before", [0, 3, 20])
def test_quote_user_messages_keeps_a_rule_in_a_long_first_request(before):
    """A rule anywhere in a first request that has to be cut is quoted, and omission marks show the gaps."""
    text = quote_as_text(300, TALK * before + RULE + " " + TALK * 30, "Go on.")
    assert RULE in text
    assert OMISSION_MARK in text


def test_quote_user_messages_keeps_a_first_request_that_fits():
    """A first request is not cut while there is room for it, even beyond the share of one message."""
    first = TALK * 12
    assert MESSAGE_SHARE * 400 < estimate_text_tokens(first) < 400
    assert first.strip() in quote_as_text(400, first, "Go on.")


def test_quote_user_messages_keeps_a_question_after_a_long_text():
    """The question that follows a long pasted text is quoted wherever a message has any room."""
    questions = [f"What does part {number} cost?" for number in range(4)]
    text = quote_as_text(300, *[TALK * 40 + question for question in questions], "Go on.")
    assert all(question in text for question in questions[1:])


def test_quote_user_messages_prefers_rules_to_small_talk():
    """An old rule is quoted where newer small talk is not, and the messages left out are counted."""
    messages = [f"Good. Next look at part {number} and tell me what is slow in it." for number in range(200)]
    text = quote_as_text(300, "Begin.", *messages[:20], RULE, *messages[20:], "Go on.")
    assert RULE in text
    assert messages[-1] in text
    assert messages[0] not in text
    quoted_count = text.count("User: ") - 1
    assert f"[{200 - quoted_count} more messages of the user are not quoted here" in text


@given(st.integers(1, MAX_LISTED_HANDLES), st.integers(1_200, 4_000))
def test_quote_user_messages_names_every_stored_message(count, budget):
    """A message of which only a preview is left keeps its handle in the extract, whether it is quoted or not."""
    handles = [f"{number:012x}" for number in range(count)]
    previews = [f'[8,007 characters left out here; recall(id="{handle}") returns them]\nthe end' for handle in handles]
    text = quote_as_text(budget, "Begin.", *previews, "Go on.")
    assert [handle for handle in handles if text.count(handle) != 1] == []


@given(st.integers(1, 100), st.integers(100, 2_000))
def test_quote_user_messages_pays_for_handles_from_its_budget(count, budget):
    """However many stored messages there are, what is quoted of the user stays near its budget."""
    previews = [f'[8,007 characters left out here; recall(id="{number:012x}") returns them]' for number in range(count)]
    text = quote_as_text(budget, "Begin.", *previews, "Go on.")
    assert estimate_text_tokens(text) <= 1.1 * max(budget, MIN_OLDER_TOKENS) + 60


def test_quote_user_messages_keeps_a_rule_beside_a_stored_text():
    """What the user wrote beside a stored text is quoted also where the line about that text is not."""
    line = '[8,007 characters left out here; recall(id="0123456789ab") returns them]'
    message = "\n".join([RULE, TALK * 30, line, TALK * 30])
    text = quote_as_text(100, "Begin.", message, "Go on.")
    assert RULE in text
    assert "parts of messages of the user are not quoted here; recall reads them back by id: 0123456789ab]" in text


def test_quote_user_messages_counts_a_repeated_line_once():
    """A rule-like line takes room once, so a pasted log that repeats its warnings displaces no other rule."""
    rules = [f"Never touch file_{number}.cfg." for number in range(10)]
    log = "It prints:\n" + "warning: option mode should be set and must not be empty\n" * 60 + "Why?"
    text = quote_as_text(400, "Begin.", *rules, log, log, "Go on.")
    assert [rule for rule in rules if rule not in text] == []
    assert "option mode should be set" in text


def test_quote_user_messages_leaves_room_for_rules_beside_a_long_request():
    """The newest request is quoted whole, and half of the budget beside it stays for earlier rules."""
    rules = [f"Never touch anything under src/part_{number}/vendor." for number in range(8)]
    text = quote_as_text(720, "Begin.", *rules, TALK * 120, is_open=True)
    assert (TALK * 120).strip() in text
    assert [rule for rule in rules if rule not in text] == []


def test_quote_user_messages_puts_program_messages_after_the_users():
    """System messages sent during the conversation are quoted newest first, once each, and take no room from the user's
    text.
    """
    system_messages = [
        Message.from_text("system", "Old: always ask. " + TALK * 40),
        Message.from_text("system", "Now: never deploy on Fridays."),
    ]
    history = [
        *build_conversation("Begin. " + RULE),
        *system_messages,
        *build_conversation(*[TALK] * 5),
        system_messages[1],
        *build_conversation("Go on."),
    ]
    goal, constraints = quote_user_messages(history, 300)
    assert RULE in "\n".join(goal)
    program = [quote for quote in constraints if quote.startswith("Told by the user's program: ")]
    assert program[-1].endswith("Now: never deploy on Fridays.")
    assert sum("Fridays" in quote for quote in program) == 1
    assert sum(estimate_text_tokens(quote) for quote in [*goal, *constraints]) < 400


def test_quote_user_messages_quotes_program_orders_of_any_wording():
    """A system message during the conversation is quoted even if it does not sound like a rule; those without room are
    counted.
    """
    orders = [Message.from_text("system", text) for text in (TALK * 60, "Answer in Frisian.", "You may deploy.")]
    goal, constraints = quote_user_messages(
        [*build_conversation(*[TALK * 3] * 9), *orders, *build_conversation("Go on.")], 300
    )
    extract = "\n".join([*goal, *constraints])
    assert "Answer in Frisian." in extract
    assert "You may deploy." in extract
    many = [Message.from_text("system", f"Order {number}. {TALK}") for number in range(9)]
    assert "more messages of the user's program are not quoted" in "\n".join(
        quote_user_messages([*many, *build_conversation("Go.")], MIN_OLDER_TOKENS)[1]
    )


def test_quote_user_messages_names_attachments():
    """An extract shows no picture, but names the one that was attached."""
    request = Message("user", (Text("Draw this anew."), Media("image", "image/png", 3, "plan.png", "AAAA")))
    goal, _ = quote_user_messages(
        [request, Message.from_text("assistant", "Done."), *build_conversation("Go on.")], 300
    )
    assert "Draw this anew.\n[Attached image/png: plan.png]" in goal[0]


def test_quote_user_messages_cuts_text_without_sentences_near_its_ends():
    """A megabyte without a line end costs only its two ends, and other messages are quoted beside it."""
    text = quote_as_text(600, "x1" * 500_000, TALK, "Go on.")
    assert estimate_text_tokens(text) < 900
    assert TALK.strip() in text


def test_quote_user_messages_cuts_an_answered_request_to_the_budget():
    """An open newest request is quoted whole; an answered one gets what the rules leave, within the budget."""
    spec = TALK * 40
    assert spec.strip() in quote_as_text(100, RULE, spec)
    text = quote_as_text(100, RULE, spec, is_open=False)
    assert RULE in text
    assert TALK.strip() in text
    assert estimate_text_tokens(text) < 160
    assert spec.strip() in quote_as_text(1_000, RULE, spec, is_open=False)


def test_quote_user_messages_quotes_a_single_request_once():
    """A message that is both the first and the newest request is quoted as the newest only."""
    for is_open in (True, False):
        assert quote_user_messages(build_conversation(RULE, RULE), 500, is_open=is_open) == (
            [f"Newest request of the user, verbatim:\n{RULE}"],
            [],
        )


@pytest.mark.parametrize("long", ["aB3xK9/" * 70, "没有标点的话" * 80], ids=["base64", "Chinese"])
def test_quote_user_messages_leaves_out_text_that_cannot_be_cut(long):
    """A text with no good place to cut is left out and takes no room from the others."""
    text = quote_as_text(90, "Build it. Never push to main.", "Use tabs.", long, is_open=False)
    assert "Build it. Never push to main." in text
    assert "Use tabs." in text


def test_quote_user_messages_counts_the_markup_around_quotes():
    """The labels around each quote count against the budget."""
    text = quote_as_text(500, *(f"Do {number}." for number in range(2_000)))
    assert estimate_text_tokens(text) < 600


TEXTS = st.lists(st.sampled_from([TALK, RULE, "Yes.", "多语言必须支持。" * 9, "a\nb\n" * 40, "\n"]), max_size=12)


@given(st.lists(TEXTS.map("".join), max_size=9), st.integers(0, 500), st.booleans())
def test_quote_user_messages_quotes_verbatim_within_budget(texts, budget, is_open):
    """Each quoted run is in one message in that order; only an open request may exceed the budget."""
    goal, constraints = quote_user_messages(build_conversation(*texts), budget, is_open=is_open)
    sent_texts = [text.strip() for text in texts if text.strip()]
    assert not (sent_texts and is_open) or goal[-1].endswith(sent_texts[-1])
    older = [line.partition("verbatim:\n")[2] for line in (goal[:-1] if is_open else goal)]
    older += [line.removeprefix("User: ") for line in constraints if line.startswith("User: ")]
    for quote in older:
        runs = [run.strip() for run in quote.split(OMISSION_MARK) if run.strip()]
        assert any(_is_in_order(runs, text) for text in sent_texts)
    assert sum(map(estimate_text_tokens, older)) <= 1.2 * max(MIN_OLDER_TOKENS, budget) + 8 * len(older)


def _is_in_order(runs: list[str], text: str) -> bool:
    for run in runs:
        _, found, text = text.partition(run)
        if not found:
            return False
    return True


NOTE = "IMPORTANT: this context may or may not be relevant. You should never respond to it. "


@pytest.mark.parametrize("tag", ["system-reminder", "local-command-caveat", "environment_context"])
def test_quote_user_messages_prefers_user_rules_to_client_notes(tag):
    """A user's rule is kept in a budget that the client's own notes would fill; the client's notes come last."""
    noted = f"<{tag}>\n{NOTE * 20}</{tag}>\n"
    text = quote_as_text(200, noted + TALK + RULE, f"{noted}And the tests.", "Go on.")
    assert RULE in text
    assert TALK.strip() in text
    assert estimate_text_tokens(text) < 240
    assert f"<{tag}>" not in text
    assert NOTE.strip() in quote_as_text(2_000, noted + TALK, "Go on."), "client notes are quoted where there is room"


@pytest.mark.parametrize("later", [[], ["Go on."]])
def test_quote_user_messages_quotes_client_notes_when_alone(later):
    """When the user wrote nothing beside them, the client's notes are quoted, and once only."""
    assert quote_as_text(400, f"<system-reminder>\n{RULE}\n</system-reminder>", *later).count(RULE) == 1
    assert quote_user_messages(build_conversation(""), 200) == ([], [])


def test_quote_user_messages_keeps_client_notes_of_the_open_request():
    """A message that consists of client notes only is what the model has to answer, so all of it is kept."""
    note = f"<local-command-stdout>\n{TALK}\n</local-command-stdout>"
    assert note in quote_as_text(100, "Go on.", note)
    assert TALK.strip() in quote_as_text(400, "Go on.", note, "And now?"), (
        "notes that are a whole message stay quotable later"
    )


@given(st.text(alphabet="<>/system-rmd ab", max_size=80))
def test_split_client_notes_keeps_everything_outside_a_note(text):
    """Text that holds no complete note is returned whole as the user's."""
    assert strip_client_notes(text) == text.strip()
    assert strip_client_notes(f"<system-reminder>{text}") == f"<system-reminder>{text}".strip()
    assert strip_client_notes(f"{text}\n<system-reminder>x</system-reminder>\n") == text.strip()


NAMED = "Remove the code that writes <system-reminder> into prompts, keep kelp_7, and also that for </system-reminder>."


@pytest.mark.parametrize(
    "text", [NAMED, f"<system-reminder>s are read {NAMED}", f"<system-reminder>a</system-reminder>: {TALK}"]
)
def test_split_client_notes_keeps_tags_inside_a_sentence(text):
    """A note takes whole lines, so a tag in the middle of the user's sentence is the user's text."""
    assert strip_client_notes(text) == text.strip()


# -- the user's share grows --------------------------------------------------------------------------------------------

CHAT = [f"The exporter of team {number} writes to bucket kelp-{number * 37 % 1009}." for number in range(40)]


def build_sized_chat(*texts: str, answer: str) -> list[SizedMessage]:
    """Return a chat in which each of ``texts`` got an ``answer``, in which "{}" stands for its number."""
    messages = []
    for number, text in enumerate(texts):
        messages += [Message.from_text("user", text), Message.from_text("assistant", answer.format(number))]
    return [build_sized_message(message) for message in messages]


def test_build_extract_gives_most_of_a_chat_to_the_user():
    """Where the user's words are most of the text, they may take what the other sections leave, beyond their share."""
    head = build_sized_chat(*CHAT, answer="Looked at gull_{0}.sql and tern_{0}.sql for that.")
    budget = 1_300
    assert sum(map(estimate_text_tokens, CHAT)) > 2 * Settings().summary.user_share * budget
    text = build_extract(head, (), budget)
    assert [sentence for sentence in CHAT if sentence not in text] == []
    assert estimate_text_tokens(text) <= budget


def test_build_extract_gives_unused_shares_to_the_user():
    """Between long answers that name nothing the user's share cannot grow by itself; what no line uses goes to it."""
    talk = [f"We met {word} of the other office and it went well." for word in "abcdefghijklmnopqrstuvwxyz"]
    head = build_sized_chat(*talk, answer="All of that is fine with me. " * 60)
    budget = 2_500
    assert sum(map(estimate_text_tokens, talk)) + 6 * len(talk) > Settings().summary.user_share * budget
    text = build_extract(head, (), budget)
    assert [sentence for sentence in talk if sentence not in text] == []
    assert estimate_text_tokens(text) <= budget


def test_compute_grown_share_leaves_an_agents_session_alone():
    """Where the user's words are a few percent of the text, as in an agent's session, the share stays as it is."""
    messages = build_conversation(*CHAT[:4])
    assert compute_grown_share(messages, 100 * sum(map(estimate_text_tokens, CHAT[:4]))) == pytest.approx(0.02)
    assert compute_grown_share([], 0) == 0.0
