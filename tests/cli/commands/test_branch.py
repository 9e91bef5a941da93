"""``holdfast branch``: the list of a session's branches, and the entry from which it continues."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.commands.branch import list_branches
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.sessions.history import load_branch_history, load_history_through_entry
from holdfast.state.entries import Entry, MessageEntry


def build_user_entry(text: str) -> MessageEntry:
    return MessageEntry(build_sized_message(Message.from_text("user", text)))


def list_branches_as_json(run, key: str, *arguments: str) -> dict:
    return json.loads(run("branch", key, *arguments, "--json").stdout)


def test_branch_lists_the_one_branch_of_a_session_without_forks(run, edited_session):
    """A session that never forked has one branch, which is active."""
    (branch,) = list_branches_as_json(run, edited_session)["branches"]
    assert (branch["leaf"], branch["is_active"], branch["messages"], branch["own_messages"]) == ("c1", True, 12, 12)
    assert run("branch", edited_session).stdout.splitlines()[1].startswith("* c1")


def test_branch_ignores_notes_of_damaged_lines(run, home, make_session_lines, write_lines):
    """A note of a damaged line is no branch of its own, and one at the end of a branch hides no branch."""
    lines = make_session_lines(2)
    torn = [*lines[:3], lines[3][:80], *lines[3:], lines[0][:40]]
    elsewhere = lines[4].replace("u4", "v4").replace("go on", "stop")
    for name, lines_of_file, count in (("a", torn, 1), ("b", [*lines[:5], elsewhere, lines[0][:40], *lines[5:]], 2)):
        assert run("import", write_lines(home / "torn.jsonl", lines_of_file), "--as", name).exit_code == 0
        branches = list_branches_as_json(run, name)["branches"]
        assert [branch["is_active"] for branch in branches].count(True) == 1
        assert len(branches) == count
        assert sum(branch["own_messages"] for branch in branches) == 8 + (count - 1)


def test_branch_accepts_the_short_name_from_its_list(run, home, edited_session):
    """The short name of a branch leads to it, however long the session's imported ids are."""
    assert run("export", edited_session, "--format", "opencode-json", "-o", home / "other").exit_code == 0
    assert run("import", home / "other", "--as", "other").exit_code == 0
    assert run("branch", "other", "3").exit_code == 0
    (long, short) = sorted(list_branches_as_json(run, "other")["branches"], key=lambda branch: -branch["messages"])
    assert (long["is_active"], short["is_active"]) == (False, True)
    branches = list_branches_as_json(run, "other", long["short"])["branches"]
    assert [branch["is_active"] for branch in branches if branch["messages"] == long["messages"]] == [True]


def test_branch_continues_the_session_from_an_entry(run, edited_session, store):
    """Later messages and decisions no longer count but are kept; after an answer its usage entry is the new leaf, which
    tells the size of the next request.
    """
    report = list_branches_as_json(run, edited_session, "3", "--name", "half way")
    assert [(branch["leaf"], branch["is_active"]) for branch in report["branches"]] == [
        ("c1", False),
        ("u3+usage", True),
    ]
    assert report["branches"][1]["own_messages"] == 0
    assert store.get_session(edited_session).leaf_id == "u3+usage"
    assert report["named_entries"] == [{"entry": "u3", "name": "half way", "message": 3}]
    sized_message = build_sized_message(Message.from_text("user", "another way"))
    store.append_entries(edited_session, [Entry("n", "u3+usage", MessageEntry(sized_message))])
    report = list_branches_as_json(run, edited_session)
    assert [(branch["leaf"], branch["messages"], branch["own_messages"]) for branch in report["branches"]] == [
        ("c1", 12, 12),
        ("n", 5, 1),
    ]
    assert "half way: #3" in run("branch", edited_session).stdout


def test_branch_returns_to_a_leaf_or_a_name(run, edited_session, store):
    """The leaf of a branch, or a name, leads back; an empty name removes the name."""
    run("branch", edited_session, "3", "--name", "half")
    run("branch", edited_session, "c1")
    assert store.get_session(edited_session).leaf_id == "c1"
    assert list_branches_as_json(run, edited_session, "half", "--name", "")["named_entries"] == []
    assert store.get_session(edited_session).leaf_id == "u3+usage"


def test_branch_from_the_last_message_creates_no_second_branch(run, session):
    """Continuing after the last message continues the same branch with the same size."""
    run("import", session)
    listed_before = list_branches_as_json(run, "5e551011-aaaa")
    assert (
        list_branches_as_json(run, "5e551011-aaaa", str(listed_before["branches"][0]["messages"] - 1)) == listed_before
    )


