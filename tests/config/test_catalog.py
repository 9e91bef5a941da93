"""The catalog of models, caches and prices, shipped and configured, and the targets made from it."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Policy
from holdfast.config import (
    CONFIG_FILE_NAME,
    DEFAULT_MODEL,
    Catalog,
    get_target,
    load_catalog,
    load_shipped_catalog,
    parse_catalog,
)
from holdfast.errors import ConfigError
from holdfast.planning.budget import apply_window_cap, compute_budget
from holdfast.planning.presets.registry import PRESETS
from holdfast.providers.registry import API_NAMES, API_SPECS, get_api_dialect
from holdfast.state.dialect import Dialect
from holdfast.state.entries import RequestSetup
from holdfast.state.target import CacheRules, ModelLimits, Prices

PRICED = """
claude-fable-5-1 claude-fable-5 claude-opus-5-5 claude-opus-5 claude-opus-4-5 claude-opus-4-1 claude-sonnet-5-5
claude-sonnet-4-6 claude-3-7-sonnet claude-haiku-5-5 claude-haiku-4-5 claude-3-5-haiku gpt-5.6-luna gpt-5.6-sol gpt-5.5
gpt-5.2 gpt-5 gpt-4.1-mini gpt-4o gemini-3.1-pro
"""
CLAUDES = """
claude-fable-5-2 claude-mythos-5-2 claude-haiku-5-5 claude-sonnet-5-5 claude-fable-5-1 claude-opus-5-5 claude-mythos-5-1
claude-sonnet-5 claude-fable-5 claude-mythos-5 claude-opus-5 claude-opus-4-8 claude-opus-4-7 claude-mythos-preview
claude-opus-4-6 claude-sonnet-4-6 claude-haiku-4-5-20251001 claude-opus-4-5 us.anthropic.claude-sonnet-4-5-20250929-v1:0
claude-opus-4-1 claude-sonnet-4-20250514 claude-3-7-sonnet-20250219 claude-3-5-haiku-20241022 claude-next
"""
GPTS = """
gpt-6.2-astra gpt-5.6-luna gpt-5.5-pro gpt-5.4-mini gpt-5.3-chat-latest gpt-5.1-codex-max gpt-5 gpt-4.1 gpt-4o-mini
chatgpt-4o-latest gpt-4-turbo gpt-4 gpt-3.5-turbo o1-pro o3 o4-mini codex-mini-latest openai/gpt-5.5 my-gpt-5
gpt-oss-120b
"""
GEMINIS = """
gemini-3.8-flash gemini-3.1-pro-preview gemini-3-pro gemini-2.5-flash models/gemini-2.5-pro gemini-2.0-flash
gemini-1.5-pro gemini-2.5-flash-image
"""


@pytest.mark.parametrize(
    ("model", "window", "minimum", "dollars", "prior"),
    [
        ("claude-sonnet-4-5-20250929", 200_000, 1_024, 3.0, 1.25),
        ("anthropic/claude-sonnet-4.5", 200_000, 1_024, 3.0, 1.25),
        ("claude-sonnet-4-5[1m]", 1_000_000, 1_024, 3.0, 1.25),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", 200_000, 4_096, 1.0, 1.25),
        ("claude-opus-4-1-20250805", 200_000, 1_024, 15.0, 1.25),
        ("claude-opus-4-6", 1_000_000, 4_096, 5.0, 1.25),
        ("claude-opus-4-7", 1_000_000, 2_048, 5.0, 1.65),
        ("claude-opus-4-8", 1_000_000, 1_024, 5.0, 1.65),
        ("claude-opus-5", 1_000_000, 512, 5.0, 1.65),
        ("claude-opus-5-5", 1_000_000, 1_024, 4.0, 1.65),
        ("claude-sonnet-5-5", 1_000_000, 1_024, 2.0, 1.65),
        ("claude-fable-5-1", 1_000_000, 512, 10.0, 1.65),
        ("gpt-5.1-codex", 400_000, 1_024, 1.25, 1.0),
        ("gpt-5.2", 400_000, 1_024, 1.75, 1.0),
        ("gpt-5.5", 1_050_000, 1_024, 5.0, 1.0),
        ("gpt-5.6-sol", 1_050_000, 1_024, 4.0, 1.0),
        ("GPT-4o", 128_000, 1_024, 2.5, 1.0),
        ("gemini-3.1-pro-preview", 1_048_576, 4_096, 2.0, 1.1),
        ("gpt-6.2-astra", 1_050_000, 1_024, 3.0, 1.0),
        ("models/gemini-2.5-flash", 1_048_576, 2_048, 3.0, 1.1),
    ],
)
def test_get_target_finds_known_models_by_pattern(
    model: str, window: int, minimum: int, dollars: float, prior: float
) -> None:
    """Models are found by patterns on their names, whatever prefix or suffix a name has."""
    target = get_target(load_shipped_catalog().find_api(model) or "", model)
    assert (target.limits.window, target.cache_rules.min_prefix_tokens, target.prices.input, target.prior_ratio) == (
        window,
        minimum,
        dollars,
        prior,
    )
    kind, _, pattern = target.limits.window_source.partition(": ")
    assert (kind, fnmatch(model.lower(), pattern)) == ("catalog", True)


def test_get_target_knows_the_default_model() -> None:
    """Replay's default model is Claude Sonnet 4.6 with its own prices and Anthropic's cache rules."""
    target = get_target("anthropic", DEFAULT_MODEL)
    assert target.prices == Prices(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
    assert target.cache_rules == CacheRules(
        ttl_seconds=300, min_prefix_tokens=1_024, write_factor=1.25, read_factor=0.1, lookback=20, step_tokens=0
    )
    assert target.limits.max_output == 128_000


def test_get_target_gives_an_unknown_model_documented_defaults() -> None:
    """An unknown model gets a window of 200,000 marked as a default, and the input price of Sonnet 4.5."""
    target = get_target("openai-chat", "house-model")
    assert target.limits == ModelLimits(
        200_000, None, None, window_source="default: the catalog has no window for house-model"
    )
    assert (target.prices.input, target.prices.output, target.prior_ratio) == (3.0, 15.0, 1.1)
    assert (target.prices.cache_read, target.prices.cache_write) == (pytest.approx(0.3), pytest.approx(3.0)), (
        "no fee for writing"
    )


def test_get_target_takes_window_setup_and_output_from_the_caller() -> None:
    """Window, setup and output limit given by the caller are used as they are."""
    setup = RequestSetup("digest", 10_000)
    target = get_target("anthropic", DEFAULT_MODEL, window=64_000, setup=setup, asked_output=9)
    assert target.limits == ModelLimits(64_000, 128_000, 9, window_source="asked for")
    assert target.setup == setup


@pytest.mark.parametrize("window", [0, -5])
def test_get_target_ignores_a_window_below_one(window: int) -> None:
    """A window under 1 is ignored and the catalog's is used, so the guard is never off."""
    assert get_target("anthropic", DEFAULT_MODEL, window=window).limits == get_target("anthropic", DEFAULT_MODEL).limits


