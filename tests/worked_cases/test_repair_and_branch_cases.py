"""Worked cases of OpenClaw and pi about damaged files, when a session is stored, and branches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_entries import make_message_chain

from holdfast import Engine, open_store
from holdfast.cli import holdfast_command as program
from holdfast.config import get_target
from holdfast.formats import get_branch_entries, read_recording
from holdfast.state.entries import BranchSummaryEntry
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedUpstream

_FILES = Path(__file__).parents[3] / "shared" / "cases"
_AREAS = {"file-repair", "pi.persist", "pi.branch", "pi.branch_summary"}

DEVIATIONS = {
    "pi-persist-01": "a session is in the store once it is opened: its policy is recorded and other processes find it",
    "pi-branch-01": "the leaf of a session is stored: a step back survives a restart without a new message",
}
"""Cases that must differ from what is written, and why."""


def _load_cases():
    files = [_FILES / name for name in ("openclaw.json", "pi-opencode.json")]
    if not all(file.exists() for file in files):
        return []
    return [case for file in files for case in json.loads(file.read_text()) if case["area"] in _AREAS]


_REASONS = {"header": "invalid session header", "there is no such file": "missing session file"}
"""Parts of Holdfast's reasons for leaving a file alone, and OpenClaw's names for them."""


def _run_repair_case(case, folder):
    """Return the result of repairing an OpenClaw session file, which has pi's format."""
    file = folder / "session.jsonl"
    if case["params"]["file"] is not None:
        file.write_text(case["params"]["file"])
    result = CliRunner().invoke(program, ["repair", str(file), "--format", "pi", "--json"])
    (report,) = json.loads(result.stdout)
    reason = report.get("reason") or report.get("error") or ""
    return {
        "repaired": bool(report.get("backup")),
        "dropped": sum(finding["kind"] in ("torn", "no object") for finding in report["found"]),
        "reason": next((openclaw_reason for phrase, openclaw_reason in _REASONS.items() if phrase in reason), reason),
        "backup": bool(report.get("backup")) or len(list(folder.iterdir())) > file.exists(),
    }


def _run_persist_case(case, folder):
    """Return whether a file exists after a session was opened and a policy chosen, without any message."""
    assert case["input"] == ["header", "model_change"]
    run_on_fake_clock(_open_session, folder / "agent.db")
    return {"file_exists": (folder / "agent.db").exists()}


async def _open_session(file):
    """Open a session of an engine without sending a message."""
    async with Engine.open(file, upstream=ScriptedUpstream([]), target=get_target("anthropic", "m")) as engine:
        await engine.session("talk")


def _run_branch_case(_case, folder):
    """Return the leaf of a session that went back one step before it was reopened."""
    entries = make_message_chain(["u1", "a1", "u2", "a2"])
    with open_store(folder / "agent.db") as store:
        store.import_entries("talk", entries)
    file = str(folder / "agent.db")
    result = CliRunner().invoke(program, ["branch", "talk", "a1", "--store", file])
    assert result.exit_code == 0, result.output
    with open_store(folder / "agent.db") as store:
        leaf = store.get_session("talk").leaf_id
    return {"leaf_after_reload": "last entry of the file" if leaf == entries[-1].id else leaf}


def _run_branch_summary_case(case, _folder):
    """Return what the summary of an abandoned branch covers, as read from a pi file."""
    old, new = (case["input"][name].split(" in ")[1].split("-") for name in ("old_leaf", "target"))
    links = {**dict(zip(old, [None, *old], strict=False)), **dict(zip(new[1:], new, strict=False))}
    lines = [{"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/"}]
    lines += [
        _build_line("message", id_, parent_id, message={"role": "user", "content": id_})
        for id_, parent_id in links.items()
    ]
    lines.append(_build_line("branch_summary", "S", new[-1], fromId=old[-1], summary="tried"))
    recording = read_recording(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    (summary,) = [entry for entry in recording.entries if isinstance(entry.body, BranchSummaryEntry)]
    old_path, new_path = (
        [entry.id for entry in get_branch_entries(recording, leaf) if entry.id in links]
        for leaf in (summary.body.source_id, summary.id)
    )
    common = [id_ for id_ in old_path if id_ in new_path]
    return {
        "common_ancestor": common[-1],
        "summarise": [id_ for id_ in old_path if id_ not in common],
        "summary_parent": new_path[-1],
    }


def _build_line(kind, id_, parent_id, **fields):
    return {"type": kind, "id": id_, "parentId": parent_id, "timestamp": "2026-01-01T00:00:00Z"} | fields


_ADAPTERS = {
    "file-repair": _run_repair_case,
    "pi.persist": _run_persist_case,
    "pi.branch": _run_branch_case,
    "pi.branch_summary": _run_branch_summary_case,
}

if _load_cases():

    @pytest.mark.parametrize("case", _load_cases(), ids=lambda case: case["id"])
    def test_repair_and_branch_case_matches_or_deviates_on_purpose(case, tmp_path):
        """Each case gives the expected result, and each deviation a different one."""
        found = _ADAPTERS[case["area"]](case, tmp_path)
        assert (found == case["expect"]) is (case["id"] not in DEVIATIONS), (found, case["expect"])

    def test_every_area_has_cases_and_deviations_exist():
        """Each area has cases, and each deviation names an existing case."""
        assert {case["area"] for case in _load_cases()} == _AREAS
        assert DEVIATIONS.keys() <= {case["id"] for case in _load_cases()}
