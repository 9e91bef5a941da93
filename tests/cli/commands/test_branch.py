"""``holdfast branch``: the branches of a session, and where it goes on."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.commands.branch import list_branches
from holdfast.cli.reports.history import load_branch_history, load_history_through_entry
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import Entry, MessageEntry


def said(text: str) -> MessageEntry:
    return MessageEntry(build_sized_message(Message.from_text("user", text)))


def told(run, key: str, *arguments: str) -> dict:
    return json.loads(run("branch", key, *arguments, "--json").stdout)


def test_one_branch(run, decided):
    """A session that never forked has one, which is active."""
    (one,) = told(run, decided)["branches"]
    assert (one["leaf"], one["is_active"], one["messages"], one["own_messages"]) == ("c1", True, 12, 12)
    assert run("branch", decided).stdout.splitlines()[1].startswith("* c1")


def test_a_torn_line_is_no_branch(run, home, talk, write):
    """Notes of damaged lines behind messages that go on are no branches; one behind the end of a branch hides none."""
    lines = talk(2)
    torn = [*lines[:3], lines[3][:80], *lines[3:], lines[0][:40]]
    elsewhere = lines[4].replace("u4", "v4").replace("go on", "stop")
    for name, given, count in (("a", torn, 1), ("b", [*lines[:5], elsewhere, lines[0][:40], *lines[5:]], 2)):
        assert run("import", write(home / "torn.jsonl", given), "--as", name).exit_code == 0
        found = told(run, name)["branches"]
        assert [one["is_active"] for one in found].count(True) == 1
        assert len(found) == count
        assert sum(one["own_messages"] for one in found) == 8 + (count - 1)


def test_what_a_list_says_means_the_branch(run, home, decided):
    """The short name of a branch leads to it, however long the ids are that its session came with."""
    assert run("export", decided, "--format", "opencode-json", "-o", home / "other").exit_code == 0
    assert run("import", home / "other", "--as", "other").exit_code == 0
    assert run("branch", "other", "3").exit_code == 0
    (long, short) = sorted(told(run, "other")["branches"], key=lambda one: -one["messages"])
    assert (long["is_active"], short["is_active"]) == (False, True)
    found = told(run, "other", long["short"])["branches"]
    assert [one["is_active"] for one in found if one["messages"] == long["messages"]] == [True]


def test_going_on_from_an_entry(run, decided, store):
    """The session goes on there: what came later, and what was decided later, does not count, and is kept.

    Behind an answer that is behind what it cost, which tells how large the next request is.
    """
    found = told(run, decided, "3", "--name", "half way")
    assert [(one["leaf"], one["is_active"]) for one in found["branches"]] == [("c1", False), ("u3+usage", True)]
    assert found["branches"][1]["own_messages"] == 0
    assert store.get_session(decided).leaf_id == "u3+usage"
    assert found["named_entries"] == [{"entry": "u3", "name": "half way", "message": 3}]
    slot = build_sized_message(Message.from_text("user", "another way"))
    store.append_entries(decided, [Entry("n", "u3+usage", MessageEntry(slot))])
    found = told(run, decided)
    assert [(one["leaf"], one["messages"], one["own_messages"]) for one in found["branches"]] == [
        ("c1", 12, 12),
        ("n", 5, 1),
    ]
    assert "half way: #3" in run("branch", decided).stdout


def test_and_back_again(run, decided, store):
    """The end of a branch, or a name, leads back; an empty name takes the name away."""
    run("branch", decided, "3", "--name", "half")
    run("branch", decided, "c1")
    assert store.get_session(decided).leaf_id == "c1"
    assert told(run, decided, "half", "--name", "")["named_entries"] == []
    assert store.get_session(decided).leaf_id == "u3+usage"


def test_the_end_is_one_place(run, session):
    """Going on behind the last message is going on where the session did: no second branch, no other size."""
    run("import", session)
    before = told(run, "5e551011-aaaa")
    assert told(run, "5e551011-aaaa", str(before["branches"][0]["messages"] - 1)) == before


def test_listing_writes_nothing(run, decided, store):
    """Without an entry nothing moves."""
    before = store.read_entries(decided)
    told(run, decided)
    assert store.read_entries(decided) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zz",), "no entry has an id that is or begins with 'zz'"),
        (("99",), "no message #99"),
        (("u",), "could be any of these"),
        (("--name", "x"), "--name needs an ENTRY"),
        (("2", "--name", "3"), "--name 3 is also a message number"),
        (("2", "--name", "#30"), "--name #30 is also"),
        (("2", "--name", "  "), "--name cannot be only blanks"),
    ],
)
def test_wrong_use_moves_nothing(run, decided, store, arguments, message):
    """What is not there cannot be gone on from."""
    result = run("branch", decided, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert store.get_session(decided).leaf_id == "c1"
    assert store.read_labels(decided) == {}


def test_a_number_is_no_beginning_of_an_id(run, decided, store):
    """Where the branch has no such message nothing moves, whatever ids begin with those digits."""
    slot = build_sized_message(Message.from_text("user", "more"))
    store.append_entries(decided, [Entry("59abcdef", "c1", MessageEntry(slot))])
    result = run("branch", decided, "59")
    assert (result.exit_code, store.get_session(decided).leaf_id) == (2, "59abcdef")
    assert "no message #59 (its last one is #12)" in result.stderr
    assert run("branch", decided, "59abcdef").exit_code == 0


def test_an_unknown_and_an_empty_session(run, store):
    """One is an error, the other has no branch yet."""
    assert run("branch", "nobody").exit_code == 2
    store.create_session("empty")
    assert told(run, "empty")["branches"] == []
    assert "there are no messages" in run("branch", "empty").stdout


def test_a_list_of_branches_reads_what_they_share_once(work, store):
    """Four times as many branches from one long conversation take little more work to list, not four times as much."""
    many = [Entry(f"m{at}", f"m{at - 1}" if at else None, said(f"message {at}")) for at in range(400)]
    store.import_entries("forked", many, leaf="m399")
    needed = []
    for count in (8, 32):
        for fork in range(count):
            parent = f"m{399 - fork}"
            store.append_entries("forked", [Entry(f"f{count}-{fork}", parent, said(f"fork {fork}"))], expected_leaf="")
        found = list_branches(store, store.get_session("forked"))
        assert [one.messages for one in found.branches if one.leaf == f"f{count}-4"] == [397]
        needed.append(work(lambda: list_branches(store, store.get_session("forked"))))
    assert needed[1] < 2 * needed[0]


def test_a_request_of_another_branch_is_found_by_one_reading(work, store):
    """Its log is that of the newest branch through it; how many branches there are beside it costs little."""
    many = [Entry(f"m{at}", f"m{at - 1}" if at else None, said(f"message {at}")) for at in range(400)]
    store.import_entries("forked", many, leaf="m399")
    old = Entry("old", "m390", said("an old branch"))
    store.append_entries("forked", [old, Entry("older", "old", said("its end"))], expected_leaf="")
    log, needed = load_branch_history(store, "forked"), []
    for count in (8, 32):
        for fork in range(count):
            entry = Entry(f"f{count}-{fork}", f"m{399 - fork}", said(f"fork {fork}"))
            store.append_entries("forked", [entry], expected_leaf="")
        assert [one.id for one in load_history_through_entry(store, "forked", log, old).entries[-2:]] == [
            "old",
            "older",
        ]
        needed.append(work(lambda: load_history_through_entry(store, "forked", log, old)))
    assert needed[1] < 2 * needed[0]


def test_a_session_that_is_talked_on_while_it_is_looked_at(decided, store, monkeypatch):
    """What comes between two looks at the log is on the list the next time; nothing of it is missed on the way."""
    info, looked = store.get_session(decided), []

    def meanwhile(name):
        step = getattr(type(store), name)

        def done(self, *given, **more):
            told = step(self, *given, **more)
            if name not in looked:
                looked.append(name)
                said = MessageEntry(build_sized_message(Message.from_text("user", "And now?")))
                self.append_entries(info.key, [Entry(f"talk-{name}", self.get_session(info.key).leaf_id, said, 0, 0)])
                self.label_entry(info.key, f"talk-{name}", name)
            return told

        monkeypatch.setattr(type(store), name, done)

    for name in ("read_tips", "read_labels", "read_entries"):
        meanwhile(name)
    assert list_branches(store, info).branches
    assert sorted(looked) == ["read_entries", "read_labels", "read_tips"]
