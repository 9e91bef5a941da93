"""``POST /v1/plan`` and ``POST /v1/compact``, asked by a host that applies each answer as plugins do, and checks it."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StoreReadOnly
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.proxy.hosts import plan_request
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.state.entries import AnswerEntry, MessageEntry
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store

KEY = "pi-plugin-one"
HANDLE = re.compile(r'recall\(id="([0-9a-f]+)"')


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


def make_log(step, lines):
    """Return a tool result."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


class Host:
    """A coding agent whose plugin sends its conversation, and shows its model what comes back."""

    def __init__(self, web, window=30_000, **fields):
        self.web = web
        self.messages = []
        self.fields = {"client": "pi", "session": "one", "window": window} | fields

    def say(self, text):
        """Append words of the user."""
        self._append({"role": "user", "text": text})

    def work(self, step, lines, text="I look at it."):
        """Append a call and its result."""
        call = {"tool_use_id": f"call_{step}", "tool": "read", "input": {"path": f"/srv/log-{step}.txt"}}
        self._append({"role": "assistant", "text": text, "toolUses": [call]})
        self._append({"role": "user", "toolResults": [{"tool_use_id": f"call_{step}", "text": make_log(step, lines)}]})

    def _append(self, message):
        self.messages.append({"handle": f"h{len(self.messages)}", **message})

    async def post(self, path="/v1/plan", **fields):
        """Post the conversation and return the reply."""
        return await self.web.post(path, json={"messages": self.messages, **self.fields, **fields})

    async def plan(self, **fields):
        """Return the answer, and the messages that the model is shown."""
        reply = await self.post(**fields)
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        own = {message["handle"]: message for message in self.messages}
        shown = [self._apply(row, own) for row in answer["messages"]]
        check_shown(shown)
        return answer, shown

    async def recall(self, **arguments):
        """Return the answer of the recall tool that the plugin gives its model."""
        reply = await self.web.post("/v1/recall", json={"client": "pi", "session": "one", **arguments})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def _apply(self, row, own):
        """Return the host's message that ``row`` names, with its texts replaced; or the new message that it is."""
        if "handle" not in row:
            return row
        message = dict(own[row["handle"]])
        assert row.keys() <= {"handle", "text", "toolResults"}
        if "text" in row:
            message["text"] = row["text"]
        texts = {result["tool_use_id"]: result["text"] for result in row.get("toolResults", ())}
        if "toolResults" in message:
            message["toolResults"] = [
                result | {"text": texts.pop(result["tool_use_id"], result["text"])} for result in message["toolResults"]
            ]
        assert not texts
        return message


def check_shown(shown):
    """Check that each result stands right after its call, and that the first message is the user's."""
    assert shown[0]["role"] == "user"
    open_calls = set()
    for message in shown:
        results = {result["tool_use_id"] for result in message.get("toolResults", ())}
        assert results == open_calls
        open_calls = {call["tool_use_id"] for call in message.get("toolUses", ())}


class NoProvider(httpx2.AsyncBaseTransport):
    """The way to providers, which nobody is to go."""

    async def handle_async_request(self, request):
        """Fail the test."""
        raise AssertionError(f"a provider was asked: {request.url}")


@asynccontextmanager
async def open_server(store=None, **settings):
    """Yield a web client of a proxy that asks no provider."""
    store = MemoryStore() if store is None else store
    async with (
        open_proxy(Settings(**settings), store, transport=NoProvider()) as proxy,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as web,
    ):
        yield web


STEPS = st.lists(st.sampled_from([2, 40, 400, 3_000]), min_size=2, max_size=14)


