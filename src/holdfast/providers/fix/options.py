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
from holdfast.providers.common.json.json_path import JsonTree, PathSteps, replace_json_at_paths
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.fix.lost_text import count_user_texts, has_lost_text
from holdfast.providers.fix.replacements import find_replacement, get_path_ranking
from holdfast.providers.rules.rule import Finding

_REQUIRED_FIELDS = frozenset({"model", "messages", "contents", "input", "tools", "anthropic_version"})
"""Fields that are never taken out whole, unless it is known that they say nothing."""
_FIXABLE_RULES = frozenset(
    {"foreign-field", "sampling", "stop-sequences", "system-prompt", "system-instruction", "tool-choice",
     "thinking-mode", "thinking-budget", "thinking-company", "thinking-first", "binding-beta", "cache-count",
     "cache-shape", "cache-order", "cache-place", "tools", "tool-shape", "tool-names", "one-limit", "limits",
     "stream-options", "truncation", "limit", "thinking", "cached-content", "edit-thinking", "edit-trigger",
     "edit-order", "history", "compaction-exclusive", "context-management"}
)  # fmt: skip
"""Rules about options that are kept when what breaks them goes; all others stay as findings."""
_REPORT_ONLY_RULES = frozenset({"gemini.stop-sequences"})
"""Rules about options of which somebody must say what goes."""
_REPLACE_ONLY_RULES = frozenset({"tools", "tool-shape", "tool-names", "compaction-first", "compaction-single"})
"""Rules that no value is taken out for, unless it is known that it says nothing new."""
_MAX_SHOWN_BYTES = 80
"""Bytes up to which a new value is told."""
_MAX_TRIES, _MAX_VALIDATED_BYTES = 300, 100_000_000
"""Changes that are tried, and bytes that are judged for it, before the rest stays as it is."""

PathChanges: TypeAlias = Mapping[PathSteps, bytes | None]


class _CandidateFix(Struct):
    """What is done for one finding: new values at places, or nothing there."""

    finding: Finding
    changes: PathChanges
    description: str = ""

    @property
    def fix(self) -> RequestFix:
        """What is told of it: the new value where it is short, at the first place that changes."""
        if self.description:
            return build_request_fix(self.finding, self.description)
        new = {value for value in self.changes.values() if value is not None}
        value = b"".join(new)
        change_text = (
            f"it is {value.decode()} now" if len(new) == 1 and len(value) <= _MAX_SHOWN_BYTES else "written anew"
        )
        removal_text = "left out" if len(self.changes) == 1 else f"{len(self.changes)} left out"
        return build_request_fix(
            self.finding, change_text if new else removal_text, _format_path(next(iter(self.changes)))
        )


