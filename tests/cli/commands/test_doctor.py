"""``holdfast policy`` and ``holdfast doctor``: the settings that apply, and what is wrong with the installation."""

from __future__ import annotations

import json
import stat
from contextlib import closing
from sqlite3 import connect

import msgspec
import pytest

from holdfast.cli.commands import doctor
from holdfast.cli.files.user_paths import explain_unwritable_store
from holdfast.errors import StoreError
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings_check import get_setting, list_setting_names
from holdfast.store.open_store import open_store


def get_states(result) -> dict[str, str]:
    """Return the state of each check by its subject."""
    return {check["subject"]: check["state"] for check in json.loads(result.stdout)["checks"]}


def test_policy_list_describes_every_preset(run):
    """The list has every preset with what it does."""
    assert json.loads(run("policy", "list", "--json").stdout) == [
        {"policy": name, "about": about} for name, about in ((name, preset.about) for name, preset in PRESETS.items())
    ]
    assert all(name in run("policy", "list").stdout for name in PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_policy_show_prints_every_setting_with_its_origin(run, name):
    """Each setting that the policy reads has its value and its origin."""
    rows = json.loads(run("policy", "show", name, "--json").stdout)["settings"]
    policy = Policy.preset(name)
    names = [
        setting for setting in list_setting_names(type(policy.rules)) if setting not in policy.rules.unused_settings
    ]
    assert [row["setting"] for row in rows] == names
    values = {setting: msgspec.to_builtins(get_setting(setting, policy.settings, policy.rules)) for setting in names}
    assert {row["setting"]: row["value"] for row in rows} == json.loads(json.dumps(values))
    assert all(row["origin"] for row in rows)


def test_policy_show_exits_2_for_an_unknown_policy(run):
    """The message lists the available policies."""
    result = run("policy", "show", "holdfats")
    assert result.exit_code == 2
    assert "sliding" in result.stderr


def test_policy_without_a_subcommand_prints_help(run):
    """``holdfast policy`` alone lists its subcommands."""
    result = run("policy")
    assert result.exit_code == 0
    assert "show" in result.stdout


def test_doctor_finds_nothing_wrong_in_a_fresh_installation(run):
    """Files and folders that do not exist yet are no fault."""
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert "wrong" not in get_states(result).values()
    assert json.loads(result.stdout)["windows"][-1] == {"models": ["any other"], "window": 200_000}
    assert "in order" in run("doctor").stdout


def test_doctor_prints_windows_only_with_verbose(run):
    """The table of windows is long, so only --verbose prints it."""
    # Without line breaks: the list of models wraps where the newest of them ends.
    short, verbose = (" ".join(run("doctor", *options).stdout.split()) for options in ((), ("--verbose",)))
    assert "any other" not in short
    assert "any other" in verbose


def test_doctor_prints_the_store_path_and_its_source(run, home, monkeypatch):
    """The path comes from the option, else the variable, else the data folder, and doctor says which."""
    monkeypatch.setenv("COLUMNS", "400")  # long folders are not broken over lines
    assert "(HOLDFAST_STORE)" in run("doctor").stdout
    assert "(--store)" in run("doctor", "--store", home / "x.db").stdout
    monkeypatch.delenv("HOLDFAST_STORE")
    assert f"{home}" in run("doctor").stdout
    assert "(default)" in run("doctor").stdout


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("file/x.db", "is a file, not a folder"),
        ("file/a/b/x.db", "is a file, not a folder"),
        (".", "give a file's path"),
    ],
)
def test_doctor_reports_an_impossible_store_path(run, home, path, expected):
    """A file in place of a folder, or a folder in place of the store, is wrong, and nothing is created."""
    (home / "file").write_text("words")
    checks = json.loads(run("doctor", "--store", home / path, "--json").stdout)["checks"]
    (store,) = [check for check in checks if check["subject"] == "store"]
    assert store["state"] == "wrong"
    assert expected in store["text"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (":memory:", ""),
        ("new/folder/x.db", ""),
        ("file/x.db", "file, not a folder"),
        ("file", "not a database"),
        ("", "empty"),
        (".", "give a file's path"),
    ],
)
def test_explain_unwritable_store_explains_without_writing(home, path, expected):
    """The explanation is given before anything is written, and nothing is created."""
    (home / "file").write_text("words")
    files_before = sorted(home.rglob("*"))
    assert expected in explain_unwritable_store(path)
    assert bool(explain_unwritable_store(path)) == bool(expected)
    assert sorted(home.rglob("*")) == files_before


