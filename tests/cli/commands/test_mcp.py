"""``holdfast mcp``, called by the official client of the Model Context Protocol over standard input and output."""

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

from holdfast.cli import holdfast_command as program
from holdfast.cli.commands.mcp import McpSource, answer_tool_call
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.store.open_store import open_store

ROOT = Path(__file__).parents[3]
LONG_RESULT = "\n".join(f"line {n} of a long result" for n in range(9_000))
INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip
HANDLE = sha256(LONG_RESULT.encode()).hexdigest()[:12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a store: an imported session, and one of this folder that was reduced."""
    folder = tmp_path_factory.mktemp("work").resolve()
    imported = ROOT / "examples" / "long-session.jsonl"
    ran = CliRunner().invoke(program, ["import", str(imported), "--store", str(folder / "store.db")])
    assert ran.exit_code == 0, ran.output
    with open_store(folder / "store.db") as store:
        journal = Journal.open(store, "here")
        store.update_session_info("here", title="kelp", cwd=str(folder))
        call = ToolCall("c1", "Bash", '{"command":"make"}')
        result = ToolResult("c1", content=(Text(LONG_RESULT),))
        journal.append(
            Message.from_text("user", "build the kelp"), Message("assistant", (call,)), Message("tool", (result,))
        )
        journal.prepare_request(get_target("anthropic", "claude-opus-5", window=64_000))
        journal.append(Message.from_text("assistant", "done"))
    return folder


def make_source(folder: Path, session: str | None = None) -> McpSource:
    """Return the server's source of answers, to call it in this process."""
    return McpSource(str(folder / "store.db"), session, folder)


def call_tools(folder: Path, *calls: tuple[str, dict], options: tuple[str, ...] = ()):
    """Return the tools that the server lists, and for each call its answer's text and whether it is an error."""

    async def call_all():
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "holdfast", "mcp", "--store", str(folder / "store.db"), *options],
            cwd=folder,
        )
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return tools, [("".join(part.text for part in answer.content), answer.is_error) for answer in answers]

    return anyio.run(call_all)


WRONG_CALLS = [
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
RIGHT_CALLS = [
    ("recall", {}),
    ("recall", {"id": HANDLE}),
    ("recall", {"id": HANDLE, "lines": "12-14"}),
    ("recall", {"id": HANDLE, "search": "line 77 of"}),
    ("search", {"query": "kelp", "limit": 5}),
    ("recall", {"id": HANDLE, "page": 2}),
]


@pytest.fixture(scope="module")
def tools_and_answers(folder):
    """Return what one server lists and answers to the wrong calls, then to the right ones."""
    return call_tools(folder, *WRONG_CALLS, *RIGHT_CALLS)


def test_mcp_reads_the_session_that_the_client_names_with_the_call(folder):
    """Codex sends the id of its conversation with each call; an unknown id changes nothing, ``--session`` wins."""
    imported = "a21116fc-35bd-4653-95cf-238f307d23d0"

    async def ask(meta, *options):
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "holdfast", "mcp", "--store", str(folder / "store.db"), *options],
            cwd=folder,
        )
        async with Client(server) as client:
            answer = await client.call_tool("search", {"query": "HF-2291"}, meta=meta)
        return answer.content[0].text

    assert "HF-2291" in anyio.run(ask, {"threadId": imported}).partition("\n")[2]
    assert "HF-2291" in anyio.run(ask, {"threadId": "gone", "sessionId": imported}).partition("\n")[2]
    for meta in ({}, {"threadId": "gone"}, {"threadId": 7}, {"threadId": ""}):
        assert "nothing in this" in anyio.run(ask, meta)
    assert "nothing in this" in anyio.run(ask, {"threadId": imported}, "--session", "here")


def test_mcp_serves_recall_and_search_to_a_client(folder, tools_and_answers):
    """The official client finds two read-only tools and reads pages, lines, matches and the list."""
    tools, answers = tools_and_answers[0], tools_and_answers[1][len(WRONG_CALLS) :]
    assert sorted(tool.name for tool in tools) == ["recall", "search"]
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert [error for _, error in answers] == [False] * len(RIGHT_CALLS)
    texts = [text for text, _ in answers]
    assert HANDLE in texts[0]
    assert texts[1].endswith("\n")
    assert f'go on with recall(id="{HANDLE}", chars="' in texts[1]
    assert (
        texts[2].partition("\n")[2] == "line 11 of a long result\nline 12 of a long result\nline 13 of a long result\n"
    )
    assert "78: line 77 of a long result" in texts[3]
    id_ = re.search(r'recall\(id="(\w+)"\)', texts[4])[1]
    assert answer_tool_call(make_source(folder), "recall", {"id": id_}).text.endswith("\nbuild the kelp")


