"""Whether an error is about what the provider sealed: its own words say so, whichever wrapper they come in."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.wire.overflow import ErrorReport, classify
from holdfast.wire.overflow.seals import refuses_seals

SEALED = [
    ("invalid_encrypted_content", "The encrypted content gAAA...DQ== could not be verified."),
    ("", "The encrypted content for item rs_0a18 could not be verified. Reason: it could not be decrypted or parsed."),
    ("invalid_encrypted_content", "The encrypted content for item cmp_0a18 was not issued to this caller."),
    ("", "Encrypted content organization_id did not match the target organization."),
    ("", "Could not decrypt the provided encrypted_content. Please ensure the value is the unmodified one."),
    ("", "messages.1.content.0: Invalid `signature` in `thinking` block"),
    (
        "",
        "messages.9.content.1: Invalid `signature` in `thinking` block. The block is bound to another conversation.",
    ),
    ("", "messages.1.content.0: Invalid `data` in `redacted_thinking` block"),
    ("", "Corrupted thought signature."),
    ("INVALID_ARGUMENT", "Invalid thought signature."),
    ("", "Unable to submit request because Thought signature is not valid.. Learn more: https://a.example/b"),
]
OTHER = [
    ("invalid_request_error", "messages.1.content.0.thinking.signature: Field required"),
    ("", "`thinking` blocks in the latest assistant message cannot be modified."),
    ("", "Function call is missing a thought_signature in functionCall parts. This is required for tools to work"),
    ("", "Expected `thinking` or `redacted_thinking`, but found `text`."),
    ("", "Item 'rs_1' of type 'reasoning' was provided without its required following item."),
    ("context_length_exceeded", "Your input exceeds the context window of this model."),
    ("invalid_api_key", "Incorrect API key provided: the signature of the token is invalid"),
    ("", "Encrypted content is not supported with this model; see include."),
]


def report(code, message):
    return ErrorReport("", 400, body=msgspec.json.encode({"error": {"code": code or 400, "message": message}}))


@pytest.mark.parametrize(("code", "message"), SEALED)
def test_a_seal_that_is_taken_no_more_is_known(code, message):
    """By its code or its words, also where a gateway put them into a text of its own; it is no overflow."""
    said = report(code, message)
    inner = ErrorReport("", 400, body=msgspec.json.encode({"error": {"message": bytes(said.body).decode()}}))
    assert refuses_seals(said)
    assert refuses_seals(inner)
    assert not classify(said).is_overflow


@pytest.mark.parametrize(("code", "message"), OTHER)
def test_other_errors_are_none(code, message):
    """What is missing, misplaced, too large or of a key is cured by nothing that is left out."""
    assert not refuses_seals(report(code, message))