@given(steps=STEPS, window=st.sampled_from([12_000, 30_000]), restarts=st.booleans())
def test_what_was_shown_is_shown_again_until_a_compaction(steps, window, restarts):
    """Each call shows what the call before it showed, and the new messages after that, unless it decided something; it
    fits the window; calls keep their results; and every word of the user is there or in the extract. Also with a
    restart between all calls.
    """
    store = MemoryStore()
    host = Host(None, window)
    before = []

    async def call_once():
        nonlocal before
        answer, shown = await host.plan()
        again, shown_again = await host.plan()
        assert shown_again == shown
        assert not again["isCompacted"]
        # Either it goes on after what was shown before, or it decided something, which saves tokens.
        assert shown[: len(before)] == before or answer["tokensAfter"] < answer["tokensBefore"]
        assert answer["tokensAfter"] < window
        assert answer["sessionKey"] == KEY
        assert "Never restart the server." in json.dumps(shown)
        before = shown

    async def scenario():
        host.say("Find out why it is slow. Never restart the server.")
        async with open_server(store) as web:
            for step, lines in enumerate(steps):
                host.work(step, lines)
                host.web = web
                if restarts:
                    async with open_server(store) as new_web:
                        host.web = new_web
                        await call_once()
                else:
                    await call_once()

    run(scenario)


def test_a_long_conversation_is_compacted_and_can_be_read_back():
    """Over many windows of work each request fits; the answer says when it compacted; and what is not shown can be read
    back from the session that the answer names.
    """
    store = MemoryStore()

    async def scenario():
        compactions = []
        async with open_server(store) as web:
            host = Host(web, 30_000, setupTokens=2_000)
            host.say("Find out why it is slow.")
            for step in range(60):
                host.work(step, 120)
                answer, shown = await host.plan()
                assert answer["tokensAfter"] + 2_000 < 30_000
                if answer["isCompacted"]:
                    compactions.append(step)
                    assert is_extract(shown[0]["text"])
                    assert len(shown) < len(host.messages)
            found = await host.recall(search="step 003, line 77:")
            handle = HANDLE.search(found["text"])[1]
            return compactions, await host.recall(id=handle, search="line 77:")

    compactions, page = run(scenario)
    assert len(compactions) >= 2
    assert f"step 003, line 77: {77 * 7919 % 1009} ms" in page["text"]
    assert not page["isError"]


def test_a_compacted_conversation_goes_on_after_a_restart(tmp_path):
    """A store on disk is opened without the messages before the last compaction; the conversation goes on all the same,
    and so does another branch of it.
    """

    async def scenario():
        with open_store(tmp_path / "store.db") as store:
            host = Host(None)
            host.say("Find out why it is slow.")
            for step in range(20):
                host.work(step, 120)
            async with open_server(store) as web:
                host.web = web
                compacted, shown = await host.plan(force=True)
            async with open_server(store) as web:
                host.web = web
                again, shown_again = await host.plan()
                host.messages = [host.messages[0]]
                host.say("Look at the disk instead.")
                other, _ = await host.plan()
            return compacted, shown, again, shown_again, other

    compacted, shown, again, shown_again, other = run(scenario)
    assert compacted["isCompacted"]
    assert shown_again == shown
    assert again["notices"] == other["notices"] == []


def test_a_large_result_becomes_a_preview_that_recall_reads_back():
    """A result over the budget of one result is shown shortened, with a call of recall that returns all of it."""

    async def scenario():
        async with open_server() as web:
            host = Host(web, 200_000)
            host.say("Why?")
            host.work(0, 9_000)
            answer, _shown = await host.plan()
            row = answer["messages"][2]
            assert row["handle"] == "h2"
            (result,) = row["toolResults"]
            return await host.recall(id=HANDLE.search(result["text"])[1], lines="8999-9000")

    page = run(scenario)
    assert "step 000, line 8999" in page["text"]


