"""Look up, replace and remove values at paths of a JSON text; everything else keeps its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Raw

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_fields, encode_json, replace_json_fields

PathStep: TypeAlias = str | int
"""A key of an object or an index of a list."""
PathSteps: TypeAlias = tuple[PathStep, ...]
Replacements: TypeAlias = Mapping[PathSteps, bytes | None]
"""New values by path; None removes the value. Empty if there is no right way to change the request."""

_INDEX_STEP = re.compile(r"\[(\d+)\]")
_STEP_END = re.compile(r"[.\[]|\Z")


class JsonTree:
    """A JSON text for many look-ups; each object and list in it is decoded only once."""

    def __init__(self, raw: Raw) -> None:
        """Wrap ``raw`` without decoding anything yet."""
        self.raw = raw
        self._open: dict[PathSteps, dict[PathStep, Raw]] = {}

    def get_children(self, steps: PathSteps) -> dict[PathStep, Raw]:
        """Return the values in the object or list at ``steps`` by key or index; empty if it is neither."""
        children = self._open.get(steps)
        if children is None:
            raw = self.get_raw(steps)
            children = self._open[steps] = {} if raw is None else _decode_children(raw)
        return children

    def get_raw(self, steps: PathSteps) -> Raw | None:
        """Return the value at ``steps``, or None if there is no such place."""
        if steps:
            return self.get_children(steps[:-1]).get(steps[-1])
        return self.raw

    def parse_path(self, path: str) -> PathSteps:
        """Split a JSON path as the validator writes it: ``$.messages[3].content[0].text``.

        Keys may contain dots and brackets. If the path can be read in several ways, the longest key that exists wins.
        """
        steps: PathSteps = ()
        place = 1
        while place < len(path):
            index = _INDEX_STEP.match(path, place)
            children = self.get_children(steps)
            # ``[3]`` is an index if there is such an element, or nothing to look it up in; else it belongs to a key.
            if index is not None and (int(index[1]) in children or not children):
                steps, place = (*steps, int(index[1])), index.end()
                continue
            # A key may contain dots and brackets, so each of them may be its end; the last one that gives a key is it.
            ends = [match.start() for match in _STEP_END.finditer(path, place + 1)]
            end = next((end for end in reversed(ends) if path[place + 1 : end] in children), ends[0])
            steps, place = (*steps, path[place + 1 : end]), end
        return steps


def format_json_path(steps: PathSteps) -> str:
    """Format steps as a JSON path (``$.messages[3].content``)."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def get_json_first_char(raw: Raw | None) -> str:
    """Return the first character of a JSON value, which tells its type; empty for None."""
    if raw is None:
        return ""
    return bytes(memoryview(raw)[:1]).decode(errors="replace")


def _decode_children(raw: Raw) -> dict[PathStep, Raw]:
    """Return the values in an object or list by key or index; empty for any other JSON."""
    children: dict[PathStep, Raw] = {}
    if get_json_first_char(raw) == "{":
        children.update(decode_json_fields(raw))
    elif get_json_first_char(raw) == "[":
        children.update(enumerate(read_json_items(raw)))
    return children


def replace_json_at_paths(raw: Raw, changes: Mapping[PathSteps, bytes | None]) -> bytes:
    """Replace the values at some paths of ``raw``, or remove them if the new value is None. Linear in the size of
    ``raw``.

    Paths that do not exist are ignored. Of two changes, one inside the other, only the outer one is made.
    """
    children = _decode_children(raw)
    # Grouped by their first step, so that each child is decoded and encoded once however many changes it has.
    inner: dict[PathStep, dict[PathSteps, bytes | None]] = {}
    for steps, new in changes.items():
        if steps[0] in children:
            inner.setdefault(steps[0], {})[steps[1:]] = new
    for step, below in inner.items():
        if () not in below:
            children[step] = Raw(replace_json_at_paths(children[step], below))
        elif (new := below[()]) is None:
            del children[step]
        else:
            children[step] = Raw(new)
    return encode_json(list(children.values()) if get_json_first_char(raw) == "[" else children)


def set_body_model(body: bytes, model: str) -> bytes:
    """Return ``body`` with ``model`` as its model; the same object if it names that model already, or none at all."""
    raw_fields = parse_body_fields(body) if model else {}
    if "model" not in raw_fields or read_json_text(raw_fields["model"]) == model:
        return body
    return replace_json_fields(body, raw_fields, {"model": encode_json(model)})
