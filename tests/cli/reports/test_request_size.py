"""A request has one size in all commands, even if its provider's count is missing or implausible."""

from __future__ import annotations

import json

import pytest

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.pipeline import Policy
from holdfast.state.entries import FailureEntry, Usage

KEY, WINDOW = "5126-of-one", 20_000
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=WINDOW)


@pytest.fixture
def journal(store):
    """Return the journal of a session whose newest request was reduced and has no answer yet."""
    journal_of_session = Journal.open(store, KEY, Policy())
    for at in range(6):
        result = ToolResult(f"{at}", "Read", (Text(f"a line of log {at}\n" * 700),))
        talk = Message("assistant", (ToolCall(f"{at}", "Read", "{}"),)), Message("tool", (result,))
        journal_of_session.append(Message.from_text("user", f"Read log {at}."), *talk)
        ready = journal_of_session.prepare_request(TARGET)
        if at < 5:
            journal_of_session.record_answer(
                Message.from_text("assistant", "It was read."), Usage(input=ready.plan.after, output=5), "end_turn"
            )
    assert ready.plan.state.view.active_decisions
    return journal_of_session


def answer_with(tokens, **how):
    """Return a function that records an answer with this input usage."""
    return lambda journal: journal.record_answer(
        Message.from_text("assistant", "Yes."), Usage(input=tokens), "end_turn", **how
    )


def refuse_with(**numbers):
    """Return a function that records an overflow with these numbers."""
    return lambda journal: journal.record_overflow("too large", **numbers)


@pytest.mark.parametrize(
    ("end", "is_counted"),
    [
        (answer_with(9_000), True),
        (answer_with(4_000_000), False),
        (answer_with(3), False),
        (answer_with(9_000, as_planned=False), False),
        (answer_with(0), False),
        (refuse_with(requested_tokens=21_000), True),
        (refuse_with(limit=18_500), False),
        (refuse_with(requested_tokens=4_000_000), False),
        (refuse_with(), False),
        (lambda journal: journal.record_failure("gone"), False),
        (lambda journal: None, False),
    ],
    ids=[
        "counted", "doubted", "not the whole", "of another request", "untold", "refused by its size",
        "refused by a limit", "refused by nonsense", "refused without a word", "failed", "on its way",
    ],
)  # fmt: skip
def test_commands_agree_on_the_size_of_a_request(run, store, journal, end, is_counted):
    """``why``, ``diff`` and ``context`` report one size for a request id or its failure's id; ``stats`` reports the
    largest.
    """
    end(journal)
    request = next(
        entry.id for entry in reversed(store.read_path(KEY)) if entry.body.__struct_config__.tag == "request"
    )
    last = store.read_path(KEY)[-1]
    for name in (request, last.id) if isinstance(last.body, FailureEntry) else (request,):
        why, diff, context = (json.loads(run(verb, name, "--json").stdout) for verb in ("why", "diff", "context"))
        assert (why.get("is_counted", False), context["is_counted"]) == (is_counted, is_counted)
        assert why["shown_tokens"] == diff["after"] == context["tokens"]
        assert why["tokens"] == diff["before"] > why["shown_tokens"]
        assert why["window"] == context["window"]
        size = f"{'' if is_counted else '~'}{why['shown_tokens']:,}"
        printed = " ".join(run("why", name).stdout.split())
        assert f" {size} tokens" in printed
        has_usage = why["usage"] is not None
        assert ("by an implausible count" in printed) == (has_usage and not is_counted)
        assert f" {size} tokens" in run("diff", name).stdout
        assert run("context", name).stdout.splitlines()[1].startswith(f"{size} of ")
    largest = json.loads(run("stats", KEY, "--json").stdout)["largest"]
    assert largest["sent_upstream"] < WINDOW
    assert (largest["from_client"], largest["is_counted"]) == (why["tokens"], False)


