"""Faults between a provider and its client: their names, and the stages of an answer at which they can strike.

A fault of the group *status* is an error in place of an answer. One of the group *connection* ends or stops an answer
that has begun. One of the group *content* is an answer that no client expects. A server cannot refuse its connections
or break TLS; to test these, use a port that nobody listens on, or ``https`` (or ``upstream.CONNECT_FAULTS``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import inf
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ConfigError, raise_if_wrong_type

FaultStage: TypeAlias = Literal["body", "head", "first", "middle", "end"]
"""The moment at which a fault strikes.

``body`` is while the request's body is sent, ``head`` before the first byte of the answer, ``first`` before its first
event, ``middle`` after half of its events, ``end`` after all content and before the events that end it.
"""
FAULT_STAGES: tuple[FaultStage, ...] = ("body", "head", "first", "middle", "end")
_EARLY_STAGES: tuple[FaultStage, ...] = ("head", "body")
_INSIDE_STAGES: tuple[FaultStage, ...] = ("middle", "first", "end")
_ALL_STAGES: tuple[FaultStage, ...] = ("middle", "body", "head", "first", "end")


class Fault(Struct, frozen=True):
    """One fault, for one request or for all."""

    kind: str
    """A name in ``FAULT_KINDS``."""
    stage: str = ""
    """A name in ``FAULT_STAGES``; empty for the usual stage of the kind."""
    at: int = 1
    """The number of the request that it strikes, counted from 1 over all requests for an answer; 0 for all of them."""
    seconds: float | None = None
    """Duration: of a ``stall``, between two pieces of a ``drip``, or in ``retry-after`` (statuses).

    None for the usual duration of the kind.
    """


class FaultKind(Struct, frozen=True):
    """The properties of all faults of one name."""

    about: str
    """Description, as the command line lists it."""
    group: Literal["status", "connection", "content"]
    stages: tuple[FaultStage, ...]
    """The stages at which it can strike, the usual one first."""
    seconds: float | None = None
    """The usual duration."""


def _make_status_kind(about: str, seconds: float | None = None) -> FaultKind:
    return FaultKind(about, "status", _EARLY_STAGES, seconds)


# The usual stage of a kind is the one that is hardest for clients: in the middle of an answer for connections, and for
# a drip the first event, so that the whole answer drips.
FAULT_KINDS: Mapping[str, FaultKind] = {
    "reset": FaultKind("the connection is reset", "connection", _ALL_STAGES),
    "cut": FaultKind("the connection is closed before the answer is whole", "connection", _ALL_STAGES),
    "stall": FaultKind(
        "nothing comes any more, for some seconds or for ever",
        "connection",
        _ALL_STAGES,
        inf,
    ),
    "drip": FaultKind(
        "the rest comes a few bytes at a time",
        "connection",
        ("first", "middle", "end"),
        0.01,
    ),
    "protocol": FaultKind("bytes that are no HTTP", "connection", ("head",)),
    "unfinished": FaultKind("the answer ends without its last events, as if it were whole", "content", _INSIDE_STAGES),
    "error": FaultKind("HTTP 200, then an error as an event", "content", _INSIDE_STAGES),
    "garbage": FaultKind("bytes that mean nothing, inside the answer", "content", _INSIDE_STAGES),
    "utf8": FaultKind("broken UTF-8, inside the answer", "content", _INSIDE_STAGES),
    "empty": FaultKind("HTTP 200, an answer that says nothing", "content", ("head",)),
    "blank": FaultKind("HTTP 200 without a body", "content", ("head",)),
    "unknown": FaultKind("an unknown stop reason and an unknown block", "content", ("head",)),
    "400": _make_status_kind("a request of the wrong shape"),
    "400-overflow": _make_status_kind("an overflow, in the API's own words"),
    "400-foreign": _make_status_kind("an overflow, in the words of another server (llama.cpp)"),
    "401": _make_status_kind("the key is not valid any more"),
    "403": _make_status_kind("the key may not do this"),
    "404": _make_status_kind("no such model or address"),
    "408": _make_status_kind("the request took too long"),
    "409": _make_status_kind("a conflict with another request"),
    "413": _make_status_kind("the body is too large"),
    "413-html": _make_status_kind("the body is too large, said by a proxy in HTML"),
    "413-empty": _make_status_kind("the body is too large, said without a body"),
    "422": _make_status_kind("a field has a wrong value"),
    "429": _make_status_kind("too many requests, with retry-after", 1),
    "429-tokens": _make_status_kind("too many tokens a minute, without retry-after"),
    "429-overflow": _make_status_kind("one request larger than the tokens of a minute"),
    "500": _make_status_kind("an error inside"),
    "502-html": _make_status_kind("a proxy lost the server, said in HTML"),
    "503": _make_status_kind("the service is away"),
    "529": _make_status_kind("overloaded; 503 on the APIs that have no 529"),
}
"""All kinds of faults by their names."""


_FAULT_PATTERN = re.compile(r"([\w-]+)(?::([a-z]*))?(?::(\d*))?(?::(\d+(?:\.\d+)?))?")
"""``kind[:stage][:at][:seconds]``; a part that is left out or empty has its default."""
_WHY_NOT = {
    "status": "a status is told before the answer begins; for an error inside a stream give error",
    "connection": "there is nothing yet that it could strike",
    "content": "it is a whole answer of its own, or lies inside of one",
}
"""The reason, by group, why a fault cannot strike at other stages than those of its kind."""


def parse_fault(text: str) -> Fault:
    """Parse a fault from ``kind[:stage][:at][:seconds]``, or raise ``ConfigError``."""
    match = _FAULT_PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no fault; give kind[:stage][:at][:seconds], for example stall:middle:2:5")
    kind, stage, at, seconds = match.groups()
    fault = Fault(kind, stage or "", int(at or 1), float(seconds) if seconds else None)
    return complete_fault(fault)


def complete_fault(fault: Fault) -> Fault:
    """Return the fault with the usual stage and seconds of its kind filled in.

    Raises ``ConfigError`` for an unknown kind or stage, and for a stage at which the kind cannot strike.
    """
    raise_if_wrong_type(ConfigError, fault=(fault, Fault), **{"fault.kind": (fault.kind, str)})
    kind = FAULT_KINDS.get(fault.kind)
    if kind is None:
        near = get_close_matches(fault.kind, FAULT_KINDS, n=3, cutoff=0.5) or FAULT_KINDS
        raise ConfigError(f"no fault is called {fault.kind!r}; give one of {', '.join(near)}")
    stage = fault.stage or kind.stages[0]
    if stage not in FAULT_STAGES:
        raise ConfigError(f"no stage is called {stage!r}; give one of {', '.join(FAULT_STAGES)}")
    if stage not in kind.stages:
        why = f"{_WHY_NOT[kind.group]}; it can at {', '.join(kind.stages)}"
        raise ConfigError(f"the fault {fault.kind!r} cannot strike at {stage!r}: {why}")
    seconds = kind.seconds if fault.seconds is None else fault.seconds
    return replace(fault, stage=stage, seconds=seconds)


def find_due_fault(faults: Sequence[Fault], number: int) -> Fault | None:
    """Return the first of ``faults`` that strikes the request with this number, or None."""
    for fault in faults:
        if fault.at in (0, number):
            return fault
    return None
