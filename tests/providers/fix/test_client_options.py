"""The fields beside the messages, fixed for a client whose provider is known to refuse one of them."""

from __future__ import annotations

import json

import pytest

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.fix.client_options import apply_option_fixes, find_option_fixes
from holdfast.providers.registry import get_api_dialect

MODEL = "claude-opus-5-5"
BINDING_BETA = "thinking-binding-controls-2026-08-01"
THINKING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BODY = json.dumps({"model": MODEL, "max_tokens": 900, "thinking": THINKING, "messages": []}).encode()


def fix_fields(betas):
    """Return the body as it is sent with these betas in its headers."""
    fields = parse_body_fields(BODY)
    dialect = get_api_dialect("anthropic", MODEL)
    return apply_option_fixes(BODY, fields, find_option_fixes("anthropic", fields, MODEL, dialect, betas))


@pytest.mark.parametrize("betas", [(BINDING_BETA,), ("other", BINDING_BETA), None])
def test_find_option_fixes_keeps_a_field_whose_beta_may_be_in_the_headers(betas):
    """A field that needs a beta stays if the headers have the beta, and if nobody knows the headers."""
    assert fix_fields(betas) is BODY


def test_find_option_fixes_leaves_out_a_field_whose_beta_is_missing():
    """A field that needs a beta is left out if the headers are known and lack it."""
    assert json.loads(fix_fields(()))["thinking"] == {"type": "adaptive"}
