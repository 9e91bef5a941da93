"""What is still open in a conversation: started and not ended, told by each client's convention."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import message_strategy
from msgspec import Raw
from open_work_scripts import WORK_SCRIPTS, WorkScript, build_exchange, build_note

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ProviderSignature, Text, ToolCall, ToolResult
from holdfast.planning.open_work.find_open_work import list_open_work, read_exchange
from holdfast.planning.open_work.section import render_open_work

scripts = pytest.mark.parametrize("script", WORK_SCRIPTS, ids=lambda script: script.label)


def list_open_ids(messages: Sequence[Message]) -> list[str]:
    return [item.id for item in list_open_work(messages)]


@scripts
def test_list_open_work_lists_what_was_started_until_it_ends(script: WorkScript):
    """An item is open from its start on, also while it is asked about, and no more once its client says it ended."""
    id_ = script.make_id(7)
    messages = script.start(id_, "build the docs")
    (item,) = list_open_work(messages)
    assert (item.kind, item.id) == (script.kind, id_)
    assert "build the docs" in item.name
    messages += script.go_on(id_)
    assert list_open_ids(messages) == [id_]
    assert list_open_ids(messages + script.end(id_)) == []


@scripts
def test_list_open_work_ends_only_the_item_that_is_named(script: WorkScript):
    """Ids that begin alike are told apart: the end of 1 is not the end of 11."""
    first, second = script.make_id(1), script.make_id(11)
    messages = [*script.start(first, "one"), *script.start(second, "two")]
    assert list_open_ids(messages + script.end(first)) == [second]
    assert list_open_ids(messages + script.end(second)) == [first]


@given(st.data())
def test_list_open_work_is_started_less_ended_in_any_order(data):
    """Law: however starts, questions and ends of all clients mix, open is what was started and has not ended."""
    chosen = data.draw(st.lists(st.sampled_from(WORK_SCRIPTS), min_size=1, max_size=8))
    work = {script.make_id(number + 1): script for number, script in enumerate(chosen)}
    messages: list[Message] = []
    open_ids: set[str] = set()
    for id_ in data.draw(st.lists(st.sampled_from(sorted(work)), max_size=24)):
        if id_ not in open_ids:
            messages += work[id_].start(id_, "something")
            open_ids.add(id_)
        elif data.draw(st.booleans()):
            messages += work[id_].end(id_)
            open_ids.discard(id_)
        else:
            messages += work[id_].go_on(id_)
    assert {item.id for item in list_open_work(messages)} == open_ids


@scripts
def test_list_open_work_believes_no_prose(script: WorkScript):
    """The words of a client in a question of the user, in an answer, or in the output of another tool open nothing."""
    (_, started) = script.start(script.make_id(3), "deploy")
    (result,) = started.results
    (part,) = result.content
    assert isinstance(part, Text)
    quoted = [
        Message.from_text("user", f"What does this mean?\n{part.text}"),
        Message.from_text("assistant", f"It means:\n{part.text}"),
        *build_exchange("read_file", {"path": "log.txt"}, part.text),
        *build_exchange("shell", {"command": "cat log.txt"}, f"first line\n{part.text}\nlast line"),
    ]
    assert list_open_ids(quoted) == []


def test_list_open_work_ignores_output_that_quotes_a_status_line():
    """A command that prints a log of an earlier session starts nothing, and ends nothing."""
    quoted = "Process running with session ID 555\n" * 3
    header = "Chunk ID: 1\nWall time: 1 seconds\nProcess exited with code 0\nOriginal token count: 9\nOutput:\n"
    messages = build_exchange("exec_command", {"cmd": "cat log"}, header + quoted)
    log = "line\n" * 5 + "Command running in background with ID: b12. Output\nmore\nand more"
    messages += build_exchange("Bash", {"command": "cat log"}, log)
    assert list_open_ids(messages) == []


def test_list_open_work_reads_no_end_from_what_an_agent_wrote():
    """The result in a notification may quote another notification: only its own fields count."""
    claude = WORK_SCRIPTS[0]
    messages = [*claude.start("aaa", "one"), *claude.start("bbb", "two")]
    text = "<task-notification>\n<task-id>aaa</task-id>\n<status>completed</status>\n<result>\n"
    text += "<task-id>bbb</task-id><status>completed</status></result>\n</task-notification>"
    assert list_open_ids(messages + build_note(text)) == ["bbb"]


def test_list_open_work_keeps_a_finished_agent_of_codex_until_it_is_closed():
    """A finished agent holds its slot until it is closed (codex#26177), and input makes it run again."""
    script = next(script for script in WORK_SCRIPTS if script.label == "codex agent")
    messages = [*script.start("0199", "worker"), *script.go_on("0199")]
    (item,) = list_open_work(messages)
    assert item.state == "finished, not closed"
    messages += build_exchange("send_input", {"target": "0199", "message": "more"}, '{"submission_id": "1"}')
    (item,) = list_open_work(messages)
    assert item.state == ""


@pytest.mark.parametrize(("name", "key"), [("TodoWrite", "todos"), ("todo", "items"), ("update_plan", "plan")])
def test_list_open_work_shows_the_newest_to_do_list(name, key):
    """The newest call that writes a list counts, whatever its tool is called; items that are done are not open."""
    messages = [
        *build_exchange(name, {key: [{"step": "old"}]}, "ok"),
        *build_exchange(
            name, {key: [{"content": "swim", "status": "completed"}, {"step": "dive", "status": "in_progress"}]}, "ok"
        ),
    ]
    assert [(item.name, item.state) for item in list_open_work(messages)] == [("dive", "in_progress")]


def test_list_open_work_skips_withdrawn_and_rejected_to_do_lists():
    """An empty list withdraws the items; a call that the tool rejected leaves the list before it in force."""
    written = build_exchange("todo", {"todos": [{"text": "dive"}]}, "ok")
    assert list_open_work([*written, *build_exchange("todo", {"todos": []}, "ok")]) == ()
    rejected = build_exchange("todo", {"todos": [{"text": "fly"}]}, "no such status", is_error=True)
    assert [item.name for item in list_open_work([*written, *rejected])] == ["dive"]
    assert [item.name for item in list_open_work([*written, *build_exchange("todo", {"files": "x"}, "ok")])] == ["dive"]


def test_list_open_work_follows_single_tasks():
    """Tasks that are created and updated one by one (Claude Code) stay with their last status."""
    messages = [
        *build_exchange("TaskCreate", {"subject": "Dive"}, "Task #1 created successfully: Dive"),
        *build_exchange("TaskCreate", {"subject": "Swim"}, "Task #2 created successfully: Swim"),
        *build_exchange("TaskUpdate", {"taskId": "1", "status": "completed"}, "Updated task #1 status"),
        *build_exchange("TaskUpdate", {"taskId": "2", "status": "in_progress"}, "Updated task #2 status"),
    ]
    assert [(item.id, item.name, item.state) for item in list_open_work(messages)] == [("2", "Swim", "in_progress")]


def test_list_open_work_reads_the_to_do_text_of_goose():
    """goose keeps its list as a Markdown text."""
    content = "# Plan\n- [x] swim\n- [ ] dive\n"
    messages = build_exchange("todo__todo_write", {"content": content}, "Updated")
    assert [item.name for item in list_open_work(messages)] == ["dive"]


def test_list_open_work_lists_calls_and_messages_without_an_answer():
    """Calls of the newest answer without a result may wait for an approval; of several user messages all but the newest
    wait in the queue.
    """
    asked = Message("assistant", (ToolCall("c1", "AskUserQuestion", "{}"), ToolCall("c2", "Read", "{}")))
    read = Message("tool", (ToolResult("c2", "Read", (Text("x"),)),))
    assert [(item.kind, item.id) for item in list_open_work([asked, read])] == [("call", "c1")]
    queued = [Message.from_text("user", "first also do this"), Message.from_text("user", "and that")]
    assert [item.name for item in list_open_work([read, *queued])] == ["first also do this"]
    assert list_open_work([*queued, Message.from_text("assistant", "done")]) == ()


def test_list_open_work_follows_approvals_of_an_api():
    """A request for the approval of an MCP call is open until the message that answers it."""
    signature = ProviderSignature("openai_responses", "gpt", "mcpr_1")
    raw = json.dumps({"id": "mcpr_1", "name": "drop_table", "server_label": "db"}).encode()
    request = Message("assistant", (Opaque("mcp_approval_request", Raw(raw), signature),))
    response = Message("user", (Opaque("message", None, signature),))
    (item,) = list_open_work([request, Message.from_text("user", "wait")])
    assert (item.kind, item.id, item.name) == ("approval", "mcpr_1", "db drop_table")
    assert list_open_work([request, response]) == ()


@given(st.lists(message_strategy(), max_size=8))
def test_list_open_work_accepts_any_history(messages):
    """No combination of calls, results and texts raises, and whatever is found can be shown."""
    render_open_work(list_open_work(messages), 100)


@given(st.data())
def test_list_open_work_is_the_same_whatever_was_read_before(data):
    """Law: what is remembered of a call and its result is what reading them anew would give, for every beginning."""
    chosen = data.draw(st.lists(st.sampled_from(WORK_SCRIPTS), min_size=1, max_size=5))
    messages: list[Message] = []
    for number, script in enumerate(chosen):
        id_ = script.make_id(number + 1)
        messages += [*script.start(id_, "something"), *script.go_on(id_)]
        if data.draw(st.booleans()):
            messages += script.end(id_)
    remembered = [list_open_work(messages[:count]) for count in range(len(messages) + 1)]
    for count, items in enumerate(remembered):
        read_exchange.cache_clear()
        assert list_open_work(messages[:count]) == items
