"""A scripted model that does the task. It follows a plan, and takes every fact from the request in front of it.

Facts that the request no longer shows it reads back with ``fetch_result``, as a model does that knows what it has
forgotten. If that fails, or if something is not as it should be, it stops and says so.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from re import Match

from msgspec import Struct

from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock

ROUTES_PER_ITEM = 4
"""Routes in one item of the plan."""
# Chosen by judgement: one search and one read are enough; more tries only delay the failure of a test.
RECALL_TRIES = 3
"""Number of attempts to read back a forgotten fact."""
RECALL_ROUNDS = 5
"""Number of times it goes through all facts of the report until one request shows them all."""
REPORT_ITEM = "write and check REPORT.md"


class FactLost(Exception):
    """A fact that is needed is neither shown by the request nor found in the history."""


class ScriptedTaskModel:
    """The model, as an ``AnswerSource`` of a provider."""

    def __init__(self) -> None:
        self.recalls = 0
        """Number of times it had to read something back."""
        self.is_done = False
        """Whether the report is written and was found to be right."""
        self._shown = ShownText("", "")
        self._work = self._work_through_task()

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the model's answer to a request that shows ``blocks``."""
        del request
        self._shown = collect_shown_text(blocks)
        return next(self._work)

    def _work_through_task(self) -> Generator[ScriptedAnswer, None, None]:
        try:
            yield from self._start_task()
            while group := (yield from self._find_open_group()):
                for route in group:
                    yield from self._correct_route(route)
                yield from self._tick_group(group)
            yield from self._write_report()
            yield ScriptedAnswer("REPORT.md is written and checked: every route is as agreed with its port.")
        except FactLost as lost:
            yield ScriptedAnswer(f"I cannot go on: {lost}.")
        # The agent may ask again after the end, for instance because a test sends one more message.
        while True:
            yield ScriptedAnswer("There is nothing left to do.")

    # -- parts of the work ---------------------------------------------------------------------------------------------

    def _start_task(self) -> Generator[ScriptedAnswer, None, None]:
        yield _make_call("I begin with the handover.", "read", path="HANDOVER.md")
        routes = [match[1] for match in self._shown.find_all(r"^- (\w+): \w+ to ")]
        yield _make_call("Now the audit, which can be taken only once.", "bash", command="sh audit")
        groups = []
        for start in range(0, len(routes), ROUTES_PER_ITEM):
            groups.append(", ".join(routes[start : start + ROUTES_PER_ITEM]))
        yield _make_plan_call([*groups, REPORT_ITEM], done_count=0)

    def _correct_route(self, route: str) -> Generator[ScriptedAnswer, None, None]:
        """Correct one route: read its log and its file, find the agreement, edit, check."""
        yield _make_call("", "grep", pattern="ERROR", folder=f"logs/{route}.log")
        invoice = self._find_in_newest(rf"{route}\.log:\d+: .* invoice (INV\S+) of ", f"a wrong invoice of {route}")[1]
        yield _make_call(f"The first wrong invoice of {route} is {invoice}.", "read", path=f"fares/{route}.py")
        old_amounts = self._find_in_newest(r"^SURCHARGE = (\d+)\n(?:.*\n)DISCOUNT = (\d+)", f"the amounts of {route}")
        pattern = rf"{route}: agreed surcharge (\d+) cents, agreed discount (\d+) basis points"
        yield from self._recall_until_shown(pattern, f"{route}: agreed surcharge")
        agreed_amounts = self._shown.find_last(pattern)
        assert agreed_amounts is not None
        yield from self._edit_route(route, invoice, old_amounts, agreed_amounts)
        yield _make_call("", "bash", command=f"sh check {route}")
        self._find_in_newest(f"{route}: as agreed with the port", f"that {route} is right now")

    def _edit_route(
        self,
        route: str,
        invoice: str,
        old_amounts: Match[str],
        agreed_amounts: Match[str],
    ) -> Generator[ScriptedAnswer, None, None]:
        summary = f"{route}: first wrong invoice {invoice}, surcharge {old_amounts[1]} -> {agreed_amounts[1]}"
        edits = []
        for group, name in enumerate(("SURCHARGE", "DISCOUNT"), 1):
            old = f"{name} = {old_amounts[group]}"
            new = f"{name} = {agreed_amounts[group]}"
            edits.append(("edit", {"path": f"fares/{route}.py", "old": old, "new": new}))
        yield ScriptedAnswer(f"{summary}, discount {old_amounts[2]} -> {agreed_amounts[2]}.", tuple(edits))

    def _write_report(self) -> Generator[ScriptedAnswer, None, None]:
        """Write the report from facts in the request, after reading back those that it no longer shows."""
        yield from self._recall_until_shown(_WHOLE_PLAN, "done] ")
        routes = [route for group in self._get_plan_groups() for route in group]
        facts = {_make_finding_pattern(route): f"{route}: first wrong invoice" for route in routes}
        facts[_AUDIT] = "audit AU"
        facts[_CHANGE_ORDER] = "change order CO"
        facts[_LAST_LINE] = "The last line of REPORT.md must be exactly"
        yield from self._recall_all_until_shown(facts)
        yield _make_call("", "write", path="REPORT.md", text=self._make_report(routes))
        yield _make_call("", "bash", command="sh check report")
        self._find_in_newest("the report is complete and right", "that the report is right")
        self.is_done = True

    def _make_report(self, routes: Sequence[str]) -> str:
        lines = []
        for route in routes:
            finding = self._shown.find_last(_make_finding_pattern(route))
            if finding is not None:
                lines.append(f"- {route}: {finding[1]}")
        audit = self._shown.find_last(_AUDIT)
        order = self._shown.find_last(_CHANGE_ORDER)
        last_line = self._shown.find_last(_LAST_LINE)
        assert audit is not None
        assert order is not None
        assert last_line is not None
        head = ["# Fares after release 41", "", f"Audit {audit[1]}, {order[0]}.", ""]
        return "\n".join([*head, *lines, "", last_line[1]])

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _recall_all_until_shown(self, facts: Mapping[str, str]) -> Generator[ScriptedAnswer, None, None]:
        """Read back until one request shows all patterns in ``facts``, each given with the words to search for.

        What is read back takes room, so a compaction may hide what was shown before. Raises ``FactLost`` if that goes
        on for ``RECALL_ROUNDS`` rounds.
        """
        for _ in range(RECALL_ROUNDS):
            for pattern, words in facts.items():
                yield from self._recall_until_shown(pattern, words)
            if all(self._shown.find_last(pattern) for pattern in facts):
                return
        raise FactLost(f"no request shows all {len(facts)} facts of the report together")

    def _recall_until_shown(self, pattern: str, words: str) -> Generator[ScriptedAnswer, None, None]:
        """Search the history for ``words``, and read the hits, until the request shows ``pattern``.

        Raises ``FactLost`` after ``RECALL_TRIES`` attempts.
        """
        for _ in range(RECALL_TRIES):
            if self._shown.find_last(pattern):
                return
            self.recalls += 1
            # A search shows the lines around each hit. If the fact is not among them, its result is read in full.
            yield _make_call(f"I no longer see: {words}", "fetch_result", search=f'"{words}"')
            match = re.search(r'recall\(id="(\w+)"\) tool', self._shown.newest)
            if self._shown.find_last(pattern) is None and match is not None:
                yield _make_call("", "fetch_result", id=match[1])
        if self._shown.find_last(pattern) is None:
            raise FactLost(f"nothing shows {words!r} any more")

    def _find_in_newest(self, pattern: str, description: str) -> Match[str]:
        """Return the first match of ``pattern`` in the newest results, or raise ``FactLost``."""
        matches = ShownText(self._shown.newest, "").find_all(pattern)
        if not matches:
            raise FactLost(f"the last result does not tell {description}")
        return matches[0]

    # -- the plan ------------------------------------------------------------------------------------------------------

    def _get_plan_groups(self) -> dict[tuple[str, ...], bool]:
        """Return the groups of routes in the newest plan that the request shows, and whether each is done."""
        plan = self._shown.find_last(_WHOLE_PLAN)
        if plan is None:
            return {}
        groups = {}
        for status, text in re.findall(_PLAN_ITEM, plan[0], re.MULTILINE):
            if text != REPORT_ITEM:
                groups[tuple(text.split(", "))] = status == "done"
        return groups

    def _find_open_group(self) -> Generator[ScriptedAnswer, None, tuple[str, ...]]:
        """Return the next group of routes, or an empty tuple when all are done."""
        yield from self._recall_until_shown(_WHOLE_PLAN, "done] ")
        for group, is_done in self._get_plan_groups().items():
            if not is_done:
                return group
        return ()

    def _tick_group(self, group: tuple[str, ...]) -> Generator[ScriptedAnswer, None, None]:
        """Write the plan down again, with one more group done."""
        yield from self._recall_until_shown(_WHOLE_PLAN, "done] ")
        groups = list(self._get_plan_groups())
        yield _make_plan_call([*map(", ".join, groups), REPORT_ITEM], done_count=groups.index(group) + 1)


