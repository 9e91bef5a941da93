"""``holdfast export --reduced``: what the model sees now, for the tool that recorded the session to go on from."""

from __future__ import annotations

import json

import pytest

from holdfast.formats import list_model_calls, read_recording
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry
from holdfast.state.view import build_projection
from holdfast.store.open_store import open_store

KEY = "10009-bbbb"
FORMS = ["claude-code", "pi", "codex"]
BIG = "\n".join(f"{number}: a line of a log that goes on and on" for number in range(2_000))


@pytest.fixture
def lines(talk, line):
    """Return a session with two results that are far too long, and an answer behind them."""
    told = talk(3, session=KEY)
    for turn in (0, 2):
        at = 4 * turn + 2
        content = [{"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": f"{turn}\n{BIG}"}]
        told[at] = line(at, "user", content, session=KEY)
    return told


@pytest.fixture
def recorded(run, home, write, lines):
    """Return a function that takes a session in a form into the store, with a compaction of that tool if asked."""

    def make(form, *, keep=None):
        assert run("import", write(home / "first.jsonl", lines)).exit_code == 0
        if keep is not None:
            with open_store(home / "store" / "holdfast.db") as store:
                made = CompactionEntry(
                    keep, Message.from_text("user", "what happened before"), tokens_before=9_000, tokens_after=8_000
                )
                store.append_entries(KEY, [Entry("c1", store.get_session(KEY).leaf_id, made, time_ms=0)])
        assert run("export", KEY, "--format", form, "-o", home / f"{form}.jsonl").exit_code == 0
        assert run("import", home / f"{form}.jsonl", "--as", form).exit_code == 0

    return make


@pytest.fixture
def reduced(run):
    """Return a function that reduces a session of the store and returns it as it is written then."""

    def make(form):
        done = run("context", form, "--policy", "holdfast", "--window", "40000", "--record", "--json")
        assert json.loads(done.stdout)["next_plan"]["entry_ids"]
        out = run("export", form, "--format", form, "--reduced")
        assert out.exit_code == 0, out.output
        return out.stdout_bytes

    return make


def texts(slots):
    """Return what is shown: the words and the results of each message."""
    return [part for slot in slots for part in [slot.message.text, *map(get_result_text, slot.message.results)] if part]


def shown(home, key):
    """Return what the next request of a session of the store shows."""
    with open_store(home / "store" / "holdfast.db") as store:
        return texts(build_projection(ConversationState.from_entries(store.read_path(key))))


@pytest.mark.parametrize("form", FORMS)
def test_it_is_what_the_model_sees(recorded, reduced, run, home, form):
    """Imported again, the next request shows the same; the long results are in no line of the file."""
    recorded(form)
    out = reduced(form)
    (home / "again.jsonl").write_bytes(out)
    assert run("import", home / "again.jsonl", "--as", "again").exit_code == 0
    assert shown(home, "again") == shown(home, form)
    assert sum("recall(id=" in text for text in shown(home, "again")) == 2
    assert b"1000: a line of a log" not in out
    assert read_recording(out).problems == ()
    with open_store(home / "store" / "holdfast.db") as store:
        assert not ConversationState.from_entries(store.read_path("again")).view.edits


@pytest.mark.parametrize("form", FORMS)
def test_the_log_as_it_is_stays_the_default(recorded, reduced, run, form):
    """Without the option what was said is written, and a reduced session's log still holds it."""
    recorded(form)
    before = run("export", form, "--format", form).stdout_bytes
    assert len(reduced(form)) < len(before) / 3
    assert run("export", form, "--format", form).stdout_bytes == before


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [4, 2])
def test_behind_a_compaction_of_the_tool(recorded, reduced, home, form, keep):
    """The recorded compaction keeps what it kept, as the model sees it now, wherever its lines named or quoted it."""
    recorded(form, keep=keep)
    whole = shown(home, form)
    assert whole[0] == "what happened before"
    back = read_recording(reduced(form))
    assert texts(build_projection(ConversationState.from_entries(back.entries))) == shown(home, form) != whole
    assert ConversationState.from_entries(back.entries).view.first_kept == keep
    assert back.problems == ()


@pytest.mark.parametrize("form", FORMS)
def test_before_a_compaction_of_ours(recorded, reduced, run, home, form):
    """A compaction that Holdfast made is written as the tool's own, over what the model saw."""
    recorded(form)
    reduced(form)
    with open_store(home / "store" / "holdfast.db") as store:
        made = CompactionEntry(
            5, Message.from_text("user", "what happened before"), tokens_before=9_000, tokens_after=8_000
        )
        store.append_entries(form, [Entry("ours", store.get_session(form).leaf_id, made, time_ms=0)])
    back = read_recording(run("export", form, "--format", form, "--reduced").stdout_bytes)
    assert texts(build_projection(ConversationState.from_entries(back.entries))) == shown(home, form)
    assert ConversationState.from_entries(back.entries).view.first_kept == 5