def test_recall_explains_what_it_does_not_find():
    """The model that asks for a text that does not exist is told so in the tool's result; wrong fields are refused."""

    async def scenario():
        async with open_server() as web:
            host = Host(web)
            unknown_session = await host.recall(id="abcdefabcdef")
            host.say("Why?")
            await host.plan()
            unknown_id = await host.recall(id="abcdefabcdef")
            refused = await web.post("/v1/recall", json={"client": "pi", "session": "one", "id": 7})
            return unknown_session, unknown_id, refused

    unknown_session, unknown_id, refused = run(scenario)
    assert unknown_session["isError"]
    assert unknown_id["isError"]
    assert "abcdefabcdef" in unknown_id["text"]
    assert refused.status_code == 400
    assert refused.json()["error"]["path"] == "id"


def test_force_compacts_at_once():
    """``force`` compacts a conversation that would fit, and the next call shows the same."""

    async def scenario():
        async with open_server() as web:
            host = Host(web, 200_000)
            host.say("Why is it slow?")
            for step in range(30):
                host.work(step, 200)
            answer, shown = await host.plan(force=True)
            later, shown_later = await host.plan()
            return answer, shown, later, shown_later

    answer, shown, later, shown_later = run(scenario)
    assert answer["isCompacted"]
    assert not later["isCompacted"]
    assert is_extract(shown[0]["text"])
    assert shown_later == shown


def test_hidden_tokens_count():
    """A compaction comes due by what the host's messages hold beside the transcript, too."""

    async def scenario():
        async with open_server() as web:
            host = Host(web, 30_000)
            host.say("Look at these.")
            for step in range(12):
                host.work(step, 3)
                host.messages[-2]["hiddenTokens"] = 4_000
            return await host.plan()

    answer, _shown = run(scenario)
    assert answer["isCompacted"]
    assert answer["tokensBefore"] > 48_000


def test_an_edited_past_is_another_branch():
    """A host that goes back and takes another way gets a plan of that way; the first one goes on as it was."""

    async def scenario():
        async with open_server() as web:
            host = Host(web)
            host.say("Why is it slow?")
            for step in range(8):
                host.work(step, 300)
            _, first = await host.plan()
            other = Host(web)
            other.messages = host.messages[:5]
            other.say("Look at the disk instead.")
            _, second = await other.plan()
            host.work(8, 2)
            _, third = await host.plan()
            return first, second, third

    first, second, third = run(scenario)
    assert second[-1]["text"] == "Look at the disk instead."
    assert third[: len(first)] == first


CALLS = [{"tool_use_id": name, "tool": "read", "input": {}} for name in ("c1", "c2")]
RESULTS = [{"tool_use_id": name, "text": make_log(0, 4_000)} for name in ("c1", "c2")]
REGROUPED = {
    "results together, then one by one": (
        [{"role": "user", "toolResults": RESULTS}],
        [{"role": "user", "toolResults": [result]} for result in RESULTS],
    ),
    "results one by one, then together": (
        [{"role": "user", "toolResults": [result]} for result in RESULTS],
        [{"role": "user", "toolResults": RESULTS}],
    ),
    "a blank message goes": (
        [{"role": "user", "toolResults": RESULTS}, {"role": "user", "text": ""}, {"role": "user", "text": "Quick."}],
        [{"role": "user", "toolResults": RESULTS}, {"role": "user", "text": "Quick."}],
    ),
    "a blank message comes": (
        [{"role": "user", "toolResults": RESULTS}, {"role": "user", "text": "Quick."}],
        [{"role": "user", "toolResults": RESULTS}, {"role": "user", "text": ""}, {"role": "user", "text": "Quick."}],
    ),
}


@pytest.mark.parametrize("case", REGROUPED)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_host_that_groups_its_messages_differently_is_planned_all_the_same(case, restarts):
    """The same content in more or fewer messages than before, as after an update of the plugin, is shortened and
    compacted as before, and each answer names the messages of its own call.
    """
    before, after = REGROUPED[case]
    store = MemoryStore()

    async def scenario():
        host = Host(None)
        host.say("Why is it slow?")
        host._append({"role": "assistant", "text": "I look.", "toolUses": CALLS})
        beginning = host.messages
        answers = []
        async with open_server(store) as first_web, open_server(store) as second_web:
            for web, messages in ((first_web, before), (second_web if restarts else first_web, after)):
                host.web = web
                host.messages = list(beginning)
                for message in messages:
                    host._append(message)
                # Twice, as the second call finds in the log what the first one wrote.
                for _ in range(2):
                    reply = await host.post()
                    answers.append(reply.json())
        return answers

    for answer in run(scenario):
        assert answer["notices"] == []
        assert answer["tokensAfter"] < 30_000 < answer["tokensBefore"]


