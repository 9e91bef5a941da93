"""``holdfast policy show``: every setting and constant, its origin, and the file that changed it."""

from __future__ import annotations

import json
from importlib import import_module

import example_counts
import pytest

from holdfast.cli.commands.policy import list_settings
from holdfast.cli.reports.constants_table import list_constants
from holdfast.config import load_configuration
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings_check import list_setting_groups, list_setting_names


def show_policy(run, name: str) -> dict:
    return json.loads(run("policy", "show", name, "--json").stdout)


@pytest.mark.parametrize("name", PRESETS)
def test_list_settings_lists_each_setting_a_policy_reads_once(name):
    """Only settings that the policy's rules replace are left out, and none is listed twice."""
    rules = PRESETS[name].rules
    names = [row["setting"] for row in list_settings(name, load_configuration())]
    assert len(names) == len(set(names))
    assert {*names} == {*list_setting_names(type(rules))} - rules.unused_settings


def test_list_constants_agrees_with_the_modules():
    """The values read from the source are those the program uses, and each has a description."""
    assert len(list_constants()) > 40
    for constant in list_constants():
        module = import_module(
            "holdfast." + constant.module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        )
        assert getattr(module, constant.name) == constant.value, constant.name
        assert constant.about, constant.name


def test_list_constants_includes_all_extract_constants():
    """All constants of ``constants.py`` are listed."""
    constants = import_module("holdfast.planning.extract.constants")
    named = {constant.name for constant in list_constants() if constant.module == "planning/extract/constants.py"}
    assert {name for name in vars(constants) if name.isupper()} == named


@pytest.mark.uncounted
@pytest.mark.parametrize("name", example_counts.mark_rest_long(reversed(PRESETS), keep=1))
def test_policy_show_prints_groups_settings_and_constants(run, name):
    """The text has each group, each setting and each constant."""
    result = run("policy", "show", name)
    assert result.exit_code == 0
    text = result.stdout
    assert all(
        word in text
        for word in (
            *list_setting_groups(type(PRESETS[name].rules)),
            *(row["setting"] for row in list_settings(name, load_configuration())),
            *(constant.name for constant in list_constants()),
        )
    )


def test_policy_show_names_the_file_that_changed_a_setting(run, home):
    """A changed setting has its value, the preset's, and the file and table it came from."""
    (home / "holdfast.toml").write_text(
        "[policy.results]\nmessage_chars = 7\n\n[policy.pi.preset]\ntail_tokens = 12_000\n"
    )
    rows = {row["setting"]: row for row in show_policy(run, "pi")["settings"]}
    row = rows["preset.tail_tokens"]
    assert (row["value"], row["preset"], row["changed_by"]) == (12_000, 20_000, "holdfast.toml [policy.pi.preset]")
    assert rows["results.message_chars"]["changed_by"] == "holdfast.toml [policy.results]"
    assert [row["setting"] for row in rows.values() if row["changed_by"]] == [
        "results.message_chars",
        "preset.tail_tokens",
    ]
    assert "changed from 20,000 by" in run("policy", "show", "pi").stdout
    assert "changed from" not in run("policy", "show", "holdfast").stdout.replace("changed from 200,000 by", "")


def test_policy_show_notes_a_reserve_raised_to_the_floor(run, home):
    """A reserve configured below the floor is noted as raised."""
    (home / "holdfast.toml").write_text("[policy.openclaw.preset]\ntrigger_reserve = 5_000\n")
    assert "preset.trigger_reserve = 5,000 is under reserve.floor = 20,000" in run("policy", "show", "openclaw").stdout
    assert "is under reserve.floor" not in run("policy", "show", "pi").stdout


def test_policy_show_exits_2_for_a_wrong_configuration(run, home):
    """No policy is shown when the configuration is invalid."""
    (home / "holdfast.toml").write_text("[policy.pi.preset]\ntail_tokns = 1\n")
    result = run("policy", "show", "pi")
    assert result.exit_code == 2
    assert "did you mean preset.tail_tokens" in result.stderr


def test_doctor_lists_changed_settings_and_contradictions(run, home):
    """Changed settings and limits are listed; a contradiction is wrong, with the policy it concerns."""
    (home / "holdfast.toml").write_text("[policy.pi.preset]\ntail_tokens = 12_000\n\n[store]\nblob_bytes = 1_000_000\n")
    checks = {check["subject"]: check for check in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert checks["policies"]["text"] == "1 setting changed: [policy.pi.preset] tail_tokens"
    assert checks["store limits"]["text"] == "blob_bytes 1,000,000"
    (home / "holdfast.toml").write_text("[policy.holdfast.compaction]\ntrigger_share = 0.5\n")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    (wrong,) = [check for check in json.loads(result.stdout)["checks"] if check["state"] == "wrong"]
    assert "[policy.holdfast.compaction] trigger_share, in policy holdfast" in wrong["text"]
