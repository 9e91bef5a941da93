"""``holdfast policy`` and ``holdfast doctor``: what is in force, and why."""

from __future__ import annotations

import json
import stat
from contextlib import closing
from sqlite3 import connect

import msgspec
import pytest

from holdfast.cli.commands import doctor
from holdfast.cli.files.user_paths import explain_unwritable_store
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings_check import get_setting, list_setting_names


def states(result) -> dict[str, str]:
    return {check["subject"]: check["state"] for check in json.loads(result.stdout)["checks"]}


def test_every_policy_is_described(run):
    """The list has every preset with what it does."""
    assert json.loads(run("policy", "list", "--json").stdout) == [
        {"policy": name, "about": about} for name, about in ((name, preset.about) for name, preset in PRESETS.items())
    ]
    assert all(name in run("policy", "list").stdout for name in PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_is_shown_with_its_origin(run, name):
    """No number is hidden: each setting has its value and where it came from."""
    shown = json.loads(run("policy", "show", name, "--json").stdout)["settings"]
    policy = Policy.preset(name)
    read = [one for one in list_setting_names(type(policy.rules)) if one not in policy.rules.unused_settings]
    assert [row["setting"] for row in shown] == read
    values = {one: msgspec.to_builtins(get_setting(one, policy.settings, policy.rules)) for one in read}
    assert {row["setting"]: row["value"] for row in shown} == json.loads(json.dumps(values))
    assert all(row["origin"] for row in shown)


def test_an_unknown_policy_is_wrong_use(run):
    """The message lists the policies there are."""
    result = run("policy", "show", "holdfats")
    assert result.exit_code == 2
    assert "sliding" in result.stderr


def test_policy_alone_prints_its_help(run):
    """``holdfast policy`` says what it can do."""
    result = run("policy")
    assert result.exit_code == 0
    assert "show" in result.stdout


def test_a_fresh_installation_is_in_order(run):
    """Nothing there yet is nothing wrong."""
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert "wrong" not in states(result).values()
    assert json.loads(result.stdout)["windows"][-1] == {"models": ["any other"], "window": 200_000}
    assert "in order" in run("doctor").stdout


def test_windows_are_printed_where_that_is_asked_for(run):
    """The table of windows is long: it is shown with --verbose alone."""
    assert "any other" not in run("doctor").stdout
    assert "any other" in run("doctor", "--verbose").stdout


def test_doctor_says_where_the_store_is_and_why(run, home, monkeypatch):
    """The path comes from the option, else the variable, else the data folder; doctor says which."""
    monkeypatch.setenv("COLUMNS", "400")  # long folders are not broken over lines
    assert "(HOLDFAST_STORE)" in run("doctor").stdout
    assert "(--store)" in run("doctor", "--store", home / "x.db").stdout
    monkeypatch.delenv("HOLDFAST_STORE")
    assert f"{home}" in run("doctor").stdout
    assert "(default)" in run("doctor").stdout


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("file/x.db", "is a file, not a folder"),
        ("file/a/b/x.db", "is a file, not a folder"),
        (".", "give a file's path"),
    ],
)
def test_a_store_that_cannot_be(run, home, place, told):
    """A file in place of a folder, and a folder in place of the store, are wrong, and nothing is made of them."""
    (home / "file").write_text("words")
    found = json.loads(run("doctor", "--store", home / place, "--json").stdout)["checks"]
    (store,) = [one for one in found if one["subject"] == "store"]
    assert store["state"] == "wrong"
    assert told in store["text"]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (":memory:", ""),
        ("new/folder/x.db", ""),
        ("file/x.db", "file, not a folder"),
        ("file", "not a database"),
        ("", "empty"),
        (".", "give a file's path"),
    ],
)
def test_whether_a_store_can_be_written(home, place, told):
    """It is told before anything is written, and nothing is made."""
    (home / "file").write_text("words")
    before = sorted(home.rglob("*"))
    assert told in explain_unwritable_store(place)
    assert bool(explain_unwritable_store(place)) == bool(told)
    assert sorted(home.rglob("*")) == before


def test_a_store_that_others_can_read_is_wrong(run, session, home):
    """Wider permissions than the owner's are found, with what to do."""
    run("import", session)
    assert run("doctor").exit_code == 0
    file = home / "store" / "holdfast.db"
    file.chmod(0o644)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert states(result)["permissions"] == "wrong"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_damaged_entries_are_wrong(run, home, decided):
    """Every entry is read: what cannot be is told with its session, and what to do with that."""
    assert states(run("doctor", "--json"))["entries"] == "ok"
    with closing(connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id IN ('d1', 'c1')")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    (told,) = [one["text"] for one in json.loads(result.stdout)["checks"] if one["subject"] == "entries"]
    assert "2 of " in told
    assert "entry d1" in told
    assert "holdfast repair" in told


def test_a_store_that_is_none_is_wrong(run, session):
    """A file that is no database is found."""
    result = run("doctor", "--json", "--store", session)
    assert result.exit_code == 1
    assert states(result)["store"] == "wrong"


def test_a_broken_configuration_is_wrong(run, home):
    """A setting that nobody knows is found, and the windows are still shown."""
    (home / "holdfast.toml").write_text("[[modell]]\n")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert states(result)["configuration (project)"] == "wrong"
    assert json.loads(result.stdout)["windows"]


def test_a_configured_window_is_in_force(run, home):
    """The project's own lines come first."""
    (home / "holdfast.toml").write_text('[[model]]\nmatch = "mine*"\nwindow = 4321\n')
    assert json.loads(run("doctor", "--json").stdout)["windows"][0] == {"models": ["mine*"], "window": 4321}


def test_doctor_counts_the_sessions_of_other_tools(run, home, talk, write):
    """What ``replay --latest`` would find is told."""
    write(home / ".claude" / "projects" / "-w" / "a.jsonl", talk(1))
    assert "1 session in" in run("doctor").stdout


def test_a_broken_configuration_is_told_once(run, home):
    """The file that is wrong has one line, and no line that calls it in order."""
    (home / "holdfast.toml").write_text("[[model]\n")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    checks = [one for one in json.loads(result.stdout)["checks"] if one["subject"].startswith("configuration")]
    assert [(one["subject"], one["state"]) for one in checks] == [
        ("configuration (project)", "wrong"),
        ("configuration (user)", "ok"),
    ]


@pytest.mark.parametrize(
    ("missing", "runs_with", "state"),
    [
        ((), "httptools on uvloop", "ok"),
        (("uvloop",), "httptools on asyncio; uvloop would", "note"),
        (("httptools", "uvloop"), "h11 on asyncio; httptools and uvloop would", "note"),
    ],
)
def test_doctor_tells_what_the_proxy_runs_with(missing, runs_with, state, monkeypatch):
    """Neither is a fault where it has no wheels, and a proxy that is slow for it says why."""
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in missing else name)
    (check,) = [one for one in doctor._run_checks(None, quiet=True) if one.subject == "relay"]
    assert check.state == state
    assert check.text.startswith(f"the proxy runs with {runs_with}")


def test_a_disk_that_is_nearly_full_is_told(run, monkeypatch):
    """Where little is left it is a note, where nothing is left it is wrong; else nothing is said of the disk."""
    assert "disk" not in states(run("doctor", "--json"))
    monkeypatch.setattr(doctor, "_LOW_DISK_BYTES", 1 << 80)
    assert states(run("doctor", "--json"))["disk"] == "note"
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 80)
    result = run("doctor", "--json")
    assert states(result)["disk"] == "wrong"
    assert result.exit_code == 1