def test_a_store_that_cannot_be_written_leaves_the_messages_as_they_are(tmp_path):
    """Without its log Holdfast decides nothing: all messages come back, with one sentence why."""

    async def scenario():
        with open_store(tmp_path / "store.db") as store:

            def refuse(*_, **__):
                raise StoreReadOnly("the disk is full")

            store.append_entries = refuse
            async with open_server(store) as web:
                host = Host(web)
                host.say("Why?")
                return await host.plan()

    answer, _shown = run(scenario)
    assert answer["messages"] == [{"handle": "h0"}]
    assert "StoreReadOnly" in answer["notices"][0]


@pytest.mark.parametrize("settings", [{"observe": True}, {"bypass": True}], ids=["observe", "bypass"])
def test_a_proxy_that_is_switched_off_leaves_the_messages_as_they_are(settings):
    """Nothing is decided or stored, and one sentence says why."""
    store = MemoryStore()

    async def scenario():
        async with open_server(store, **settings) as web:
            host = Host(web)
            host.say("Why?")
            host.work(0, 9_000)
            return await host.plan()

    answer, _shown = run(scenario)
    assert answer["messages"] == [{"handle": "h0"}, {"handle": "h1"}, {"handle": "h2"}]
    assert len(answer["notices"]) == 1
    assert list(store.list_sessions()) == []


MISTAKES = {
    "messages": [{"messages": []}, {"messages": "none"}, {"messages": None}],
    "messages[0].handle": [{"messages": [{"role": "user", "text": "a"}]}],
    "messages[1].handle": [{"messages": [{"handle": "a", "role": "user", "text": "a"}] * 2}],
    "messages[0].role": [{"messages": [{"handle": "a", "role": "system", "text": "a"}]}],
    "messages[0].hiddenTokens": [{"messages": [{"handle": "a", "role": "user", "hiddenTokens": -1}]}],
    "client": [{"client": "Pi!"}, {"client": ""}, {"client": 3}],
    "session": [{"session": ""}],
    "api": [{"api": "telepathy"}],
    "window": [{"window": 0}, {"window": -5}, {"window": "large"}],
    "setupTokens": [{"setupTokens": -1}],
}


