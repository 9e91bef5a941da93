"""Which rules the user took back: confident pairs alone, since a lost rule is worse than a stale one."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.rule_changes import MAX_READ_CHARS, MAX_RULES_OF_A_WORD, find_rule_changes
from holdfast.planning.extract.user_words import quote_user_messages

SUBJECTS = ("uploads", "invoices", "retries", "screenshots", "migrations", "newsletters", "passwords", "translations")
RULES = {subject: f"Never send {subject} to Harbour{number}." for number, subject in enumerate(SUBJECTS)}
ENDINGS = (
    "Forget the rule about sending {}.",
    "The rule about sending {} no longer applies.",
    "Drop the restriction on sending {}.",
)
CHATTER = (
    "Please look at src/cache.py and tell me why it is slow.",
    "Thanks, that works now.",
    "ok",
    "Run the tests again.",
    "看一下日志。",
    "Gracias, sigue con la siguiente parte.",
    "What does the parser do with an empty line?",
)


def find_revoked(*texts: str) -> set[str]:
    """Return the sentences that are no longer in force, without the white space after them."""
    return {piece.strip() for pieces in find_rule_changes(texts).revoked.values() for piece in pieces}


def quote_as_text(budget: int, *texts: str) -> str:
    messages = []
    for text in texts:
        messages += [Message.from_text("user", text), Message.from_text("assistant", "Done.")]
    goal, constraints = quote_user_messages(messages, budget)
    return "\n".join([*goal, *constraints])


# -- what ends a rule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("Uploads must stay under 20 MB each.", "The upload limit no longer applies."),
        ("Uploads must stay under 20 MB each.", "Change the upload limit: uploads may now be up to 35 MB."),
        ("Only use the port 8123 for local servers.", "Use port 9001 for local servers instead."),
        ("Always ask Mira Olsen before you change the billing schema.", "Forget the rule about the billing schema."),
        ("Deploy to the staging host until the harbour audit is done.", "The harbour audit is done."),
        ("单次上传不能超过 20 MB。", "上传的限制取消了,单次上传不用管大小。"),
        ("导出必须用 8123 端口。", "导出改成 9001 端口。"),
    ],
)
def test_find_rule_changes_pairs_a_change_with_its_rule(rule, change):
    """A rule that is taken back, replaced, or tied to an end that has come is found among others."""
    others = [RULES["newsletters"], RULES["passwords"], *CHATTER]
    assert find_revoked("Begin.", rule, *others, change) == {rule}


@given(st.permutations(SUBJECTS), st.sampled_from(ENDINGS), st.lists(st.sampled_from(CHATTER), max_size=12))
def test_find_rule_changes_ends_the_rule_that_is_named(subjects, ending, chatter):
    """Of several rules in the same words, the one whose subject is named ends, wherever the others stand."""
    rules = [RULES[subject] for subject in subjects]
    assert find_revoked(*rules, *chatter, ending.format(subjects[0])) == {rules[0]}


@given(st.sampled_from(SUBJECTS), st.sampled_from(ENDINGS), st.lists(st.sampled_from(CHATTER), max_size=6))
def test_find_rule_changes_reads_in_order(subject, ending, chatter):
    """A rule that is said after its end, or again after it, is in force."""
    end = ending.format(subject)
    assert find_revoked(end, *chatter, RULES[subject]) == set()
    assert find_revoked("Begin.", RULES[subject], *chatter, end, RULES[subject], *chatter) == set()
    again = f"The rule is back: never send {subject} to the bay."
    texts = ["Begin.", RULES[subject], *chatter, end, *chatter, again]
    assert again not in find_revoked(*texts)
    assert find_revoked(*texts, *chatter, RULES[subject]) == set()


@pytest.mark.parametrize(
    "again",
    [
        "Please go back to asking before billing schema changes.",
        "The rule about the billing schema is back.",
        "计费又要先问。",
    ],
)
def test_find_rule_changes_brings_a_rule_back(again):
    """A rule that was taken back is in force again when the user says so without repeating it."""
    rule = "Always ask Mira Olsen before you change the billing schema (计费)."
    end = "You no longer need to ask anybody before billing schema changes."
    assert find_revoked(RULES["uploads"], rule, *CHATTER, end) == {rule}
    assert find_revoked(RULES["uploads"], rule, *CHATTER, end, *CHATTER, again) == set()
    anew = "Please go back to asking Mira Olsen before billing schema changes."
    assert find_revoked(RULES["uploads"], rule, *CHATTER, end, *CHATTER, anew) == {rule}, "once is enough"


def test_find_rule_changes_ends_a_replacement_in_its_turn():
    """Of a value that was replaced twice the last alone is in force."""
    ports = [f"Use port {port} for local servers instead." for port in (9001, 9002)]
    assert find_revoked("Only use the port 8123 for local servers.", ports[0]) == {
        "Only use the port 8123 for local servers."
    }
    assert ports[1] not in find_revoked("Only use the port 8123 for local servers.", *ports)


@pytest.mark.parametrize("scratch", ["Scratch that.", "No, scratch that last one, I mixed it up.", "Forget that."])
def test_find_rule_changes_scratches_what_was_said_last(scratch):
    """ "Scratch that" means the sentence before it, or a message before it that says nothing else."""
    rule = RULES["uploads"]
    assert find_revoked(RULES["retries"], rule, scratch) == {rule}
    assert find_revoked(RULES["retries"], f"{rule} {scratch}") == {rule}
    assert find_revoked(scratch, rule) == set()
    two_rules = f"{RULES['invoices']} {rule}"
    assert find_revoked(two_rules, scratch) == set(), "which of the two is meant is not certain"
    assert find_revoked(rule, "Run the tests.", scratch) == set()


def test_find_rule_changes_ends_nothing_by_quotes_of_an_extract():
    """Quotes of an extract end no rule, since what they ended was left out with it; newer texts may end them."""
    quotes = [RULES["uploads"], "Scratch that.", ENDINGS[0].format("uploads")]
    ending = ENDINGS[0].format("uploads")
    assert find_rule_changes(quotes).revoked
    assert find_rule_changes(quotes, len(quotes)).revoked == {}
    assert find_rule_changes([*quotes, ending], len(quotes)).revoked == {RULES["uploads"]: {RULES["uploads"]}}
    assert find_rule_changes([RULES["uploads"], "Scratch that."], 1).revoked == {}, "what stood before it is not known"


def test_find_rule_changes_takes_a_quoted_change_for_a_rule():
    """What changed a rule still is one when an extract quotes it without the rule; a request for something is not."""
    changes = [
        "Please go back to asking Mira Olsen before billing changes.",
        "Make that Harbour7 for the uploads instead.",
    ]
    texts = [*changes, "Please look at the parser."]
    assert find_rule_changes(texts, len(texts)).changing == {text: {text} for text in changes}


def test_find_rule_changes_ends_what_depends_on_a_rule_with_it():
    """A sentence that says nothing without the rule before it goes with the rule."""
    story = "Uploads of 20 MB took down the mail gateway last year. Let's not do that again."
    revoked = find_revoked(story, RULES["retries"], "Forget the limit on uploads to the mail gateway.")
    assert revoked == {"Uploads of 20 MB took down the mail gateway last year.", "Let's not do that again."}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("Uploads must stay under 20 MB each.", "Change the upload limit: uploads may now be up to 35 MB."),
        (
            "Only use the port 8123 for local servers.",
            "ok The port of local servers is free in the kelp suite, the rest stays.",
        ),
    ],
)
def test_find_rule_changes_takes_a_change_for_a_rule(rule, change):
    """What replaces or narrows a rule is a rule, also if it is worded like a request; what merely ends one is none."""
    assert find_rule_changes([rule, *CHATTER, change]).changing == {change: {change}}
    assert find_rule_changes([RULES["uploads"], *CHATTER, ENDINGS[0].format("uploads")]).changing == {}
    many = [f"Look at part {number} and tell me what is slow in it." for number in range(40)]
    assert change in quote_as_text(200, "Begin.", rule, change, *many, "Go on.")


# -- what ends none ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mention",
    [
        "Did we say that uploads stay under 20 MB?",
        "If uploads get too slow, we can drop the limit later.",
        "The upload test of 20 MB fails on line 31.",
        "Add a test for uploads of 19 MB.",
        "The upload limit does not count for the nightly importer.",
        "The upload limit no longer applies, except to the importer.",
        "Forget the upload limit, but only for the importer.",
        "Uploads go through the new gateway now.",
        "Forget the slow test, fix the parser.",
        "The upload is done.",
        "I uploaded the log.",
        "Should we forget the upload limit?",
        "上传失败了,看一下。",
        "La limite de subida ya está documentada.",
        "Der Upload dauert jetzt länger, schau bitte nach.",
    ],
)
def test_find_rule_changes_ignores_a_mere_mention(mention):
    """A sentence that shares words with a rule but does not take it back leaves it in force."""
    assert find_revoked("Uploads must stay under 20 MB each.", RULES["passwords"], mention) == set()


def test_find_rule_changes_leaves_rules_alone_on_doubt():
    """An end that fits two rules equally well ends neither."""
    rules = ["Never push to main on Fridays.", "Never push to main without a review."]
    assert find_revoked(*rules, "Forget the rule about pushing to main.") == set()


def test_find_rule_changes_leaves_an_order_of_several_parts_alone():
    """One sentence with several orders is not dropped as a whole when one of them ends."""
    rule = "Never push to the release branch, and always sign tags."
    assert find_revoked(rule, "The rule about the release branch no longer applies.") == set()


def test_find_rule_changes_needs_more_than_a_common_verb():
    """An end that shares one word of several with a rule speaks of something else."""
    rule = "The nightly job moved and starts at 07:26."
    assert find_revoked(rule, "Ignore what I said about that secrets directory, I moved everything out of it.") == set()


@pytest.mark.parametrize(
    "frame",
    ["```\n{}\n```", "> {}", "<log>\n{}\n</log>", "Here is docs/rules.md:\n\n# Rules\n\n{}"],
    ids=["fence", "quote", "tag", "file"],
)
def test_find_rule_changes_obeys_no_pasted_text(frame):
    """What somebody else wrote takes back nothing."""
    end = ENDINGS[0].format("uploads")
    assert find_revoked(RULES["uploads"], end) == {RULES["uploads"]}
    assert find_revoked(RULES["uploads"], "Look at this.\n" + frame.format(end)) == set()


def test_find_rule_changes_reads_no_documents():
    """A text that is too long to be typed neither ends rules nor holds rules that end."""
    end = ENDINGS[0].format("uploads")
    filler = "The harbour is quiet today. " * (MAX_READ_CHARS // 20)
    assert find_revoked(RULES["uploads"], filler + end) == set()
    assert find_revoked(filler + RULES["uploads"], end) == set()


@given(st.lists(st.sampled_from([*RULES.values(), *CHATTER]), max_size=30))
def test_find_rule_changes_finds_nothing_where_nothing_was_taken_back(texts):
    """Rules and work alone revoke nothing."""
    assert find_revoked(*texts) == set()


# -- laws --------------------------------------------------------------------------------------------------------------

SAID = st.lists(
    st.sampled_from(
        [
            *RULES.values(),
            *CHATTER,
            *(end.format(subject) for end in ENDINGS for subject in SUBJECTS[:3]),
            "Scratch that.",
        ]
    ),
    max_size=20,
)


@given(SAID)
def test_find_rule_changes_names_pieces_of_its_texts(texts):
    """Each piece stands in the text that it is named for, word for word."""
    for text, pieces in find_rule_changes(texts).revoked.items():
        assert text in texts
        assert pieces
        assert all(piece in text for piece in pieces)


@given(SAID, st.lists(st.sampled_from(CHATTER), max_size=8))
def test_find_rule_changes_is_not_changed_by_work(texts, chatter):
    """What the user asks for afterwards neither ends rules nor brings them back."""
    assert find_rule_changes([*texts, *chatter]).revoked == {
        text: pieces for text, pieces in find_rule_changes(texts).revoked.items() if text not in chatter
    }


@given(st.text(max_size=200), st.text(max_size=200))
def test_find_rule_changes_takes_any_text(first, second):
    """Any characters may be read, and one text that only says a rule again revokes nothing of itself."""
    for text, pieces in find_rule_changes([first, second]).revoked.items():
        assert all(piece in text for piece in pieces)


def write_replacements(count: int) -> list[str]:
    """Return sentences that each may end an earlier one, with which it shares some words."""
    pick = random.Random(count)
    words = ["".join(pick.choices("bdfgklmnprst", k=6)) for _ in range(count // 4)]
    return [f"Use {pick.choice(words)} for {pick.choice(words)} now, no longer part {n}." for n in range(count)]


def write_vague_ends(count: int) -> list[str]:
    """Return rules in the same words, and as many sentences that each fit all of them."""
    rules = [f"Keep pier {number} free for the gulls of the harbour." for number in range(count // 2)]
    return [*rules, *["Ignore the gulls of the harbour."] * (count // 2)]


@pytest.mark.parametrize("write_texts", [write_replacements, write_vague_ends])
def test_find_rule_changes_takes_time_in_proportion(write_texts):
    """Four times the sentences take about four times as long, whatever they have in common.

    Within a factor of three: comparing each sentence with all before it takes sixteen times as long.
    """
    seconds = []
    for count in (1_000, 4_000):
        texts = write_texts(count)
        find_rule_changes(texts)  # the words of each sentence are read once
        seconds.append(min(_measure_seconds(texts) for _ in range(3)))
    assert seconds[1] < 12 * seconds[0]


def _measure_seconds(texts: list[str]) -> float:
    start = time.process_time()
    find_rule_changes(texts)
    return time.process_time() - start


@pytest.mark.parametrize(
    "unit",
    [
        "from file ",
        "see ",
        "请帮我",
        "until ",
        "drop it\n",
        "<a>\n",
        "ok ",
        "is done ",
        "在 ",
        "here is x.md:\n",
        "forget ",
    ],
)
def test_find_rule_changes_reads_repetitions_quickly(unit):
    """No text makes a pattern try all ways to read it."""
    text = (unit * MAX_READ_CHARS)[: MAX_READ_CHARS - 2] + ":"
    assert _measure_seconds([text]) < 2.0


def test_find_rule_changes_needs_a_rare_word_among_very_many_rules():
    """Among very many rules in the same words, a sentence ends the one of which it has a word of its own."""
    rules = [f"Never send part {number} to Harbour." for number in range(MAX_RULES_OF_A_WORD + 1)]
    assert find_revoked(*rules, "Forget the rule about sending to Harbour.") == set()
    assert find_revoked(*rules, "Forget the rule about sending part 7 to Harbour.") == {rules[7]}


# -- in an extract -----------------------------------------------------------------------------------------------------


@given(st.permutations(SUBJECTS), st.integers(1, 7), st.lists(st.sampled_from(CHATTER), min_size=1, max_size=40))
def test_quote_user_messages_drops_revoked_rules_alone(subjects, revoked_count, chatter):
    """All rules in force are quoted word for word; those that were taken back are not."""
    rules = [RULES[subject] for subject in subjects]
    ends = [ENDINGS[0].format(subject) for subject in subjects[:revoked_count]]
    text = quote_as_text(600, "Begin.", *rules, *chatter, *ends, *chatter, "Go on.")
    assert [rule for rule in rules[:revoked_count] if rule in text] == []
    assert [rule for rule in rules[revoked_count:] if rule not in text] == []


def test_quote_user_messages_hears_what_is_said_after_the_head():
    """A rule that is taken back in a message that stays visible is not quoted in the extract before it."""
    history = [Message.from_text("user", text) for text in ("Begin.", RULES["uploads"], RULES["retries"], "Go on.")]
    end = Message.from_text("user", ENDINGS[0].format("uploads"))
    before = "\n".join(quote_user_messages(history, 300, is_open=False)[1])
    assert RULES["uploads"] in before
    after = "\n".join(quote_user_messages(history, 300, is_open=False, later_messages=[end])[1])
    assert RULES["uploads"] not in after
    assert RULES["retries"] in after


def test_quote_user_messages_quotes_more_rules_than_half():
    """Where old rules would fill the budget they get well over half of it, and newer requests a rest."""
    rules = [f"Never send part {number} to harbour {number}." for number in range(100)]
    said = [" ".join(rules[start : start + 10]) for start in range(0, 100, 10)]
    requests = [f"Look at part {number} and tell me what is slow in it." for number in range(40)]
    text = quote_as_text(500, "Begin.", *said, *requests, "Go on.")
    assert sum(estimate_text_tokens(rule) for rule in rules if rule in text) > 0.6 * 500
    assert sum(request in text for request in requests) > 1
