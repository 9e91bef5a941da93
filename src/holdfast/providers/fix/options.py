"""What the validator still says, mended where there is one right way: many places of one rule at a time.

For each rule there is a row of ways: a value that keeps it, the refused field gone, the message written anew, what
stands around the field gone. A way is tried for all places of its rule at once; if that breaks other rules or loses
words, for half of them, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.parts import Opaque
from holdfast.providers.common.json.json_path import Steps, Tree, replaced
from holdfast.providers.fix.replacements import instead, ranks
from holdfast.providers.fix.word_guard import heard, lost
from holdfast.providers.fix.work import Mend, Work, made
from holdfast.providers.rules import Finding

_KEPT = frozenset({"model", "messages", "contents", "input", "tools", "anthropic_version"})
"""Fields that are never taken out whole, unless it is known that they say nothing."""
_MENDABLE = frozenset(
    {"foreign-field", "sampling", "stop-sequences", "system-prompt", "system-instruction", "tool-choice",
     "thinking-mode", "thinking-budget", "thinking-company", "thinking-first", "binding-beta", "cache-count",
     "cache-shape", "cache-order", "cache-place", "tools", "tool-shape", "tool-names", "one-limit", "limits",
     "stream-options", "truncation", "limit", "thinking", "cached-content", "edit-thinking", "edit-trigger",
     "edit-order", "history", "compaction-exclusive", "context-management"}
)  # fmt: skip
"""Rules about options that are kept when what breaks them goes; all others stay as findings."""
_REPORTED = frozenset({"gemini.stop-sequences"})
"""Rules about options of which somebody must say what goes."""
_ONLY_INSTEAD = frozenset({"tools", "tool-shape", "tool-names", "compaction-first", "compaction-single"})
"""Rules that no value is taken out for, unless it is known that it says nothing new."""
_SHORT = 80
"""Bytes up to which a new value is told."""
_TRIES, _BYTES = 300, 100_000_000
"""Changes that are tried, and bytes that are judged for it, before the rest stays as it is."""

Changes: TypeAlias = Mapping[Steps, bytes | None]


class _Change(Struct):
    """What is done for one finding: new values at places, or nothing there."""

    finding: Finding
    places: Changes
    done: str = ""

    @property
    def told(self) -> Mend:
        """What is told of it: the new value where it is short, at the first place that changes."""
        if self.done:
            return made(self.finding, self.done)
        new = {value for value in self.places.values() if value is not None}
        value = b"".join(new)
        done = f"it is {value.decode()} now" if len(new) == 1 and len(value) <= _SHORT else "written anew"
        gone = "left out" if len(self.places) == 1 else f"{len(self.places)} left out"
        return made(self.finding, done if new else gone, _path(next(iter(self.places))))


def _path(steps: Steps) -> str:
    """Return steps as a JSON path."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


class _Bench(Struct):
    """Where changes are tried, as long as there are tries left."""

    work: Work
    left: int

    def fewest(self, body: bytes, changes: Sequence[_Change]) -> Sequence[_Change]:
        """Return as few of the changes as leave nothing that breaks their rule, where not all must be made."""
        rule = changes[0].finding.rule if changes else ""
        rank = ranks(rule.partition(".")[2])
        if rank is None:
            return changes
        tree = Tree(Raw(body))
        ordered = sorted(changes, key=lambda one: rank(tree, next(iter(one.places))))
        few, many = 1, len(ordered)
        while few < many and self.left > 0:
            self.left -= 1
            half = (few + many) // 2
            new = replaced(tree.raw, {steps: value for one in ordered[:half] for steps, value in one.places.items()})
            if any(error.rule == rule for error in self.work.errors(new)):
                few = half + 1
            else:
                many = half
        return [one for one in changes if one in ordered[:many]]

    def tried(self, body: bytes, errors: list[Finding], changes: Sequence[_Change]) -> tuple[bytes, list[_Change]]:
        """Return the body with as many of the changes as break fewer rules and lose no word, and those changes."""
        if not changes or self.left <= 0:
            return body, []
        self.left -= 1
        new = replaced(Raw(body), {steps: value for change in changes for steps, value in change.places.items()})
        form = self.work.form
        if len(self.work.errors(new)) < len(errors) and not lost(heard(body, form), heard(new, form)):
            return new, [*changes]
        if len(changes) == 1:
            return body, []
        half = len(changes) // 2  # the later ones first, so that no place of the others moves
        body, late = self.tried(body, errors, changes[half:])
        early_errors = self.work.errors(body) if late else errors
        body, early = self.tried(body, early_errors, changes[:half])
        return body, [*early, *late]