@pytest.mark.parametrize(("path", "fields"), [(path, fields) for path, many in MISTAKES.items() for fields in many])
def test_a_mistake_is_answered_with_its_place(path, fields):
    """Wrong input is refused with status 400, the JSON path, what is wrong, and one thing to do."""

    async def scenario():
        async with open_server() as web:
            host = Host(web)
            host.say("Why?")
            return await host.post(**fields)

    reply = run(scenario)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["path"] == path
    assert error["why"]
    assert error["advice"]


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/compact"])
@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"messages": [{"role": "us'])
def test_a_body_that_is_no_json_object_is_refused(path, body):
    """Half a body and other nonsense are refused with status 400; so is another method, with 405."""

    async def scenario():
        async with open_server() as web:
            return await web.post(path, content=body), await web.get(path)

    posted, got = run(scenario)
    assert posted.status_code == 400
    assert posted.json()["error"]["path"]
    assert got.status_code == 405


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/compact"])
@pytest.mark.parametrize("broken_text", [b"\xff\xfe", b"\xed\xa0\x80"], ids=["no UTF-8", "half a character"])
@pytest.mark.parametrize("place", ["the text", "the input"])
def test_bytes_that_are_no_utf8_are_refused(path, broken_text, place):
    """A message with such bytes, in its text or in a tool's input, is a mistake of the plugin and named as one."""

    async def scenario():
        async with open_server() as web:
            host = Host(web)
            host.say("Why?")
            host.work(0, 2, text="the text")
            host.messages[1]["toolUses"][0]["input"] = {"path": "the input"}
            body = json.dumps({**host.fields, "messages": host.messages}).encode()
            return await web.post(path, content=body.replace(place.encode(), broken_text))

    reply = run(scenario)
    assert reply.status_code == 400
    assert reply.json()["error"]["path"] == "messages[1]"


def test_a_window_that_nothing_fits_into_is_refused():
    """The error has the numbers; the host then goes on without us."""

    async def scenario():
        async with open_server() as web:
            host = Host(web, 30)
            host.say("Why? " * 400)
            return await host.post()

    reply = run(scenario)
    assert reply.status_code == 400
    assert reply.json()["error"]["path"] == "messages"


def test_compact_answers_as_the_command_does():
    """``POST /v1/compact`` is ``holdfast compact --stdin`` without the start of a process."""

    async def scenario():
        async with open_server() as web:
            host = Host(web)
            host.say("Why is it slow?")
            for step in range(30):
                host.work(step, 200)
            return host.messages, await host.post("/v1/compact", model="claude-opus-5-5")

    messages, reply = run(scenario)
    answer = reply.json()
    assert answer["cacheWritePrices"] == {"fiveMinutes": 5.0, "oneHour": 8.0}
    assert is_extract(answer["messages"][0]["text"])
    assert answer["messages"][1:] == messages[-len(answer["messages"]) + 1 :]
    assert answer["tokensAfter"] < answer["tokensBefore"]


def test_the_token_is_required():
    """A proxy with a token answers only plugins that send it."""

    async def scenario():
        async with open_server(token="secret") as web:
            host = Host(web)
            host.say("Why?")
            refused = await host.post()
            web.headers["x-holdfast-token"] = "secret"
            return refused, await host.post()

    refused, allowed = run(scenario)
    assert (refused.status_code, allowed.status_code) == (401, 200)


def test_setup_tokens_take_their_part_of_the_window():
    """What the system prompt and the tools take is not there for messages: with more of them a compaction comes due."""

    async def scenario():
        async with open_server() as web:
            answers = []
            for setup_tokens in (0, 20_000):
                host = Host(web, 30_000, session=f"with-{setup_tokens}", setupTokens=setup_tokens)
                host.say("Why is it slow?")
                for step in range(10):
                    host.work(step, 120)
                answers.append((await host.plan())[0])
            return answers

    without_setup, with_setup = run(scenario)
    assert not without_setup["isCompacted"]
    assert with_setup["isCompacted"]


@given(names=st.lists(st.text(min_size=1, max_size=90), min_size=2, max_size=4, unique=True))
def test_conversations_of_different_names_never_mix(names):
    """Whatever the host calls its conversations: two names are two sessions, also if their words are the same."""

    async def scenario():
        async with open_server() as web:
            keys = set()
            for name in names:
                host = Host(web, session=name)
                host.say("Why?")
                keys.add((await host.plan())[0]["sessionKey"])
            return keys

    assert len(run(scenario)) == len(names)


def test_usage_of_answers_is_recorded_and_makes_estimates_better():
    """What the provider counted for an answer is in the log, once, and a conversation whose texts take twice the tokens
    of our estimate is compacted in time.
    """
    store = MemoryStore()

    async def scenario():
        async with open_server(store) as web:
            host = Host(web, 30_000)
            host.say("Why is it slow?")
            sizes = []
            for step in range(14):
                answer, _ = await host.plan()
                sizes.append(2 * answer["tokensAfter"])
                host.work(step, 120)
                cached = sizes[-2] if len(sizes) > 1 else 0
                usage = {"input": 10, "output": 50, "cacheRead": cached, "cacheWrite": sizes[-1] - cached - 10}
                if step:
                    host.messages[-2]["usage"] = {name: max(0, tokens) for name, tokens in usage.items()}
            await host.plan()
            return sizes

    sizes = run(scenario)
    assert max(sizes) < 30_000
    entries = list(store.read_path(KEY))
    usages = [entry.body.usage for entry in entries if isinstance(entry.body, AnswerEntry)]
    assert len(usages) == 13
    assert usages[0].input == usages[0].cache_read + usages[0].cache_write + 10
    assert usages[0].output == 50
    assert len([entry for entry in entries if isinstance(entry.body, MessageEntry)]) == 29


def test_usage_of_a_request_that_was_not_ours_does_not_count():
    """After a call without an answer in time the plugin sent everything; what that took says nothing of our plan."""

    async def scenario():
        async with open_server() as web:
            answers = []
            for total in (2_000, 190_000):
                host = Host(web, 200_000, session=f"took-{total}")
                host.say("Why is it slow?")
                host.work(0, 60)
                await host.plan()
                host.work(1, 60)
                host.messages[-2]["usage"] = {"input": total, "output": 10}
                for step in range(2, 40):
                    host.work(step, 60)
                answers.append((await host.plan())[0])
            return answers

    known, unknown = run(scenario)
    assert not known["isCompacted"]
    assert not unknown["isCompacted"]


def test_an_estimate_of_the_setup_may_vary():
    """A host estimates its system prompt anew for each request; that is no other prompt, and what was shown stays."""

    async def scenario():
        async with open_server() as web:
            host = Host(web, 60_000)
            host.say("Why is it slow?")
            shown_before = []
            for step in range(24):
                host.work(step, 120)
                answer, shown = await host.plan(setupTokens=10_000 + step % 7 * 150)
                assert answer["isCompacted"] or shown[: len(shown_before)] == shown_before
                shown_before = shown

    run(scenario)


def test_a_larger_estimate_of_the_setup_takes_its_room():
    """What an estimate of the same setup has more than the one before is not there for messages, nor for the answer."""

    async def scenario():
        async with open_server() as web:
            host = Host(web, 200_000)
            host.say("Why is it slow?")
            await host.plan(setupTokens=100_000)
            sizes = []
            for step in range(40):
                host.work(step, 120)
                answer, _shown = await host.plan(setupTokens=124_000)
                sizes.append(answer["tokensAfter"])
            return sizes

    assert max(run(scenario)) + 1.1 * 124_000 < 200_000 - 16_000


def test_remembered_messages_are_bounded(monkeypatch):
    """Messages of sessions that were not used for longest are forgotten; a session whose messages are goes on all the
    same.
    """
    monkeypatch.setattr(plan_request, "MAX_REMEMBERED_BYTES", 60_000)

    async def scenario():
        async with open_server() as web:
            hosts = [Host(web, session=f"session-{number}") for number in range(4)]
            for host in hosts:
                host.say("Why is it slow?")
                host.work(0, 900)
            first = [await host.plan() for host in hosts]
            return first, [await host.plan() for host in hosts]

    first, second = run(scenario)
    assert [shown for _, shown in second] == [shown for _, shown in first]


def test_reader_forgets_beyond_its_limits(monkeypatch):
    """Never more sessions than the limit, nor more bytes, but for the session used last."""
    monkeypatch.setattr(plan_request, "MAX_REMEMBERED_BYTES", 5_000)
    reader = plan_request.PlanRequestReader()
    for number in range(9):
        message = {"handle": "0", "role": "user", "text": f"{number} " * 700}
        reader.read(json.dumps({"client": "pi", "session": str(number), "messages": [message]}).encode())
        assert len(reader._parsed_messages) == len(reader._session_bytes) <= 3
    reader.read(
        json.dumps({"client": "pi", "session": "large", "messages": [message | {"text": "x" * 9_000}]}).encode()
    )
    assert list(reader._parsed_messages) == ["pi-plugin-large"]