def test_doctor_reports_a_store_that_others_can_read(run, session, home):
    """Permissions wider than the owner's are reported and left for the user to change."""
    run("import", session)
    assert run("doctor").exit_code == 0
    file = home / "store" / "holdfast.db"
    file.chmod(0o644)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert get_states(result)["permissions"] == "wrong"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_doctor_reports_damaged_entries(run, home, edited_session):
    """Every entry is read; unreadable ones are reported with session and entry, and what to do."""
    assert get_states(run("doctor", "--json"))["entries"] == "ok"
    with closing(connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id IN ('d1', 'c1')")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    (text,) = [check["text"] for check in json.loads(result.stdout)["checks"] if check["subject"] == "entries"]
    assert "2 of " in text
    assert "entry d1" in text
    assert "holdfast repair" in text


def test_doctor_reports_a_store_that_is_no_database(run, session):
    """A file that is not a database is wrong."""
    result = run("doctor", "--json", "--store", session)
    assert result.exit_code == 1
    assert get_states(result)["store"] == "wrong"


def test_doctor_reports_a_broken_configuration(run, home):
    """An unknown table is wrong, and the windows are still printed."""
    (home / "holdfast.toml").write_text("[[modell]]\n")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert get_states(result)["configuration (project)"] == "wrong"
    assert json.loads(result.stdout)["windows"]


def test_doctor_lists_configured_windows_first(run, home):
    """The project's own model lines come first."""
    (home / "holdfast.toml").write_text('[[model]]\nmatch = "mine*"\nwindow = 4321\n')
    assert json.loads(run("doctor", "--json").stdout)["windows"][0] == {"models": ["mine*"], "window": 4321}


def test_doctor_counts_the_sessions_of_other_tools(run, home, make_session_lines, write_lines):
    """It counts the sessions that ``replay --all`` would find."""
    write_lines(home / ".claude" / "projects" / "-w" / "a.jsonl", make_session_lines(1))
    assert "1 session in" in run("doctor").stdout


def test_doctor_tells_of_sessions_that_cannot_be_read(run, home, make_session_lines, write_lines):
    """Sessions of known tools are read; those that cannot be are named with the reason, the count and one of them."""
    project = home / ".claude" / "projects" / "w"
    project.mkdir(parents=True)
    write_lines(project / "good.jsonl", make_session_lines(1))
    for name in ("a", "b"):
        (project / f"{name}.jsonl").write_text("hello\n", encoding="utf-16")
    opencode = home / ".local" / "share" / "opencode"
    opencode.mkdir(parents=True)
    (opencode / "opencode.db").write_bytes(b"SQLite format 3\x00" + bytes(4_000))
    droid = home / ".factory" / "sessions" / "w"
    droid.mkdir(parents=True)
    (droid / "x.jsonl").write_text("{}\n")
    result = run("doctor", "--json")
    assert result.exit_code == 0, result.stderr
    groups = {group["tool"]: group for group in json.loads(result.stdout)["unreadable_sessions"]}
    assert (groups["Claude Code"]["count"], "UTF-16" in groups["Claude Code"]["reason"]) == (2, True)
    assert groups["opencode"]["example"].endswith("opencode.db")
    assert (groups["Factory Droid"]["count"], "no reader" in groups["Factory Droid"]["reason"]) == (1, True)
    states = get_states(result)
    assert (states["Claude Code"], states["Codex"]) == ("note", "ok")
    printed = " ".join(run("doctor").stdout.split())
    assert "2 cannot be read" in printed


def test_doctor_looks_at_sessions_only_as_long_as_it_may(run, home, make_session_lines, write_lines, monkeypatch):
    """When the time is over, the check says how many sessions it looked at."""
    monkeypatch.setattr(doctor, "SCAN_SECONDS", -1.0)
    project = home / ".claude" / "projects" / "w"
    project.mkdir(parents=True)
    write_lines(project / "good.jsonl", make_session_lines(1))
    texts = {check["subject"]: check["text"] for check in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert "look at 0 of them" in texts["Claude Code"]


def test_doctor_reports_each_configuration_file_once(run, home):
    """A wrong file has one line, and no other line calls it ok."""
    (home / "holdfast.toml").write_text("[[model]\n")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    checks = [check for check in json.loads(result.stdout)["checks"] if check["subject"].startswith("configuration")]
    assert [(check["subject"], check["state"]) for check in checks] == [
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
def test_doctor_reports_the_http_libraries_of_the_proxy(missing, runs_with, state, monkeypatch):
    """A missing optional library is a note, not a fault, that explains a slower proxy."""
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in missing else name)
    (check,) = [
        candidate for candidate in doctor._run_checks(None, online=False, quiet=True) if candidate.subject == "relay"
    ]
    assert check.state == state
    assert check.text.startswith(f"the proxy runs with {runs_with}")


def test_doctor_reports_a_disk_that_is_nearly_full(run, monkeypatch):
    """Little free space is a note, none is wrong, and enough is not mentioned."""
    assert "disk" not in get_states(run("doctor", "--json"))
    monkeypatch.setattr(doctor, "_LOW_DISK_BYTES", 1 << 80)
    assert get_states(run("doctor", "--json"))["disk"] == "note"
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 80)
    result = run("doctor", "--json")
    assert get_states(result)["disk"] == "wrong"
    assert result.exit_code == 1


def test_doctor_names_the_place_of_texts_elsewhere(run, home, monkeypatch):
    """Texts in object storage are named; with ``--online`` the server is asked, and one that is silent is a fault."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-word")
    monkeypatch.setattr("holdfast.store.blobs.object_location.MAX_RETRIES", 0)
    path = home / "store" / "holdfast.db"
    with open_store(path, blobs="s3://bucket/x?endpoint=http://127.0.0.1:9&region=us-east-1") as store:
        store.create_session("one")
        with pytest.raises(StoreError):
            store.blobs.store_content("text")
    assert "in s3://bucket/x/" in run("doctor").stdout
    (check,) = doctor._check_blob_place(path, online=True)  # the whole command would ask other servers too
    assert check.state == "wrong"
    assert "does not answer" in check.text
    assert "secret-word" not in check.text
