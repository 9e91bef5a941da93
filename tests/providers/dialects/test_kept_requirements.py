"""Each requirement about messages lists the values of the dialect by which normalization keeps it."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.normalize.normalize_history import normalize_history
from holdfast.providers.dialects.provider_spec import ProviderRules
from holdfast.providers.dialects.registry import PROVIDER_SPECS
from holdfast.providers.dialects.request_provider import find_request_provider
from holdfast.providers.dialects.requirements.messages import ImageTypes, NonEmptyAnswers, ObjectArguments
from holdfast.providers.dialects.requirements.requirement import ALWAYS, Condition
from holdfast.providers.registry import get_api_dialect, get_api_spec
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.validate import build_request_view
from holdfast.state.dialect import Dialect
from holdfast.state.view import apply_normalization
from tests.support.example_counts import choose

API = "openai-chat"
FORESEEN = ("documented", "observed")
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
CALL_IDS = ("call_1", "abcdefgh1", "functions.ls:0")


def build_call(id_, arguments="{}", name="ls"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = st.sampled_from([{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}])
USER = st.sampled_from(
    [
        {"role": "user", "content": "go"},
        {"role": "user", "content": "go", "name": "ann"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG}}],
        },
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG.replace("/png", "/tiff")}}]},
    ]
)
ANSWER = st.sampled_from(
    [
        {"role": "assistant", "content": "Yes."},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "look"},
        {"role": "assistant", "content": "Yes.", "reasoning": "look", "reasoning_details": [{"text": "look"}]},
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "assistant", "content": "Hm.", "refusal": "I will not."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
        {"role": "assistant", "content": "Yes.", "name": "bo", "audio": {"id": "a1"}},
        {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": "{}"}},
    ]
)
RESULT = st.builds(
    lambda id_, fields: {"role": "tool", "tool_call_id": id_, "content": "a.py", **fields},
    st.sampled_from(CALL_IDS),
    st.sampled_from([{}, {"name": "ls"}]),
)
CALLING_ANSWER = st.builds(
    lambda id_, arguments, fields: {
        "role": "assistant", "content": None, "tool_calls": [build_call(id_, arguments)], **fields
    },
    st.sampled_from(CALL_IDS),
    st.sampled_from(["{}", "[1]", "oops"]),
    st.sampled_from([{}, {"reasoning_content": "look"}, {"reasoning_content": ""}]),
)  # fmt: skip
OLD_RESULT = st.just({"role": "function", "name": "ls", "content": "a.py"})
HISTORY = st.lists(st.one_of(SYSTEM, USER, ANSWER, CALLING_ANSWER, RESULT, OLD_RESULT), min_size=1, max_size=8)
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]


def list_kept_requirements():
    """Return provider, model and requirement, for all requirements that normalization is to keep."""
    params = []
    for name, spec in PROVIDER_SPECS.items():
        for model in spec.example_models:
            if API not in spec.rules_by_api:
                continue
            rules = spec.rules_by_api[API](model.lower())
            dialect = get_api_dialect(API, model, find_request_provider(API, model, named=name))
            for requirement in rules.requirements:
                if rules.list_kept_fields(requirement, dialect) and requirement.evidence in FORESEEN:
                    params.append((name, model, requirement))
    return params


def normalize(provider, model, body):
    """Return ``body`` with its messages as they are sent to ``provider``."""
    dialect = get_api_dialect(API, model, find_request_provider(API, model, named=provider))
    parsed = parse_request(json.dumps(body).encode(), API)
    edits = normalize_history([sized.message for sized in parsed.messages], dialect)
    return render_request(parsed, apply_normalization(list(parsed.messages), edits))


@pytest.mark.parametrize("spec", PROVIDER_SPECS.values(), ids=PROVIDER_SPECS)
def test_merge_dialect_changes_names_fields_that_the_dialect_has(spec):
    """What requirements list, and what a provider's file states, are fields of the dialect."""
    known_fields = {field.name for field in msgspec.structs.fields(Dialect)}
    for build_rules in spec.rules_by_api.values():
        for model in spec.example_models:
            rules = build_rules(model.lower())
            assert rules.merge_dialect_changes().keys() <= known_fields
            for requirement in rules.requirements:
                assert requirement.list_dialect_changes().keys() <= known_fields


