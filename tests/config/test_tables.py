"""``holdfast.toml`` changes settings of policies and limits the store; what is impossible is refused by its key."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import CONFIG_FILE_NAME, Override, StoreLimits, load_configuration, parse_catalog
from holdfast.config.tables import parse_overrides
from holdfast.errors import ConfigError, UnknownPolicy
from holdfast.planning.pipeline import Policy
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import (
    PRESET_GROUP,
    change_settings,
    check_settings,
    convert_setting_value,
    describe_allowed_values,
    get_setting,
    list_setting_names,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture
def files(tmp_path: Path):
    """Return a function that writes the project's and the user's file and returns both folders."""

    def write(project: str = "", user: str = "") -> tuple[Path, Path]:
        for name, text in (("project", project), ("user", user)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / CONFIG_FILE_NAME).write_text(text, "utf-8")
        return tmp_path / "project", tmp_path / "user"

    return write


def test_one_policy_or_all(files):
    """``[policy]`` changes every policy, ``[policy.NAME]`` one, and wins; all else stays the preset's."""
    text = "[policy.results]\nmessage_chars = 7\nspill_chars = 8\n[policy.pi]\nresults.spill_chars = 9\n"
    folders = files(text)
    for name in PRESETS:
        changed = {"message_chars": 7, "spill_chars": 9 if name == "pi" else 8}
        expected = Policy.preset(name).with_settings(results=changed)
        assert load_configuration(*folders).build_policy(name) == expected


def test_settings_of_one_policy_alone(files):
    """``[policy.NAME.preset]`` has those that no other policy has, each of which keeps its default else."""
    folders = files("[policy.pi.preset]\ntail_tokens = 12_000\n[policy.openclaw]\npreset.precheck = true\n")
    found = load_configuration(*folders)
    assert found.build_policy("pi") == Policy.preset("pi").with_settings(preset={"tail_tokens": 12_000})
    assert found.build_policy("openclaw") == Policy.preset("openclaw").with_settings(preset={"precheck": True})
    assert found.build_policy("opencode") == Policy.preset("opencode")


def test_the_project_comes_before_the_user(files):
    """Any word of the project's file is stronger than any of the user's."""
    folders = files("[policy.results]\nspill_chars = 1\n", "[policy.pi.results]\nspill_chars = 2\nmessage_chars = 3\n")
    found = load_configuration(*folders)
    results = found.build_policy("pi").settings.results
    assert (results.spill_chars, results.message_chars) == (1, 3)
    assert found.find_overrides("pi")["results.message_chars"].file == str(folders[1] / CONFIG_FILE_NAME)


def test_no_file_no_change(tmp_path):
    """Without files every policy is its preset."""
    found = load_configuration(tmp_path, tmp_path)
    assert all(found.build_policy(name) == Policy.preset(name) for name in PRESETS)
    with pytest.raises(UnknownPolicy):
        found.build_policy("lru")


