"""Judge a request by the rules of a server, and put refusals into the server's form."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.dialects.server_dialect import ServerDialect, ServerError
from holdfast.testing.provider.dialects.server_request import ServerRequest


class ServerRefusal(Struct, frozen=True):
    """The refusal of a request, with the name of the rule that it breaks."""

    rule: str
    reply: RefusalReply


def check_server_rules(dialect: ServerDialect, request: ServerRequest) -> ServerRefusal | None:
    """Return the refusal of a request that breaks a rule of the server, or None."""
    for rule in dialect.rules:
        if rule.api != request.api:
            continue
        for error in rule.check(request):
            return ServerRefusal(rule.name, make_server_refusal(dialect, error))
    return None


def make_server_refusal(dialect: ServerDialect, error: ServerError) -> RefusalReply:
    """Build the refusal with the error in the server's form."""
    code = "" if error.code is None else str(error.code)
    body = msgspec.json.encode(dialect.encode_error(error))
    return RefusalReply(error.status, code or error.kind, error.message, body=body)


def adapt_refusal(dialect: ServerDialect, refusal: RefusalReply) -> RefusalReply:
    """Put a refusal of the API into the server's form, unless it has a body of its own already."""
    if refusal.body:
        return refusal
    if refusal.code in dialect.reworded_codes:
        return make_server_refusal(dialect, ServerError(dialect.reworded_codes[refusal.code], refusal.status))
    param = refusal.details.get("param")
    error = ServerError(
        refusal.message,
        refusal.status,
        refusal.code or None,
        param=None if param is None else str(param),
    )
    return replace(refusal, body=msgspec.json.encode(dialect.encode_error(error)))


def encode_stream_error(dialect: ServerDialect, refusal: RefusalReply) -> dict[str, Any]:
    """Return an error for the inside of a stream: the server's form, under a key ``error`` if it has none."""
    document = msgspec.json.decode(adapt_refusal(dialect, refusal).body)
    return document if "error" in document else {"error": document}
