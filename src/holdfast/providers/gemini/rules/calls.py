"""Rules of generateContent about calls, responses and thought signatures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.messages.text.counts import format_count
from holdfast.providers.gemini.model_changes import parse_gemini_version
from holdfast.providers.gemini.rules.request_view import ContentView, GeminiView, PartView
from holdfast.providers.rules.options import is_gemini_function_name
from holdfast.providers.rules.rule import (
    GEMINI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

# Standard or URL-safe alphabet.
_BASE64_PATTERN = re.compile(r"(?:[A-Za-z0-9+/]*|[A-Za-z0-9_-]*)={0,2}\Z")


# -- calls and responses -----------------------------------------------------------------------------------------------


def _iter_with_neighbours(request: GeminiView) -> Iterator[tuple[ContentView | None, ContentView, ContentView | None]]:
    """Yield each content with the one before and the one after it, None at the ends."""
    contents = request.content_views
    yield from zip([None, *contents], contents, [*contents[1:], None], strict=False)


def _check_call_role(request: GeminiView) -> Violations:
    """A functionCall is in a content of the model, a functionResponse in one of the user."""
    for content in request.content_views:
        misplaced = content.responses if content.role == "model" else content.calls
        role = format_json_value(content.role)
        for part_view in misplaced:
            problem = f"{part_view.spelling} is in a content of the role {role}; move it to one of the other role"
            yield part_view.payload_path, problem


def _check_call_place(request: GeminiView) -> Violations:
    """A content with calls comes directly after a user turn or function responses."""
    for before, content, _ in _iter_with_neighbours(request):
        if not content.calls:
            continue
        if before is None:
            where = "in the first content"
        elif before.role == "model":
            where = f"directly after contents[{before.content_index}], which is also the model's"
        else:
            continue
        path = content.calls[0].payload_path
        yield path, f"the call is {where}; put it into the content directly after a user turn"


def _check_response_place(request: GeminiView) -> Violations:
    """A response comes directly after the content with its call, which may be in the cached content."""
    has_cached_content = request.get_field("cachedContent")[1] is not None
    for before, content, _ in _iter_with_neighbours(request):
        if not content.responses:
            continue
        if before is None:
            has_calls_before = has_cached_content
        else:
            has_calls_before = bool(before.calls)
        if not has_calls_before:
            path = content.responses[0].payload_path
            yield path, "the response does not follow a content with calls; move it after its call, or drop it"


def _check_response_count(request: GeminiView) -> Violations:
    """The content after calls has as many responses as there are calls."""
    for _, content, after in _iter_with_neighbours(request):
        call_count = len(content.calls)
        response_count = 0 if after is None else len(after.responses)
        second_responses = [] if after is None else _find_second_responses(after)
        if call_count and second_responses:
            for response in second_responses:
                problem = f"call {response.get_id()} has a second response"
                yield response.payload_path, f"{problem}; keep one of the two, or join them"
        elif call_count and response_count != call_count:
            calls, responses = format_count(call_count, "call"), format_count(response_count, "response")
            problem = f"{calls}, but {responses} in the next content"
            path = content.calls[0].payload_path
            yield path, f"{problem}; send one response for each call, all in one content"


def _find_second_responses(content: ContentView) -> list[PartView]:
    """Return the responses with an id that a response before them in the content has too."""
    seen_ids: set[str] = set()
    second_responses = []
    for response in content.responses:
        response_id = response.get_id()
        if response_id and response_id in seen_ids:
            second_responses.append(response)
        seen_ids.add(response_id)
    return second_responses


def _check_response_match(request: GeminiView) -> Violations:
    """A response has the id and name of a call in the content before; the id only if the call has one."""
    for before, content, _ in _iter_with_neighbours(request):
        calls = before.calls if before is not None else []
        if not calls:
            continue
        ids = {call.get_id() for call in calls} - {""}
        names = {str(call.get_name()) for call in calls}
        names_without_id = set()
        for call in calls:
            if not call.get_id():
                names_without_id.add(str(call.get_name()))
        for response in content.responses:
            response_id = response.get_id()
            name = str(response.get_name())
            # An id that the client made up is accepted for a call that came without one.
            if response_id and response_id not in ids and name not in names_without_id:
                problem = f"no call before it has the id {format_json_value(response_id)}; send the id of its call"
                yield f"{response.payload_path}.id", problem
            elif name not in names:
                problem = f"no call before it has the name {format_json_value(response.get_name())}"
                yield f"{response.payload_path}.name", f"{problem}; send the name of its call"


def _check_unique_ids(request: GeminiView) -> Violations:
    """The ids of calls are unique in the whole request."""
    calls_by_id: dict[str, PartView] = {}
    for call in request.iter_parts("functionCall"):
        call_id = call.get_id()
        if not call_id:
            continue
        first = calls_by_id.setdefault(call_id, call)
        if first is not call:
            problem = f"id {call_id} was already used at {first.payload_path}; give each call an id of its own"
            yield f"{call.payload_path}.id", problem


def _check_names(request: GeminiView) -> Violations:
    """The names of calls and responses match ^[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}$."""
    for piece in request.iter_parts("functionCall", "functionResponse"):
        name = piece.get_name()
        if not is_gemini_function_name(name):
            yield f"{piece.payload_path}.name", f"name {format_json_value(name)} is not valid for a function; rename it"


def _check_args(request: GeminiView) -> Violations:
    """The arguments of a call are an object."""
    for piece in request.iter_parts("functionCall"):
        args = piece.value.get("args") if isinstance(piece.value, dict) else None
        if args is not None and not isinstance(args, dict):
            yield f"{piece.payload_path}.args", f"args is {get_json_type_name(args)}; send a JSON object"


def _check_response_object(request: GeminiView) -> Violations:
    """The response of a function is an object."""
    for piece in request.iter_parts("functionResponse"):
        if isinstance(piece.value, dict):
            response = piece.value.get("response")
        else:
            response = None
        if not isinstance(response, dict):
            path = f"{piece.payload_path}.response"
            yield path, f"response is {get_json_type_name(response)}; send an object, as {{'output': …}}"


# -- thought signatures ------------------------------------------------------------------------------------------------


def _list_current_contents(request: GeminiView) -> list[ContentView]:
    """List the contents of the current turn: those after the newest one in the user's own words."""
    contents: list[ContentView] = []
    for content in reversed(request.content_views):
        if content.role != "model" and not content.responses:
            break
        contents.append(content)
    return contents[::-1]


