"""Change options that break a rule, where there is one right way to do so, many places of a rule at a time.

For each rule there is a row of ways, the smallest change first: another value, the refused field removed, the message
encoded anew, the object around the field removed. A way is tried for all places of the rule at once; if that breaks
other rules or loses words, for one half of them, and so on. Trying and validating, rather than knowing for each rule
what its change affects, keeps this code independent of the rules it serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.parts import Opaque, Part
from holdfast.providers.common.json.json_path import (
    JsonTree,
    PathSteps,
    Replacements,
    format_json_path,
    replace_json_at_paths,
)
from holdfast.providers.dialects.registry import iter_requirements
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.fix.lost_text import count_user_texts, has_lost_text
from holdfast.providers.fix.replacements import find_replacement, get_path_ranking
from holdfast.providers.rules.rule import Finding

_REQUIRED_FIELDS = frozenset({"model", "messages", "contents", "input", "tools", "anthropic_version"})
"""Fields that are never removed whole, unless a replacement shows that they hold nothing."""
_FIXABLE_RULES = frozenset(
    {"deferred-cache", "deferred-all", "speed", "foreign-field", "sampling",
     "stop-sequences", "system-prompt", "system-instruction", "tool-choice",
     "thinking-mode", "thinking-budget", "thinking-company", "thinking-first", "binding-beta", "cache-count",
     "cache-shape", "cache-order", "cache-place", "tools", "tool-shape", "tool-names", "one-limit", "limits",
     "stream-options", "truncation", "limit", "thinking", "cached-content", "edit-thinking", "edit-trigger",
     "edit-order", "history", "compaction-exclusive", "context-management", "background"}
)  # fmt: skip
"""Rules of the APIs about fields outside of the messages that are satisfied here: by a replacement, or by leaving a
field out. Findings by all others are left as they are; other steps mend some of them (schemas of tools, options that
the model refuses), and the requirements of a provider suggest changes of their own (``provider_requirements``)."""
_REPORT_ONLY_RULES = frozenset({"gemini.stop-sequences"})
"""Rules that are only reported: which of too many stop sequences to remove is the user's decision."""
_REPLACE_ONLY_RULES = frozenset(
    {"deferred-all", "tools", "tool-shape", "tool-names", "compaction-first", "compaction-single"}
)
"""Rules for which nothing is removed except what a replacement shows to be redundant: tools and compactions matter."""
_MAX_SHOWN_BYTES = 80
"""Bytes up to which a new value is shown in the report; longer ones fill more than a line."""
# Each try validates the whole body. Both limits are chosen by judgement: together they bound the time to some seconds
# for a body with very many errors, after which the remaining ones are reported.
_MAX_TRIES = 300
"""Changes that are tried on one body."""
_MAX_VALIDATED_BYTES = 100_000_000
"""Bytes that are validated for one body, so that a large one gets fewer tries (but at least ``_MIN_TRIES``)."""
_MIN_TRIES = 8


class _CandidateFix(Struct):
    """A change that may satisfy the rule of one finding."""

    finding: Finding
    changes: Replacements
    description: str = ""
    """What to tell the user; derived from the changes if empty."""

    @property
    def fix(self) -> RequestFix:
        """The report of this change, with the new value if that is short."""
        if self.description:
            return build_request_fix(self.finding, self.description)
        first_path = format_json_path(next(iter(self.changes)))
        new_values = {value for value in self.changes.values() if value is not None}
        if not new_values:
            removal_count = len(self.changes)
            if removal_count == 1:
                description = "left out"
            else:
                description = f"{removal_count} left out"
        else:
            value = next(iter(new_values))
            is_short = len(new_values) == 1 and len(value) <= _MAX_SHOWN_BYTES
            if is_short:
                description = f"set to {value.decode()}"
            else:
                description = "rewritten"
        return build_request_fix(self.finding, description, first_path)


def _merge_changes(fixes: Sequence[_CandidateFix]) -> dict[PathSteps, bytes | None]:
    changes: dict[PathSteps, bytes | None] = {}
    for fix in fixes:
        changes.update(fix.changes)
    return changes


