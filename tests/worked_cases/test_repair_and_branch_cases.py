"""The worked cases of OpenClaw and pi on damaged files, on what is stored when, and on branches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_entries import make_message_chain

from holdfast import Engine, open_store
from holdfast.cli import command as program
from holdfast.config import get_target
from holdfast.formats import get_branch_entries, read_recording
from holdfast.state.entries import BranchSummaryEntry
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedUpstream

_FILES = Path(__file__).parents[3] / "shared" / "cases"
_AREAS = {"file-repair", "pi.persist", "pi.branch", "pi.branch_summary"}

DEVIATIONS = {
    "pi-persist-01": "a session is in the store once it is opened: its policy is recorded, and other processes find it",
    "pi-branch-01": "where a session goes on is stored with it: a step back without a word more outlives a restart",
}
"""Cases that must not come out as written, and why."""


def _cases():
    files = [_FILES / name for name in ("openclaw.json", "pi-opencode.json")]
    if not all(file.exists() for file in files):
        return []
    return [case for file in files for case in json.loads(file.read_text()) if case["area"] in _AREAS]


_WORDS = {"header": "invalid session header", "there is no such file": "missing session file"}
"""What our reasons for leaving a file alone speak of, and what OpenClaw calls that."""


def _repair(case, folder):
    """Return what becomes of a session file of OpenClaw, which has pi's form."""
    file = folder / "session.jsonl"
    if case["params"]["file"] is not None:
        file.write_text(case["params"]["file"])
    ran = CliRunner().invoke(program, ["repair", str(file), "--format", "pi", "--json"])
    (found,) = json.loads(ran.stdout)
    reason = found.get("reason") or found.get("error") or ""
    return {
        "repaired": bool(found.get("backup")),
        "dropped": sum(one["kind"] in ("torn", "no object") for one in found["found"]),
        "reason": next((theirs for ours, theirs in _WORDS.items() if ours in reason), reason),
        "backup": bool(found.get("backup")) or len(list(folder.iterdir())) > file.exists(),
    }


def _persist(case, folder):
    """Return whether there is a file when a session was opened and a policy chosen, and nothing was said."""
    assert case["input"] == ["header", "model_change"]
    run_on_fake_clock(_opened, folder / "agent.db")
    return {"file_exists": (folder / "agent.db").exists()}


async def _opened(file):
    """Open a session of an engine and say nothing in it."""
    async with Engine.open(file, upstream=ScriptedUpstream([]), target=get_target("anthropic", "m")) as engine:
        await engine.session("talk")


def _branch(_case, folder):
    """Return where a session goes on that took a step back before it was opened again."""
    entries = make_message_chain(["u1", "a1", "u2", "a2"])
    with open_store(folder / "agent.db") as store:
        store.import_entries("talk", entries)
    file = str(folder / "agent.db")
    stepped = CliRunner().invoke(program, ["branch", "talk", "a1", "--store", file])
    assert stepped.exit_code == 0, stepped.output
    with open_store(folder / "agent.db") as store:
        leaf = store.get_session("talk").leaf_id
    return {"leaf_after_reload": "last entry of the file" if leaf == entries[-1].id else leaf}


def _summary(case, _folder):
    """Return what the summary of a branch that was left stands for, as a file of pi says it."""
    old, new = (case["input"][name].split(" in ")[1].split("-") for name in ("old_leaf", "target"))
    links = {**dict(zip(old, [None, *old], strict=False)), **dict(zip(new[1:], new, strict=False))}
    lines = [{"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/"}]
    lines += [_line("message", id_, up, message={"role": "user", "content": id_}) for id_, up in links.items()]
    lines.append(_line("branch_summary", "S", new[-1], fromId=old[-1], summary="tried"))
    recording = read_recording(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    (told,) = [entry for entry in recording.entries if isinstance(entry.body, BranchSummaryEntry)]
    left, way = (
        [one.id for one in get_branch_entries(recording, leaf) if one.id in links]
        for leaf in (told.body.source_id, told.id)
    )
    common = [id_ for id_ in left if id_ in way]
    return {
        "common_ancestor": common[-1],
        "summarise": [id_ for id_ in left if id_ not in common],
        "summary_parent": way[-1],
    }


def _line(kind, id_, up, **more):
    return {"type": kind, "id": id_, "parentId": up, "timestamp": "2026-01-01T00:00:00Z"} | more


_ADAPTERS = {"file-repair": _repair, "pi.persist": _persist, "pi.branch": _branch, "pi.branch_summary": _summary}

if _cases():

    @pytest.mark.parametrize("case", _cases(), ids=lambda case: case["id"])
    def test_case(case, tmp_path):
        """A case comes out as written; one we deviate from on purpose does not."""
        found = _ADAPTERS[case["area"]](case, tmp_path)
        assert (found == case["expect"]) is (case["id"] not in DEVIATIONS), (found, case["expect"])

    def test_every_area_has_cases():
        """Each area is run, and every deviation names a case."""
        assert {case["area"] for case in _cases()} == _AREAS
        assert DEVIATIONS.keys() <= {case["id"] for case in _cases()}
