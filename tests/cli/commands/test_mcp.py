"""``holdfast mcp``, asked by the official client of the Model Context Protocol over standard input and output."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters

from holdfast.cli import command as program
from holdfast.cli.commands.mcp import McpSource, answer_tool_call
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.store.open_store import open_store

ROOT = Path(__file__).parents[3]
LONG = "\n".join(f"line {n} of a long result" for n in range(9_000))
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip
HANDLE = sha256(LONG.encode()).hexdigest()[:12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a store: an imported session, and one of this folder that was reduced."""
    folder = tmp_path_factory.mktemp("work").resolve()
    imported = ROOT / "examples" / "long-session.jsonl"
    ran = CliRunner().invoke(program, ["import", str(imported), "--store", str(folder / "store.db")])
    assert ran.exit_code == 0, ran.output
    with open_store(folder / "store.db") as store:
        journal = Journal.open(store, "here")
        store.update_session_info("here", title="kelp", cwd=str(folder))
        call = ToolCall("c1", "Bash", '{"command":"make"}')
        result = ToolResult("c1", content=(Text(LONG),))
        journal.append(
            Message.from_text("user", "build the kelp"), Message("assistant", (call,)), Message("tool", (result,))
        )
        journal.prepare_request(get_target("anthropic", "claude-opus-5", window=64_000))
        journal.append(Message.from_text("assistant", "done"))
    return folder


def place(folder: Path, session: str | None = None) -> McpSource:
    """Return what the server would answer from, asked here and not in a process of its own."""
    return McpSource(str(folder / "store.db"), session, folder)


def asked(folder: Path, *calls: tuple[str, dict], options: tuple[str, ...] = ()):
    """Return the tools that the server lists, and what it answers to each call: text, and whether it is an error."""

    async def ask():
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "holdfast", "mcp", "--store", str(folder / "store.db"), *options],
            cwd=folder,
        )
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return tools, [("".join(part.text for part in one.content), one.is_error) for one in answers]

    return anyio.run(ask)


WRONG = [
    ("recall", {"id": "../../x"}),
    ("recall", {"id": HANDLE, "lines": "-3"}),
    ("recall", {"page": -1}),
    ("recall", {"colour": "red"}),
    ("search", {}),
    ("search", {"query": "kelp", "limit": 0}),
    ("search", {"query": "kelp", "limit": 1_000}),
    ("search", {"query": " "}),
    ("search", {"query": ""}),
    ("remove", {"id": HANDLE}),
]
RIGHT = [
    ("recall", {}),
    ("recall", {"id": HANDLE}),
    ("recall", {"id": HANDLE, "lines": "12-14"}),
    ("recall", {"id": HANDLE, "search": "line 77 of"}),
    ("search", {"query": "kelp", "limit": 5}),
    ("recall", {"id": HANDLE, "page": 2}),
]


@pytest.fixture(scope="module")
def served(folder):
    """What one server lists and answers to a real client: first to calls that are wrong, then to those that are not."""
    return asked(folder, *WRONG, *RIGHT)


def test_a_client_reads_back_what_was_spilled(folder, served):
    """A real client finds two read-only tools and reads pages, lines, matches and the list."""
    tools, answers = served[0], served[1][len(WRONG) :]
    assert sorted(tool.name for tool in tools) == ["recall", "search"]
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert [error for _, error in answers] == [False] * len(RIGHT)
    texts = [text for text, _ in answers]
    assert HANDLE in texts[0]
    assert texts[1].endswith("\n")
    assert f'go on with recall(id="{HANDLE}", chars="' in texts[1]
    assert (
        texts[2].partition("\n")[2] == "line 11 of a long result\nline 12 of a long result\nline 13 of a long result\n"
    )
    assert "78: line 77 of a long result" in texts[3]
    id_ = re.search(r'recall\(id="(\w+)"\)', texts[4])[1]
    assert answer_tool_call(place(folder), "recall", {"id": id_}).text.endswith("\nbuild the kelp")