@pytest.mark.parametrize("form", FORMS)
def test_the_tool_does_not_take_it_for_full(recorded, reduced, form, run):
    """Usage of the newest answer, which counts what is gone, is not written; that of the others is."""
    recorded(form)
    whole = [
        step.usage.input
        for step in list_model_calls(read_recording(run("export", form, "--format", form).stdout_bytes))
    ]
    new = [step.usage.input for step in list_model_calls(read_recording(reduced(form)))]
    assert whole[-1] > 0
    assert new == [*whole[:-1], 0]


@pytest.mark.parametrize("form", [*FORMS, "gemini-cli", "opencode-json"])
def test_what_was_paid_for_longer_words_measures_nothing(run, home, write, line, talk, form):
    """Imported again, a reduced session is as large as what it shows; all answers but the newest cost what they did."""
    told = [*talk(3, session=KEY), *talk(12, session=KEY)[12:]]
    told[6] = line(6, "user", [{"type": "tool_result", "tool_use_id": "toolu_1", "content": BIG}], session=KEY)
    told = as_counted(told)
    assert run("import", write(home / "first.jsonl", told)).exit_code == 0
    recorded = run("context", KEY, "--policy", "holdfast", "--window", "48000", "--record", "--json")
    assert json.loads(recorded.stdout)["next_plan"]["entry_ids"]
    assert run("export", KEY, "--format", form, "--reduced", "-o", home / "reduced").exit_code == 0
    assert run("import", home / "reduced", "--as", "again").exit_code == 0
    new = json.loads(run("context", "again", "--json").stdout)["tokens"]
    with open_store(home / "store" / "holdfast.db") as store:
        assert new == pytest.approx(
            2_000 + ConversationState.from_entries(store.read_path("again")).view.shown_tokens, rel=0.15
        )
    paid = [json.loads(one)["message"].get("usage", {}).get("input_tokens", 0) for one in told]
    assert json.loads(run("stats", "again", "--json").stdout)["input"] == sum(paid) - paid[-1]
    assert run("export", "again", "--format", form, "-o", home / "twice").exit_code == 0
    assert run("import", home / "twice", "--as", "twice").exit_code == 0
    assert json.loads(run("context", "twice", "--json").stdout)["tokens"] == new


def as_counted(told):
    """Return lines whose answers tell what a provider would have counted: a frame, and all that was said before."""
    sums = (
        2_000,
        *ConversationState.from_entries(read_recording("\n".join(told).encode()).entries).history.cumulative_tokens,
    )
    found = [json.loads(one) for one in told]
    for index, one in enumerate(found):
        if one["type"] == "assistant":
            one["message"]["usage"] = {"input_tokens": sums[index] + 2_000 * (index > 0), "output_tokens": 20}
    return [json.dumps(one) for one in found]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_decided_is_the_log(recorded, run, form):
    """A session that nothing was decided about is written as it came."""
    recorded(form)
    plain = run("export", form, "--format", form).stdout_bytes
    assert run("export", form, "--format", form, "--reduced").stdout_bytes == plain


def test_only_what_the_model_sees_is_written(recorded, reduced, home):
    """Another branch is left out; the names of what is on this one stay."""
    recorded("pi")
    with open_store(home / "store" / "holdfast.db") as store:
        said = [entry for entry in store.read_path("pi") if isinstance(entry.body, MessageEntry)]
        store.label_entry("pi", said[4].id, "second question")
        store.append_entries(
            "pi",
            [Entry("x", said[4].id, MessageEntry(build_sized_message(Message.from_text("assistant", "elsewhere"))))],
        )
    lines = [json.loads(line) for line in reduced("pi").splitlines()]
    assert "elsewhere" not in str(lines)
    assert [line["targetId"] for line in lines if line["type"] == "label"] == [said[4].id]
    ids = {line["id"] for line in lines}
    assert all(line["parentId"] in ids for line in lines[1:] if line["parentId"] is not None)


def test_as_a_request_it_is_the_same(recorded, reduced, run):
    """A request shows what the model sees in any case."""
    recorded("claude-code")
    reduced("claude-code")
    plain = run("export", "claude-code", "--format", "anthropic").stdout
    assert run("export", "claude-code", "--format", "anthropic", "--reduced").stdout == plain


def test_an_undone_decision_is_not_written(recorded, reduced, run, home):
    """What was taken back is whole again."""
    recorded("claude-code")
    reduced("claude-code")
    while run("undo", "claude-code").exit_code == 0:
        pass
    out = run("export", "claude-code", "--reduced").stdout_bytes
    assert out.count(b"1000: a line of a log") == 2
    assert texts(build_projection(ConversationState.from_entries(read_recording(out).entries))) == shown(
        home, "claude-code"
    )