@pytest.mark.parametrize(
    "arguments", [{"api": None}, {"model": None}, {"window": "64k"}, {"setup": 9_000}, {"asked_output": 8e3}]
)
def test_get_target_rejects_arguments_of_another_type(arguments: dict[str, Any]) -> None:
    """An argument of another type is an error that names the argument and the expected type, before anything is
    planned.
    """
    ((name, value),) = arguments.items()
    with pytest.raises(ConfigError, match=f"^{name} is of type {type(value).__name__}; give a value of type "):
        get_target(**{"api": "anthropic", "model": DEFAULT_MODEL, **arguments})


def test_get_api_dialect_uses_the_apis_own_rules_else_the_strictest() -> None:
    """A registered API brings its own dialect; any other gets the strictest values."""
    assert get_api_dialect("anthropic", DEFAULT_MODEL).max_cache_breakpoints == 4
    assert get_api_dialect("openai-chat", "gpt-5.1").api == "openai-chat"
    for api, model in (("openai-responses", "gpt-5.5"), ("gemini", "gemini-3-pro")):
        dialect = get_api_dialect(api, model)
        own_rules = API_SPECS[api].build_dialect(model, "")
        assert dialect == replace(own_rules, refused_kinds=dialect.refused_kinds)
    strict = get_api_dialect("somewhere", "x")
    assert (strict.api, strict.max_cache_breakpoints, strict.id_max, strict.allows_empty_text) == (
        "somewhere",
        0,
        40,
        False,
    )


