"""Places in a JSON text read, replaced or taken out; all that stands beside them keeps its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Raw

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_fields, encode_json, replace_json_fields

PathStep: TypeAlias = str | int
"""A key of an object, or an index of a list."""
PathSteps: TypeAlias = tuple[PathStep, ...]

_INDEX_STEP = re.compile(r"\[(\d+)\]")
_STEP_END = re.compile(r"[.\[]|\Z")


class JsonTree:
    """A JSON text in which many places are looked up: each object and list in it is opened once."""

    def __init__(self, raw: Raw) -> None:
        """Open nothing yet."""
        self.raw = raw
        self._open: dict[PathSteps, dict[PathStep, Raw]] = {}

    def get_children(self, steps: PathSteps) -> dict[PathStep, Raw]:
        """Return what the object or list at ``steps`` holds, by key or index; nothing where there is none."""
        children = self._open.get(steps)
        if children is None:
            raw = self.get_raw(steps)
            children = self._open[steps] = {} if raw is None else _decode_children(raw)
        return children

    def get_raw(self, steps: PathSteps) -> Raw | None:
        """Return what stands at ``steps``, or nothing when there is no such place."""
        return self.get_children(steps[:-1]).get(steps[-1]) if steps else self.raw

    def parse_path(self, path: str) -> PathSteps:
        """Return the steps of a JSON path as the validator writes it: ``$.messages[3].content[0].text``.

        A key may have dots and brackets in it: of all keys that the path may mean, it is the longest there is.
        """
        steps: PathSteps = ()
        place = 1
        while place < len(path):
            index = _INDEX_STEP.match(path, place)
            children = self.get_children(steps)
            if index is not None and (path[place] == "[" and (int(index[1]) in children or not children)):
                steps, place = (*steps, int(index[1])), index.end()
                continue
            ends = [match.start() for match in _STEP_END.finditer(path, place + 1)]
            end = next((end for end in reversed(ends) if path[place + 1 : end] in children), ends[0])
            steps, place = (*steps, path[place + 1 : end]), end
        return steps


def get_json_first_char(raw: Raw | None) -> str:
    """Return the first character of a JSON value, which tells its type; nothing for no value."""
    return "" if raw is None else bytes(memoryview(raw)[:1]).decode(errors="replace")


def _decode_children(raw: Raw) -> dict[PathStep, Raw]:
    """Return what an object or a list holds, by key or index."""
    children: dict[PathStep, Raw] = {}
    if get_json_first_char(raw) == "{":
        children.update(decode_json_fields(raw))
    elif get_json_first_char(raw) == "[":
        children.update(enumerate(read_json_items(raw)))
    return children


def replace_json_at_paths(raw: Raw, changes: Mapping[PathSteps, bytes | None]) -> bytes:
    """Return ``raw`` with other values at some places, or without them; linear in its size.

    A place that is not there stays so; of two changes, one inside the other, the outer one is made.
    """
    children = _decode_children(raw)
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
    """Return the body with the model that is asked for, where it names another one; the very same where not."""
    raw_fields = parse_body_fields(body) if model else {}
    if "model" not in raw_fields or read_json_text(raw_fields["model"]) == model:
        return body
    return replace_json_fields(body, raw_fields, {"model": encode_json(model)})