def test_branch_without_an_entry_writes_nothing(run, edited_session, store):
    """Listing the branches leaves the log as it is."""
    entries_before = store.read_entries(edited_session)
    list_branches_as_json(run, edited_session)
    assert store.read_entries(edited_session) == entries_before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zz",), "no entry is 'zz' or begins with it"),
        (("99",), "no message #99"),
        (("u",), "could be any of these"),
        (("--name", "x"), "--name needs an ENTRY"),
        (("2", "--name", "3"), "--name 3 is also a message number"),
        (("2", "--name", "#30"), "--name #30 is also"),
        (("2", "--name", "  "), "--name cannot be only blanks"),
    ],
)
def test_branch_exits_2_and_keeps_the_leaf_on_wrong_use(run, edited_session, store, arguments, message):
    """An entry or name that does not fit is refused, and nothing changes."""
    result = run("branch", edited_session, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert store.get_session(edited_session).leaf_id == "c1"
    assert store.read_labels(edited_session) == {}


def test_branch_never_takes_a_message_number_as_an_id_prefix(run, edited_session, store):
    """If the branch has no message with that number nothing moves, even if an id begins with the digits."""
    sized_message = build_sized_message(Message.from_text("user", "more"))
    store.append_entries(edited_session, [Entry("59abcdef", "c1", MessageEntry(sized_message))])
    result = run("branch", edited_session, "59")
    assert (result.exit_code, store.get_session(edited_session).leaf_id) == (2, "59abcdef")
    assert "no message #59 (its last one is #12)" in result.stderr
    assert run("branch", edited_session, "59abcdef").exit_code == 0


def test_branch_handles_unknown_and_empty_sessions(run, store):
    """An unknown session is an error; an empty one has no branch yet."""
    assert run("branch", "nobody").exit_code == 2
    store.create_session("empty")
    assert list_branches_as_json(run, "empty")["branches"] == []
    assert "there are no messages" in run("branch", "empty").stdout


def test_list_branches_reads_shared_entries_once(count_calls, store):
    """Four times as many branches of one long conversation take less than twice the work to list."""
    entries = [Entry(f"m{at}", f"m{at - 1}" if at else None, build_user_entry(f"message {at}")) for at in range(400)]
    store.import_entries("forked", entries, leaf="m399")
    calls_made = []
    for count in (8, 32):
        for fork in range(count):
            parent = f"m{399 - fork}"
            store.append_entries(
                "forked", [Entry(f"f{count}-{fork}", parent, build_user_entry(f"fork {fork}"))], expected_leaf=""
            )
        listed = list_branches(store, store.get_session("forked"))
        assert [branch.messages for branch in listed.branches if branch.leaf == f"f{count}-4"] == [397]
        calls_made.append(count_calls(lambda: list_branches(store, store.get_session("forked"))))
    assert calls_made[1] < 2 * calls_made[0]


def test_load_history_through_entry_reads_one_branch(count_calls, store):
    """An entry of another branch is read with the newest branch through it, at a cost nearly independent of the number
    of branches.
    """
    entries = [Entry(f"m{at}", f"m{at - 1}" if at else None, build_user_entry(f"message {at}")) for at in range(400)]
    store.import_entries("forked", entries, leaf="m399")
    old = Entry("old", "m390", build_user_entry("an old branch"))
    store.append_entries("forked", [old, Entry("older", "old", build_user_entry("its end"))], expected_leaf="")
    log, calls_made = load_branch_history(store, "forked"), []
    for count in (8, 32):
        for fork in range(count):
            entry = Entry(f"f{count}-{fork}", f"m{399 - fork}", build_user_entry(f"fork {fork}"))
            store.append_entries("forked", [entry], expected_leaf="")
        assert [
            history_entry.id for history_entry in load_history_through_entry(store, "forked", log, old).entries[-2:]
        ] == [
            "old",
            "older",
        ]
        calls_made.append(count_calls(lambda: load_history_through_entry(store, "forked", log, old)))
    assert calls_made[1] < 2 * calls_made[0]


def test_list_branches_tolerates_entries_appended_while_it_reads(edited_session, store, monkeypatch):
    """Entries appended between two reads cause no error and appear in the next list."""
    info, intercepted = store.get_session(edited_session), []

    def append_during(name):
        original = getattr(type(store), name)

        def call_and_append(self, *arguments, **more):
            value = original(self, *arguments, **more)
            if name not in intercepted:
                intercepted.append(name)
                body = MessageEntry(build_sized_message(Message.from_text("user", "And now?")))
                self.append_entries(info.key, [Entry(f"talk-{name}", self.get_session(info.key).leaf_id, body, 0, 0)])
                self.label_entry(info.key, f"talk-{name}", name)
            return value

        monkeypatch.setattr(type(store), name, call_and_append)

    for name in ("read_tips", "read_labels", "read_entries"):
        append_during(name)
    assert list_branches(store, info).branches
    assert sorted(intercepted) == ["read_entries", "read_labels", "read_tips"]