@pytest.mark.long
def test_the_session_is_the_one_that_is_named(folder):
    """``--session`` chooses by the beginning of an id; what belongs to another one is not there."""
    calls = [("search", {"query": "HF-E5127"}), ("recall", {"id": HANDLE})]
    _, answers = asked(folder, *calls, options=("--session", "a2111"))
    assert [error for _, error in answers] == [False, True]
    assert "HF-E5127" in answers[0][0]


@pytest.mark.long
def test_what_is_wrong_is_an_answer(folder, served):
    """No call ends the server: unknown tools, sessions, ids and arguments are errors in words."""
    wrong = served[1][: len(WRONG)]
    assert [error for _, error in wrong] == [True] * len(WRONG)
    assert all(text and "Traceback" not in text for text, _ in wrong)
    told = answer_tool_call(place(folder, "nowhere"), "recall", {})
    assert told.is_error
    assert "nowhere" in told.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "told", "other"),
    [
        ({"query": ""}, "no words", "limit"),
        ({"query": " "}, "no words", "limit"),
        ({"query": "kelp", "limit": 0}, "a limit of 0 is not from 1 to 100", "word"),
        ({"query": "kelp", "limit": 1_000}, "a limit of 1000 is not from 1 to 100", "word"),
    ],
)
def test_a_wrong_search_says_what_is_wrong(served, arguments, told, other):
    """The query or the limit, and not both."""
    text, _ = served[1][WRONG.index(("search", arguments))]
    assert told in text
    assert other not in text


@pytest.mark.long
def test_the_newest_session_of_the_folder_is_read(folder, tmp_path):
    """Without ``--session`` it is the newest of the folder; in another folder the newest of all, and it is said."""
    assert "kelp" in answer_tool_call(place(folder), "search", {"query": "kelp"}).text
    told = answer_tool_call(place(folder)._replace(folder=tmp_path), "recall", {"id": HANDLE})
    assert told.text.startswith(f"[no session of {tmp_path} is in the store; this is the newest of all, here]\n")
    assert answer_tool_call(McpSource(str(tmp_path / "none.db"), None, tmp_path), "recall", {}).is_error


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "holdfast", "mcp", "--store", str(folder / "store.db"), "--session", "here"]


@pytest.mark.long
def test_it_ends_when_it_is_told_to(folder):
    """^C is heard at once, also while it waits for input."""
    running = subprocess.Popen(
        command(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    running.stdin.write(f"{json.dumps(HELLO)}\n")
    running.stdin.flush()
    assert json.loads(running.stdout.readline())["id"] == 1
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == -signal.SIGINT
    _, err = running.communicate()
    assert "Traceback" not in err


@pytest.mark.long
def test_nothing_but_the_protocol_is_printed(folder):
    """Every line on standard output is a message of the protocol, an older one here; the server ends with its input."""
    more = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "recall", "arguments": {"id": HANDLE}}},
    ]
    given = "".join(f"{json.dumps(one)}\n" for one in [HELLO, *more])
    ran = subprocess.run(command(folder), input=given, capture_output=True, text=True, check=True, timeout=60)
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "holdfast"
    assert {one["jsonrpc"] for one in answers} == {"2.0"}
    assert "Traceback" not in ran.stderr


def searching(id_: int, query: str) -> str:
    """Return the line that asks for a search; ``query`` stands in it as it is."""
    asked = {"name": "search", "arguments": {"query": "?"}}
    line = json.dumps({"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": asked})
    return line.replace('"?"', query)


def spoken(folder: Path, *lines: str) -> list[dict]:
    """Return what is answered to these lines, behind which the input ends at once."""
    given = "\n".join([json.dumps(HELLO), '{"jsonrpc": "2.0", "method": "notifications/initialized"}', *lines])
    ran = subprocess.run(command(folder), input=f"{given}\n", capture_output=True, text=True, check=True, timeout=60)
    assert "Traceback" not in ran.stderr
    first, *answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert first["id"] == 1
    return answers


