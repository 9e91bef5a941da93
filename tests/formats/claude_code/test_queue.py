from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.formats import EXPORT_FORMATS, export_with_loss_notes
from holdfast.formats.base import get_full_history_entries
from holdfast.formats.claude_code.queue import _is_typed_prompt
from holdfast.formats.claude_code.read import read_claude_code
from holdfast.formats.common.lines import LineFile
from holdfast.state.entries import MessageEntry
from tests.support.example_counts import choose

WORDS = "leave the header as it is"


def line(kind, uuid, parent, **more):
    time = "2026-10-02T08:00:00.000Z"
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "S", "cwd": "/w", "timestamp": time} | more


def user(uuid, parent, content, **more):
    return line("user", uuid, parent, message={"role": "user", "content": content}, **more)


def result(uuid, parent, call="c1"):
    return user(uuid, parent, [{"type": "tool_result", "tool_use_id": call, "content": "ok"}])


def answer(uuid, parent, *blocks, mid=None):
    message = {"id": mid or f"m-{uuid}", "role": "assistant", "model": "claude-x", "content": list(blocks)}
    return line("assistant", uuid, parent, message=message)


def call(id_="c1"):
    return {"type": "tool_use", "id": id_, "name": "Bash", "input": {}}


def said(words):
    return {"type": "text", "text": words}


def attachment(uuid, parent, prompt=WORDS, mode="prompt", **more):
    content = {"type": "queued_command", "prompt": prompt, "commandMode": mode, **more}
    return line("attachment", uuid, parent, attachment=content)


def queue(operation, words=None):
    fields = {"type": "queue-operation", "operation": operation, "timestamp": "2026-10-02T08:00:01Z", "sessionId": "S"}
    return fields if words is None else fields | {"content": words}


def build_file(*lines):
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


def list_texts(data):
    """Return the conversation in short form: texts, calls as !id, results as =id."""
    out = []
    for entry in get_full_history_entries(read_claude_code(data)):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{item.id}" for item in message.calls] + [f"={item.call_id}" for item in message.results]
            out += [*filter(None, [message.text]), *marks]
    return out


ATTACHED = (
    user("u1", None, "tidy up"),
    answer("a1", "u1", call()),
    result("r1", "a1"),
    attachment("q1", "r1"),
    answer("a2", "q1", said("the header stays")),
    user("u2", "a2", "thanks"),
)
REMOVED = (
    user("u1", None, "tidy up"),
    answer("a1", "u1", call()),
    queue("enqueue", WORDS),
    queue("remove"),
    result("r1", "a1"),
    answer("a2", "r1", said("the header stays")),
    user("u2", "a2", "thanks"),
)
CONVERSATION = ["tidy up", "!c1", "=c1", WORDS, "the header stays", "thanks"]


@pytest.mark.parametrize("lines", [ATTACHED, REMOVED])
def test_read_makes_a_message_of_words_queued_during_a_turn(lines):
    """Words that stand only in an attachment or in queue operations are a user message behind the results."""
    assert list_texts(build_file(*lines)) == CONVERSATION


@pytest.mark.parametrize("lines", [ATTACHED, REMOVED])
@pytest.mark.parametrize("format_name", EXPORT_FORMATS)
def test_export_has_queued_words_once(lines, format_name):
    """Every format that is written has the queued words, once."""
    data = export_with_loss_notes(read_claude_code(build_file(*lines)), format_name).data
    assert [text for text in _list_strings(data) if WORDS in text] == [WORDS]


def _list_strings(data):
    """Return every string in a file of JSON lines or one JSON value."""

    def walk(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)

    try:
        documents = [json.loads(data)]
    except ValueError:
        documents = [json.loads(item) for item in data.splitlines()]
    return [text for document in documents for text in walk(document)]


@pytest.mark.parametrize("lines", [ATTACHED, REMOVED])
def test_export_for_claude_code_keeps_queued_words_on_the_branch(lines):
    """The file that is written reads back as the same conversation: the answer links to the words before it."""
    recording = read_claude_code(build_file(*lines))
    assert list_texts(export_with_loss_notes(recording, "claude-code").data) == CONVERSATION


def test_read_takes_words_once_that_the_client_wrote_again_as_a_user_line():
    """Words in the queue and in an attachment that a user line repeats are the message of that line alone."""
    for head in (ATTACHED[:5], REMOVED[:6]):
        data = build_file(*head, user("u2", "a2", WORDS), answer("a3", "u2", said("done")))
        assert list_texts(data) == ["tidy up", "!c1", "=c1", "the header stays", WORDS, "done"]