def test_get_target_has_sizes_for_each_api() -> None:
    """Window, output limit, cache step and image limit are known for all four APIs."""
    expected_sizes = {
        ("openai-responses", "gpt-5.5"): (1_050_000, 128_000, 128, 500),
        ("gemini", "gemini-3-pro"): (1_048_576, 65_536, 1, 3_000),
        ("anthropic", "claude-opus-5-5"): (1_000_000, 128_000, 0, 600),
        ("openai-chat", "gpt-4o"): (128_000, 16_384, 128, 500),
    }
    for (api, model), expected in expected_sizes.items():
        target = get_target(api, model)
        assert target.dialect.api == api
        sizes = (
            target.limits.window,
            target.limits.max_output,
            target.cache_rules.step_tokens,
            target.dialect.max_images,
        )
        assert sizes == expected


@pytest.mark.parametrize(
    ("api", "model"),
    [
        *(("anthropic", name) for name in CLAUDES.split()),
        *((api, name) for name in GPTS.split() for api in ("openai-chat", "openai-responses", "anthropic")),
        *((api, name) for name in GEMINIS.split() for api in ("gemini", "openai-chat")),
    ],
)
def test_get_target_dialect_agrees_with_the_provider_rules(api: str, model: str) -> None:
    """The catalog and the provider's folder state a model's rules independently, and they agree."""
    assert get_target(api, model).dialect == get_api_dialect(api, model)


@pytest.mark.parametrize("model", [*CLAUDES.split(), *GPTS.split(), *GEMINIS.split()])
def test_get_target_has_a_window_for_every_model_the_sdks_name(model: str) -> None:
    """No model that a provider's SDK names falls back to the window of an unknown one."""
    target = get_target(load_shipped_catalog().find_api(model) or "", model)
    assert target.limits.window_source.startswith("catalog: ")
    assert target.limits.max_output or model in {"claude-next", "gpt-4", "gpt-oss-120b", "claude-mythos-preview"}


def build_dialect_with_line(line: str, api: str, model: str) -> Dialect:
    """Return the dialect of ``model`` with one model line before the shipped catalog."""
    return get_target(
        api, model, catalog=parse_catalog(f"[[model]]\n{line}", CONFIG_FILE_NAME).merge_before(load_shipped_catalog())
    ).dialect


def test_get_target_applies_the_dialect_fields_of_a_user_line() -> None:
    """Each dialect field that the file may set is applied to the matching model; all others stay."""
    line = (
        'match = "claude-sonnet-5-5"\nimages = 20\nmax_bytes = 5_000_000\nbinds_thinking = false\nprefill = true\n'
        'id_max = 12\nid_pattern = "[a-z0-9]"\nmedia = ["image/png"]'
    )
    usual = get_target("anthropic", "claude-sonnet-5-5").dialect
    assert build_dialect_with_line(line, "anthropic", "claude-sonnet-5-5") == replace(
        usual,
        max_images=20,
        max_bytes=5_000_000,
        binds_thinking=False,
        must_end_with_user=False,
        id_max=12,
        id_character_pattern="[a-z0-9]",
        media_types=("image/png",),
    )
    assert usual.binds_thinking
    assert (
        build_dialect_with_line(line, "anthropic", "claude-opus-5-5")
        == get_target("anthropic", "claude-opus-5-5").dialect
    )


