"""What an extract quotes of the user: rules outlive small talk, and nothing is said that was not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.extract.user_words import MESSAGE_SHARE, MIN_OLDER_TOKENS, OMISSION_MARK, quote_user_messages

RULE = "Never touch anything under vendor/, and amounts are integer cents."
TALK = "The billing service moves to its own repository. Anna looks at it on Thursday. "


def own_words(text: str) -> str:
    return split_client_notes(text)[0]


def said(*texts: str) -> list[Message]:
    """Return a conversation in which the user says ``texts``."""
    return [Message.from_text(role, text) for one in texts for role, text in (("user", one), ("assistant", "Done."))]


def quoted(budget: int, *texts: str, is_open: bool = True) -> str:
    goal, constraints = quote_user_messages(said(*texts), budget, is_open=is_open)
    return "\n".join([*goal, *constraints])


@pytest.mark.parametrize("before", [0, 3, 20])
def test_a_rule_in_a_long_first_request_stays(before):
    """Wherever it stands in a first request that is cut, a rule is quoted, and marks tell of what is not."""
    told = quoted(300, TALK * before + RULE + " " + TALK * 30, "Go on.")
    assert RULE in told
    assert OMISSION_MARK in told


def test_a_first_request_that_fits_is_whole():
    """A first request is not cut as long as there is room for it, were it more than the share of one message."""
    first = TALK * 12
    assert MESSAGE_SHARE * 400 < estimate_text_tokens(first) < 400
    assert first.strip() in quoted(400, first, "Go on.")


def test_a_question_behind_a_long_text_stays():
    """What is asked stands behind what it is about, a file for one: it is quoted wherever a message has any room."""
    asked = [f"What does part {number} cost?" for number in range(4)]
    told = quoted(300, *[TALK * 40 + ask for ask in asked], "Go on.")
    assert all(ask in told for ask in asked[1:])


def test_rules_outlive_small_talk():
    """A rule that was laid down long ago is quoted where newer messages are not; those are counted."""
    talk = [f"Good. Next look at part {number} and tell me what is slow in it." for number in range(200)]
    told = quoted(300, "Begin.", *talk[:20], RULE, *talk[20:], "Go on.")
    assert RULE in told
    assert talk[-1] in told
    assert talk[0] not in told
    quoted_of = told.count("User: ") - 1
    assert f"[{200 - quoted_of} more messages of the user are not quoted here" in told


def test_a_line_that_is_said_often_takes_the_place_of_no_other_rule():
    """What sounds like a rule has its place once: a log that somebody pastes repeats its warnings."""
    rules = [f"Never touch file_{number}.cfg." for number in range(10)]
    log = "It prints:\n" + "warning: option mode should be set and must not be empty\n" * 60 + "Why?"
    told = quoted(400, "Begin.", *rules, log, log, "Go on.")
    assert [rule for rule in rules if rule not in told] == []
    assert "option mode should be set" in told


def test_a_long_request_under_way_leaves_room_for_the_rules_before_it():
    """The newest request is quoted whole, and beside it half of the budget stays for what was laid down before."""
    rules = [f"Never touch anything under src/part_{number}/vendor." for number in range(8)]
    told = quoted(720, "Begin.", *rules, TALK * 120, is_open=True)
    assert (TALK * 120).strip() in told
    assert [rule for rule in rules if rule not in told] == []


def test_what_the_program_told_in_between_stays_behind_the_users_words():
    """The program's rules are quoted, the newest first, each once; however long, they take none of the user's."""
    told = [
        Message.from_text("system", "Old: always ask. " + TALK * 40),
        Message.from_text("system", "Now: never deploy on Fridays."),
    ]
    history = [*said("Begin. " + RULE), *told, *said(*[TALK] * 5), told[1], *said("Go on.")]
    goal, between = quote_user_messages(history, 300)
    assert RULE in "\n".join(goal)
    program = [one for one in between if one.startswith("Told by the user's program: ")]
    assert program[-1].endswith("Now: never deploy on Fridays.")
    assert sum("Fridays" in one for one in program) == 1
    assert sum(estimate_text_tokens(one) for one in [*goal, *between]) < 400


def test_an_order_of_the_programs_needs_no_word_of_a_rule():
    """What a program tells the model in between is an order, however it sounds; those that find no room are counted."""
    orders = [Message.from_text("system", text) for text in (TALK * 60, "Answer in Frisian.", "You may deploy.")]
    goal, between = quote_user_messages([*said(*[TALK * 3] * 9), *orders, *said("Go on.")], 300)
    told = "\n".join([*goal, *between])
    assert "Answer in Frisian." in told
    assert "You may deploy." in told
    many = [Message.from_text("system", f"Order {number}. {TALK}") for number in range(9)]
    assert "more messages of the user's program are not quoted" in "\n".join(
        quote_user_messages([*many, *said("Go.")], MIN_OLDER_TOKENS)[1]
    )


def test_a_line_tells_of_what_was_attached():
    """A picture is in no extract; that there was one is."""
    asked = Message("user", (Text("Draw this anew."), Media("image", "image/png", 3, "plan.png", "AAAA")))
    goal, _ = quote_user_messages([asked, Message.from_text("assistant", "Done."), *said("Go on.")], 300)
    assert "Draw this anew.\n[Attached image/png: plan.png]" in goal[0]


def test_a_text_without_sentences_is_cut_near_its_ends():
    """A megabyte without a line end costs no more than its ends, and is not the only thing quoted."""
    told = quoted(600, "x1" * 500_000, TALK, "Go on.")
    assert estimate_text_tokens(told) < 900
    assert TALK.strip() in told


def test_a_request_that_was_followed_by_another_is_whole_where_it_fits():
    """The newest request is whole if it is under way; else it has what the rules leave, and no more than the budget."""
    spec = TALK * 40
    assert spec.strip() in quoted(100, RULE, spec)
    told = quoted(100, RULE, spec, is_open=False)
    assert RULE in told
    assert TALK.strip() in told
    assert estimate_text_tokens(told) < 160
    assert spec.strip() in quoted(1_000, RULE, spec, is_open=False)


def test_a_lone_request_is_quoted_once():
    """What is the first and the newest request is the newest."""
    for is_open in (True, False):
        assert quote_user_messages(said(RULE, RULE), 500, is_open=is_open) == (
            [f"Newest request of the user, verbatim:\n{RULE}"],
            [],
        )


@pytest.mark.parametrize("long", ["aB3xK9/" * 70, "没有标点的话" * 80], ids=["base64", "Chinese"])
def test_what_does_not_fit_takes_no_room_of_others(long):
    """A text that cannot be cut well is left out alone."""
    told = quoted(90, "Build it. Never push to main.", "Use tabs.", long, is_open=False)
    assert "Build it. Never push to main." in told
    assert "Use tabs." in told


def test_many_short_messages_cost_no_more_than_their_budget():
    """What stands around each quote is counted."""
    told = quoted(500, *(f"Do {number}." for number in range(2_000)))
    assert estimate_text_tokens(told) < 600


TEXTS = st.lists(st.sampled_from([TALK, RULE, "Yes.", "多语言必须支持。" * 9, "a\nb\n" * 40, "\n"]), max_size=12)


@given(st.lists(TEXTS.map("".join), max_size=9), st.integers(0, 500), st.booleans())
def test_what_is_quoted_was_said(texts, budget, is_open):
    """What stands between two marks stands so in one message; only a request under way may go over the budget."""
    goal, constraints = quote_user_messages(said(*texts), budget, is_open=is_open)
    kept = [text.strip() for text in texts if text.strip()]
    assert not (kept and is_open) or goal[-1].endswith(kept[-1])
    older = [one.partition("verbatim:\n")[2] for one in (goal[:-1] if is_open else goal)]
    older += [one.removeprefix("User: ") for one in constraints if one.startswith("User: ")]
    for quote in older:
        runs = [run.strip() for run in quote.split(OMISSION_MARK) if run.strip()]
        assert any(_in_order(runs, text) for text in kept)
    assert sum(map(estimate_text_tokens, older)) <= 1.2 * max(MIN_OLDER_TOKENS, budget) + 8 * len(older)


def _in_order(runs: list[str], text: str) -> bool:
    for run in runs:
        _, found, text = text.partition(run)
        if not found:
            return False
    return True


NOTE = "IMPORTANT: this context may or may not be relevant. You should never respond to it. "


@pytest.mark.parametrize("tag", ["system-reminder", "local-command-caveat", "environment_context"])
def test_what_a_client_notes_takes_no_place_from_what_its_user_said(tag):
    """A rule of the user's stays in a budget that the client's own notes would fill; of those the first come last."""
    noted = f"<{tag}>\n{NOTE * 20}</{tag}>\n"
    told = quoted(200, noted + TALK + RULE, f"{noted}And the tests.", "Go on.")
    assert RULE in told
    assert TALK.strip() in told
    assert estimate_text_tokens(told) < 240
    assert f"<{tag}>" not in told
    assert NOTE.strip() in quoted(2_000, noted + TALK, "Go on."), "where there is room they are told"


@pytest.mark.parametrize("later", [[], ["Go on."]])
def test_notes_alone_are_told(later):
    """Where the user has said nothing beside them, what a client put first is all there is; it is told once."""
    assert quoted(400, f"<system-reminder>\n{RULE}\n</system-reminder>", *later).count(RULE) == 1
    assert quote_user_messages(said(""), 200) == ([], [])


def test_the_request_under_way_has_its_notes():
    """A message that holds nothing but a client's words is what the model is to answer: none of it goes."""
    note = f"<local-command-stdout>\n{TALK}\n</local-command-stdout>"
    assert note in quoted(100, "Go on.", note)
    assert TALK.strip() in quoted(400, "Go on.", note, "And now?"), "one that is all of a message is told later, too"


@given(st.text(alphabet="<>/system-rmd ab", max_size=80))
def test_what_is_no_note_is_the_users(text):
    """Of words without a whole note none goes."""
    assert own_words(text) == text.strip()
    assert own_words(f"<system-reminder>{text}") == f"<system-reminder>{text}".strip()
    assert own_words(f"{text}\n<system-reminder>x</system-reminder>\n") == text.strip()


NAMED = "Remove the code that writes <system-reminder> into prompts, keep kelp_7, and also that for </system-reminder>."


@pytest.mark.parametrize(
    "text", [NAMED, f"<system-reminder>s are read {NAMED}", f"<system-reminder>a</system-reminder>: {TALK}"]
)
def test_tags_that_a_user_only_names_are_words(text):
    """A note takes whole lines: what stands in the middle of the user's words is theirs."""
    assert own_words(text) == text.strip()