def test_read_counts_a_queued_prompt_that_begins_a_turn_as_its_user_line():
    """``dequeue`` begins a turn: the next user line is that prompt, also if a paste was written out in it."""
    data = build_file(
        queue("enqueue", "[Pasted text #1]"),
        queue("dequeue"),
        user("u1", None, "the long text itself"),
        answer("a1", "u1", said("read")),
    )
    assert list_texts(data) == ["the long text itself", "read"]


def test_read_counts_prompts_sent_together_as_one_user_line():
    """Prompts that the client joined into one message, a line each, are that message alone."""
    data = build_file(
        queue("enqueue", "one"),
        queue("enqueue", "two"),
        queue("dequeue"),
        queue("dequeue"),
        user("u1", None, "one\ntwo"),
        answer("a1", "u1", said("read")),
    )
    assert list_texts(data) == ["one\ntwo", "read"]


def test_read_keeps_a_prompt_whose_user_line_was_never_written():
    """claude-code#30623: the client took a prompt out of the queue, answered it and wrote no line for it."""
    data = build_file(
        user("u1", None, "tidy up"),
        answer("a1", "u1", said("done")),
        queue("enqueue", WORDS),
        queue("dequeue"),
        answer("a2", "a1", said("it stays")),
    )
    assert list_texts(data) == ["tidy up", "done", WORDS, "it stays"]


def test_read_keeps_a_prompt_that_still_waits_at_the_end():
    """A prompt that nobody took out of the queue before the client ended was said, and nothing is lost of it."""
    data = build_file(user("u1", None, "tidy up"), answer("a1", "u1", call()), queue("enqueue", WORDS))
    assert list_texts(data) == ["tidy up", "!c1", WORDS]


@pytest.mark.parametrize(
    "lines",
    [
        [queue("enqueue", WORDS), queue("popAll", WORDS)],
        [queue("enqueue", "/compact"), queue("remove")],
        [queue("enqueue", "<task-notification>\n<task-id>b1</task-id>"), queue("remove")],
        [queue("enqueue", '{"task_id":"b1","task_type":"local_bash"}')],
        [attachment("q1", "r1", "<task-notification>b1</task-notification>", mode="task-notification")],
        [attachment("q1", "r1", "  ")],
        [attachment("q1", "r1", {"odd": 1})],
        [queue("remove"), queue("dequeue"), queue("popAll"), queue("enqueue"), queue("")],
    ],
)
def test_read_makes_no_message_of_cancelled_prompts_and_notifications(lines):
    """What was taken back, commands of the client and notifications of programs are no words of the user."""
    head = [user("u1", None, "tidy up"), answer("a1", "u1", call()), result("r1", "a1")]
    data = build_file(*head, *lines, answer("a2", "r1", said("done")))
    assert list_texts(data) == ["tidy up", "!c1", "=c1", "done"]


def test_read_takes_back_only_the_prompt_that_was_cancelled():
    """Of two prompts the one that ``popAll`` names is gone, and the other is a message."""
    data = build_file(
        user("u1", None, "tidy up"),
        queue("enqueue", "stop"),
        queue("enqueue", WORDS),
        queue("popAll", "stop"),
        queue("remove"),
        answer("a1", "u1", said("done")),
    )
    assert list_texts(data) == ["tidy up", WORDS, "done"]


def test_read_keeps_several_queued_prompts_in_order():
    """Prompts that the model got together follow each other; later ones come after the next answer."""
    data = build_file(
        user("u1", None, "tidy up"),
        answer("a1", "u1", call("c1")),
        queue("enqueue", "first"),
        queue("enqueue", "second"),
        queue("remove"),
        queue("remove"),
        result("r1", "a1"),
        answer("a2", "r1", call("c2")),
        queue("enqueue", "third"),
        queue("remove"),
        result("r2", "a2", "c2"),
    )
    assert list_texts(data) == ["tidy up", "!c1", "=c1", "first", "second", "!c2", "=c2", "third"]


def test_read_puts_queued_words_behind_all_results_of_parallel_calls():
    """Nothing stands between the calls of an answer and their results, whatever the order of the lines."""
    data = build_file(
        user("u1", None, "tidy up"),
        answer("a1", "u1", call("c1"), mid="m"),
        answer("a2", "a1", call("c2"), mid="m"),
        result("r1", "a1", "c1"),
        queue("enqueue", WORDS),
        queue("remove"),
        result("r2", "a2", "c2"),
        answer("a3", "r2", said("done")),
    )
    assert list_texts(data) == ["tidy up", "!c1", "!c2", "=c1", "=c2", WORDS, "done"]


