"""Sessions of the proxy, as people look at them: which is whose, how large they got, what was done to a request."""

from __future__ import annotations

import json
from shutil import copyfile

import anyio
import httpx2
import pytest
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.reports.describe import get_client_name, shorten_session_keys
from holdfast.cli.reports.dry_run import describe_forecast, forecast_session, forecast_sessions
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.state.entries import AnswerEntry, CompactionEntry, Entry, FailureEntry, MessageEntry, RequestEntry, Usage
from holdfast.store.base import SessionInfo
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.server.app import make_provider_app

WINDOW, TURNS = 16_000, 16
LONG = "\n".join(f"line {number} of a file that is read" for number in range(165))


def turn(number):
    """Return what is said in a turn: words, a call and its result."""
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"file_path": f"{number}.py"}}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": LONG.replace("line", f"line {number}.")}
    return [
        {"role": "user", "content": f"please read {number}.py"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


async def talked(path, takes, mode, output=200, window=WINDOW):
    """Talk through a proxy to a provider that ``takes`` so many tokens; return status and headers of each answer."""
    transport = httpx2.ASGITransport(make_provider_app(Provider(Strict(window=takes))))
    settings = Settings(anthropic="http://up", window=window, observe=mode == "observe")
    said, told = [], []
    headers = {"user-agent": "claude-cli/2.1.197", "x-claude-code-session-id": mode, "host": "127.0.0.1"}
    with open_store(path) as store:
        async with (
            open_proxy(settings, store, transport=transport) as proxy,
            httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1") as web,
        ):
            for number in range(TURNS):
                said += turn(number)
                tools = [{"name": "Read", "input_schema": {"type": "object"}}]
                body = {"model": "claude-sonnet-4-5", "max_tokens": output, "messages": said, "tools": tools}
                reply = await web.post("/v1/messages", json=body, headers=headers)
                told.append((reply.status_code, dict(reply.headers), reply.json()))
                if reply.status_code != 200:
                    break
                said += [{"role": "assistant", "content": reply.json()["content"]}]
    return told


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """Return a store with a session that was kept small and one that was only looked at, and what was answered."""
    path = str(tmp_path_factory.mktemp("proxied") / "holdfast.db")
    managed = anyio.run(talked, path, WINDOW, "manage")
    observed = anyio.run(talked, path, WINDOW, "observe")
    return path, managed, observed


@pytest.fixture
def told(run, talks):
    """Return a function that gives what a command says, as JSON."""

    def ask(*arguments):
        done = run(*arguments, "--store", talks[0], "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return ask


def header(answer, name):
    return answer[1][f"x-holdfast-{name}"]


# -- a request ---------------------------------------------------------------------------------------------------------


def test_a_request_is_explained_by_its_id_alone(told, talks):
    """What its client sent, what went up, what was decided for it and before, and what it cost."""
    path, managed, _ = talks
    with open_store(path, readonly=True) as store:
        entries = store.read_path(header(managed[-1], "session"))
    for number, answer in enumerate(managed):
        found = told("why", header(answer, "request")[:12])
        (at,) = [place for place, one in enumerate(entries) if one.id == header(answer, "request")]
        assert isinstance(entries[at].body, RequestEntry)
        assert (found["request"], found["session"]) == (header(answer, "request"), header(answer, "session"))
        assert (found["messages"], found["window"], found["stop"]) == (4 * number + 3, WINDOW, "end")
        assert found["shown_messages"] <= found["messages"]
        made = [one.id for one in entries[:at] if isinstance(one.body, CompactionEntry)]
        its_own = isinstance(entries[at - 1].body, CompactionEntry)
        assert [one["entry"] for one in found.get("new_decisions", [])] == (made[-1:] if its_own else [])
        assert [one["entry"] for one in found.get("earlier_decisions", [])] == ([] if its_own else made[-1:])
        assert found["shown_tokens"] == found["usage"]["input"]
        assert (found["tokens"] > 1.5 * found["shown_tokens"]) == bool(made)
        assert (found["tokens"] == found["shown_tokens"]) == (not made)
        assert found["dollars"] > 0


def test_a_request_is_told_to_people(run, talks):
    """Sizes with their share of the window, each decision, the price, and commands that run as they stand."""
    path, managed, _ = talks
    last = header(managed[-1], "request")
    shown = run("why", last, "--store", path).stdout
    for words in (
        "from the client: 63 messages",
        "% of a window of 16,000",
        "compaction (auto)",
        "cost:",
    ):
        assert words in " ".join(shown.split()), words
    for line in (one for one in shown.splitlines() if ": holdfast diff" in one or ": holdfast context" in one):
        assert run(*line.partition(": holdfast ")[2].split(), "--store", path).exit_code == 0
    first = run("why", header(managed[0], "request"), "--store", path).stdout
    assert "no decisions: it was sent as it came" in first


def test_what_became_of_a_request_names_it_too(told, talks):
    """The entry of its answer, or of its refusal, explains the request; a refusal is told as the reason."""
    path, managed, observed = talks
    assert observed[-1][0] == 400
    with open_store(path, readonly=True) as store:
        refused = store.read_path(header(observed[-1], "session"))[-1]
    assert isinstance(refused.body, FailureEntry)
    found = told("why", refused.id)
    assert found["failure"].startswith("overflow: ")
    assert (found["usage"], found["dollars"]) == (None, None)
    assert told("context", refused.id)["window"] == found["window"]
    assert WINDOW < found["tokens"] == found["shown_tokens"]
    assert header(managed[0], "request") != found["request"]


def test_the_other_commands_take_the_id_of_a_request(told, run, talks):
    """``show`` and ``context`` go up to it, ``diff`` sets what went up beside what its client sent."""
    path, managed, _ = talks
    middle, last = header(managed[3], "request"), header(managed[-1], "request")
    assert [one["message"] for one in told("show", middle) if one["kind"] == "message"] == list(range(15))
    found = told("context", middle)
    assert (found["window"], found["messages"]) == (WINDOW, 15)
    changed = told("diff", last)
    assert changed["before_messages"] == 63 > changed["after_messages"]
    assert {one["kind"] for one in changed["changes"]} == {"same", "hidden", "new"}
    assert told("diff", middle)["before"] == told("diff", middle)["after"]
    assert run("context", middle, "--policy", "holdfast", "--record", "--store", path).exit_code == 2


def test_a_request_has_one_size(told, run, talks):
    """Every command says the same of it: what its provider counted, also where it was refused, else one estimate."""
    path, managed, observed = talks
    with open_store(path, readonly=True) as store:
        *_, asked, refused = store.read_path(header(observed[-1], "session"))
    assert refused.id == header(observed[-1], "request")
    for request in (header(managed[0], "request"), header(managed[-1], "request"), asked.id, refused.id):
        found, changed = told("why", request), told("diff", request)
        assert found["is_counted"]
        assert changed["before"] == found["tokens"]
        assert changed["after"] == found["shown_tokens"] == told("context", request)["tokens"]
        size = f", {found['shown_tokens']:,} tokens"
        assert size in run("why", request, "--store", path).stdout
        assert size in run("diff", request, "--store", path).stdout
        assert run("context", request, "--store", path).stdout.splitlines()[1].startswith(f"{size[2:-7]} of 16,000")
    assert f" {found['shown_tokens']} tokens" in observed[-1][2]["error"]["message"]


def test_a_message_has_one_size_in_a_request(told, talks):
    """``show`` measures what a request holds by what was counted of just that, as ``context`` and ``diff`` do."""
    for answer in (talks[1][0], talks[1][-1]):
        request = header(answer, "request")
        largest = [one for one in told("context", request)["largest"] if one["kind"] == "results"]
        shown = {one["message"]: one["tokens"] for one in told("show", request) if one["kind"] == "message"}
        same = {one["number"]: one["after"] for one in told("diff", request)["changes"] if one["kind"] == "same"}
        assert largest
        assert {at: shown[at] for at in same if at >= 0} == same
        assert all(abs(shown[one["message"]] - one["tokens"]) <= 1 for one in largest), "but for rounding"


def test_a_request_on_another_branch(run, talks, tmp_path):
    """A session that goes on elsewhere tells of it as before; the id of its answer names the same request."""
    path, managed, _ = talks
    key, request, other = header(managed[0], "session"), header(managed[-1], "request"), str(tmp_path / "copy.db")
    copyfile(path, other)
    with open_store(path, readonly=True) as store:
        answer = store.read_path(key)[-1]
    assert isinstance(answer.body, AnswerEntry)
    assert run("branch", key, "2", "--store", other).exit_code == 0
    for command in ("diff", "why", "context", "show"):
        assert run(command, request, "--store", other).stdout == run(command, request, "--store", path).stdout
    for command in ("diff", "why"):
        assert run(command, answer.id, "--store", other).stdout == run(command, request, "--store", path).stdout


def test_a_context_has_one_size(told, run, talks):
    """Nobody has counted the next request, so ``~`` stands before it; messages are measured as the whole is."""
    path, managed, _ = talks
    key = header(managed[0], "session")
    found = told("context", key)
    size = f"~{found['tokens']:,}"
    assert run("context", key, "--store", path).stdout.splitlines()[1].startswith(f"{size} of 16,000 tokens")
    assert (told("diff", key, "2..")["after"], told("branch", key)["branches"][-1]["tokens"]) == (found["tokens"],) * 2
    for command in (("diff", key, "2.."), ("branch", key)):
        assert f", {size} tokens" in run(*command, "--store", path).stdout
    largest = {one["message"]: one["tokens"] for one in found["largest"] if one["kind"] == "results"}
    shown = {one["message"]: one["tokens"] for one in told("show", key) if one.get("message") in largest}
    assert len(shown) > 3
    for slot, tokens in shown.items():
        assert abs(tokens - largest[slot]) <= 2
        assert told("why", key, str(slot))["tokens"] == tokens
        assert f"~{tokens:,}" in run("why", key, str(slot), "--store", path).stdout
        assert f" ~{tokens:,}  " in run("show", key, "--store", path).stdout
    (kept,) = [one for one in told("stats")["sessions"] if one["session"] == key]
    assert abs(kept["said_tokens"] - kept["saved_tokens"] - found["tokens"]) <= 2, "but for rounding"


@pytest.mark.parametrize("command", ["why", "show", "context", "diff"])
def test_an_id_that_nothing_has(run, talks, command):
    """It is told so; a session alone is not enough where more is needed."""
    path, managed, _ = talks
    done = run(command, "0123456789abcdef", "--store", path)
    assert (done.exit_code, "holdfast ls" in done.stderr) == (2, True)
    if command in {"why", "diff"}:
        assert run(command, header(managed[0], "session"), "--store", path).exit_code == 2


# -- lists -------------------------------------------------------------------------------------------------------------


def test_a_list_tells_whose_sessions_they_are(told, run, talks):
    """The client, since when, how many messages and how large; the short id has the client whole."""
    path, managed, observed = talks
    found = {one["key"]: one for one in told("ls")}
    kept = found[header(managed[0], "session")]
    assert {one["client"] for one in found.values()} == {"claude-code"}
    assert (kept["messages"], kept["window"]) == (4 * TURNS, WINDOW)
    assert 0 < kept["tokens"] < WINDOW
    assert all(one["is_answered"] for one in found.values()), "one that ended with a refusal had answers before"
    assert kept["created_at"] <= kept["updated_at"]
    assert found[header(observed[0], "session")]["messages"] == 4 * (len(observed) - 1) + 3
    for line in run("ls", "--store", path).stdout.splitlines()[1:]:
        assert line.startswith("claude-code-")
        assert f"  {'claude-code'}  " in line
        assert run("show", line.split()[0], "--store", path).exit_code == 0


async def streamed(path, sizes):
    """Ask for an answer a turn by Chat, as a stream that tells no usage, and return the last headers."""
    transport, said = httpx2.ASGITransport(make_provider_app(Provider(Strict()))), []
    with open_store(path) as store:
        async with (
            open_proxy(Settings(openai="http://up"), store, transport=transport) as proxy,
            httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1") as web,
        ):
            for size in sizes:
                said += [{"role": "user", "content": "word " * size}]
                body = {"model": "gpt-5.1", "stream": True, "messages": said}
                reply = await web.post("/v1/chat/completions", json=body, headers={"host": "127.0.0.1"})
                assert (reply.status_code, "usage" in reply.text) == (200, False)
                said += [{"role": "assistant", "content": "ok"}]
    return reply.headers


def test_a_stream_that_tells_no_usage_has_its_estimate(tmp_path, run):
    """Each command has a size for its requests, with ``~``, and the largest is the largest."""
    path = str(tmp_path / "untold.db")
    headers = anyio.run(streamed, path, (400, 900))
    key, request = headers["x-holdfast-session"], headers["x-holdfast-request"]
    (one,) = json.loads(run("ls", "--store", path, "--json").stdout)
    why, largest = (
        json.loads(run(*verb, "--store", path, "--json").stdout) for verb in (("why", request), ("stats", key))
    )
    size = largest["largest"]["from_client"]
    assert size == largest["largest"]["sent_upstream"] == why["tokens"] > 1_300
    assert (one["is_counted"], one["tokens"] > size) == (False, True)
    assert f"  ~{one['tokens']:,}  " in run("ls", "--store", path).stdout
    told = f"largest request: ~{size:,} tokens from the client, ~{size:,} as it was sent and answered"
    assert told in " ".join(run("stats", key, "--store", path).stdout.split())
    assert run("stats", "--store", path).stdout.count(f"~{size:,}") == 4


def test_a_session_that_never_had_an_answer_says_so(tmp_path, run):
    """Requests that were only refused leave a session: it is listed, and told apart from one that was talked on."""
    path = str(tmp_path / "refused.db")
    (refused,) = anyio.run(talked, path, 500, "observe")
    assert refused[0] == 400
    (one,) = json.loads(run("ls", "--store", path, "--json").stdout)
    size = json.loads(run("context", one["key"], "--store", path, "--json").stdout)["tokens"]
    assert (one["is_answered"], one["is_counted"], one["tokens"], one["messages"]) == (False, False, size, 3)
    assert "  no answer  " in run("ls", "--store", path).stdout
    assert "overflow: " in run("show", one["key"], "--store", path).stdout


@pytest.fixture
def unsent(tmp_path):
    """Return a store, and the answers to a request that was taken, if ``after`` says so, and one that no window has."""
    path = str(tmp_path / "unsent.db")

    async def go(after):
        settings = Settings(openai="http://up", window=WINDOW)
        fine = [{"role": "user", "content": "Go."}]
        more = [*fine, {"role": "assistant", "content": "ok 1"}, {"role": "user", "content": "On."}] if after else fine
        tool = {"type": "function", "function": {"name": "look", "description": "rule " * 60_000, "parameters": {}}}
        bodies = [{"messages": fine}] * after + [{"messages": more, "tools": [tool]}]
        with open_store(path) as store:
            async with (
                open_proxy(
                    settings, store, transport=httpx2.ASGITransport(make_provider_app(Provider(Strict())))
                ) as proxy,
                httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1") as web,
            ):
                sent = [web.post("/v1/chat/completions", json={"model": "gpt-5.1", **one}) for one in bodies]
                return [await one for one in sent]

    return lambda after: (path, anyio.run(go, after))


def test_a_session_whose_only_request_was_sent_to_nobody_says_so(unsent, run):
    """What is too large of itself is refused by the proxy: no answer, and no request in the log either."""
    path, (reply,) = unsent(0)
    assert (reply.status_code, reply.headers["x-holdfast-state"]) == (400, "refused")
    (one,) = json.loads(run("ls", "--store", path, "--json").stdout)
    assert one["is_answered"] is False
    assert "  no answer  " in run("ls", "--store", path).stdout


@pytest.mark.parametrize("after", [0, 1], ids=["at first", "behind an answer"])
def test_a_request_that_was_sent_to_nobody_is_explained_by_its_id(after, unsent, run):
    """Why it was refused, by its own numbers, and what helps; no request before it is told in its place."""
    path, replies = unsent(after)
    assert [reply.headers["x-holdfast-state"] for reply in replies] == ["managed"] * after + ["refused"]
    request = replies[-1].headers["x-holdfast-request"]
    told = " ".join(run("why", request, "--store", path).stdout.split())
    for words in (f"request {request[:8]}", "to gpt-5.1", "never sent: ", "Use a larger window, a shorter system"):
        assert words in told, told
    assert f"from the client: {'3 messages' if after else '1 message'}, " in told
    found = json.loads(run("why", request, "--store", path, "--json").stdout)
    assert (found["request"], found["shown_messages"], found["usage"]) == (request, 0, None)
    assert "for system and tools leaves" in found["failure"]
    failed = run("diff", request, "--store", path)
    assert (failed.exit_code, f"holdfast why {request[:8]}" in failed.stderr) == (2, True)
    for command in ("show", "context"):
        assert run(command, request, "--store", path).exit_code == 0


def test_ids_of_the_proxy_keep_their_client():
    """The beginning that is shown has the client and four characters more; other ids are what they were."""
    keys = [
        "claude-code-0123456789ab-0123456789abcdef",
        "codex-0123456789ab-thread",
        "openai-chat-0123456789abcdef",
        "pi-aaaaaaaaaaaa-empty",
        "x" * 20,
    ]
    assert list(map(get_client_name, keys)) == ["claude-code", "codex", "openai-chat", "pi", ""]
    assert list(shorten_session_keys(keys).values()) == [
        "claude-code-0123",
        "codex-0123",
        "openai-chat-0123",
        "pi-aaaa",
        "x" * 8,
    ]


def test_how_large_conversations_got(told, run, talks):
    """The largest request as it was sent and as it went up, its share of the window, compactions, overflows."""
    path, managed, observed = talks
    kept, looked = (told("stats", header(one[0], "session")) for one in (managed, observed))
    assert kept["largest"]["from_client"] > WINDOW > kept["largest"]["sent_upstream"] > WINDOW / 2
    assert kept["window_share"] == pytest.approx(kept["largest"]["sent_upstream"] / WINDOW)
    assert kept["avoided_overflows"] == kept["compactions"] > 0 == kept["refusals"]
    assert (looked["compactions"], looked["avoided_overflows"], looked["refusals"]) == (0, 0, 1)
    assert looked["largest"]["from_client"] > WINDOW > looked["largest"]["sent_upstream"]
    for one, answers in ((kept, managed), (looked, observed)):
        sizes = [told("why", header(answer, "request"))["tokens"] for answer in answers]
        assert one["largest"]["from_client"] == pytest.approx(max(sizes), rel=0.01), (
            "but for a calibration that goes on"
        )
    every = told("stats")["all"]
    assert every["largest"]["from_client"] == max(kept["largest"]["from_client"], looked["largest"]["from_client"])
    assert every["compactions"] == kept["compactions"]
    assert "largest after" in " ".join(run("stats", "--store", path).stdout.split())
    assert "from the client" in run("stats", header(managed[0], "session"), "--store", path).stdout


# -- what would have been done -----------------------------------------------------------------------------------------


def test_what_would_have_been_done(told, run, talks):
    """A session that was only looked at is planned afterwards: just where one that was kept small was compacted."""
    path, managed, observed = talks
    found = told("stats", header(observed[0], "session"))["foreseen"]
    assert (found["requests"], found["over_window"]) == (len(observed), 1)
    assert found["compactions"] > 0
    assert found["largest_planned"] < WINDOW < found["largest"]
    assert "would have compacted" in " ".join(
        run("stats", header(observed[0], "session"), "--store", path).stdout.split()
    )
    assert "foreseen" not in told("stats", header(managed[0], "session"))
    with open_store(path, readonly=True) as store:
        info = store.get_session(header(managed[0], "session"))
        again = forecast_session(info, store.read_path(info.key), config.load_configuration(), "holdfast")
    assert again.compactions > 0, "what was done is not counted, but planned anew"
    assert again.largest > WINDOW > again.largest_planned


def test_planning_afterwards_is_planning_at_the_time(tmp_path):
    """What is foreseen of words that went up as they came is what is done about the same words.

    The log does not hold what a request leaves for its answer; here that is what is assumed then.
    """
    path, free = str(tmp_path / "kept.db"), str(tmp_path / "free.db")
    anyio.run(talked, path, WINDOW, "manage", WINDOW // 4)
    anyio.run(talked, free, 200_000, "observe", WINDOW // 4)
    with open_store(path, readonly=True) as store:
        made = [one for one in store.read_path(store.list_sessions()[0].key) if isinstance(one.body, CompactionEntry)]
    with open_store(free, readonly=True) as store:
        info = store.list_sessions()[0]
        found = forecast_session(info, store.read_path(info.key), config.load_configuration(), "holdfast")
    assert (found.requests, found.compactions) == (TURNS, len(made))
    assert len(made) > 1
    assert found.over_window > 0
    assert found.largest > WINDOW > found.largest_planned


def test_a_refusal_tells_that_the_window_was_smaller(tmp_path, run):
    """The request that was refused is over, and planned again; a branch that its client went on with hides neither."""
    path = str(tmp_path / "wide.db")
    answers = anyio.run(talked, path, WINDOW, "observe", 200, 200_000)
    assert answers[-1][0] == 400
    with open_store(path) as store:
        (info,) = store.list_sessions()
        entries = store.read_path(info.key)
        refused = entries[-2]
        alone = forecast_sessions(path, [info.key], config.load_configuration(), "holdfast")
        first = next(one for one in entries if isinstance(one.body, AnswerEntry))
        said = next(one.body for one in entries if isinstance(one.body, MessageEntry))
        bodies = [
            entries[-1].body,
            said,
            RequestEntry("b", 5, "claude-sonnet-4-5", 200_000),
            AnswerEntry("b", Usage(input=900)),
        ]
        names = [first.id, *(f"n{at}" for at in range(len(bodies)))]
        branch = [Entry(names[at + 1], names[at], body) for at, body in enumerate(bodies)]
        store.append_entries(info.key, branch, expected_leaf=info.leaf_id)
    assert (alone.requests, alone.over_window, alone.compactions) == (len(answers), 1, 1)
    assert alone.largest > alone.window == WINDOW > 0
    assert alone.largest_planned < alone.largest
    both = forecast_sessions(path, [info.key], config.load_configuration(), "holdfast")
    assert (both.requests, both.over_window, both.compactions) == (alone.requests + 1, 1, 1)
    assert json.loads(run("why", refused.id, "--store", path, "--json").stdout)["window"] == WINDOW
    assert json.loads(run("ls", "--store", path, "--json").stdout)[0]["window"] == WINDOW


@pytest.mark.parametrize("basis", ["b", "of another request"])
def test_what_another_request_cost_plans_nothing(basis):
    """A count of a request that a hook had changed tells no size of the one that would have gone up."""
    said = MessageEntry(build_sized_message(Message.from_text("user", "word " * 2_000)))
    request = RequestEntry("b", 1, "claude-sonnet-4-5", WINDOW)
    bodies = [
        said,
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
    found = forecast_session(info, log, config.load_configuration(), "holdfast")
    assert (found.largest_planned < WINDOW // 2) == (basis != "b")


def test_nothing_would_have_been_done(talks):
    """A session that is small, and one that is gone."""
    path, _, observed = talks
    with open_store(path, readonly=True) as store:
        info = store.get_session(header(observed[0], "session"))
        first = [one for one in store.read_path(info.key)[:4] if not isinstance(one.body, RequestEntry)]
    short = [*first, Entry("r", first[-1].id, RequestEntry("b", len(first), "claude-sonnet-4-5", WINDOW))]
    found = forecast_session(
        replace(info, leaf_id="r"), short[:2] + short[-1:], config.load_configuration(), "holdfast"
    )
    assert (found.requests, found.over_window, found.compactions, found.reduced_requests) == (1, 0, 0, 0)
    assert "would have changed nothing" in describe_forecast(found)
    assert forecast_sessions(path, ["gone"], config.load_configuration(), "holdfast").requests == 0