@pytest.mark.long
def test_every_request_is_answered(folder):
    """Whatever JSON a client sends, its request gets an answer, though the input ends right behind it."""
    asked = {
        r'"\ud800"': "matches '\ufffd'",
        r'"kelp \ud83d\ude00"': "matches 'kelp \U0001f600'",
        f'"kelp", "limit": {"1" * 5_000}': "invalid arguments for search",
        '"kelp"': "build the «kelp»",
    }
    answers = spoken(folder, *[searching(id_, query) for id_, query in enumerate(asked, 2)])
    found = {one["id"]: one["result"]["content"][0]["text"] for one in answers}
    assert [told in found[id_] for id_, told in enumerate(asked.values(), 2)] == [True] * 4


@pytest.mark.long
def test_what_is_no_request_is_answered_too(folder):
    """A line that is no JSON, or no message, gets the error that the protocol has for it; an empty line nothing."""
    lines = [
        "no json",
        "",
        "[" * 100_000,
        "[]",
        "5",
        '{"jsonrpc": "2.0", "id": "x", "method": 5}',
        searching(3, "[" * 500 + "]" * 500),
        searching(4, '"kelp"'),
    ]
    *refused, answer = spoken(folder, *lines)
    assert [(one["id"], one["error"]["code"]) for one in refused] == [
        (None, -32_700), (None, -32_700), (None, -32_600), (None, -32_600), ("x", -32_600), (3, -32_600),
    ]  # fmt: skip
    assert answer["id"] == 4


def ping(id_: str, method: str = "ping") -> str:
    """Return the request ``method`` with an id as it stands in JSON."""
    return f'{{"jsonrpc": "2.0", "id": {id_}, "method": "{method}"}}'


@pytest.mark.long
def test_an_odd_id_gets_an_answer(folder):
    """A whole number is one however it is written; what is no id of the protocol is refused by what it is."""
    whole, odd = ["2.0", "3e1", "-4", '""'], ["1.5", "null", "true", "[1]", "1e400"]
    answers = spoken(folder, *[ping(id_) for id_ in [*whole, *odd]])
    fine = [one["id"] for one in answers if "result" in one]
    assert sorted(map(str, fine)) == ["", "-4", "2", "30"]
    refused = [(one["id"], one["error"]["code"], one["error"]["message"]) for one in answers if "error" in one]
    shown = ["1.5", "null", "true", "[1]", "Infinity"]
    told = [f"the id is {one}; give a string or a whole number" for one in shown]
    assert refused == [(id_, -32_600, why) for id_, why in zip([1.5, None, None, None, None], told, strict=True)]


@pytest.mark.long
def test_a_batch_is_refused(folder):
    """The protocol has none since 2025-06-18: one error for all of it, and what comes next is answered."""
    refused, fine = sorted(spoken(folder, f"[{ping('2')}, {ping('3')}]", ping("9")), key=lambda one: one["id"] or 0)
    assert (refused["id"], refused["error"]["code"]) == (None, -32_600)
    assert "on its own line" in refused["error"]["message"]
    assert fine["id"] == 9


@pytest.mark.long
def test_many_requests_are_all_answered(folder):
    """Each of many calls that run at once when the input ends has its answer; one given up ends nothing."""
    given_up = '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}'
    answers = spoken(folder, *[searching(id_, '"kelp"') for id_ in range(2, 30)], given_up)
    assert {one["id"] for one in answers} >= set(range(3, 30))


@pytest.mark.long
def test_json_says_what_it_would_serve(folder, monkeypatch):
    """``--json`` tells the session and the tools, and ends: a configuration can be looked at without a client."""
    monkeypatch.chdir(folder)
    ran = CliRunner().invoke(program, ["mcp", "--store", str(folder / "store.db"), "--json"])
    told = json.loads(ran.stdout)
    assert (told["session"], told["title"], told["note"]) == ("here", "kelp", "")
    assert [tool["name"] for tool in told["tools"]] == ["recall", "search"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in told["tools"])


@pytest.mark.long
def test_without_the_package_it_says_what_to_install():
    """The package ``mcp`` is an extra; without it there is a message and no traceback."""
    script = "import sys; sys.modules['mcp'] = None; from holdfast.cli import main; sys.argv[1:] = ['mcp']; main()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert 'pip install ".[mcp]"' in ran.stderr
    assert "Traceback" not in ran.stderr