def _format_path(steps: PathSteps) -> str:
    """Return steps as a JSON path."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


class _FixTrials(Struct):
    """Where changes are tried, as long as there are tries left."""

    work: FixContext
    tries_left: int

    def select_fewest(self, body: bytes, changes: Sequence[_CandidateFix]) -> Sequence[_CandidateFix]:
        """Return as few of the changes as leave nothing that breaks their rule, where not all must be made."""
        rule = changes[0].finding.rule if changes else ""
        rank = get_path_ranking(rule.partition(".")[2])
        if rank is None:
            return changes
        tree = JsonTree(Raw(body))
        ranked_changes = sorted(changes, key=lambda change: rank(tree, next(iter(change.changes))))
        few, many = 1, len(ranked_changes)
        while few < many and self.tries_left > 0:
            self.tries_left -= 1
            half = (few + many) // 2
            new = replace_json_at_paths(
                tree.raw, {steps: value for change in ranked_changes[:half] for steps, value in change.changes.items()}
            )
            if any(error.rule == rule for error in self.work.list_errors(new)):
                few = half + 1
            else:
                many = half
        return [change for change in changes if change in ranked_changes[:many]]

    def apply_best(
        self, body: bytes, errors: list[Finding], changes: Sequence[_CandidateFix]
    ) -> tuple[bytes, list[_CandidateFix]]:
        """Return the body with as many of the changes as break fewer rules and lose no word, and those changes."""
        if not changes or self.tries_left <= 0:
            return body, []
        self.tries_left -= 1
        new = replace_json_at_paths(
            Raw(body), {steps: value for change in changes for steps, value in change.changes.items()}
        )
        spec = self.work.spec
        if len(self.work.list_errors(new)) < len(errors) and not has_lost_text(
            count_user_texts(body, spec), count_user_texts(new, spec)
        ):
            return new, [*changes]
        if len(changes) == 1:
            return body, []
        half = len(changes) // 2  # the later ones first, so that no place of the others moves
        body, late = self.apply_best(body, errors, changes[half:])
        early_errors = self.work.list_errors(body) if late else errors
        body, early = self.apply_best(body, early_errors, changes[:half])
        return body, [*early, *late]


class _RebuiltMessages(Struct):
    """Messages made anew from what they say, each once."""

    work: FixContext
    rebuilt: dict[PathSteps, bytes | None]

    def get_rebuilt(self, tree: JsonTree, steps: PathSteps) -> bytes | None:
        """Return the message at ``steps`` with its bytes left behind; nothing where that cannot be."""
        if steps not in self.rebuilt:
            raw = tree.get_raw(steps)
            self.rebuilt[steps] = None if raw is None else _rebuild_raw_message(raw, self.work)
        return self.rebuilt[steps]


def _rebuild_raw_message(raw: Raw, work: FixContext) -> bytes | None:
    """Return one message made anew from what it says."""
    try:
        message = work.spec.decode_message(raw)
    except FormatError:
        return None
    bare = tuple([part if isinstance(part, Opaque) else replace(part, raw=None) for part in message.parts])
    new = work.spec.encode_message(replace(message, parts=bare), None)
    return new[0] if len(new) == 1 else None


def fix_options_greedily(body: bytes, work: FixContext, errors: list[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with one change after the other that breaks fewer rules."""
    edits: list[RequestFix] = []
    bench = _FixTrials(work, min(_MAX_TRIES, max(8, _MAX_VALIDATED_BYTES // max(1, len(body)))))
    while errors and bench.tries_left > 0:
        for changes in _iter_candidates(body, work, errors):
            body, applied_changes = bench.apply_best(body, errors, bench.select_fewest(body, changes))
            if applied_changes:
                edits += [change.fix for change in applied_changes]
                errors = work.list_errors(body)
                break
        else:
            break
    return body, edits


def _iter_candidates(body: bytes, work: FixContext, errors: Sequence[Finding]) -> Iterator[list[_CandidateFix]]:
    """Yield, rule after rule, what may be done for all its findings, the smallest change first."""
    tree, anew = JsonTree(Raw(body)), _RebuiltMessages(work, {})
    by_rule: dict[str, list[tuple[PathSteps, Finding]]] = {}
    for finding in errors:
        by_rule.setdefault(finding.rule, []).append((tree.parse_path(finding.path), finding))
    for rule_findings in by_rule.values():
        rule_findings.sort(key=lambda pair: _get_path_sort_key(pair[0]))
        for way in zip_longest(*[_iter_fixes(tree, anew, finding, steps) for steps, finding in rule_findings]):
            yield [change for change in way if change is not None]


def _get_path_sort_key(steps: PathSteps) -> list[tuple[bool, int, str]]:
    """Return a key that sorts places as they follow each other in lists."""
    return [(False, step, "") if isinstance(step, int) else (True, 0, step) for step in steps]


def _iter_fixes(tree: JsonTree, anew: _RebuiltMessages, finding: Finding, steps: PathSteps) -> Iterator[_CandidateFix]:
    """Yield what may be done for one finding."""
    for places, description in _iter_changes(tree, anew, finding, steps):
        yield _CandidateFix(finding, places, description)


def _iter_changes(
    tree: JsonTree, anew: _RebuiltMessages, finding: Finding, steps: PathSteps
) -> Iterator[tuple[PathChanges, str]]:
    """Yield what may mend what is found at ``steps``: new values for places, or places to be emptied; and its words."""
    spec, name = anew.work.spec, finding.rule.partition(".")[2]
    inside = bool(steps) and steps[0] == spec.messages_field
    if not inside and (name not in _FIXABLE_RULES or finding.rule in _REPORT_ONLY_RULES):
        return
    better, description = find_replacement(name, tree, anew.work, steps)
    if better:
        yield better, description
    if name in _REPLACE_ONLY_RULES:
        return
    min_length = 1 if inside else 0
    ends = [end for end in range(len(steps), min_length, -1) if _can_remove(tree, steps[:end])]
    if ends and len(steps) > 2:  # the field itself, before all that stands around it
        yield {steps[: ends.pop(0)]: None}, ""
    if inside and len(steps) > 1 and (new := anew.get_rebuilt(tree, steps[:2])) is not None:
        yield {steps[:2]: new}, "the message is written anew"
    for end in ends:
        yield {steps[:end]: None}, ""


def _can_remove(tree: JsonTree, steps: PathSteps) -> bool:
    """Return whether what stands at ``steps`` may be taken out."""
    place = tree.get_raw(steps)
    return place is not None and (len(steps) > 1 or steps[0] not in _REQUIRED_FIELDS)