def _check_calls_signed(request: GeminiView) -> Violations:
    """The first call of each step of the current turn has its thought signature."""
    if parse_gemini_version(request.model) < (3, 0):
        return
    # Only the current turn is checked, and of parallel calls only the first carries a signature.
    for content in _list_current_contents(request):
        if content.role == "model" and content.calls:
            first_call = content.calls[0]
        else:
            first_call = None
        if first_call is not None and not first_call.signature:
            problem = f"call {first_call.get_name()!r} has no thoughtSignature"
            advice = "send the call as the model returned it, or with the signature skip_thought_signature_validator"
            yield first_call.part_path, f"{problem}; {advice}"


def _check_signature_base64(request: GeminiView) -> Violations:
    """A thought signature is base64."""
    for piece in request.parts:
        signature = piece.signature
        if signature is not None and not (isinstance(signature, str) and _BASE64_PATTERN.match(signature)):
            path = f"{piece.part_path}.thoughtSignature"
            yield path, "the signature is not base64; send it as the model returned it, or drop the part"


CALL_RULES: tuple[Rule, ...] = (
    Rule("gemini.call-role", _check_call_role, "recalled", UNVERIFIED_MEMORY),
    Rule("gemini.call-place", _check_call_place, "observed", PUBLIC_ERRORS),
    Rule("gemini.response-place", _check_response_place, "observed", PUBLIC_ERRORS),
    Rule("gemini.call-count", _check_response_count, "observed", PUBLIC_ERRORS),
    Rule("gemini.match", _check_response_match, "recalled", GEMINI_DOCS),
    Rule("gemini.unique-ids", _check_unique_ids, "observed", PUBLIC_ERRORS),
    Rule("gemini.name-pattern", _check_names, "documented", GEMINI_DOCS),
    Rule("gemini.args-object", _check_args, "documented", GEMINI_DOCS),
    Rule("gemini.response-object", _check_response_object, "documented", GEMINI_DOCS),
    Rule(
        "gemini.signed",
        _check_calls_signed,
        "documented",
        GEMINI_DOCS,
        "Gemini 3 and later",
    ),
    Rule("gemini.signature-form", _check_signature_base64, "documented", GEMINI_DOCS),
)
"""The rules about calls and signatures."""
