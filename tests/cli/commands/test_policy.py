"""``holdfast policy show``: every setting and every constant, where they came from, and who changed them."""

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


def shown(run, name: str) -> dict:
    return json.loads(run("policy", "show", name, "--json").stdout)


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_that_a_policy_reads_is_shown_once(name):
    """No setting is left out but those that its rules replace, and none stands twice."""
    rules = PRESETS[name].rules
    names = [row["setting"] for row in list_settings(name, load_configuration())]
    assert len(names) == len(set(names))
    assert {*names} == {*list_setting_names(type(rules))} - rules.unused_settings


def test_constants_are_those_of_the_source():
    """What is read from the source is what the program counts with, and each says what it is."""
    assert len(list_constants()) > 40
    for one in list_constants():
        module = import_module("holdfast." + one.module.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        assert getattr(module, one.name) == one.value, one.name
        assert one.about, one.name


def test_every_number_of_the_settings_page_is_among_them():
    """All constants of ``constants.py`` are shown."""
    constants = import_module("holdfast.planning.extract.constants")
    named = {one.name for one in list_constants() if one.module == "planning/extract/constants.py"}
    assert {name for name in vars(constants) if name.isupper()} == named


@pytest.mark.uncounted
@pytest.mark.parametrize("name", example_counts.spare(reversed(PRESETS), keep=1))
def test_a_person_sees_all_of_it(run, name):
    """The page has each group, each setting and each constant."""
    done = run("policy", "show", name)
    assert done.exit_code == 0
    text = done.stdout
    assert all(
        word in text
        for word in (
            *list_setting_groups(type(PRESETS[name].rules)),
            *(row["setting"] for row in list_settings(name, load_configuration())),
            *(one.name for one in list_constants()),
        )
    )


def test_who_changed_a_setting(run, home):
    """A setting of ``holdfast.toml`` has its value, the preset's, and the file and table it came from."""
    (home / "holdfast.toml").write_text(
        "[policy.results]\nmessage_chars = 7\n\n[policy.pi.preset]\ntail_tokens = 12_000\n"
    )
    rows = {row["setting"]: row for row in shown(run, "pi")["settings"]}
    row = rows["preset.tail_tokens"]
    assert (row["value"], row["preset"], row["changed_by"]) == (12_000, 20_000, "holdfast.toml [policy.pi.preset]")
    assert rows["results.message_chars"]["changed_by"] == "holdfast.toml [policy.results]"
    assert [row["setting"] for row in rows.values() if row["changed_by"]] == [
        "results.message_chars",
        "preset.tail_tokens",
    ]
    assert "changed from 20,000 by" in run("policy", "show", "pi").stdout
    assert "changed from" not in run("policy", "show", "holdfast").stdout.replace("changed from 200,000 by", "")


def test_a_reserve_that_is_raised_is_shown(run, home):
    """Who configures a reserve under the floor sees that it is raised, and what to set."""
    (home / "holdfast.toml").write_text("[policy.openclaw.preset]\ntrigger_reserve = 5_000\n")
    assert "preset.trigger_reserve = 5,000 is under reserve.floor = 20,000" in run("policy", "show", "openclaw").stdout
    assert "is under reserve.floor" not in run("policy", "show", "pi").stdout


def test_a_wrong_file_is_told(run, home):
    """No policy is shown under a file that cannot be used."""
    (home / "holdfast.toml").write_text("[policy.pi.preset]\ntail_tokns = 1\n")
    result = run("policy", "show", "pi")
    assert result.exit_code == 2
    assert "did you mean preset.tail_tokens" in result.stderr


def test_doctor_tells_what_is_changed(run, home):
    """Changed settings and limits are listed; what contradicts itself is wrong, with the policy it is wrong for."""
    (home / "holdfast.toml").write_text("[policy.pi.preset]\ntail_tokens = 12_000\n\n[store]\nblob_bytes = 1_000_000\n")
    checks = {one["subject"]: one for one in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert checks["policies"]["text"] == "1 setting changed: [policy.pi.preset] tail_tokens"
    assert checks["store limits"]["text"] == "blob_bytes 1,000,000"
    (home / "holdfast.toml").write_text("[policy.holdfast.compaction]\ntrigger_share = 0.5\n")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    (wrong,) = [one for one in json.loads(result.stdout)["checks"] if one["state"] == "wrong"]
    assert "[policy.holdfast.compaction] trigger_share, in policy holdfast" in wrong["text"]