class _FixTrials(Struct):
    """Tries out changes on a body, within a limit of tries."""

    context: FixContext
    tries_left: int

    def select_fewest(self, body: bytes, fixes: Sequence[_CandidateFix]) -> Sequence[_CandidateFix]:
        """Select the smallest number of fixes that satisfies their rule, if the rule does not need all of them.

        An example is "at most 20 images over 2,000 pixels": a binary search over the ranked fixes finds how many images
        have to go.
        """
        rule = fixes[0].finding.rule if fixes else ""
        rank = get_path_ranking(_get_api_rule_name(rule, self.context))
        if rank is None:
            return fixes
        tree = JsonTree(Raw(body))
        ranked_fixes = sorted(fixes, key=lambda fix: rank(tree, next(iter(fix.changes))))
        low, high = 1, len(ranked_fixes)
        while low < high and self.tries_left > 0:
            self.tries_left -= 1
            middle = (low + high) // 2
            new_body = replace_json_at_paths(tree.raw, _merge_changes(ranked_fixes[:middle]))
            if any(error.rule == rule for error in self.context.list_errors(new_body)):
                low = middle + 1
            else:
                high = middle
        return [fix for fix in fixes if fix in ranked_fixes[:high]]

    def apply_best(
        self,
        body: bytes,
        errors: list[Finding],
        fixes: Sequence[_CandidateFix],
    ) -> tuple[bytes, list[_CandidateFix]]:
        """Apply as many fixes as leave fewer errors and lose no word; return the body and the fixes that were applied.

        If all of them together fail, each half is tried by itself.
        """
        if not fixes or self.tries_left <= 0:
            return body, []
        self.tries_left -= 1
        new_body = replace_json_at_paths(Raw(body), _merge_changes(fixes))
        if len(self.context.list_errors(new_body)) < len(errors):
            spec = self.context.spec
            if not has_lost_text(count_user_texts(body, spec), count_user_texts(new_body, spec)):
                return new_body, [*fixes]
        if len(fixes) == 1:
            return body, []
        # The later half first: removing a list element moves the ones after it, never those before.
        half = len(fixes) // 2
        body, late_fixes = self.apply_best(body, errors, fixes[half:])
        early_errors = self.context.list_errors(body) if late_fixes else errors
        body, early_fixes = self.apply_best(body, early_errors, fixes[:half])
        return body, [*early_fixes, *late_fixes]


class _RebuiltMessages(Struct):
    """Messages decoded and encoded anew, each at most once."""

    context: FixContext
    rebuilt: dict[PathSteps, bytes | None]

    def get_rebuilt(self, tree: JsonTree, steps: PathSteps) -> bytes | None:
        """Return the message at ``steps`` encoded anew without its original bytes, or None if that is not possible."""
        if steps not in self.rebuilt:
            raw = tree.get_raw(steps)
            self.rebuilt[steps] = None if raw is None else _rebuild_raw_message(raw, self.context)
        return self.rebuilt[steps]


def _rebuild_raw_message(raw: Raw, context: FixContext) -> bytes | None:
    try:
        message = context.spec.decode_message(raw)
    except FormatError:
        return None
    bare_parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, Opaque):
            # An opaque part is nothing but its bytes.
            bare_parts.append(part)
        else:
            bare_parts.append(replace(part, raw=None))
    elements = context.spec.encode_message(replace(message, parts=tuple(bare_parts)), None)
    if len(elements) != 1:
        return None  # several elements cannot take the place of one
    return elements[0]


