"""``holdfast export --reduced``: what the model sees now, written for the tool that recorded the session."""

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
FORMATS = ["claude-code", "pi", "codex", "atif"]
BIG = "\n".join(f"{number}: a line of a log that goes on and on" for number in range(2_000))


@pytest.fixture
def lines(make_session_lines, make_session_line):
    """Return a session with two results that are far too long, and an answer after the last one."""
    session_lines = make_session_lines(3, session=KEY)
    for turn in (0, 2):
        at = 4 * turn + 2
        content = [{"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": f"{turn}\n{BIG}"}]
        session_lines[at] = make_session_line(at, "user", content, session=KEY)
    return session_lines


@pytest.fixture
def import_as_format(run, home, write_lines, lines):
    """Return a function that imports the session from a format, with a compaction of that tool if ``keep`` is given."""

    def import_recorded(form, *, keep=None):
        assert run("import", write_lines(home / "first.jsonl", lines)).exit_code == 0
        if keep is not None:
            with open_store(home / "store" / "holdfast.db") as store:
                compaction = CompactionEntry(
                    keep, Message.from_text("user", "what happened before"), tokens_before=9_000, tokens_after=8_000
                )
                store.append_entries(KEY, [Entry("c1", store.get_session(KEY).leaf_id, compaction, time_ms=0)])
        assert run("export", KEY, "--format", form, "-o", home / f"{form}.jsonl").exit_code == 0
        assert run("import", home / f"{form}.jsonl", "--as", form).exit_code == 0

    return import_recorded


@pytest.fixture
def reduce_and_export(run):
    """Return a function that reduces a stored session and returns its reduced export."""

    def export_reduced(form):
        done = run("context", form, "--policy", "holdfast", "--window", "40000", "--record", "--json")
        assert json.loads(done.stdout)["next_plan"]["entry_ids"]
        out = run("export", form, "--format", form, "--reduced")
        assert out.exit_code == 0, out.output
        return out.stdout_bytes

    return export_reduced


def list_texts(sized_messages):
    """Return the text and the result texts of each message."""
    return [
        part
        for sized_message in sized_messages
        for part in [sized_message.message.text, *map(get_result_text, sized_message.message.results)]
        if part
    ]


def list_shown_texts(home, key):
    """Return the texts that the next request of a stored session shows."""
    with open_store(home / "store" / "holdfast.db") as store:
        return list_texts(build_projection(ConversationState.from_entries(store.read_path(key))))


@pytest.mark.parametrize("form", FORMATS)
def test_export_reduced_writes_what_the_model_sees(import_as_format, reduce_and_export, run, home, form):
    """Imported again, the next request shows the same; the long results are in no line of the file."""
    import_as_format(form)
    out = reduce_and_export(form)
    (home / "again.jsonl").write_bytes(out)
    assert run("import", home / "again.jsonl", "--as", "again").exit_code == 0
    assert list_shown_texts(home, "again") == list_shown_texts(home, form)
    assert sum("recall(id=" in text for text in list_shown_texts(home, "again")) == 2
    assert b"1000: a line of a log" not in out
    assert read_recording(out).problems == ()
    with open_store(home / "store" / "holdfast.db") as store:
        assert not ConversationState.from_entries(store.read_path("again")).view.edits


@pytest.mark.parametrize("form", FORMATS)
def test_export_writes_the_full_log_by_default(import_as_format, reduce_and_export, run, form):
    """Without the option every message is written in full, also for a reduced session."""
    import_as_format(form)
    full_export = run("export", form, "--format", form).stdout_bytes
    assert len(reduce_and_export(form)) < len(full_export) / 3
    assert run("export", form, "--format", form).stdout_bytes == full_export


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("keep", [4, 2])
def test_export_reduced_keeps_the_tools_own_compaction(import_as_format, reduce_and_export, home, form, keep):
    """The recorded compaction keeps the messages it kept, as the model sees them now."""
    import_as_format(form, keep=keep)
    whole = list_shown_texts(home, form)
    assert whole[0] == "what happened before"
    exported = read_recording(reduce_and_export(form))
    assert (
        list_texts(build_projection(ConversationState.from_entries(exported.entries)))
        == list_shown_texts(home, form)
        != whole
    )
    assert ConversationState.from_entries(exported.entries).view.first_kept == keep
    assert exported.problems == ()


@pytest.mark.parametrize("form", FORMATS)
def test_export_reduced_writes_our_compaction_as_the_tools(import_as_format, reduce_and_export, run, home, form):
    """A compaction made by Holdfast is written as the tool's own, over what the model saw."""
    import_as_format(form)
    reduce_and_export(form)
    with open_store(home / "store" / "holdfast.db") as store:
        compaction = CompactionEntry(
            5, Message.from_text("user", "what happened before"), tokens_before=9_000, tokens_after=8_000
        )
        store.append_entries(form, [Entry("ours", store.get_session(form).leaf_id, compaction, time_ms=0)])
    exported = read_recording(run("export", form, "--format", form, "--reduced").stdout_bytes)
    assert list_texts(build_projection(ConversationState.from_entries(exported.entries))) == list_shown_texts(
        home, form
    )
    assert ConversationState.from_entries(exported.entries).view.first_kept == 5


