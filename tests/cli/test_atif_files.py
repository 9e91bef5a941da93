"""Trajectories in ATIF on the command line: files that go on in each other, and what they must not lead to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.formats.atif.segments import MAX_SEGMENTS, collect_segments, is_plain_file_name
from tests.support.atif_rules import find_atif_faults


def build(*messages: str, copied: int = 0, **more: Any) -> bytes:
    """Return a trajectory of messages by turns; the first ones may be copied from another file."""
    steps = []
    for index, message in enumerate(messages):
        source = "agent" if message.startswith("answer") else "user"
        step = {"step_id": index + 1, "source": source, "message": message}
        steps.append(step | ({"is_copied_context": True} if index < copied else {}))
    document = {"schema_version": "ATIF-v1.7", "session_id": "run", "agent": {"name": "t", "version": "1"}}
    return json.dumps(document | {"steps": steps} | more).encode()


def write_files(folder: Path) -> None:
    """Write a run of three files; the second begins with a summary, the third repeats the end of the second."""
    (folder / "t.json").write_bytes(build("go", "answer 1", continued_trajectory_ref="t.cont-1.json"))
    second = build("what was", "answer 2", copied=1, continued_trajectory_ref="t.cont-2.json")
    (folder / "t.cont-1.json").write_bytes(second)
    (folder / "t.cont-2.json").write_bytes(build("answer 2", "more", "answer 3", copied=1))


def import_messages(run, file: str) -> list[str]:
    """Import a file and return the messages of its session."""
    imported = json.loads(run("import", file, "--as", "s", "--json").stdout)
    assert "error" not in imported[0], imported
    shown = json.loads(run("show", "s", "--all", "--json").stdout)
    return [line["text"] for line in shown if "role" in line]


def test_import_reads_the_files_that_a_trajectory_goes_on_in(run, home):
    """One session of all files: the history once, and each compaction where a file ended."""
    write_files(home)
    assert import_messages(run, "t.json") == ["go", "answer 1", "answer 2", "more", "answer 3"]
    shown = json.loads(run("export", "s", "--format", "openai-chat").stdout)["messages"]
    # Made valid for sending: a message before the first answer, and one behind the last.
    assert [message["content"] for message in shown][1:-1] == ["answer 2", "more", "answer 3"]
    (replayed,) = json.loads(run("replay", "t.json", "--policy", "holdfast", "--json").stdout)
    assert replayed["requests"] == 3


def test_import_reads_a_later_file_alone(run, home):
    """A file in the middle is what it shows, with those that follow it."""
    write_files(home)
    assert import_messages(run, "t.cont-1.json") == ["what was", "answer 2", "more", "answer 3"]


@pytest.mark.parametrize(
    "reference",
    ["../secret.json", "/etc/passwd", "sub/secret.json", "..", "https://example.org/x.json", "C:x.json", "a\\b", ""],
)
def test_import_opens_nothing_outside_the_folder(run, home, reference):
    """A name that comes out of a file is never a path; the trajectory is read alone, and the import says so."""
    folder = home / "runs"
    (folder / "sub").mkdir(parents=True)
    for place in (home / "secret.json", folder / "sub" / "secret.json"):
        place.write_bytes(build("answer secret"))
    (folder / "t.json").write_bytes(build("go", continued_trajectory_ref=reference))
    result = run("import", folder / "t.json", "--json")
    assert "secret" not in run("export", "run", "--format", "atif").stdout.replace(json.dumps(reference), "")
    (imported,) = json.loads(result.stdout)
    assert [repr(reference) in problem["reason"] for problem in imported["problems"]] == [True] * bool(reference)


def test_import_follows_no_link_out_of_the_folder(run, home):
    """A symbolic link beside the trajectory that leads elsewhere is not opened."""
    folder = home / "runs"
    folder.mkdir()
    (home / "secret.json").write_bytes(build("answer secret"))
    (folder / "next.json").symlink_to(home / "secret.json")
    (folder / "t.json").write_bytes(build("go", continued_trajectory_ref="next.json"))
    assert run("import", folder / "t.json").exit_code == 0
    assert "secret" not in run("export", "run", "--format", "atif").stdout


def test_import_ends_at_a_file_that_leads_back(run, home):
    """Files that lead round are read once each."""
    (home / "a.json").write_bytes(build("go", continued_trajectory_ref="b.json"))
    (home / "b.json").write_bytes(build("answer 1", continued_trajectory_ref="a.json"))
    assert import_messages(run, "a.json") == ["go", "answer 1"]


def test_collect_segments_is_bounded():
    """An endless row of files is read up to a limit."""
    count = 0

    def read_sibling(_: str) -> bytes:
        nonlocal count
        count += 1
        return build("answer", continued_trajectory_ref=f"{count}.json")

    segments = collect_segments("t.json", build("go", continued_trajectory_ref="0.json"), read_sibling)
    assert len(segments) == MAX_SEGMENTS


def test_collect_segments_asks_for_plain_names_only():
    """A path or an address is not even looked for."""
    asked: list[str] = []
    for reference in ("../a.json", "/a.json", "b/a.json", "https://example.org/a.json", "a.json"):
        collect_segments("t.json", build("go", continued_trajectory_ref=reference), asked.append)
    assert asked == ["a.json"]


def test_is_plain_file_name_refuses_names_of_other_places():
    """Names that are special anywhere are refused: separators, drives, hidden files, line ends."""
    assert is_plain_file_name("trajectory.cont-1.json")
    for name in ("", ".", "..", ".hidden", "a/b", "a\\b", "C:a", "a\n", "a\0", " a", "a*"):
        assert not is_plain_file_name(name), name


def test_export_segments_writes_one_file_for_each_compaction(run, home, edited_session):
    """The files are valid one by one, and importing the first gives the session and its context again."""
    result = run("export", edited_session, "--format", "atif", "--segments", "-o", "out.json")
    assert result.exit_code == 0, result.stderr
    documents = [json.loads((home / name).read_bytes()) for name in ("out.json", "out.cont-1.json")]
    assert [find_atif_faults(document) for document in documents] == [[], []]
    assert documents[0]["continued_trajectory_ref"] == "out.cont-1.json"
    assert run("import", "out.json", "--as", "again").exit_code == 0
    contexts = [
        json.loads(run("export", name, "--format", "openai-chat").stdout)["messages"]
        for name in (edited_session, "again")
    ]
    assert [message["role"] for message in contexts[0]] == [message["role"] for message in contexts[1]]
    assert run("export", edited_session, "--format", "atif", "--segments", "-o", "out.json").exit_code == 2
    assert run("export", edited_session, "--format", "atif", "--segments", "-o", "out.json", "--force").exit_code == 0


def test_export_segments_writes_nothing_if_one_file_exists(run, home, edited_session):
    """A later file that must not be replaced leaves the first one unwritten too."""
    (home / "out.cont-1.json").write_text("mine")
    result = run("export", edited_session, "--format", "atif", "--segments", "-o", "out.json")
    assert (result.exit_code, (home / "out.cont-1.json").read_text()) == (2, "mine")
    assert not (home / "out.json").exists()
    assert list(home.glob(".out*")) == []


@pytest.mark.parametrize("options", [["--format", "pi", "-o", "x"], ["--format", "atif"], ["-o", "x"]])
def test_export_segments_needs_atif_and_a_file(run, edited_session, options):
    """The error says which options belong together."""
    result = run("export", edited_session, "--segments", *options)
    assert result.exit_code == 2
    assert "give --format atif and -o FILE" in result.stderr


@pytest.mark.parametrize("name", ["t.traj", "t.traj.json", "t.json"])
def test_trajectories_are_no_files_to_repair(run, home, name):
    """Repair says what to do instead, and changes nothing."""
    contents = {
        "t.traj": json.dumps({"history": [{"role": "user", "content": "go", "agent": "main"}]}, indent=1).encode(),
        "t.traj.json": json.dumps({"trajectory_format": "mini-swe-agent-1", "messages": [{"role": "user"}]}).encode(),
        "t.json": build("go"),
    }
    (home / name).write_bytes(contents[name])
    result = run("repair", name)
    assert result.exit_code == 2
    assert "import it as it is" in result.stdout + result.stderr
    assert (home / name).read_bytes() == contents[name]


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_commands_for_requests_say_what_a_trajectory_is(run, home, command):
    """A file of a whole run given to a command for one request: the error says which commands take it."""
    (home / "t.json").write_bytes(build("go"))
    result = run(command, "t.json")
    assert result.exit_code == 2
    assert "this is a trajectory in ATIF: add it to the store with holdfast import" in " ".join(result.stderr.split())