@pytest.mark.parametrize("spec", PROVIDER_SPECS.values(), ids=PROVIDER_SPECS)
def test_dialect_changes_repeat_nothing_that_a_requirement_lists(spec):
    """A fact stands once: what a requirement lists for every history is not stated again."""
    for build_rules in spec.rules_by_api.values():
        for model in spec.example_models:
            rules = build_rules(model.lower())
            for requirement in rules.requirements:
                if requirement.shapes_every_history:
                    listed = requirement.list_dialect_changes()
                    repeated = [name for name in listed if rules.dialect_changes.get(name) == listed[name]]
                    assert not repeated, (requirement.rule, repeated)


def test_merge_dialect_changes_takes_what_certain_requirements_list():
    """A requirement with a condition or weak evidence is no part of the dialect, and what the file states wins."""
    certain = ImageTypes(types=("image/png",), source="here")
    weak = NonEmptyAnswers(evidence="inferred", source="here")
    conditional = ObjectArguments(when=Condition("on Sundays", bool), source="here")
    listed = ProviderRules(requirements=(certain, weak, conditional)).merge_dialect_changes()
    assert listed == {"media_types": ("image/png",), "refused_kinds": ()}
    stated = ProviderRules(requirements=(certain,), dialect_changes={"media_types": ()}, more_refused_kinds=("a.b",))
    assert stated.merge_dialect_changes() == {"media_types": (), "refused_kinds": ("a.b",)}


def test_merge_dialect_changes_refuses_requirements_that_contradict_each_other():
    """Which of two values holds is for the provider's file to say."""
    requirements = (ImageTypes(types=("image/png",), source="here"), ImageTypes(types=("image/gif",), source="there"))
    with pytest.raises(ValueError, match="state the value in dialect_changes"):
        ProviderRules(requirements=requirements).merge_dialect_changes()


def test_provider_rules_refuse_kinds_among_the_dialect_changes():
    """Refused kinds add to those of the API; a value that would replace them is an error that says where they go."""
    with pytest.raises(ValueError, match="more_refused_kinds"):
        ProviderRules(dialect_changes={"refused_kinds": ("message.refusal",)})


@pytest.mark.parametrize("spec", PROVIDER_SPECS.values(), ids=PROVIDER_SPECS)
def test_condition_of_a_requirement_has_words(spec):
    """Two requirements that hold at different times do not read as if they contradicted each other."""
    for build_rules in spec.rules_by_api.values():
        for model in spec.example_models:
            for requirement in build_rules(model.lower()).requirements:
                assert bool(requirement.when.words) is (requirement.when is not ALWAYS)
                assert requirement.full_text.endswith(requirement.text) or requirement.when.words


@pytest.mark.counts
@pytest.mark.parametrize("provider", sorted({name for name, _, _ in list_kept_requirements()}))
@settings(max_examples=choose(quick=40, ci=200, thorough=2_000))
@given(data=st.data())
def test_normalize_history_keeps_each_requirement_that_is_tied_to_the_dialect(provider, data):
    """What lint says of messages for certain, normalization sees to: no history breaks such a requirement."""
    rows = [row for row in list_kept_requirements() if row[0] == provider]
    model = data.draw(st.sampled_from(sorted({model for _, model, _ in rows})))
    messages = data.draw(HISTORY)
    body = normalize(provider, model, {"model": model, "messages": messages, "tools": TOOLS})
    request = build_request_view(get_api_spec(API), json.loads(body), len(body), model, None, "")
    for _, row_model, requirement in rows:
        if row_model == model and requirement.applies(request):
            broken = [path for path, _ in requirement.find_violations(request) if path.startswith("$.messages")]
            assert not broken, (requirement.rule, broken, body)