def fix_options_greedily(body: bytes, context: FixContext, errors: list[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Apply one group of changes after the other, each of which leaves fewer errors, until none does."""
    fixes: list[RequestFix] = []
    max_tries_by_size = max(_MIN_TRIES, _MAX_VALIDATED_BYTES // max(1, len(body)))
    trials = _FixTrials(context, min(_MAX_TRIES, max_tries_by_size))
    while errors and trials.tries_left > 0:
        for candidates in _iter_candidates(body, context, errors):
            body, applied_fixes = trials.apply_best(body, errors, trials.select_fewest(body, candidates))
            if applied_fixes:
                fixes += [fix.fix for fix in applied_fixes]
                # Paths have moved, and errors may have gone with others: look for candidates anew.
                errors = context.list_errors(body)
                break
        else:
            break
    return body, fixes


class _LocatedFinding(NamedTuple):
    steps: PathSteps
    finding: Finding


def _iter_candidates(body: bytes, context: FixContext, errors: Sequence[Finding]) -> Iterator[list[_CandidateFix]]:
    """Yield, rule after rule, the fixes to try for all its findings at once, the smallest changes first."""
    tree = JsonTree(Raw(body))
    rebuilt_messages = _RebuiltMessages(context, {})
    findings_by_rule: dict[str, list[_LocatedFinding]] = {}
    for finding in errors:
        located_finding = _LocatedFinding(tree.parse_path(finding.path), finding)
        findings_by_rule.setdefault(finding.rule, []).append(located_finding)
    for located_findings in findings_by_rule.values():
        located_findings.sort(key=lambda located: _get_path_sort_key(located.steps))
        ways = [_iter_fixes(tree, rebuilt_messages, located) for located in located_findings]
        for fixes in zip_longest(*ways):
            yield [fix for fix in fixes if fix is not None]


def _get_path_sort_key(steps: PathSteps) -> list[tuple[bool, int, str]]:
    """Return a sort key that orders indexes as numbers; keys of objects come after them."""
    path_sort_key: list[tuple[bool, int, str]] = []
    for step in steps:
        if isinstance(step, int):
            path_sort_key.append((False, step, ""))
        else:
            path_sort_key.append((True, 0, step))
    return path_sort_key


def _iter_fixes(
    tree: JsonTree, rebuilt_messages: _RebuiltMessages, located: _LocatedFinding
) -> Iterator[_CandidateFix]:
    """Yield the ways to satisfy the rule of one finding, the smallest change first."""
    steps, finding = located
    context = rebuilt_messages.context
    rule_name = _get_api_rule_name(finding.rule, context)
    if not rule_name:
        return
    is_in_message = bool(steps) and steps[0] == context.spec.messages_field
    if not is_in_message and (rule_name not in _FIXABLE_RULES or finding.rule in _REPORT_ONLY_RULES):
        return
    replacements, description = find_replacement(rule_name, tree, context, steps)
    if replacements:
        yield _CandidateFix(finding, replacements, description)
    if rule_name in _REPLACE_ONLY_RULES:
        return
    # From the refused value outwards. The list of messages itself is never removed.
    min_length = 1 if is_in_message else 0
    removable_lengths = [length for length in range(len(steps), min_length, -1) if _can_remove(tree, steps[:length])]
    if removable_lengths and len(steps) > 2:
        # Removing the field itself comes before encoding its message anew, which may change more.
        yield _CandidateFix(finding, {steps[: removable_lengths.pop(0)]: None})
    if is_in_message and len(steps) > 1:
        new_message = rebuilt_messages.get_rebuilt(tree, steps[:2])
        if new_message is not None:
            yield _CandidateFix(finding, {steps[:2]: new_message}, "the message is rewritten")
    for length in removable_lengths:
        yield _CandidateFix(finding, {steps[:length]: None})


def _get_api_rule_name(rule: str, context: FixContext) -> str:
    """Return the rule of the API, without its name, whose fixes serve for ``rule``; empty if none does.

    A requirement of the provider may have the name of an API's rule and mean something else.
    """
    owner, _, name = rule.partition(".")
    if owner == context.spec.api:
        return name
    for requirement in iter_requirements(context.spec.api, context.model, owner):
        if requirement.rule == name and requirement.mended_like:
            return requirement.mended_like
    return ""


def _can_remove(tree: JsonTree, steps: PathSteps) -> bool:
    """Return whether there is a value at ``steps`` that a request can do without."""
    is_required = len(steps) == 1 and steps[0] in _REQUIRED_FIELDS
    return not is_required and tree.get_raw(steps) is not None