@pytest.mark.long
def test_mcp_session_selects_by_id_prefix(folder):
    """``--session`` selects by the prefix of an id, and other sessions' texts are not found."""
    calls = [("search", {"query": "HF-E5127"}), ("recall", {"id": HANDLE})]
    _, answers = call_tools(folder, *calls, options=("--session", "a2111"))
    assert [error for _, error in answers] == [False, True]
    assert "HF-E5127" in answers[0][0]


@pytest.mark.long
def test_mcp_answers_wrong_calls_with_errors(folder, tools_and_answers):
    """Unknown tools, sessions, ids and arguments are error results, and the server keeps running."""
    wrong = tools_and_answers[1][: len(WRONG_CALLS)]
    assert [error for _, error in wrong] == [True] * len(WRONG_CALLS)
    assert all(text and "Traceback" not in text for text, _ in wrong)
    answer = answer_tool_call(make_source(folder, "nowhere"), "recall", {})
    assert answer.is_error
    assert "nowhere" in answer.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "expected", "unexpected"),
    [
        ({"query": ""}, "no words", "limit"),
        ({"query": " "}, "no words", "limit"),
        ({"query": "kelp", "limit": 0}, "a limit of 0 is not from 1 to 100", "word"),
        ({"query": "kelp", "limit": 1_000}, "a limit of 1000 is not from 1 to 100", "word"),
    ],
)
def test_mcp_search_error_names_only_the_wrong_argument(tools_and_answers, arguments, expected, unexpected):
    """The error is about the query or the limit, not about both."""
    text, _ = tools_and_answers[1][WRONG_CALLS.index(("search", arguments))]
    assert expected in text
    assert unexpected not in text


@pytest.mark.long
def test_mcp_source_defaults_to_the_newest_session_of_the_folder(folder, tmp_path):
    """Without ``--session`` the newest session of the folder is read, or else the newest of all with a note."""
    assert "kelp" in answer_tool_call(make_source(folder), "search", {"query": "kelp"}).text
    answer = answer_tool_call(make_source(folder)._replace(folder=tmp_path), "recall", {"id": HANDLE})
    assert answer.text.startswith(f"[no session of {tmp_path} is in the store; this is the newest of all, here]\n")
    assert answer_tool_call(McpSource(str(tmp_path / "none.db"), None, tmp_path), "recall", {}).is_error


def build_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "holdfast", "mcp", "--store", str(folder / "store.db"), "--session", "here"]


@pytest.mark.long
def test_mcp_ends_on_sigint(folder):
    """^C ends the server at once, also while it waits for input."""
    running = subprocess.Popen(
        build_command(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    running.stdin.write(f"{json.dumps(INITIALIZE)}\n")
    running.stdin.flush()
    assert json.loads(running.stdout.readline())["id"] == 1
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == -signal.SIGINT
    _, err = running.communicate()
    assert "Traceback" not in err


@pytest.mark.long
def test_mcp_prints_only_protocol_messages(folder):
    """Every line on standard output is a protocol message, and the server ends with its input."""
    more = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "recall", "arguments": {"id": HANDLE}}},
    ]
    sent_lines = "".join(f"{json.dumps(message)}\n" for message in [INITIALIZE, *more])
    result = subprocess.run(
        build_command(folder), input=sent_lines, capture_output=True, text=True, check=True, timeout=60
    )
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "holdfast"
    assert {message["jsonrpc"] for message in answers} == {"2.0"}
    assert "Traceback" not in result.stderr


