"""Fix the options of a client's body that its provider is known to refuse, before anything else is done with it.

Only for clients of the proxy (``check_mode`` "changed"). In a body that a program gives the engine, the check before
the send (``check_request.py``) changes or reports options; those of ``_UNCHECKED_RULES`` there go out as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.request_template import RequestOptions
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.upstream import find_header_betas, find_header_version
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.dialects.request_provider import get_dialect_provider
from holdfast.providers.fix.client_options import apply_option_fixes, find_option_fixes
from holdfast.providers.fix.fix_context import RequestFix
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.parsed_request import ParsedRequest, build_parsed_request
from holdfast.state.changed_options import ChangedOption, find_new_options
from holdfast.state.dialect import Dialect
from holdfast.state.target import Target


async def fix_client_options(
    runtime: SessionRuntime, parsed_body: ParsedRequest, target: Target, request_options: RequestOptions
) -> tuple[ParsedRequest, Sequence[RequestFix]]:
    """Return ``parsed_body`` without the options that its provider refuses, and what was changed, to be recorded."""
    resources = runtime.resources
    dialect = target.dialect
    if resources.check_mode != "changed" or request_options.observe_only or not knows_option_rules(dialect):
        return parsed_body, ()
    upstream = request_options.upstream or resources.upstream
    betas, version = find_header_betas(upstream), find_header_version(upstream)
    key = _digest_options(parsed_body, target, betas, version)
    option_fixes = resources.option_fixes.get(key)
    if option_fixes is None:
        option_fixes = await resources.run_in_worker(
            lambda: find_option_fixes(parsed_body.api, parsed_body.fields, target.model, target.dialect, betas, version)
        )
        resources.remember_option_fixes(key, option_fixes)
    if not option_fixes.changes:
        return parsed_body, ()
    spec = get_api_spec(parsed_body.api)
    new_body = apply_option_fixes(parsed_body.body, parsed_body.fields, option_fixes)
    fixed_body = build_parsed_request(spec, new_body, parse_body_fields(new_body), parsed_body.messages)
    return replace(fixed_body, measured_setup=fixed_body.setup), option_fixes.fixes


def knows_option_rules(dialect: Dialect) -> bool:
    """Return whether rules about the fields beside the messages are known to hold at the server of ``dialect``.

    They are where somebody said who serves the request, even if that provider keeps its rules about messages to itself
    (`SessionRuntime.knows_message_rules`). A provider that is but a guess has other options than its maker's.
    """
    is_nobody_known = dialect.keeps_client_content and not dialect.provider
    return not is_nobody_known and not get_dialect_provider(dialect).is_guess


async def record_option_fixes(runtime: SessionRuntime, fixes: Sequence[RequestFix]) -> None:
    """Record the options that were changed in the request that is about to be sent; each is told once a session."""
    if not fixes:
        return
    now = runtime.resources.clock()
    options = [ChangedOption(fix.rule, fix.path, fix.why, now) for fix in fixes]
    new_options = find_new_options(options, runtime.journal.state.usage.learned_limits.changed_options)
    if not new_options:
        return
    await runtime.resources.run_in_worker(lambda: runtime.journal.record_changed_options(new_options))
    for option in new_options:
        why = f"{option.path}: {option.what}; change the client's settings if it should not send this"
        runtime.emit_event(events.NoticeGiven(runtime.key, option.rule, why, option.path))


def _digest_options(parsed_body: ParsedRequest, target: Target, betas: Sequence[str] | None, version: str) -> bytes:
    """Return a digest of all that the fixes depend on: API, model, provider, betas, and the fields but the messages."""
    messages_field = get_api_spec(parsed_body.api).messages_field
    origin = f"{parsed_body.api}\0{target.model}\0{target.dialect.provider}\0{betas}\0{version}"
    digest = blake2b(origin.encode(errors="surrogatepass"), digest_size=16)
    for key, value in parsed_body.fields.items():
        if key != messages_field:
            digest.update(b"\0" + key.encode("utf-8", "surrogatepass") + b"\0")
            digest.update(value)
    return digest.digest()
