"""Sessions of the proxy in the commands: their client, their sizes, and the decisions for a request."""

from __future__ import annotations

import json
from shutil import copyfile

import anyio
import httpx2
import pytest
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.reports.forecast_sessions import forecast_sessions
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.reports.describe import get_client_name, shorten_session_keys
from holdfast.reports.requests.dry_run import describe_forecast, forecast_session
from holdfast.state.entries import AnswerEntry, CompactionEntry, Entry, FailureEntry, MessageEntry, RequestEntry, Usage
from holdfast.store.base import SessionInfo
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.server.app import make_provider_app

WINDOW, TURNS = 16_000, 16
LONG = "\n".join(f"line {number} of a file that is read" for number in range(165))


def build_turn(number):
    """Return the messages of a turn: a question, a call and its result."""
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"file_path": f"{number}.py"}}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": LONG.replace("line", f"line {number}.")}
    return [
        {"role": "user", "content": f"please read {number}.py"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


async def talk_through_proxy(path, takes, mode, output=200, window=WINDOW):
    """Send requests through a proxy to a provider with a window of ``takes``; return status, headers and body of
    each answer.
    """
    transport = httpx2.ASGITransport(make_provider_app(Provider(Strict(window=takes))))
    settings = Settings(anthropic="http://up", window=window, observe=mode == "observe")
    messages, answers = [], []
    headers = {"user-agent": "claude-cli/2.1.197", "x-claude-code-session-id": mode, "host": "127.0.0.1"}
    with open_store(path) as store:
        async with (
            open_proxy(settings, store, transport=transport) as proxy,
            httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1") as web,
        ):
            for number in range(TURNS):
                messages += build_turn(number)
                tools = [{"name": "Read", "input_schema": {"type": "object"}}]
                body = {"model": "claude-sonnet-4-5", "max_tokens": output, "messages": messages, "tools": tools}
                reply = await web.post("/v1/messages", json=body, headers=headers)
                answers.append((reply.status_code, dict(reply.headers), reply.json()))
                if reply.status_code != 200:
                    break
                messages += [{"role": "assistant", "content": reply.json()["content"]}]
    return answers


@pytest.fixture(scope="module")
def recorded_sessions(tmp_path_factory):
    """Return a store with a managed and an observed session, and the answers of both."""
    path = str(tmp_path_factory.mktemp("proxied") / "holdfast.db")
    managed = anyio.run(talk_through_proxy, path, WINDOW, "manage")
    observed = anyio.run(talk_through_proxy, path, WINDOW, "observe")
    return path, managed, observed


@pytest.fixture
def load_json(run, recorded_sessions):
    """Return a function that returns the JSON of a command."""

    def ask(*arguments):
        done = run(*arguments, "--store", recorded_sessions[0], "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return ask


def get_header(answer, name):
    return answer[1][f"x-holdfast-{name}"]


# -- a request ---------------------------------------------------------------------------------------------------------


def test_why_explains_a_proxy_request_by_its_id(load_json, recorded_sessions):
    """What the client sent, what was sent upstream, the decisions for it and before it, and its cost."""
    path, managed, _ = recorded_sessions
    with open_store(path, readonly=True) as store:
        entries = store.read_path(get_header(managed[-1], "session"))
    for number, answer in enumerate(managed):
        report = load_json("why", get_header(answer, "request")[:12])
        (at,) = [index for index, entry in enumerate(entries) if entry.id == get_header(answer, "request")]
        assert isinstance(entries[at].body, RequestEntry)
        assert (report["request"], report["session"]) == (get_header(answer, "request"), get_header(answer, "session"))
        assert (report["messages"], report["window"], report["stop"]) == (4 * number + 3, WINDOW, "end")
        assert report["shown_messages"] <= report["messages"]
        compaction_ids = [entry.id for entry in entries[:at] if isinstance(entry.body, CompactionEntry)]
        its_own = isinstance(entries[at - 1].body, CompactionEntry)
        assert [decision["entry"] for decision in report.get("new_decisions", [])] == (
            compaction_ids[-1:] if its_own else []
        )
        assert [decision["entry"] for decision in report.get("earlier_decisions", [])] == (
            [] if its_own else compaction_ids[-1:]
        )
        assert report["shown_tokens"] == report["usage"]["input"]
        assert (report["tokens"] > 1.5 * report["shown_tokens"]) == bool(compaction_ids)
        assert (report["tokens"] == report["shown_tokens"]) == (not compaction_ids)
        assert report["dollars"] > 0


def test_why_prints_a_proxy_request_with_commands_that_work(run, recorded_sessions):
    """Sizes and their share of the window, each decision, the cost, and commands that run as printed."""
    path, managed, _ = recorded_sessions
    last = get_header(managed[-1], "request")
    printed = run("why", last, "--store", path).stdout
    for words in (
        "from the client: 63 messages",
        "% of a window of 16,000",
        "compaction (auto)",
        "cost:",
    ):
        assert words in " ".join(printed.split()), words
    for line in (
        printed_line
        for printed_line in printed.splitlines()
        if ": holdfast diff" in printed_line or ": holdfast context" in printed_line
    ):
        assert run(*line.partition(": holdfast ")[2].split(), "--store", path).exit_code == 0
    first_printed = run("why", get_header(managed[0], "request"), "--store", path).stdout
    assert "no decisions: it was sent unchanged" in first_printed


def test_why_accepts_the_id_of_an_answer_or_a_failure(load_json, recorded_sessions):
    """The entry of the answer or the refusal names its request, and a refusal is the reason it ended."""
    path, managed, observed = recorded_sessions
    assert observed[-1][0] == 400
    with open_store(path, readonly=True) as store:
        refused = store.read_path(get_header(observed[-1], "session"))[-1]
    assert isinstance(refused.body, FailureEntry)
    report = load_json("why", refused.id)
    assert report["failure"].startswith("overflow: ")
    assert (report["usage"], report["dollars"]) == (None, None)
    assert load_json("context", refused.id)["window"] == report["window"]
    assert WINDOW < report["tokens"] == report["shown_tokens"]
    assert get_header(managed[0], "request") != report["request"]


def test_show_context_and_diff_accept_a_request_id(load_json, run, recorded_sessions):
    """``show`` and ``context`` stop at the request; ``diff`` compares the client's request with the one sent."""
    path, managed, _ = recorded_sessions
    middle, last = get_header(managed[3], "request"), get_header(managed[-1], "request")
    assert [line["message"] for line in load_json("show", middle) if line["kind"] == "message"] == list(range(15))
    report = load_json("context", middle)
    assert (report["window"], report["messages"]) == (WINDOW, 15)
    changed = load_json("diff", last)
    assert changed["before_messages"] == 63 > changed["after_messages"]
    assert {change["kind"] for change in changed["changes"]} == {"same", "hidden", "new"}
    assert load_json("diff", middle)["before"] == load_json("diff", middle)["after"]
    assert run("context", middle, "--policy", "holdfast", "--record", "--store", path).exit_code == 2


def test_commands_agree_on_the_size_of_a_proxy_request(load_json, run, recorded_sessions):
    """The size is the provider's count, also of a refused request, otherwise one estimate."""
    path, managed, observed = recorded_sessions
    with open_store(path, readonly=True) as store:
        *_, request_entry, refused = store.read_path(get_header(observed[-1], "session"))
    assert refused.id == get_header(observed[-1], "request")
    for request in (
        get_header(managed[0], "request"),
        get_header(managed[-1], "request"),
        request_entry.id,
        refused.id,
    ):
        explained, changed = load_json("why", request), load_json("diff", request)
        assert explained["is_counted"]
        assert changed["before"] == explained["tokens"]
        assert changed["after"] == explained["shown_tokens"] == load_json("context", request)["tokens"]
        size = f", {explained['shown_tokens']:,} tokens"
        assert size in run("why", request, "--store", path).stdout
        assert size in run("diff", request, "--store", path).stdout
        assert run("context", request, "--store", path).stdout.splitlines()[1].startswith(f"{size[2:-7]} of 16,000")
    assert f" {explained['shown_tokens']} tokens" in observed[-1][2]["error"]["message"]


def test_commands_agree_on_the_size_of_a_message_in_a_request(load_json, recorded_sessions):
    """``show`` scales a message by the count of the same request as ``context`` and ``diff`` do."""
    for answer in (recorded_sessions[1][0], recorded_sessions[1][-1]):
        request = get_header(answer, "request")
        largest = [part for part in load_json("context", request)["largest"] if part["kind"] == "results"]
        tokens_by_message = {
            part["message"]: part["tokens"] for part in load_json("show", request) if part["kind"] == "message"
        }
        tokens_by_number = {
            part["number"]: part["after"] for part in load_json("diff", request)["changes"] if part["kind"] == "same"
        }
        assert largest
        assert {at: tokens_by_message[at] for at in tokens_by_number if at >= 0} == tokens_by_number
        assert all(abs(tokens_by_message[part["message"]] - part["tokens"]) <= 1 for part in largest), (
            "but for rounding"
        )


def test_commands_explain_a_request_on_an_inactive_branch(run, recorded_sessions, tmp_path):
    """A session that continues on another branch explains a request as before, also by the id of its answer."""
    path, managed, _ = recorded_sessions
    key, request, copied_path = (
        get_header(managed[0], "session"),
        get_header(managed[-1], "request"),
        str(tmp_path / "copy.db"),
    )
    copyfile(path, copied_path)
    with open_store(path, readonly=True) as store:
        answer = store.read_path(key)[-1]
    assert isinstance(answer.body, AnswerEntry)
    assert run("branch", key, "2", "--store", copied_path).exit_code == 0
    for command in ("diff", "why", "context", "show"):
        assert run(command, request, "--store", copied_path).stdout == run(command, request, "--store", path).stdout
    for command in ("diff", "why"):
        assert run(command, answer.id, "--store", copied_path).stdout == run(command, request, "--store", path).stdout


def test_commands_agree_on_the_estimate_of_the_next_request(load_json, run, recorded_sessions):
    """The next request is an estimate marked with ``~``, and messages are measured with the same scale."""
    path, managed, _ = recorded_sessions
    key = get_header(managed[0], "session")
    report = load_json("context", key)
    size = f"~{report['tokens']:,}"
    assert run("context", key, "--store", path).stdout.splitlines()[1].startswith(f"{size} of 16,000 tokens")
    assert (load_json("diff", key, "2..")["after"], load_json("branch", key)["branches"][-1]["tokens"]) == (
        report["tokens"],
    ) * 2
    for command in (("diff", key, "2.."), ("branch", key)):
        assert f", {size} tokens" in run(*command, "--store", path).stdout
    largest = {part["message"]: part["tokens"] for part in report["largest"] if part["kind"] == "results"}
    tokens_by_message = {
        part["message"]: part["tokens"] for part in load_json("show", key) if part.get("message") in largest
    }
    assert len(tokens_by_message) > 3
    for number, tokens in tokens_by_message.items():
        assert abs(tokens - largest[number]) <= 2
        assert load_json("why", key, str(number))["tokens"] == tokens
        assert f"~{tokens:,}" in run("why", key, str(number), "--store", path).stdout
        assert f" ~{tokens:,}  " in run("show", key, "--store", path).stdout
    (session_figures,) = [part for part in load_json("stats")["sessions"] if part["session"] == key]
    assert abs(session_figures["said_tokens"] - session_figures["saved_tokens"] - report["tokens"]) <= 2, (
        "but for rounding"
    )


@pytest.mark.parametrize("command", ["why", "show", "context", "diff"])
def test_commands_exit_2_for_an_unknown_request_id(run, recorded_sessions, command):
    """The message suggests ``holdfast ls``; a session id alone does not name a request."""
    path, managed, _ = recorded_sessions
    done = run(command, "0123456789abcdef", "--store", path)
    assert (done.exit_code, "holdfast ls" in done.stderr) == (2, True)
    if command in {"why", "diff"}:
        assert run(command, get_header(managed[0], "session"), "--store", path).exit_code == 2


# -- lists -------------------------------------------------------------------------------------------------------------


def test_ls_shows_client_age_messages_and_size(load_json, run, recorded_sessions):
    """Each proxy session has its client, times, messages and size; the short id includes the client's full name."""
    path, managed, observed = recorded_sessions
    listed_by_key = {listed_session["key"]: listed_session for listed_session in load_json("ls")}
    managed_session = listed_by_key[get_header(managed[0], "session")]
    assert {listed_session["client"] for listed_session in listed_by_key.values()} == {"claude-code"}
    assert (managed_session["messages"], managed_session["window"]) == (4 * TURNS, WINDOW)
    assert 0 < managed_session["tokens"] < WINDOW
    assert all(listed_session["is_answered"] for listed_session in listed_by_key.values()), (
        "one that ended with a refusal had answers before"
    )
    assert managed_session["created_at"] <= managed_session["updated_at"]
    assert listed_by_key[get_header(observed[0], "session")]["messages"] == 4 * (len(observed) - 1) + 3
    for line in run("ls", "--store", path).stdout.splitlines()[1:]:
        assert line.startswith("claude-code-")
        assert f"  {'claude-code'}  " in line
        assert run("show", line.split()[0], "--store", path).exit_code == 0


async def stream_without_usage(path, sizes):
    """Send a streamed Chat request a turn, whose answers report no usage, and return the last headers."""
    transport, messages = httpx2.ASGITransport(make_provider_app(Provider(Strict()))), []
    with open_store(path) as store:
        async with (
            open_proxy(Settings(openai="http://up"), store, transport=transport) as proxy,
            httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1") as web,
        ):
            for size in sizes:
                messages += [{"role": "user", "content": "word " * size}]
                body = {"model": "gpt-5.1", "stream": True, "messages": messages}
                reply = await web.post("/v1/chat/completions", json=body, headers={"host": "127.0.0.1"})
                assert (reply.status_code, "usage" in reply.text) == (200, False)
                messages += [{"role": "assistant", "content": "ok"}]
    return reply.headers


def test_commands_estimate_streams_without_usage(tmp_path, run):
    """Without usage every command shows the same estimate with ``~``, also of the largest request."""
    path = str(tmp_path / "untold.db")
    headers = anyio.run(stream_without_usage, path, (400, 900))
    key, request = headers["x-holdfast-session"], headers["x-holdfast-request"]
    (listed,) = json.loads(run("ls", "--store", path, "--json").stdout)
    why, largest = (
        json.loads(run(*verb, "--store", path, "--json").stdout) for verb in (("why", request), ("stats", key))
    )
    size = largest["largest"]["from_client"]
    assert size == largest["largest"]["sent_upstream"] == why["tokens"] > 1_300
    assert (listed["is_counted"], listed["tokens"] > size) == (False, True)
    assert f"  ~{listed['tokens']:,}  " in run("ls", "--store", path).stdout
    expected = f"largest request: ~{size:,} tokens from the client, ~{size:,} as it was sent and answered"
    assert expected in " ".join(run("stats", key, "--store", path).stdout.split())
    assert run("stats", "--store", path).stdout.count(f"~{size:,}") == 4


def test_ls_marks_a_session_without_answers(tmp_path, run):
    """A session with only refused requests is listed as unanswered."""
    path = str(tmp_path / "refused.db")
    (refused,) = anyio.run(talk_through_proxy, path, 500, "observe")
    assert refused[0] == 400
    (listed,) = json.loads(run("ls", "--store", path, "--json").stdout)
    size = json.loads(run("context", listed["key"], "--store", path, "--json").stdout)["tokens"]
    assert (listed["is_answered"], listed["is_counted"], listed["tokens"], listed["messages"]) == (
        False,
        False,
        size,
        3,
    )
    assert "  no answer  " in run("ls", "--store", path).stdout
    assert "overflow: " in run("show", listed["key"], "--store", path).stdout


@pytest.fixture
def send_oversized_request(tmp_path):
    """Return a function that sends ``after`` ordinary requests and one that no window can hold; it returns store
    and replies.
    """
    path = str(tmp_path / "unsent.db")

    async def send_requests(after):
        settings = Settings(openai="http://up", window=WINDOW)
        first_messages = [{"role": "user", "content": "Go."}]
        second_messages = (
            [*first_messages, {"role": "assistant", "content": "ok 1"}, {"role": "user", "content": "On."}]
            if after
            else first_messages
        )
        tool = {"type": "function", "function": {"name": "look", "description": "rule " * 60_000, "parameters": {}}}
        bodies = [{"messages": first_messages}] * after + [{"messages": second_messages, "tools": [tool]}]
        with open_store(path) as store:
            async with (
                open_proxy(
                    settings, store, transport=httpx2.ASGITransport(make_provider_app(Provider(Strict())))
                ) as proxy,
                httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1") as web,
            ):
                requests = [web.post("/v1/chat/completions", json={"model": "gpt-5.1", **body}) for body in bodies]
                return [await request for request in requests]

    return lambda after: (path, anyio.run(send_requests, after))


def test_ls_marks_a_session_whose_only_request_was_never_sent(send_oversized_request, run):
    """A request that is too large by itself is refused by the proxy: it has no answer and no request entry."""
    path, (reply,) = send_oversized_request(0)
    assert (reply.status_code, reply.headers["x-holdfast-state"]) == (400, "refused")
    (listed,) = json.loads(run("ls", "--store", path, "--json").stdout)
    assert listed["is_answered"] is False
    assert "  no answer  " in run("ls", "--store", path).stdout


@pytest.mark.parametrize("after", [0, 1], ids=["at first", "behind an answer"])
def test_why_explains_a_request_that_was_never_sent(after, send_oversized_request, run):
    """The reason, its numbers and advice are those of this request, not of an earlier one."""
    path, replies = send_oversized_request(after)
    assert [reply.headers["x-holdfast-state"] for reply in replies] == ["managed"] * after + ["refused"]
    request = replies[-1].headers["x-holdfast-request"]
    printed = " ".join(run("why", request, "--store", path).stdout.split())
    for words in (f"request {request[:8]}", "to gpt-5.1", "never sent: ", "Use a larger window, a shorter system"):
        assert words in printed, printed
    assert f"from the client: {'3 messages' if after else '1 message'}, " in printed
    report = json.loads(run("why", request, "--store", path, "--json").stdout)
    assert (report["request"], report["shown_messages"], report["usage"]) == (request, 0, None)
    assert "for system and tools leaves" in report["failure"]
    failed = run("diff", request, "--store", path)
    assert (failed.exit_code, f"holdfast why {request[:8]}" in failed.stderr) == (2, True)
    for command in ("show", "context"):
        assert run(command, request, "--store", path).exit_code == 0


def test_shorten_session_keys_keeps_the_client_name():
    """The short id of a proxy session has the client and four more characters; other ids are shortened as usual."""
    keys = [
        "claude-code-0123456789ab-0123456789abcdef",
        "codex-0123456789ab-thread",
        "openai-chat-0123456789abcdef",
        "pi-aaaaaaaaaaaa-empty",
        "open-code-2-plugin-2026-11-27T10-03",
        "x" * 20,
    ]
    assert list(map(get_client_name, keys)) == ["claude-code", "codex", "openai-chat", "pi", "open-code-2", ""]
    assert list(shorten_session_keys(keys).values()) == [
        "claude-code-0123",
        "codex-0123",
        "open-code-2-plug",
        "openai-chat-0123",
        "pi-aaaa",
        "x" * 8,
    ]


def test_stats_reports_the_largest_proxy_request(load_json, run, recorded_sessions):
    """The largest request from the client and as sent upstream, its share of the window, compactions, and overflows."""
    path, managed, observed = recorded_sessions
    of_managed, of_observed = (load_json("stats", get_header(answers[0], "session")) for answers in (managed, observed))
    assert of_managed["largest"]["from_client"] > WINDOW > of_managed["largest"]["sent_upstream"] > WINDOW / 2
    assert of_managed["window_share"] == pytest.approx(of_managed["largest"]["sent_upstream"] / WINDOW)
    assert of_managed["avoided_overflows"] == of_managed["compactions"] > 0 == of_managed["refusals"]
    assert (of_observed["compactions"], of_observed["avoided_overflows"], of_observed["refusals"]) == (0, 0, 1)
    assert of_observed["largest"]["from_client"] > WINDOW > of_observed["largest"]["sent_upstream"]
    for session_figures, answers in ((of_managed, managed), (of_observed, observed)):
        sizes = [load_json("why", get_header(answer, "request"))["tokens"] for answer in answers]
        assert session_figures["largest"]["from_client"] == pytest.approx(max(sizes), rel=0.01), (
            "but for a calibration that goes on"
        )
    of_all = load_json("stats")["all"]
    assert of_all["largest"]["from_client"] == max(
        of_managed["largest"]["from_client"], of_observed["largest"]["from_client"]
    )
    assert of_all["compactions"] == of_managed["compactions"]
    assert "largest after" in " ".join(run("stats", "--store", path).stdout.split())
    assert "from the client" in run("stats", get_header(managed[0], "session"), "--store", path).stdout


# -- forecasts ---------------------------------------------------------------------------------------------------------


def test_stats_forecasts_an_observed_session(load_json, run, recorded_sessions):
    """An observed session is forecast: the policy would have compacted it and kept every request within the window."""
    path, managed, observed = recorded_sessions
    forecast = load_json("stats", get_header(observed[0], "session"))["foreseen"]
    assert (forecast["requests"], forecast["over_window"]) == (len(observed), 1)
    assert forecast["compactions"] > 0
    assert forecast["largest_planned"] < WINDOW < forecast["largest"]
    assert "would have compacted" in " ".join(
        run("stats", get_header(observed[0], "session"), "--store", path).stdout.split()
    )
    assert "foreseen" not in load_json("stats", get_header(managed[0], "session"))
    with open_store(path, readonly=True) as store:
        info = store.get_session(get_header(managed[0], "session"))
        managed_forecast = forecast_session(info, store.read_path(info.key), config.load_configuration(), "holdfast")
    assert managed_forecast.compactions > 0, "what was done is not counted, but planned anew"
    assert managed_forecast.largest > WINDOW > managed_forecast.largest_planned


def test_forecast_session_equals_what_the_proxy_decided(tmp_path):
    """The forecast of an observed session equals the decisions made for the same messages. The log lacks the answer
    limit of a request, so the default is used here.
    """
    path, free = str(tmp_path / "kept.db"), str(tmp_path / "free.db")
    anyio.run(talk_through_proxy, path, WINDOW, "manage", WINDOW // 4)
    anyio.run(talk_through_proxy, free, 200_000, "observe", WINDOW // 4)
    with open_store(path, readonly=True) as store:
        compactions = [
            entry for entry in store.read_path(store.list_sessions()[0].key) if isinstance(entry.body, CompactionEntry)
        ]
    with open_store(free, readonly=True) as store:
        info = store.list_sessions()[0]
        forecast = forecast_session(info, store.read_path(info.key), config.load_configuration(), "holdfast")
    assert (forecast.requests, forecast.compactions) == (TURNS, len(compactions))
    assert len(compactions) > 1
    assert forecast.over_window > 0
    assert forecast.largest > WINDOW > forecast.largest_planned


def test_forecast_sessions_learns_the_window_from_a_refusal(tmp_path, run):
    """The refused request counts as over the window and is planned again; a branch that the client went on with hides
    neither.
    """
    path = str(tmp_path / "wide.db")
    answers = anyio.run(talk_through_proxy, path, WINDOW, "observe", 200, 200_000)
    assert answers[-1][0] == 400
    with open_store(path) as store:
        (info,) = store.list_sessions()
        entries = store.read_path(info.key)
        refused = entries[-2]
        before_branch = forecast_sessions(path, [info.key], config.load_configuration(), "holdfast")
        first_answer = next(entry for entry in entries if isinstance(entry.body, AnswerEntry))
        message_body = next(entry.body for entry in entries if isinstance(entry.body, MessageEntry))
        bodies = [
            entries[-1].body,
            message_body,
            RequestEntry("b", 5, "claude-sonnet-4-5", 200_000),
            AnswerEntry("b", Usage(input=900)),
        ]
        names = [first_answer.id, *(f"n{at}" for at in range(len(bodies)))]
        branch = [Entry(names[at + 1], names[at], body) for at, body in enumerate(bodies)]
        store.append_entries(info.key, branch, expected_leaf=info.leaf_id)
    assert (before_branch.requests, before_branch.over_window, before_branch.compactions) == (len(answers), 1, 1)
    assert before_branch.largest > before_branch.window == WINDOW > 0
    assert before_branch.largest_planned < before_branch.largest
    with_branch = forecast_sessions(path, [info.key], config.load_configuration(), "holdfast")
    assert (with_branch.requests, with_branch.over_window, with_branch.compactions) == (
        before_branch.requests + 1,
        1,
        1,
    )
    assert json.loads(run("why", refused.id, "--store", path, "--json").stdout)["window"] == WINDOW
    assert json.loads(run("ls", "--store", path, "--json").stdout)[0]["window"] == WINDOW


@pytest.mark.parametrize("basis", ["b", "of another request"])
def test_forecast_session_ignores_usage_of_a_changed_request(basis):
    """The usage of a request that a hook had changed says nothing about the one that would have been sent."""
    user_message = MessageEntry(build_sized_message(Message.from_text("user", "word " * 2_000)))
    request = RequestEntry("b", 1, "claude-sonnet-4-5", WINDOW)
    bodies = [
        user_message,
        request,
        MessageEntry(build_sized_message(Message.from_text("assistant", "Yes."))),
        AnswerEntry(basis, Usage(input=WINDOW - 500)),
    ]
    bodies += [
        MessageEntry(build_sized_message(Message.from_text("user", "Go on."))),
        RequestEntry("b", 3, "claude-sonnet-4-5", WINDOW),
    ]
    log = [Entry(str(at), str(at - 1) if at else None, body) for at, body in enumerate(bodies)]
    info = SessionInfo("k", leaf_id=log[-1].id)
    forecast = forecast_session(info, log, config.load_configuration(), "holdfast")
    assert (forecast.largest_planned < WINDOW // 2) == (basis != "b")


def test_forecast_session_reports_no_change_for_a_small_session(recorded_sessions):
    """A small session would not have been changed, and a removed one has no requests."""
    path, _, observed = recorded_sessions
    with open_store(path, readonly=True) as store:
        info = store.get_session(get_header(observed[0], "session"))
        first_entries = [entry for entry in store.read_path(info.key)[:4] if not isinstance(entry.body, RequestEntry)]
    short = [
        *first_entries,
        Entry("r", first_entries[-1].id, RequestEntry("b", len(first_entries), "claude-sonnet-4-5", WINDOW)),
    ]
    forecast = forecast_session(
        replace(info, leaf_id="r"), short[:2] + short[-1:], config.load_configuration(), "holdfast"
    )
    assert (forecast.requests, forecast.over_window, forecast.compactions, forecast.reduced_requests) == (1, 0, 0, 0)
    assert "would have changed nothing" in describe_forecast(forecast)
    assert forecast_sessions(path, ["gone"], config.load_configuration(), "holdfast").requests == 0