def test_get_target_applies_a_line_only_to_its_own_api() -> None:
    """A line with an API changes the rules of that API's provider only; a line without one applies everywhere."""
    line = 'match = "m"\nimages = 7'
    assert build_dialect_with_line(f'{line}\napi = "openai-chat"', "openai-responses", "m").max_images == 7
    assert build_dialect_with_line(f'{line}\napi = "anthropic"', "openai-chat", "m") == get_api_dialect(
        "openai-chat", "m"
    )
    assert build_dialect_with_line(line, "gemini", "m").max_images == 7


def test_get_target_selects_the_dialect_by_the_lines_provider() -> None:
    """An unknown server gets the strictest rules of Chat Completions, unless a line names its provider."""
    strict, openai = get_api_dialect("openai-chat", "house-model"), get_api_dialect("openai-chat", "gpt-5.5")
    assert (strict.id_max, strict.id_character_pattern, strict.merges_same_role) == (40, "[A-Za-z0-9_-]", True)
    assert get_target("openai-chat", "house-model").dialect == strict
    dialect = build_dialect_with_line('match = "house-model"\nprovider = "openai"', "openai-chat", "house-model")
    assert dialect == replace(openai, model="house-model")
    dialect = build_dialect_with_line('match = "gpt-5.5"\nprovider = "vllm"', "openai-chat", "gpt-5.5")
    assert dialect == replace(strict, model="gpt-5.5", provider="vllm"), "OpenAI's image limit does not apply either"
    mistral = build_dialect_with_line('match = "house-model"\nprovider = "mistral"', "openai-chat", "house-model")
    assert (mistral.id_min, mistral.id_max, mistral.id_character_pattern) == (9, 9, "[a-zA-Z0-9]")
    assert get_target("openai-chat", "mistral-large-latest").dialect.id_min == 9
    with_short_ids = build_dialect_with_line('match = "devstral*"\nid_max = 8', "openai-chat", "devstral-2")
    assert (with_short_ids.id_min, with_short_ids.id_max) == (8, 8), "a configured length lowers the minimum too"


def test_get_target_takes_cache_rules_from_the_api() -> None:
    """A Claude model called over Chat Completions has that API's automatic cache, without breakpoints."""
    assert get_target("openai-chat", DEFAULT_MODEL).cache_rules.is_automatic
    assert not get_target("anthropic", DEFAULT_MODEL).cache_rules.is_automatic
    assert get_target("openai-responses", "gpt-5.6").cache_rules == get_target("openai-chat", "gpt-5.6").cache_rules


def test_load_shipped_catalog_has_a_date_and_a_source_for_each_line() -> None:
    """The catalog states when it was compared with its sources, and each line which source that was."""
    catalog = load_shipped_catalog()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", catalog.date)
    assert all(line.source for line in (*catalog.model, *catalog.price, *catalog.cache.values()))


@pytest.mark.parametrize("model", PRICED.split())
def test_load_shipped_catalog_prices_agree_with_the_cache_factors(model: str) -> None:
    """Prices and cache rules were written separately: read and write prices are the input price times the cache's
    factors.
    """
    catalog = load_shipped_catalog()
    api = catalog.find_api(model) or ""
    prices, rules = catalog.get_prices(api, model), catalog.get_cache_rules(api, model)
    assert prices.cache_read == pytest.approx(prices.input * rules.read_factor)
    assert prices.cache_write == pytest.approx(prices.input * rules.write_factor)