def encode_search(id_: int, query: str) -> str:
    """Return a line that requests a search; ``query`` is put into it unchanged."""
    params = {"name": "search", "arguments": {"query": "?"}}
    line = json.dumps({"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params})
    return line.replace('"?"', query)


def send_lines(folder: Path, *lines: str) -> list[dict]:
    """Return the answers to these lines, after which the input ends at once."""
    sent_lines = "\n".join(
        [json.dumps(INITIALIZE), '{"jsonrpc": "2.0", "method": "notifications/initialized"}', *lines]
    )
    result = subprocess.run(
        build_command(folder), input=f"{sent_lines}\n", capture_output=True, text=True, check=True, timeout=60
    )
    assert "Traceback" not in result.stderr
    first, *answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert first["id"] == 1
    return answers


@pytest.mark.long
def test_mcp_answers_every_request_before_it_ends(folder):
    """Any JSON request gets an answer, even if the input ends right after it."""
    expected_by_query = {
        r'"\ud800"': "matches '\ufffd'",
        r'"kelp \ud83d\ude00"': "matches 'kelp \U0001f600'",
        f'"kelp", "limit": {"1" * 5_000}': "invalid arguments for search",
        '"kelp"': "build the «kelp»",
    }
    answers = send_lines(folder, *[encode_search(id_, query) for id_, query in enumerate(expected_by_query, 2)])
    texts_by_id = {answer["id"]: answer["result"]["content"][0]["text"] for answer in answers}
    assert [expected in texts_by_id[id_] for id_, expected in enumerate(expected_by_query.values(), 2)] == [True] * 4


@pytest.mark.long
def test_mcp_answers_invalid_lines_with_protocol_errors(folder):
    """A line that is no JSON or no message gets the protocol's error; an empty line gets none."""
    lines = [
        "no json",
        "",
        "[" * 100_000,
        "[]",
        "5",
        '{"jsonrpc": "2.0", "id": "x", "method": 5}',
        encode_search(3, "[" * 500 + "]" * 500),
        encode_search(4, '"kelp"'),
    ]
    *refused, answer = send_lines(folder, *lines)
    assert [(error["id"], error["error"]["code"]) for error in refused] == [
        (None, -32_700), (None, -32_700), (None, -32_600), (None, -32_600), ("x", -32_600), (3, -32_600),
    ]  # fmt: skip
    assert answer["id"] == 4


def encode_request(id_: str, method: str = "ping") -> str:
    """Return a line that requests ``method``; the id is put into it unchanged."""
    return f'{{"jsonrpc": "2.0", "id": {id_}, "method": "{method}"}}'


@pytest.mark.long
def test_mcp_accepts_whole_number_ids_and_refuses_others(folder):
    """A whole number is an id however it is written; any other value is refused by name."""
    whole, odd = ["2.0", "3e1", "-4", '""'], ["1.5", "null", "true", "[1]", "1e400"]
    answers = send_lines(folder, *[encode_request(id_) for id_ in [*whole, *odd]])
    accepted = [answer["id"] for answer in answers if "result" in answer]
    assert sorted(map(str, accepted)) == ["", "-4", "2", "30"]
    refused = [
        (answer["id"], answer["error"]["code"], answer["error"]["message"]) for answer in answers if "error" in answer
    ]
    id_texts = ["1.5", "null", "true", "[1]", "Infinity"]
    messages = [f"the id is {id_text}; give a string or a whole number" for id_text in id_texts]
    assert refused == [(id_, -32_600, why) for id_, why in zip([1.5, None, None, None, None], messages, strict=True)]


@pytest.mark.long
def test_mcp_refuses_a_batch(folder):
    """The protocol has no batches since 2025-06-18: a batch gets one error, and the next request is answered."""
    refused, fine = sorted(
        send_lines(folder, f"[{encode_request('2')}, {encode_request('3')}]", encode_request("9")),
        key=lambda answer: answer["id"] or 0,
    )
    assert (refused["id"], refused["error"]["code"]) == (None, -32_600)
    assert "on its own line" in refused["error"]["message"]
    assert fine["id"] == 9


@pytest.mark.long
def test_mcp_answers_many_concurrent_requests(folder):
    """Each of many calls that run when the input ends is answered, and a cancelled one ends nothing."""
    given_up = '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}'
    answers = send_lines(folder, *[encode_search(id_, '"kelp"') for id_ in range(2, 30)], given_up)
    assert {answer["id"] for answer in answers} >= set(range(3, 30))


@pytest.mark.long
def test_mcp_json_prints_session_and_tools(folder, monkeypatch):
    """``--json`` prints the session and the tools and exits, to check a configuration without a client."""
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(program, ["mcp", "--store", str(folder / "store.db"), "--json"])
    report = json.loads(result.stdout)
    assert (report["session"], report["title"], report["note"]) == ("here", "kelp", "")
    assert [tool["name"] for tool in report["tools"]] == ["recall", "search"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in report["tools"])


@pytest.mark.long
def test_mcp_without_its_package_names_the_extra():
    """Without the optional package ``mcp`` there is a message and no traceback."""
    script = "import sys; sys.modules['mcp'] = None; from holdfast.cli import main; sys.argv[1:] = ['mcp']; main()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert 'pip install ".[mcp]"' in result.stderr
    assert "Traceback" not in result.stderr
