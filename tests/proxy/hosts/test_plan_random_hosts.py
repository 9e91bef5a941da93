"""``POST /v1/plan``, asked by a host that edits its conversation at random while its server is started anew."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store
from tests.proxy.hosts.test_plan_endpoint import Host, make_log, open_server, run

NUMBERS = st.integers(0, 1_000)
WINDOWS = (6_000, 12_000, 30_000, 200_000)
RESULT_LINES = (2, 40, 400, 3_000)


class EditingHost(Host):
    """A host that does to its conversation what hosts do, and keeps it valid for a provider."""

    def __init__(self, web, window=30_000, **fields):
        super().__init__(web, window, **fields)
        self._handle_count = 0
        self.say("Find out why it is slow.")

    def _append(self, message):
        self._handle_count += 1
        self.messages.append({"handle": f"h{self._handle_count}", **message})

    def work_in_parallel(self, number):
        """Append calls, and their results in another order: in one message, or in one for each."""
        names = [f"call_{self._handle_count}_{index}" for index in range(1 + number % 3)]
        calls = [{"tool_use_id": name, "tool": "read", "input": {"path": name}} for name in names]
        results = []
        for index, name in enumerate(reversed(names)):
            text = make_log(number + index, RESULT_LINES[(number + index) % 4])
            results.append({"tool_use_id": name, "text": text})
        self._append({"role": "assistant", "text": "I look.", "toolUses": calls})
        if number % 2:
            self._append({"role": "user", "toolResults": results})
        else:
            for result in results:
                self._append({"role": "user", "toolResults": [result]})

    def regroup_results(self, _):
        """Hand over the results of each answer in one message, as after an update of the plugin."""
        messages = []
        for message in self.messages:
            if "toolResults" in message and messages and "toolResults" in messages[-1]:
                results = messages[-1]["toolResults"] + message["toolResults"]
                messages[-1] = messages[-1] | {"toolResults": results}
            else:
                messages.append(message)
        self.messages = messages

    def cut(self, start, stop):
        """Keep some of the messages, from one of the user on, without a call whose result is cut off."""
        self.messages = self.messages[start:stop]
        while self.messages and not self.messages[0].get("text"):
            del self.messages[0]
        while self.messages and self.messages[0]["role"] == "assistant":
            del self.messages[0]
            while self.messages and "toolResults" in self.messages[0]:
                del self.messages[0]
        while self.messages and not is_valid(self.messages):
            del self.messages[-1]
        if not self.messages:
            self.say(f"Begin again, {self._handle_count}.")

    def add_request(self, number):
        """Append words of the user."""
        self.say(f"Do {number}.")

    def add_answer(self, number):
        """Append an answer without calls, and what the user says to it."""
        self._append({"role": "assistant", "text": f"I did {number}."})
        self.say(f"Good, {number}.")

    def add_blank_message(self, _):
        """Append a message of the user without text, as for a picture alone."""
        self.say("")

    def report_usage(self, number):
        """Report tokens that no provider counted."""
        for message in self.messages:
            if message["role"] == "assistant":
                message["usage"] = {"input": number**2, "output": number, "cacheRead": number**2 * 30}

    def reword(self, number):
        """Change the text of one message."""
        place = number % len(self.messages)
        text = self.messages[place].get("text", "")
        self.messages[place] = self.messages[place] | {"text": f"{text} (edited {number})"}

    def drop_newest(self, number):
        """Go back to an earlier message."""
        self.cut(0, max(1, len(self.messages) - number % 4))

    def drop_oldest(self, number):
        """Forget the first messages."""
        self.cut(number % 4, None)

    def drop_one(self, number):
        """Forget one message without calls or results."""
        place = number % len(self.messages)
        if self.messages[place].get("text") and "toolUses" not in self.messages[place]:
            del self.messages[place]
            self.cut(0, None)

    def rename_messages(self, number):
        """Give each message another handle."""
        self.messages = [message | {"handle": f"{number}.{index}"} for index, message in enumerate(self.messages)]

    def change_window(self, number):
        """Go on with a model that has another window."""
        self.fields["window"] = WINDOWS[number % len(WINDOWS)]

    def change_nothing(self, _):
        """Leave the conversation alone: the server is started anew, or the user asked for a compaction."""


def is_valid(messages):
    """Return whether a provider takes ``messages`` once results that follow each other are one message."""
    open_calls = set()
    for message in messages:
        results = {result["tool_use_id"] for result in message.get("toolResults", ())}
        if not results <= open_calls or (open_calls and not results):
            return False
        open_calls -= results
        open_calls |= {call["tool_use_id"] for call in message.get("toolUses", ())}
    return not open_calls


EDITS = {
    "work": EditingHost.work_in_parallel,
    "say": EditingHost.add_request,
    "answer": EditingHost.add_answer,
    "blank": EditingHost.add_blank_message,
    "usage": EditingHost.report_usage,
    "reword": EditingHost.reword,
    "drop the newest": EditingHost.drop_newest,
    "drop the oldest": EditingHost.drop_oldest,
    "drop one": EditingHost.drop_one,
    "other handles": EditingHost.rename_messages,
    "regroup": EditingHost.regroup_results,
    "window": EditingHost.change_window,
    "restart": EditingHost.change_nothing,
    "compact": EditingHost.change_nothing,
}
"""What happens between two calls, by name."""


@pytest.mark.parametrize("keeps_on_disk", [False, True], ids=["memory", "disk"])
@given(edits=st.lists(st.tuples(NUMBERS, st.sampled_from([*EDITS, *["work"] * 6])), min_size=6, max_size=30))
def test_whatever_a_host_does_to_its_conversation_each_answer_can_be_sent(keeps_on_disk, edits, tmp_path_factory):
    """After each edit and each restart: nothing fails inside, results stand after their calls, the answer is no larger
    than what came and fits the window, and the same call again has the same answer.
    """

    async def scenario():
        async with AsyncExitStack() as stack:
            store = MemoryStore()
            if keeps_on_disk:
                store = stack.enter_context(open_store(tmp_path_factory.mktemp("store") / "store.db"))
            host = EditingHost(await stack.enter_async_context(open_server(store)))
            for number, what in edits:
                if what == "restart":
                    host.web = await stack.enter_async_context(open_server(store))
                EDITS[what](host, number)
                await check_call(host, force=what == "compact")

    run(scenario)


async def check_call(host, *, force):
    """Ask for a plan twice, and check both answers. A conversation that cannot be made to fit may be refused."""
    reply = await host.post(force=force)
    if reply.status_code == 400:
        assert reply.json()["error"]["path"] == "messages"
        return
    again = await host.post()
    assert (reply.status_code, again.status_code) == (200, 200)
    answer, later_answer = reply.json(), again.json()
    assert later_answer["messages"] == answer["messages"]
    assert not later_answer["isCompacted"]
    assert not any("stay as they are" in notice for notice in answer["notices"]), answer["notices"]
    assert answer["tokensAfter"] <= min(answer["tokensBefore"], host.fields["window"])
    own = {message["handle"]: message for message in host.messages}
    kept_handles = [row["handle"] for row in answer["messages"] if "handle" in row]
    assert kept_handles == [handle for handle in own if handle in kept_handles]
    shown = [host._apply(row, own) for row in answer["messages"]]
    assert is_valid(shown), json.dumps(answer["messages"])[:1_000]