_PLAN_ITEM = r"^- \[(open|active|done)\] (.+)$"
_WHOLE_PLAN = rf"(?:{_PLAN_ITEM.replace('$', chr(10))})+- \[(?:open|active)\] {REPORT_ITEM}"
"""A complete plan with all of its items, since a search may show single lines of older plans."""
_AUDIT = r"audit (AU-\S+?)[:\s]"
_CHANGE_ORDER = r"change order (CO-\d+)"
_LAST_LINE = r"last line of REPORT\.md must be exactly:\s+(\S.*?\.)(?=\s|…|\"|$)"


def _make_finding_pattern(route: str) -> str:
    return rf"{route}: (first wrong invoice INV\S+, surcharge \d+ -> \d+)"


def _make_call(text: str, name: str, /, **arguments: object) -> ScriptedAnswer:
    return ScriptedAnswer(text, ((name, arguments),))


def _make_plan_call(items: Sequence[str], done_count: int) -> ScriptedAnswer:
    """Return the call that writes the plan down: ``done_count`` items are done, and the next one is active."""
    plan: list[Mapping[str, object]] = []
    for index, text in enumerate(items):
        if index < done_count:
            status = "done"
        elif index == done_count:
            status = "active"
        else:
            status = "open"
        plan.append({"text": text, "status": status})
    return _make_call("", "todo", items=plan)


class ShownText(Struct, frozen=True):
    """The text of a request's messages."""

    text: str
    """All of it."""
    newest: str
    """The part after the model's last answer: the results of its calls."""

    def find_last(self, pattern: str) -> re.Match[str] | None:
        """Return the last match of ``pattern`` in the whole text, or None."""
        return next(reversed(self.find_all(pattern)), None)

    def find_all(self, pattern: str) -> list[re.Match[str]]:
        """Return all matches of ``pattern`` in the whole text, in order."""
        return list(re.finditer(pattern, self.text, re.MULTILINE))


def collect_shown_text(blocks: Sequence[PromptBlock]) -> ShownText:
    """Collect the text of the messages of a request."""
    message_blocks = [block for block in blocks if block.section == "messages"]
    newest_start = 0
    for index, block in enumerate(message_blocks):
        if block.role in ("assistant", "model"):
            newest_start = index + 1
    return ShownText(_join_block_text(message_blocks), _join_block_text(message_blocks[newest_start:]))


def _join_block_text(blocks: Sequence[PromptBlock]) -> str:
    """Join the text of blocks, without the marks («») that a search puts around its hits."""
    return "\n".join([block.rendering.text for block in blocks]).replace("«", "").replace("»", "")
