"""``holdfast.toml`` changes settings of policies and limits the store; what is impossible is refused by its key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from holdfast.config import CONFIG_FILE_NAME, Override, StoreLimits, load_configuration, parse_catalog
from holdfast.config.tables import parse_overrides
from holdfast.errors import ConfigError, UnknownPolicy
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import check_settings, convert_setting_value, describe_allowed_values

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
    folders = files("[policy]\nmessage_chars = 7\nspill_chars = 8\n[policy.pi]\nspill_chars = 9\n")
    for name, preset in PRESETS.items():
        changed = {"message_chars": 7, "spill_chars": 9 if name == "pi" else 8}
        assert load_configuration(*folders).build_policy(name) == replace(
            Policy.preset(name), settings=replace(preset, **changed)
        )


def test_the_project_comes_before_the_user(files):
    """Any word of the project's file is stronger than any of the user's."""
    folders = files("[policy]\nspill_chars = 1\n", "[policy.pi]\nspill_chars = 2\nmessage_chars = 3\n")
    settings = load_configuration(*folders).build_policy("pi").settings
    assert (settings.results.spill_chars, settings.results.message_chars) == (1, 3)
    assert load_configuration(*folders).find_overrides("pi")["message_chars"].file == str(folders[1] / CONFIG_FILE_NAME)


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
        ("[policy]\nspil_chars = 1", ["[policy]", "'spil_chars'", "did you mean spill_chars"]),
        (
            "[policy.pi]\ntail_tokens = 'x'",
            ["[policy.pi] tail_tokens = 'x'", "a whole number, 0 or more", "[P] 20,000"],
        ),
        ("[policy.pii]\nspill_chars = 1", ["no policy is called 'pii'", "did you mean pi?"]),
        ("[policy.qqq]\nspill_chars = 1", ["'qqq'", "there are: append-only, sliding"]),
        ("[policy]\nspill_chars = -1", ["spill_chars = -1", "negative"]),
        ("[policy]\nspill_chars = 1.5", ["spill_chars = 1.5", "a whole number"]),
        ("[policy]\nspill_chars = true", ["spill_chars = True", "a whole number"]),
        ("[policy]\nspill_chars = 9_000_000_000_000_000_000_000", ["more than 1,000,000,000,000"]),
        ("[policy]\ntrigger_share = 1.5", ["trigger_share = 1.5", "a number from 0 to 1"]),
        ("[policy]\ntrigger_share = nan", ["trigger_share = nan", "a number from 0 to 1"]),
        ("[policy]\nmargin = -inf", ["margin = -inf"]),
        ("[policy]\nprune = 'epohc'", ["'epohc'", "'off', 'epoch', 'opencode'"]),
        ("[policy]\nhistory_hysteresis = 1", ["history_hysteresis = 1", "true or false"]),
        ("[policy]\nspill_exempt = 'Read'", ["spill_exempt = 'Read'", "a list of names"]),
        ("[policy]\nspill_exempt = ['']", ["an empty name"]),
        ("[policy]\nchars_per_token = 0", ["chars_per_token = 0", "1 or more"]),
        ("policy = 5", ["policy = 5 is no table", "[policy]"]),
        ("[[policy]]\nspill_chars = 1", ["is no table"]),
        ("[policy]\npi = 5", ["policy.pi = 5 is no table", "write [policy.pi] on a line"]),
        (
            "[policy]\nnonsense = 5",
            ["no setting is called 'nonsense'", "`holdfast policy show holdfast` lists them"],
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
        ("[policy]\ntrigger_share = 0.5", "holdfast", ["trigger_share 0.5 is under goal_share 0.9"]),
        ("[policy.holdfast]\ntail_share = 0.85", "holdfast", ["[policy.holdfast] tail_share", "tail_share 0.85"]),
        ("[policy]\nwindow_min = 40_000", "openclaw", ["window_min 40,000 is over window_warn 32,000"]),
        ("[policy]\nreserve_min = 30_000", "pi", ["reserve_min 30,000 is over reserve_max 20,000"]),
        ("[policy]\nsummary_user_share = 0.9", "pi", ["the parts of the summary are 1.11 of it"]),
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
    assert check_settings(PRESETS[name]) == ()


def test_no_policy_is_called_like_a_setting():
    """``[policy.NAME]`` and ``[policy] setting`` can be told apart."""
    assert not set(PRESETS) & set(Settings.__struct_fields__)


@given(st.sampled_from(Settings.__struct_fields__), values)
def test_any_value_is_taken_or_refused_by_name(name, value):
    """Whatever a file says, the setting is possible then, or a ``ConfigError`` names it and what is allowed."""
    taken, refused = taken_or_refused(name, value)
    if refused:
        assert f"[policy] {name} = " in refused
        assert describe_allowed_values(name) in refused
    for one in taken:
        assert convert_setting_value(name, value) == one.value
        problems = check_settings(Settings(**{name: one.value}))
        assert all(name in problem.settings and len(problem.settings) > 1 for problem in problems)


def taken_or_refused(name: str, value: object) -> tuple[tuple[Override, ...], str]:
    """Return what a file with that value changes, or what the error says."""
    try:
        return parse_overrides({name: value}, CONFIG_FILE_NAME), ""
    except ConfigError as error:
        return (), str(error)


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_default_can_be_said(name):
    """The values of all presets can be written into the file as they are."""
    for preset in PRESETS.values():
        value = asdict(preset)[name]
        if not isinstance(value, dict):
            said = (
                [list(one) if isinstance(one, tuple) else one for one in value] if isinstance(value, tuple) else value
            )
            assert convert_setting_value(name, said) == value


def test_the_catalogue_is_read_from_the_same_file(files):
    """The tables of one file do not get into each other's way."""
    text = '[policy]\nspill_chars = 5\n\n[[model]]\nmatch = "mine*"\nwindow = 4_321\n'
    assert parse_catalog(text, CONFIG_FILE_NAME).model[0].window == 4_321
    found = load_configuration(*files(text))
    assert found.catalog.get_limits("mine-1").window == 4_321
    assert found.build_policy().settings.results.spill_chars == 5


def test_replay_uses_them(tmp_path, monkeypatch):
    """The policies of a replay are those in force."""
    from holdfast.cli.replay import ReplayOptions, _make_replay_setup

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / CONFIG_FILE_NAME).write_text("[policy]\nspill_chars = 123\n")
    given = json.loads('{"latest": false, "all_sessions": false, "window": 64000, "frame": null, "api": null}')
    asked = ReplayOptions(
        (), session="", policy="pi", model="x", cuts=None, show=None, dump=None, as_json=True, **given
    )
    assert _make_replay_setup(asked).policies[0].settings.results.spill_chars == 123
