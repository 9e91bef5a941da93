"""Histories are normalized for each provider once and for all, and what the provider takes is left alone."""

from __future__ import annotations

from random import Random

import example_counts
import pytest
from history_fuzzer import mangle_conversation
from provider_fuzzer import PROVIDER_MODELS, get_dialect, mutate_reasoning

from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.normalize_history import normalize_history
from holdfast.state.view import apply_normalization

FAMILIES = [(provider, api, model) for provider, pairs in PROVIDER_MODELS.items() for api, model in pairs]
COUNT = example_counts.choose(quick=25, ci=100, thorough=1_000)


@pytest.mark.counts
@pytest.mark.parametrize(("provider", "api", "model"), FAMILIES)
def test_normalize_history_changes_a_normalized_history_no_more(provider, api, model):
    """What was normalized for a provider needs nothing, by the passes and by the quick look that spares them."""
    dialect = get_dialect(api, model, provider)
    for seed in range(COUNT):
        rng = Random(seed)
        messages = mutate_reasoning(mangle_conversation(rng, api), rng)
        edits = normalize_history(messages, dialect)
        sent = apply_normalization([SizedMessage(message) for message in messages], edits)
        assert normalize_history([sized.message for sized in sent], dialect) == (), seed