def test_load_catalog_prefers_the_project_file_to_the_users(tmp_path: Path) -> None:
    """A value of the project's file wins over the user's, which wins over the shipped one."""
    project, user = tmp_path / "project", tmp_path / "user"
    project.mkdir()
    user.mkdir()
    (project / CONFIG_FILE_NAME).write_text('[[model]]\nmatch = "claude-sonnet-4-6*"\nwindow = 50_000\n', "utf-8")
    (user / CONFIG_FILE_NAME).write_text(
        '[[model]]\nmatch = "claude*"\nwindow = 70_000\nprior = 2.0\ncache = "mine"\n\n'
        '[cache.mine]\nttl = 3600\nminimum = 1\n\n[[price]]\nmatch = "claude*"\ninput = 10.0\noutput = 20.0\n',
        "utf-8",
    )
    target = get_target("anthropic", DEFAULT_MODEL, catalog=load_catalog(project, user))
    assert target.limits == ModelLimits(50_000, 128_000, None, window_source="catalog: claude-sonnet-4-6*")
    assert (target.prior_ratio, target.cache_rules.ttl_seconds, target.cache_rules.lookback) == (2.0, 3_600, None)
    assert target.prices == Prices(input=10.0, output=20.0, cache_read=1.0, cache_write=10.0)
    assert get_target("anthropic", "claude-opus-4-6", catalog=load_catalog(project, user)).limits.window == 70_000


def test_get_target_limits_the_prompt_to_max_input(tmp_path: Path) -> None:
    """max_input limits the budget and opencode's trigger, and is never over the window."""
    text = '[[model]]\nmatch = "long-*"\nwindow = 400_000\nmax_input = 272_000\nmax_output = 128_000\n'
    (tmp_path / CONFIG_FILE_NAME).write_text(text, "utf-8")
    catalog = load_catalog(tmp_path, tmp_path / "missing")
    target = get_target("openai-chat", "long-1", catalog=catalog)
    assert target.limits == ModelLimits(400_000, 128_000, None, 272_000, "catalog: long-*")
    assert PRESETS["opencode"].rules.compute_usable_tokens(target.limits) == 252_000
    assert compute_budget(target, PRESETS["holdfast"].settings).usable == 272_000
    small = get_target("openai-chat", "long-1", window=50_000, catalog=catalog)
    assert (small.limits.window, small.limits.max_input) == (50_000, 50_000)
    capped = apply_window_cap(target, Policy.preset("openclaw").with_settings(window={"cap": 100_000}).settings)
    assert (capped.limits.window, capped.limits.max_input) == (100_000, 100_000)
    assert get_target("openai-chat", "other", catalog=catalog).limits.max_input is None


def test_load_catalog_without_files_is_the_shipped_catalog(tmp_path: Path) -> None:
    """Folders without a file change nothing."""
    assert load_catalog(tmp_path, tmp_path / "missing") == load_shipped_catalog()