def test_read_keeps_pictures_of_a_queued_prompt():
    """A prompt of blocks, as with a pasted picture, keeps them."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    blocks = [said("like this"), picture]
    data = build_file(user("u1", None, "tidy up"), attachment("q1", "u1", blocks), answer("a1", "q1", said("done")))
    recording = read_claude_code(data)
    parts = recording.entries[1].body.sized_message.message.parts
    assert [type(part).__name__ for part in parts] == ["Text", "Media"]


def test_read_keeps_words_without_links_in_a_sub_agents_file():
    """In a file with a sub-agent's conversation alone, queued words belong to it."""
    lines = [user("u1", None, "look", isSidechain=True, agentId="x"), queue("enqueue", WORDS)]
    assert list_texts(build_file(*lines)) == ["look", WORDS]


@pytest.mark.parametrize("lines", [ATTACHED, REMOVED])
def test_read_of_an_open_file_gives_the_same_queued_words(lines):
    """A file that is read line by line, its messages on demand, gives the same entries."""
    data = build_file(*lines)
    whole = read_claude_code(data)
    lazy = read_claude_code(LineFile(lambda: iter(data.splitlines(keepends=True)), lambda at, n: data[at : at + n]))
    assert list(lazy.entries) == list(whole.entries)
    assert lazy.leaf == whole.leaf


# -- any order of lines, with damage -----------------------------------------------------------------------------------

_PROMPTS = ("go on", "yes", WORDS, "a sentence that is long enough to be known again anywhere")
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["user", "answer", "work", "attachment", "enqueue", "remove", "dequeue", "popAll", "torn"]),
        st.sampled_from(_PROMPTS),
    ),
    max_size=14,
)


def _build_random_file(steps):
    lines = []
    parent = None
    for number, (kind, words) in enumerate(steps):
        uuid = f"n{number}"
        if kind in ("enqueue", "popAll"):
            lines.append(json.dumps(queue(kind, words)))
        elif kind in ("remove", "dequeue"):
            lines.append(json.dumps(queue(kind)))
        elif kind == "torn":
            lines.append(json.dumps(user(uuid, parent, words))[:-9])
        elif kind == "work":
            lines.append(json.dumps(answer(uuid, parent, call(uuid))))
            lines.append(json.dumps(result(f"{uuid}r", uuid, uuid)))
            parent = f"{uuid}r"
        else:
            make = {"user": user, "attachment": attachment}.get(kind)
            made = make(uuid, parent, words) if make else answer(uuid, parent, said(words))
            lines.append(json.dumps(made))
            parent = uuid
    return [line.encode() + b"\n" for line in lines]


@given(_STEPS)
@settings(max_examples=choose(quick=50, ci=200, thorough=5_000), deadline=None)
@pytest.mark.counts
def test_read_of_any_queue_loses_no_user_line_and_reads_back_the_same(steps):
    """Whatever the queue did: each user line is a message once, calls stay with results, and an export of the
    conversation reads back as the same conversation.
    """
    data = b"".join(_build_random_file(steps))
    if not data:
        return
    texts = list_texts(data)
    for words in _PROMPTS:
        typed = sum(kind == "user" and item == words for kind, item in steps)
        said_in_answers = sum(kind == "answer" and item == words for kind, item in steps)
        given = sum(kind in ("attachment", "enqueue") and item == words for kind, item in steps)
        assert typed + said_in_answers <= texts.count(words) <= typed + said_in_answers + given
        cancelled = sum(kind == "popAll" for kind, _ in steps)
        if given > cancelled:
            assert words in texts
    for position, mark in enumerate(texts):
        if mark.startswith("!"):
            assert texts[position + 1] == f"={mark[1:]}"
    recording = read_claude_code(data)
    if texts:
        assert list_texts(export_with_loss_notes(recording, "claude-code").data) == texts


@given(_STEPS)
@settings(max_examples=choose(quick=30, ci=100, thorough=2_000), deadline=None)
@pytest.mark.counts
def test_read_never_reuses_an_id_of_queued_words_as_the_file_grows(steps):
    """Whichever beginning of the file is read first, an id always means the same entry."""
    lines = _build_random_file(steps)
    known = {}
    for count in range(1, len(lines) + 1):
        for entry in read_claude_code(b"".join(lines[:count])).entries:
            content = (entry.parent, entry.body)
            assert known.setdefault(entry.id, content) == content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/tmp is full, clean it", True),
        ("/etc is broken on this machine", True),
        ("/src/app.py needs a test", True),
        ("/deploy staging", True),
        ("/compact", False),
        ("/compact keep the test names", False),
        ("/my-plugin:run", False),
        ("/my-plugin:run on the tests", False),
        ("", False),
    ],
)
def test_is_typed_prompt_keeps_words_that_begin_with_a_path(text, expected):
    """Only a single word, or a known command of the client, is a command; anything else is what the user said."""
    assert _is_typed_prompt(text) is expected