@pytest.mark.parametrize("form", FORMATS)
def test_export_reduced_omits_the_usage_of_the_newest_answer(import_as_format, reduce_and_export, form, run):
    """The newest usage counts reduced text, so it is omitted and the tool does not think its window full; earlier usage
    stays.
    """
    import_as_format(form)
    whole = [
        step.usage.input
        for step in list_model_calls(read_recording(run("export", form, "--format", form).stdout_bytes))
    ]
    new = [step.usage.input for step in list_model_calls(read_recording(reduce_and_export(form)))]
    assert whole[-1] > 0
    assert new == [*whole[:-1], 0]


@pytest.mark.parametrize("form", [*FORMATS, "atif", "gemini-cli", "opencode-json"])
def test_export_reduced_sizes_the_session_by_what_it_shows(
    run, home, write_lines, make_session_line, make_session_lines, form
):
    """A reduced session imported again is as large as what it shows; all answers but the newest keep their cost."""
    session_lines = [*make_session_lines(3, session=KEY), *make_session_lines(12, session=KEY)[12:]]
    session_lines[6] = make_session_line(
        6, "user", [{"type": "tool_result", "tool_use_id": "toolu_1", "content": BIG}], session=KEY
    )
    session_lines = add_counted_usage(session_lines)
    assert run("import", write_lines(home / "first.jsonl", session_lines)).exit_code == 0
    recorded = run("context", KEY, "--policy", "holdfast", "--window", "48000", "--record", "--json")
    assert json.loads(recorded.stdout)["next_plan"]["entry_ids"]
    assert run("export", KEY, "--format", form, "--reduced", "-o", home / "reduced").exit_code == 0
    assert run("import", home / "reduced", "--as", "again").exit_code == 0
    new = json.loads(run("context", "again", "--json").stdout)["tokens"]
    with open_store(home / "store" / "holdfast.db") as store:
        assert new == pytest.approx(
            2_000 + ConversationState.from_entries(store.read_path("again")).view.shown_tokens, rel=0.15
        )
    paid = [json.loads(text)["message"].get("usage", {}).get("input_tokens", 0) for text in session_lines]
    assert json.loads(run("stats", "again", "--json").stdout)["input"] == sum(paid) - paid[-1]
    assert run("export", "again", "--format", form, "-o", home / "twice").exit_code == 0
    assert run("import", home / "twice", "--as", "twice").exit_code == 0
    assert json.loads(run("context", "twice", "--json").stdout)["tokens"] == new


def add_counted_usage(session_lines):
    """Return lines whose answers have the usage a provider would count: a setup, and all earlier messages."""
    sums = (
        2_000,
        *ConversationState.from_entries(
            read_recording("\n".join(session_lines).encode()).entries
        ).history.cumulative_tokens,
    )
    records = [json.loads(text) for text in session_lines]
    for index, record in enumerate(records):
        if record["type"] == "assistant":
            record["message"]["usage"] = {"input_tokens": sums[index] + 2_000 * (index > 0), "output_tokens": 20}
    return [json.dumps(record) for record in records]


@pytest.mark.parametrize("form", FORMATS)
def test_export_reduced_without_decisions_equals_the_plain_export(import_as_format, run, form):
    """A session without decisions is written as it came."""
    import_as_format(form)
    plain = run("export", form, "--format", form).stdout_bytes
    assert run("export", form, "--format", form, "--reduced").stdout_bytes == plain


def test_export_reduced_writes_only_the_active_branch(import_as_format, reduce_and_export, home):
    """Other branches are left out, and labels on this one are kept."""
    import_as_format("pi")
    with open_store(home / "store" / "holdfast.db") as store:
        message_entries = [entry for entry in store.read_path("pi") if isinstance(entry.body, MessageEntry)]
        store.label_entry("pi", message_entries[4].id, "second question")
        store.append_entries(
            "pi",
            [
                Entry(
                    "x",
                    message_entries[4].id,
                    MessageEntry(build_sized_message(Message.from_text("assistant", "elsewhere"))),
                )
            ],
        )
    lines = [json.loads(line) for line in reduce_and_export("pi").splitlines()]
    assert "elsewhere" not in str(lines)
    assert [line["targetId"] for line in lines if line["type"] == "label"] == [message_entries[4].id]
    ids = {line["id"] for line in lines}
    assert all(line["parentId"] in ids for line in lines[1:] if line["parentId"] is not None)


def test_export_reduced_changes_nothing_for_a_request_format(import_as_format, reduce_and_export, run):
    """A request shows what the model sees in any case."""
    import_as_format("claude-code")
    reduce_and_export("claude-code")
    plain = run("export", "claude-code", "--format", "anthropic").stdout
    assert run("export", "claude-code", "--format", "anthropic", "--reduced").stdout == plain


def test_export_reduced_writes_undone_decisions_in_full(import_as_format, reduce_and_export, run, home):
    """A message whose reduction was undone is written whole."""
    import_as_format("claude-code")
    reduce_and_export("claude-code")
    while run("undo", "claude-code").exit_code == 0:
        pass
    out = run("export", "claude-code", "--reduced").stdout_bytes
    assert out.count(b"1000: a line of a log") == 2
    assert list_texts(
        build_projection(ConversationState.from_entries(read_recording(out).entries))
    ) == list_shown_texts(home, "claude-code")