@pytest.mark.parametrize(
    ("text", "expected_words"),
    [
        ("windw = 1", ["windw", "model, price, cache"]),
        ('[[model]]\nmatch = "a"\nwindw = 1', ["windw", "$.model[0]", "window, max_input, max_output"]),
        ('[[model]]\nmatch = "a"\nwindow = 10', ["$.model[0].window", ">= 1024"]),
        ("[[model]]\nwindow = 10", ["match", "$.model[0]"]),
        ('[[model]]\nmatch = "a"\nimages = -1', ["$.model[0].images", ">= 0"]),
        ('[[model]]\nmatch = "a"\nprefill = "yes"', ["$.model[0].prefill", "bool"]),
        ('[[model]]\nmatch = "a"\nid_max = 3', ["$.model[0].id_max", ">= 8"]),
        ('[[model]]\nmatch = "a"\nid_pattern = "["', ["$.model[0].id_pattern", "no pattern", "[a-z0-9]"]),
        (
            '[[model]]\nmatch = "a"\n\n[[model]]\nmatch = "b"\nid_pattern = "[b-z0-8]"',
            ["$.model[1].id_pattern", "9, a"],
        ),
        ('[[price]]\nmatch = "a"\ninput = "free"\noutput = 1.0', ["$.price[0].input", "str", "input, output, read"]),
        ('[[price]]\nmatch = "a"\ninput = -1.0\noutput = 1.0', ["$.price[0].input", ">= 0"]),
        ("[cache.mine]\nttll = 1", ["ttll", "$.cache.mine", "ttl, minimum, write"]),
        ("[cache.good]\nttl = 1\n[cache.'a.b']\nread = -1.0", ["$.cache.a.b.read", ">= 0"]),
        ('[[model]]\nmatch = "a"\napi = "antropic"', ["$.model[0].api", "did you mean anthropic?"]),
        (
            '[[model]]\nmatch = "a"\nprovider = "mistrl"',
            ["$.model[0].provider", "deepseek, kimi", "did you mean mistral?"],
        ),
        ('[[model]]\nmatch = "a"\napi = "x"', ["'x'", ", ".join(API_NAMES)]),
        ('[[model]]\nmatch = ""', ["$.model[0].match", "length >= 1"]),
        ("[[model]]\nmatch = []", ["$.model[0].match", "length >= 1"]),
        ('[[price]]\nmatch = ["a", ""]\ninput = 1\noutput = 1', ["$.price[0].match", "length >= 1"]),
        ('[[model]]\nmatch = "a"\nmedia = ["image/png", "png"]', ["'png'", "$.model[0].media", "image/png"]),
        ('[[model]]\nmatch = "a"\nmedia = [""]', ["''", "$.model[0].media", "image/png"]),
        ('[model]\nmatch = "a"', ["$.model", "[[model]]", "two brackets"]),
        ("[[model]\n", ["not TOML", "line 1"]),
        (f"[store]\nsession_bytes = {'1' * 5_000}", ["too long", "smaller"]),
        (f"[store]\nsession_bytes = {'1' * 4_000}", ["[store] session_bytes", "<= 1000000000000000000"]),
        (f'[[model]]\nmatch = "a"\nwindow = 0x{"f" * 5_000}', ["model[0].window", "<= 1000000000000"]),
    ],
)
def test_load_catalog_rejects_a_wrong_file_with_file_key_and_allowed_values(
    text: str, expected_words: list[str], tmp_path: Path
) -> None:
    """The error names the file, the key, and what is allowed there."""
    (tmp_path / CONFIG_FILE_NAME).write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_catalog(tmp_path, tmp_path / "missing")
    assert all(word in str(caught.value) for word in [str(tmp_path / CONFIG_FILE_NAME), *expected_words]), str(
        caught.value
    )


NUMBERS = [
    *(("[[model]]", "match = 'a'", key, f"$.model[0].{key}") for key in
      ("window", "max_input", "max_output", "prior", "images", "max_bytes", "id_max")),
    *(("[[price]]", "match = 'a'\ninput = 1\noutput = 1", key, f"$.price[0].{key}") for key in ("read", "write")),
    ("[[price]]", "match = 'a'\noutput = 1", "input", "$.price[0].input"),
    ("[[price]]", "match = 'a'\ninput = 1", "output", "$.price[0].output"),
    *(("[cache.mine]", "", key, f"$.cache.mine.{key}") for key in
      ("ttl", "minimum", "write", "read", "lookback", "step")),
]  # fmt: skip


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e300", "1_000_000_000_001"])
@pytest.mark.parametrize(("table", "others", "key", "path"), NUMBERS)
def test_parse_catalog_rejects_infinite_and_huge_numbers(
    table: str, others: str, key: str, path: str, value: str
) -> None:
    """Infinite numbers, NaN and numbers over a million times the largest window are refused with their path."""
    with pytest.raises(ConfigError) as caught:
        parse_catalog(f"{table}\n{others}\n{key} = {value}", CONFIG_FILE_NAME)
    assert str(caught.value).startswith(f"{CONFIG_FILE_NAME}: ")
    assert f"`{path}`" in str(caught.value)