class _Anew(Struct):
    """Messages made anew from what they say, each once."""

    work: Work
    made: dict[Steps, bytes | None]

    def of(self, tree: Tree, steps: Steps) -> bytes | None:
        """Return the message at ``steps`` with its bytes left behind; nothing where that cannot be."""
        if steps not in self.made:
            raw = tree.at(steps)
            self.made[steps] = None if raw is None else _written_anew(raw, self.work)
        return self.made[steps]


def _written_anew(raw: Raw, work: Work) -> bytes | None:
    """Return one message made anew from what it says."""
    try:
        message = work.form.decode(raw)
    except FormatError:
        return None
    bare = tuple([part if isinstance(part, Opaque) else replace(part, raw=None) for part in message.parts])
    new = work.form.encode(replace(message, parts=bare), None)
    return new[0] if len(new) == 1 else None


def mended_around(body: bytes, work: Work, errors: list[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with one change after the other that breaks fewer rules."""
    edits: list[Mend] = []
    bench = _Bench(work, min(_TRIES, max(8, _BYTES // max(1, len(body)))))
    while errors and bench.left > 0:
        for changes in _ways(body, work, errors):
            body, changed = bench.tried(body, errors, bench.fewest(body, changes))
            if changed:
                edits += [one.told for one in changed]
                errors = work.errors(body)
                break
        else:
            break
    return body, edits


def _ways(body: bytes, work: Work, errors: Sequence[Finding]) -> Iterator[list[_Change]]:
    """Yield, rule after rule, what may be done for all its findings, the smallest change first."""
    tree, anew = Tree(Raw(body)), _Anew(work, {})
    by_rule: dict[str, list[tuple[Steps, Finding]]] = {}
    for finding in errors:
        by_rule.setdefault(finding.rule, []).append((tree.steps(finding.path), finding))
    for found in by_rule.values():
        found.sort(key=lambda one: _order(one[0]))
        for way in zip_longest(*[_changes(tree, anew, finding, steps) for steps, finding in found]):
            yield [change for change in way if change is not None]


def _order(steps: Steps) -> list[tuple[bool, int, str]]:
    """Return a key that sorts places as they follow each other in lists."""
    return [(False, step, "") if isinstance(step, int) else (True, 0, step) for step in steps]


def _changes(tree: Tree, anew: _Anew, finding: Finding, steps: Steps) -> Iterator[_Change]:
    """Yield what may be done for one finding."""
    for places, done in _places(tree, anew, finding, steps):
        yield _Change(finding, places, done)


def _places(tree: Tree, anew: _Anew, finding: Finding, steps: Steps) -> Iterator[tuple[Changes, str]]:
    """Yield what may mend what is found at ``steps``: new values for places, or places to be emptied; and its words."""
    form, name = anew.work.form, finding.rule.partition(".")[2]
    inside = bool(steps) and steps[0] == form.field
    if not inside and (name not in _MENDABLE or finding.rule in _REPORTED):
        return
    better, done = instead(name, tree, anew.work, steps)
    if better:
        yield better, done
    if name in _ONLY_INSTEAD:
        return
    least = 1 if inside else 0
    ends = [end for end in range(len(steps), least, -1) if _may_go(tree, steps[:end])]
    if ends and len(steps) > 2:  # the field itself, before all that stands around it
        yield {steps[: ends.pop(0)]: None}, ""
    if inside and len(steps) > 1 and (new := anew.of(tree, steps[:2])) is not None:
        yield {steps[:2]: new}, "the message is written anew"
    for end in ends:
        yield {steps[:end]: None}, ""


def _may_go(tree: Tree, steps: Steps) -> bool:
    """Return whether what stands at ``steps`` may be taken out."""
    place = tree.at(steps)
    return place is not None and (len(steps) > 1 or steps[0] not in _KEPT)