@pytest.mark.parametrize(
    ("tokens", "is_counted"),
    [(9_000, True), (4_000_000, False), (3, False), (0, False)],
    ids=["counted", "doubted", "not the whole", "untold"],
)
def test_ls_shows_a_believable_count_else_an_estimate(run, journal, tokens, is_counted):
    """``ls`` shows the provider's count if it is plausible, otherwise the estimate of ``context``."""
    answer_with(tokens)(journal)
    (listed,) = json.loads(run("ls", "--json").stdout)
    size = json.loads(run("context", KEY, "--json").stdout)["tokens"]
    assert (listed["is_counted"], listed["tokens"]) == (is_counted, tokens if is_counted else size)
    assert f"{'' if is_counted else '~'}{listed['tokens']:,}" in run("ls").stdout.split()


def test_commands_report_missing_usage_as_unknown(run, store, home):
    """Tokens and dollars without usage are not zero: null in JSON and words in text."""
    journal = Journal.open(store, KEY, Policy())
    journal.append(Message.from_text("user", "word " * 900))
    request = journal.prepare_request(TARGET).request_id
    journal.record_answer(Message.from_text("assistant", "Yes."), Usage(), "end_turn")
    why, session_figures = (json.loads(run(*verb, "--json").stdout) for verb in (("why", request), ("stats", KEY)))
    all_figures = json.loads(run("stats", "--json").stdout)["all"]
    assert (why["usage"], why["dollars"]) == (None, None)
    for name in ("input", "output", "cache_read", "cache_write", "dollars", "cache_hit"):
        assert (session_figures[name], all_figures[name]) == (None, None)
    assert (session_figures["answers"], session_figures["answers_without_usage"]) == (0, 1)
    assert "cost unknown: its answer reported no usage, ended with end_turn" in run("why", request).stdout
    assert "no answer reported usage, so the cost is unknown" in run("stats", KEY).stdout
    assert "answer: no usage reported end_turn" in run("show", KEY, "--all").stdout
    journal.append(Message.from_text("user", "And now?"))
    journal.prepare_request(TARGET)
    journal.record_answer(Message.from_text("assistant", "No."), Usage(1_000, 2), "end_turn")
    assert "; 1 answer without usage not included" in " ".join(run("stats", KEY).stdout.split())


@pytest.mark.parametrize("table", ["policy", "policy.pi"])
def test_commands_agree_on_the_configured_window(run, store, home, table):
    """The window is that of the session's policy as ``holdfast.toml`` changes it."""
    (home / "holdfast.toml").write_text(f"[{table}]\nwindow.cap = 18000\n")
    journal = Journal.open(store, KEY, Policy.preset("pi"))
    journal.append(Message.from_text("user", "word " * 900))
    ready = journal.prepare_request(TARGET)
    request = ready.request_id
    journal.record_answer(Message.from_text("assistant", "Yes."), Usage(input=ready.plan.after), "end_turn")
    for name in (request, KEY):
        assert json.loads(run("context", name, "--json").stdout)["window"] == 18_000
    assert json.loads(run("why", request, "--json").stdout)["window"] == 18_000
    assert json.loads(run("stats", KEY, "--json").stdout)["largest"]["window"] == 18_000


def test_commands_agree_on_the_size_before_and_after_undo(run, store):
    """``undo``, ``diff``, ``stats`` and ``context`` agree on the tokens a decision removed, whatever the estimate."""
    journal = Journal.open(store, KEY, Policy())
    message = Message.from_text("user", "kelp on the rock " * 400)
    for _ in range(3):
        journal.append(message)
        ready = journal.prepare_request(TARGET)
        journal.record_answer(
            Message.from_text("assistant", "Yes."), Usage(input=ready.plan.after * 3 // 4, output=5), "end_turn"
        )
    whole = json.loads(run("context", KEY, "--json").stdout)["tokens"]
    assert run("compact", KEY).exit_code == 0
    [decision] = json.loads(run("undo", KEY, "--list", "--json").stdout)["in_force"]
    diff = json.loads(run("diff", KEY, f"..{decision['id']}", "--json").stdout)
    stats = json.loads(run("stats", KEY, "--json").stdout)
    assert diff["before"] == stats["said_tokens"] == whole
    assert diff["before"] - diff["after"] == stats["saved_tokens"] == decision["token_growth"]
    undone = json.loads(run("undo", KEY, "--json").stdout)
    assert (undone["before"], undone["after"]) == (diff["after"], whole)