def test_limits_of_the_store(files):
    """Each limit is the project's, else the user's; 0 lifts one."""
    limits = load_configuration(
        *files("[store]\nblob_bytes = 0\n", "[store]\nblob_bytes = 5\nsession_bytes = 6\n")
    ).store
    assert limits == StoreLimits(6, 0)
    assert limits.set_limits == {"session_bytes": 6}
    assert load_configuration(*files()).store == StoreLimits()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[policy.results]\nspil_chars = 1", ["[policy.results]", "'spil_chars'", "did you mean results.spill_chars"]),
        ("[policy]\nspill_chars = 1", ["[policy]", "'spill_chars'", "did you mean results.spill_chars"]),
        ("[policy.reslts]\nspill_chars = 1", ["'reslts'", "the groups are: window, reserve"]),
        ("[policy.pi.reslts]\nspill_chars = 1", ["[policy.pi]", "no group of settings is called 'reslts'"]),
        ("[policy.preset]\ntail_tokens = 1", ["[policy.preset] is of no policy", "[policy.NAME.preset]"]),
        ("[policy.opencode.preset]\nprecheck = true", ["[policy.opencode.preset]", "'precheck'"]),
        ("[policy]\nresults = 1", ["policy.results = 1 is no table", "write [policy.results] on a line"]),
        (
            "[policy.pi.preset]\ntail_tokens = 'x'",
            ["[policy.pi.preset] tail_tokens = 'x'", "a whole number, 0 or more", "[P] Keep the newest"],
        ),
        ("[policy.pii.results]\nspill_chars = 1", ["no policy is called 'pii'", "did you mean pi?"]),
        ("[policy.qqq.results]\nspill_chars = 1", ["'qqq'", "there are: append-only, sliding"]),
        ("[policy.results]\nspill_chars = -1", ["spill_chars = -1", "0 or more"]),
        ("[policy.results]\nspill_chars = 1.5", ["spill_chars = 1.5", "a whole number"]),
        ("[policy.results]\nspill_chars = true", ["spill_chars = True", "a whole number"]),
        ("[policy.results]\nspill_chars = 9_000_000_000_000_000_000_000", ["<= 1000000000000"]),
        ("[policy.compaction]\ntrigger_share = 1.5", ["trigger_share = 1.5", "a number from 0 to 1"]),
        ("[policy.compaction]\ntrigger_share = nan", ["trigger_share = nan", "a number from 0 to 1"]),
        ("[policy.window]\nestimate_margin_share = -inf", ["estimate_margin_share = -inf"]),
        ("[policy.cache]\nbreakpoints = 'tial'", ["'tial'", "'none', 'tail', 'frontier'"]),
        ("[policy.history]\nhysteresis = 1", ["hysteresis = 1", "true or false"]),
        ("[policy.results]\nspill_exempt_tools = 'Read'", ["spill_exempt_tools = 'Read'", "a list of names"]),
        ("[policy.results]\nspill_exempt_tools = ['']", ["length >= 1", "a list of names"]),
        ("[policy.openclaw.preset]\nimage_keep_turns = -2", ["image_keep_turns = -2", "-1 or more"]),
        ("policy = 5", ["policy = 5 is no table", "[policy]"]),
        ("[[policy]]\nspill_chars = 1", ["is no table"]),
        ("[policy]\npi = 5", ["policy.pi = 5 is no table", "write [policy.pi] on a line"]),
        (
            "[policy]\nnonsense = 5",
            ["no setting is called 'nonsense'", "`holdfast policy show NAME` lists every setting"],
        ),
        ("[store]\nsession_bytes = -1", ["[store] session_bytes = -1", "0 = no limit"]),
        ("[store]\nsession_bytes = '1 GB'", ["session_bytes = '1 GB'", "a whole number of bytes"]),
        ("[store]\nblobs = 1", ["no limit is called 'blobs'", "blob_bytes"]),
        ("[polcy]\nspill_chars = 1", ["`polcy`", "did you mean policy?"]),
    ],
)
def test_wrong_keys_and_values(files, text, said):
    """The error names the file, the table, the key, what is allowed there, and the nearest names."""
    folders = files(text)
    with pytest.raises(ConfigError) as caught:
        load_configuration(*folders)
    assert all(word in str(caught.value) for word in [str(folders[0] / CONFIG_FILE_NAME), *said]), str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (
            "[policy.compaction]\ntrigger_share = 0.5",
            "holdfast",
            ["trigger_share 0.5 is under compaction.goal_share 0.9"],
        ),
        (
            "[policy.holdfast.compaction]\ntail_share = 0.85",
            "holdfast",
            ["[policy.holdfast.compaction] tail_share", "tail_share 0.85"],
        ),
        (
            "[policy.openclaw.preset]\nwindow_min = 40_000",
            "openclaw",
            ["window_min 40,000 is over preset.window_warn 32,000"],
        ),
        ("[policy.reserve]\nmin = 30_000", "pi", ["reserve.min 30,000 is over reserve.max 20,000"]),
        ("[policy.summary]\nuser_share = 0.9", "pi", ["the parts of the summary are 1.11 of it"]),
    ],
)
def test_settings_that_contradict_each_other(files, text, name, said):
    """A value that is possible alone and not beside the policy's others is refused for that policy, by its key."""
    found = load_configuration(*files(text))
    with pytest.raises(ConfigError) as caught:
        found.build_policy(name)
    assert all(word in str(caught.value) for word in [CONFIG_FILE_NAME, f"in policy {name}", *said]), str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_what_we_ship_is_possible(name):
    """No preset breaks a rule that we hold others to."""
    assert check_settings(PRESETS[name].settings, PRESETS[name].rules) == ()


def test_no_policy_is_called_like_a_group():
    """``[policy.NAME]`` and ``[policy.GROUP]`` can be told apart."""
    assert not set(PRESETS) & {*Settings.__struct_fields__, PRESET_GROUP}


@given(st.sampled_from(list_setting_names()), values)
def test_any_value_is_taken_or_refused_by_name(name, value):
    """Whatever a file says, the setting is possible then, or a ``ConfigError`` names it and what is allowed."""
    group, _, key = name.partition(".")
    taken, refused = taken_or_refused(group, key, value)
    if refused:
        assert f"[policy.{group}] {key} = " in refused
        assert describe_allowed_values(name) in refused
    for one in taken:
        assert convert_setting_value(name, value) == one.value
        problems = check_settings(*change_settings(Settings(), PolicyRules(), {name: one.value}))
        assert all(name in problem.settings for problem in problems)


def taken_or_refused(group: str, key: str, value: object) -> tuple[tuple[Override, ...], str]:
    """Return what a file with that value changes, or what the error says."""
    try:
        return parse_overrides({group: {key: value}}, CONFIG_FILE_NAME), ""
    except ConfigError as error:
        return (), str(error)


@pytest.mark.parametrize("name", PRESETS)
def test_every_default_can_be_said(name):
    """The values of all presets can be written into the file as they are."""
    rules = PRESETS[name].rules
    for setting in list_setting_names(type(rules)):
        value = get_setting(setting, PRESETS[name].settings, rules)
        said = msgspec.to_builtins(value)
        assert convert_setting_value(setting, said, type(rules)) == value


def test_the_catalogue_is_read_from_the_same_file(files):
    """The tables of one file do not get into each other's way."""
    text = '[policy.results]\nspill_chars = 5\n\n[[model]]\nmatch = "mine*"\nwindow = 4_321\n'
    assert parse_catalog(text, CONFIG_FILE_NAME).model[0].window == 4_321
    found = load_configuration(*files(text))
    assert found.catalog.get_limits("mine-1").window == 4_321
    assert found.build_policy().settings.results.spill_chars == 5


def test_replay_uses_them(tmp_path, monkeypatch):
    """The policies of a replay are those in force."""
    from holdfast.cli.commands.replay import ReplayOptions, _make_replay_setup

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / CONFIG_FILE_NAME).write_text("[policy.results]\nspill_chars = 123\n")
    given = json.loads('{"latest": false, "all_sessions": false, "window": 64000, "frame": null, "api": null}')
    asked = ReplayOptions(
        (), session="", policy="pi", model="x", cuts=None, show=None, dump=None, as_json=True, **given
    )
    assert _make_replay_setup(asked).policies[0].settings.results.spill_chars == 123
