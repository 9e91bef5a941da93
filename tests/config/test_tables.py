"""The policy and store tables of ``holdfast.toml``: settings and limits they change, and values they refuse."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import CONFIG_FILE_NAME, Override, StoreSettings, load_configuration, parse_catalog
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
def write_config_files(tmp_path: Path):
    """Return a function that writes the project's and the user's file and returns both folders."""

    def write(project: str = "", user: str = "") -> tuple[Path, Path]:
        for name, text in (("project", project), ("user", user)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / CONFIG_FILE_NAME).write_text(text, "utf-8")
        return tmp_path / "project", tmp_path / "user"

    return write


def test_build_policy_applies_general_and_named_tables(write_config_files):
    """``[policy]`` changes every policy, ``[policy.NAME]`` one of them, and the latter wins; all else stays the
    preset's.
    """
    text = "[policy.results]\nmessage_chars = 7\nspill_chars = 8\n[policy.pi]\nresults.spill_chars = 9\n"
    folders = write_config_files(text)
    for name in PRESETS:
        changed = {"message_chars": 7, "spill_chars": 9 if name == "pi" else 8}
        expected = Policy.preset(name).with_settings(results=changed)
        assert load_configuration(*folders).build_policy(name) == expected


def test_build_policy_applies_preset_settings_to_their_policy_only(write_config_files):
    """``[policy.NAME.preset]`` holds the settings that only this policy has; all others keep their defaults."""
    folders = write_config_files(
        "[policy.pi.preset]\ntail_tokens = 12_000\n[policy.openclaw]\npreset.precheck = true\n"
    )
    configuration = load_configuration(*folders)
    assert configuration.build_policy("pi") == Policy.preset("pi").with_settings(preset={"tail_tokens": 12_000})
    assert configuration.build_policy("openclaw") == Policy.preset("openclaw").with_settings(preset={"precheck": True})
    assert configuration.build_policy("opencode") == Policy.preset("opencode")


def test_load_configuration_prefers_the_project_file_to_the_users(write_config_files):
    """Any setting of the project's file wins over any of the user's."""
    folders = write_config_files(
        "[policy.results]\nspill_chars = 1\n", "[policy.pi.results]\nspill_chars = 2\nmessage_chars = 3\n"
    )
    configuration = load_configuration(*folders)
    results = configuration.build_policy("pi").settings.results
    assert (results.spill_chars, results.message_chars) == (1, 3)
    assert configuration.find_overrides("pi")["results.message_chars"].file == str(folders[1] / CONFIG_FILE_NAME)


def test_load_configuration_without_files_keeps_the_presets(tmp_path):
    """Without files every policy is its preset."""
    configuration = load_configuration(tmp_path, tmp_path)
    assert all(configuration.build_policy(name) == Policy.preset(name) for name in PRESETS)
    with pytest.raises(UnknownPolicy):
        configuration.build_policy("lru")


def test_blobs_elsewhere_are_named_by_the_users_file_alone(write_config_files, tmp_path):
    """A folder that was downloaded must not decide where the texts of a conversation are sent."""
    folders = write_config_files("", '[store]\nblobs = "s3://bucket/x"\n')
    assert load_configuration(*folders).store.blobs == "s3://bucket/x"
    folders = write_config_files('[store]\nblobs = "s3://other/x"\n', '[store]\nblobs = "s3://bucket/x"\n')
    with pytest.raises(ConfigError, match="move the line to"):
        load_configuration(*folders)


def test_load_configuration_merges_the_store_limits(write_config_files):
    """Each limit is the project's, else the user's; 0 removes a limit."""
    limits = load_configuration(
        *write_config_files("[store]\nblob_bytes = 0\n", "[store]\nblob_bytes = 5\nsession_bytes = 6\n")
    ).store
    assert limits == StoreSettings(6, 0)
    assert limits.set_limits == {"session_bytes": 6}
    assert load_configuration(*write_config_files()).store == StoreSettings()


@pytest.mark.parametrize(
    ("text", "expected_words"),
    [
        ("[policy.results]\nspil_chars = 1", ["[policy.results]", "'spil_chars'", "did you mean results.spill_chars"]),
        ("[policy]\nspill_chars = 1", ["[policy]", "'spill_chars'", "did you mean results.spill_chars"]),
        ("[policy.reslts]\nspill_chars = 1", ["'reslts'", "the groups are: window, reserve"]),
        ("[policy.pi.reslts]\nspill_chars = 1", ["[policy.pi]", "no group of settings is called 'reslts'"]),
        ("[policy.preset]\ntail_tokens = 1", ["[policy.preset] belongs to no policy", "[policy.NAME.preset]"]),
        ("[policy.opencode.preset]\nprecheck = true", ["[policy.opencode.preset]", "'precheck'"]),
        (
            "[policy]\nresults = 1",
            ["policy.results = 1 must be a table", "write [policy.results] on a line of its own"],
        ),
        (
            "[policy.pi.preset]\ntail_tokens = 'x'",
            ["[policy.pi.preset] tail_tokens = 'x'", "a whole number, 0 or more", "[P] Keep about this many"],
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
        ("policy = 5", ["policy = 5 must be a table", "[policy]"]),
        ("[[policy]]\nspill_chars = 1", ["must be a table"]),
        ("[policy]\npi = 5", ["policy.pi = 5 must be a table", "write [policy.pi] on a line of its own"]),
        (
            "[policy]\nnonsense = 5",
            ["no setting is called 'nonsense'", "`holdfast policy show NAME` lists every setting"],
        ),
        ("[store]\nsession_bytes = -1", ["[store] session_bytes = -1", "0 = no limit"]),
        ("[store]\nsession_bytes = '1 GB'", ["session_bytes = '1 GB'", "a whole number of bytes"]),
        ("[store]\nblob_byte = 1", ["no setting is called 'blob_byte'", "blob_bytes"]),
        ("[polcy]\nspill_chars = 1", ["`polcy`", "did you mean policy?"]),
    ],
)
def test_load_configuration_rejects_wrong_keys_and_values_with_suggestions(write_config_files, text, expected_words):
    """The error names the file, the table, the key, what is allowed there, and the nearest names."""
    folders = write_config_files(text)
    with pytest.raises(ConfigError) as caught:
        load_configuration(*folders)
    assert all(word in str(caught.value) for word in [str(folders[0] / CONFIG_FILE_NAME), *expected_words]), str(
        caught.value
    )


@pytest.mark.parametrize(
    ("text", "name", "expected_words"),
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
            "[policy.holdfast.compaction]\nlarge_trigger_share = 0.1",
            "holdfast",
            ["large_trigger_share 0.1 leaves no room", "raise it"],
        ),
        (
            "[policy.openclaw.preset]\nwindow_min = 40_000",
            "openclaw",
            ["window_min 40,000 is over preset.window_warn 32,000"],
        ),
        ("[policy.reserve]\nmin = 30_000", "pi", ["reserve.min 30,000 is over reserve.max 20,000"]),
        ("[policy.summary]\nuser_share = 0.9", "pi", ["the parts of the summary are 1.07 of it"]),
    ],
)
def test_build_policy_rejects_settings_that_contradict_each_other(write_config_files, text, name, expected_words):
    """A value that is allowed alone but contradicts the policy's other settings is refused for that policy, with its
    key.
    """
    configuration = load_configuration(*write_config_files(text))
    with pytest.raises(ConfigError) as caught:
        configuration.build_policy(name)
    assert all(word in str(caught.value) for word in [CONFIG_FILE_NAME, f"in policy {name}", *expected_words]), str(
        caught.value
    )


@pytest.mark.parametrize("name", PRESETS)
def test_check_settings_accepts_every_shipped_preset(name):
    """No preset breaks a rule that user files must keep."""
    assert check_settings(PRESETS[name].settings, PRESETS[name].rules) == ()


def test_presets_have_no_name_of_a_settings_group():
    """``[policy.NAME]`` and ``[policy.GROUP]`` can be distinguished."""
    assert not set(PRESETS) & {*Settings.__struct_fields__, PRESET_GROUP}


@given(st.sampled_from(list_setting_names()), values)
def test_parse_overrides_accepts_or_rejects_any_value_with_its_name(name, value):
    """For any value, either the setting becomes valid, or a ``ConfigError`` names the key and the allowed values."""
    group, _, key = name.partition(".")
    overrides, error = try_parse_overrides(group, key, value)
    if error:
        assert f"[policy.{group}] {key} = " in error
        assert describe_allowed_values(name) in error
    for override in overrides:
        assert convert_setting_value(name, value) == override.value
        problems = check_settings(*change_settings(Settings(), PolicyRules(), {name: override.value}))
        assert all(name in problem.settings for problem in problems)


def try_parse_overrides(group: str, key: str, value: object) -> tuple[tuple[Override, ...], str]:
    """Return what a file with that value changes, or what the error says."""
    try:
        return parse_overrides({group: {key: value}}, CONFIG_FILE_NAME), ""
    except ConfigError as error:
        return (), str(error)


@pytest.mark.parametrize("name", PRESETS)
def test_convert_setting_value_round_trips_every_preset_value(name):
    """The values of all presets can be written into the file as they are."""
    rules = PRESETS[name].rules
    for setting in list_setting_names(type(rules)):
        value = get_setting(setting, PRESETS[name].settings, rules)
        written = msgspec.to_builtins(value)
        assert convert_setting_value(setting, written, type(rules)) == value


def test_load_configuration_reads_catalog_and_policies_from_one_file(write_config_files):
    """The catalog tables and the policy tables of one file do not disturb each other."""
    text = '[policy.results]\nspill_chars = 5\n\n[[model]]\nmatch = "mine*"\nwindow = 4_321\n'
    assert parse_catalog(text, CONFIG_FILE_NAME).model[0].window == 4_321
    configuration = load_configuration(*write_config_files(text))
    assert configuration.catalog.get_limits("mine-1").window == 4_321
    assert configuration.build_policy().settings.results.spill_chars == 5


def test_replay_uses_the_configured_policies(tmp_path, monkeypatch):
    """Replay runs the policies with the settings of the project's file."""
    from holdfast.cli.commands.replay import ReplayOptions, _make_replay_setup

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / CONFIG_FILE_NAME).write_text("[policy.results]\nspill_chars = 123\n")
    defaults = {"latest": False, "all_sessions": False, "window": 64_000, "setup_tokens": None, "api": None}
    options = ReplayOptions(
        (), session="", policy="pi", model="x", cuts=None, losses=False, show=None, dump=None, as_json=True, **defaults
    )
    assert _make_replay_setup(options).policies[0].settings.results.spill_chars == 123