@pytest.mark.parametrize("prior", [0.0, 0.01, 11.0, 1e9])
def test_parse_catalog_rejects_an_implausible_prior(prior: float) -> None:
    """No model has a tenth or ten times the estimator's tokens, so such a prior means something else."""
    with pytest.raises(ConfigError, match=r"\$\.model\[0\]\.prior"):
        parse_catalog(f'[[model]]\nmatch = "a"\nprior = {prior}', CONFIG_FILE_NAME)


@pytest.mark.parametrize("match", ['"House-*"', '["x", "HOUSE-[A-Z]"]'])
def test_parse_catalog_matches_models_without_case(match: str) -> None:
    """A model is found whatever the case of its name in the line and in the request."""
    catalog = parse_catalog(f"[[model]]\nmatch = {match}\nwindow = 32_000", CONFIG_FILE_NAME)
    assert [catalog.get_limits(name).window for name in ("House-B", "house-b", "HOUSE-b")] == [32_000] * 3


def test_load_catalog_rejects_an_undefined_cache_and_lists_the_defined(tmp_path: Path) -> None:
    """A model with an undefined cache is an error that lists the defined ones."""
    (tmp_path / CONFIG_FILE_NAME).write_text('[[model]]\nmatch = "a"\ncache = "anthropic"', "utf-8")
    with pytest.raises(ConfigError, match=r"'anthropic'.*anthropic-1024"):
        load_catalog(tmp_path, tmp_path / "missing")


def test_load_catalog_rejects_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    """A file that is not UTF-8 is an error that names the file."""
    (tmp_path / CONFIG_FILE_NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_catalog(tmp_path, tmp_path / "missing")


@pytest.mark.parametrize("kind", ["folder", "loop", "nowhere", "pipe"])
def test_load_catalog_rejects_a_path_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    """An entry with the file's name is meant to be read, so a folder, a pipe or a broken link is an error."""
    path = tmp_path / CONFIG_FILE_NAME
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(CONFIG_FILE_NAME if kind == "loop" else "nothing")
    with pytest.raises(ConfigError, match=CONFIG_FILE_NAME):
        load_catalog(tmp_path, tmp_path / "missing")


def test_get_target_uses_defaults_with_an_empty_catalog() -> None:
    """An empty catalog still yields a target, with default prices and cache rules."""
    target = get_target("anthropic", "x", catalog=parse_catalog("", "empty"))
    assert target.prices == Prices(is_assumed=True)
    assert target.cache_rules == CacheRules()
    assert Catalog() == parse_catalog("", "empty")


def test_get_dialect_trusts_clients_of_an_unknown_server() -> None:
    """With trusting=True the client's content is kept unless the server's rules are known from the model's maker or
    from a line.
    """

    def keeps_content(api: str, model: str, line: str = 'match = "no-such-model"') -> bool:
        catalog = parse_catalog(f"[[model]]\n{line}", CONFIG_FILE_NAME).merge_before(load_shipped_catalog())
        return catalog.get_dialect(api, model, trusting=True).keeps_client_content

    assert all(keeps_content("openai-chat", model) for model in ("house-model", "mistralai/mistral-7b", "gpt-oss-120b"))
    assert keeps_content("anthropic", "glm-5")
    assert not any(keeps_content("openai-chat", model) for model in ("deepseek-flash", "mistral-large-latest"))
    makers = [("openai-chat", "gpt-5.5"), ("anthropic", "claude-sonnet-4-5"), ("anthropic", "claude-opus-9")]
    assert not any(
        keeps_content(*api_and_model)
        for api_and_model in [*makers, ("gemini", "gemini-2.5-pro"), ("openai-responses", "gpt-5.5")]
    )
    assert not get_api_dialect("openai-chat", "house-model").keeps_client_content
    line_start = 'match = "house-model"\n'
    assert keeps_content("openai-chat", "house-model", f"{line_start}images = 4")
    assert not keeps_content("openai-chat", "house-model", f"{line_start}id_max = 9")
    assert not keeps_content("openai-chat", "house-model", f'{line_start}provider = "openai"')
