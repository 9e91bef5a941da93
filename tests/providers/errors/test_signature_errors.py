"""Errors about signed data are recognized by their code or wording, whatever wraps them."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.errors.signature_errors import is_signature_error

SIGNATURE_ERRORS = [
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
UNSUPPORTED_INCLUDE = "Invalid value: 'reasoning.encrypted_content'. Supported values are: 'file_search_call.results'."
OTHER_ERRORS = [
    ("invalid_request_error", "messages.1.content.0.thinking.signature: Field required"),
    ("", "`thinking` blocks in the latest assistant message cannot be modified."),
    ("", "Function call is missing a thought_signature in functionCall parts. This is required for tools to work"),
    ("", "Expected `thinking` or `redacted_thinking`, but found `text`."),
    ("", "Item 'rs_1' of type 'reasoning' was provided without its required following item."),
    ("context_length_exceeded", "Your input exceeds the context window of this model."),
    ("invalid_api_key", "Incorrect API key provided: the signature of the token is invalid"),
    ("", "Encrypted content is not supported with this model; see include."),
    ("invalid_value", UNSUPPORTED_INCLUDE),
    ("invalid_value", "Invalid value: 'encrypted_content'. Supported values are: 'file_search_call.results'."),
    ("", "include[0]: invalid reasoning.encrypted_content"),
]
MENTIONS_ONLY = [
    (400, "invalid_api_key", "Incorrect API key provided: cannot decrypt encrypted_content"),
    (400, "context_length_exceeded", "prompt is too long: 300000 tokens > 200000 maximum, invalid encrypted_content"),
    (401, "invalid_encrypted_content", "The encrypted content could not be verified."),
    (403, "", "Encrypted content organization_id did not match the target organization."),
    (404, "", "Invalid encrypted_content"),
    (429, "rate_limit", "Rate limit reached. Too many requests with invalid encrypted_content"),
    (500, "server_error", "Internal error: could not verify encrypted_content, the key service timed out"),
    (503, "", "Corrupted thought signature."),
    (529, "overloaded_error", "Overloaded: could not verify encrypted_content"),
    (None, "invalid_api_key", "Incorrect API key provided: cannot decrypt encrypted_content"),
    (None, "rate_limit_exceeded", "Rate limit reached. Too many requests with invalid encrypted_content"),
    (200, "server_error", "Internal error: could not verify encrypted_content"),
    (200, "overloaded_error", "Overloaded: could not verify encrypted_content"),
]
"""Errors that mention signed data but are about something else, by status or kind."""


def build_report(code, message, status=400):
    body = {"error": {"code": code or status, "message": message}}
    return ErrorReport("", status, body=msgspec.json.encode(body))


def classifies_as_signature_error(report):
    return is_signature_error(report, classify_error(report).kind)


@pytest.mark.parametrize(("code", "message"), SIGNATURE_ERRORS)
def test_is_signature_error_recognizes_rejected_signatures(code, message):
    """Rejected signed data is recognized by code or wording, also inside a gateway's text, and is no overflow."""
    report = build_report(code, message)
    inner = ErrorReport("", 400, body=msgspec.json.encode({"error": {"message": bytes(report.body).decode()}}))
    assert classifies_as_signature_error(report)
    assert classifies_as_signature_error(inner)
    assert classifies_as_signature_error(build_report(code, message, 422))
    assert not classify_error(report).is_overflow


@pytest.mark.parametrize(("code", "message"), SIGNATURE_ERRORS)
def test_is_signature_error_recognizes_errors_inside_a_stream(code, message):
    """In a stream the status is 200 or missing, and the kind of the error decides."""
    body = msgspec.json.encode({"type": "error", "code": code, "message": message})
    assert all(classifies_as_signature_error(ErrorReport("", status, body=body)) for status in (None, 200))


@pytest.mark.parametrize(("code", "message"), OTHER_ERRORS)
def test_is_signature_error_is_false_for_other_errors(code, message):
    """Leaving out signed data cures nothing that is missing, misplaced, too large, or about a key or parameter."""
    assert not classifies_as_signature_error(build_report(code, message))


@pytest.mark.parametrize(("status", "code", "message"), MENTIONS_ONLY)
def test_is_signature_error_is_false_for_mere_mentions(status, code, message):
    """A wrong key, a limit or a failing server is recognized by status or kind, whatever its text mentions."""
    assert not classifies_as_signature_error(build_report(code, message, status))
