"""A model that does the task. It follows a plan; whatever it needs to know it takes from what the request shows.

What the request shows no more it reads back with ``fetch_result``, as a model does that knows what it has forgotten.
Where it cannot, or where something is not as it should be, it stops and says so.
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
RECALL_TRIES = 3
"""How often something that was forgotten is looked for."""
REPORT_ITEM = "write and check REPORT.md"


class FactLost(Exception):
    """Something that is needed is neither shown nor found."""


class ScriptedTaskModel:
    """The model, as a provider's script.

    ``recalls`` counts what it had to read back; ``is_done`` once the report is written and found right.
    """

    def __init__(self) -> None:
        self.recalls = 0
        self.is_done = False
        self._shown = ShownText("", "")
        self._work = self._work_through_task()

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return what the model says to a request that shows ``blocks``."""
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
        while True:
            yield ScriptedAnswer("There is nothing left to do.")

    # -- parts of the work ---------------------------------------------------------------------------------------------

    def _start_task(self) -> Generator[ScriptedAnswer, None, None]:
        yield _make_call("I begin with the handover.", "read", path="HANDOVER.md")
        routes = [match[1] for match in self._shown.find_all(r"^- (\w+): \w+ to ")]
        yield _make_call("Now the audit, which can be taken only once.", "bash", command="sh audit")
        groups = [", ".join(routes[at : at + ROUTES_PER_ITEM]) for at in range(0, len(routes), ROUTES_PER_ITEM)]
        yield _make_plan_call([*groups, REPORT_ITEM], done_count=0)

    def _correct_route(self, route: str) -> Generator[ScriptedAnswer, None, None]:
        """Correct one route: its log, its file, what was agreed, the change, the check."""
        yield _make_call("", "grep", pattern="ERROR", folder=f"logs/{route}.log")
        invoice = self._find_in_newest(rf"{route}\.log:\d+: .* invoice (INV\S+) of ", f"a wrong invoice of {route}")[1]
        yield _make_call(f"The first wrong invoice of {route} is {invoice}.", "read", path=f"fares/{route}.py")
        before = self._find_in_newest(r"^SURCHARGE = (\d+)\n(?:.*\n)DISCOUNT = (\d+)", f"the amounts of {route}")
        pattern = rf"{route}: agreed surcharge (\d+) cents, agreed discount (\d+) basis points"
        yield from self._recall_until_shown(pattern, f"{route}: agreed surcharge")
        after = self._shown.find_last(pattern)
        assert after is not None
        yield from self._edit_route(route, invoice, before, after)
        yield _make_call("", "bash", command=f"sh check {route}")
        self._find_in_newest(f"{route}: as agreed with the port", f"that {route} is right now")

    def _edit_route(
        self, route: str, invoice: str, old_amounts: Match[str], agreed_amounts: Match[str]
    ) -> Generator[ScriptedAnswer, None, None]:
        summary = f"{route}: first wrong invoice {invoice}, surcharge {old_amounts[1]} -> {agreed_amounts[1]}"
        edits = [
            (
                "edit",
                {
                    "path": f"fares/{route}.py",
                    "old": f"{name} = {old_amounts[at]}",
                    "new": f"{name} = {agreed_amounts[at]}",
                },
            )
            for at, name in enumerate(("SURCHARGE", "DISCOUNT"), 1)
        ]
        yield ScriptedAnswer(f"{summary}, discount {old_amounts[2]} -> {agreed_amounts[2]}.", tuple(edits))

    def _write_report(self) -> Generator[ScriptedAnswer, None, None]:
        """Write the report from what the request shows, or shows again."""
        yield from self._recall_until_shown(_WHOLE_PLAN, "done] ")
        routes = [route for group in self._get_plan_groups() for route in group]
        for route in routes:
            yield from self._recall_until_shown(_make_finding_pattern(route), f"{route}: first wrong invoice")
        yield from self._recall_until_shown(r"audit (AU-\S+?)[:\s]", "audit AU")
        yield from self._recall_until_shown(r"change order (CO-\d+)", "change order CO")
        yield from self._recall_until_shown(_LAST_LINE, "The last line of REPORT.md must be exactly")
        yield _make_call("", "write", path="REPORT.md", text=self._make_report(routes))
        yield _make_call("", "bash", command="sh check report")
        self._find_in_newest("the report is complete and right", "that the report is right")
        self.is_done = True

    def _make_report(self, routes: Sequence[str]) -> str:
        findings = {route: self._shown.find_last(_make_finding_pattern(route)) for route in routes}
        lines = [f"- {route}: {match[1]}" for route, match in findings.items() if match is not None]
        audit, order, last = map(self._shown.find_last, (r"audit (AU-\S+?)[:\s]", r"change order (CO-\d+)", _LAST_LINE))
        assert audit is not None and order is not None and last is not None  # noqa: PT018
        return "\n".join(["# Fares after release 41", "", f"Audit {audit[1]}, {order[0]}.", "", *lines, "", last[1]])

    # -- knowing -------------------------------------------------------------------------------------------------------

    def _recall_until_shown(self, pattern: str, words: str) -> Generator[ScriptedAnswer, None, None]:
        """Do what it takes until the request shows ``pattern``: search the history for ``words``, and read on."""
        for _ in range(RECALL_TRIES):
            if self._shown.find_last(pattern):
                return
            self.recalls += 1
            yield _make_call(f"I no longer see: {words}", "fetch_result", search=f'"{words}"')
            match = re.search(r'recall\(id="(\w+)"\) tool', self._shown.newest)
            if self._shown.find_last(pattern) is None and match is not None:
                yield _make_call("", "fetch_result", id=match[1])
        if self._shown.find_last(pattern) is None:
            raise FactLost(f"nothing shows {words!r} any more")

    def _find_in_newest(self, pattern: str, description: str) -> Match[str]:
        """Return the first place of ``pattern`` in the newest results."""
        matches = ShownText(self._shown.newest, "").find_all(pattern)
        if not matches:
            raise FactLost(f"the last result does not tell {description}")
        return matches[0]

    # -- the plan ------------------------------------------------------------------------------------------------------

    def _get_plan_groups(self) -> dict[tuple[str, ...], bool]:
        """Return the groups of routes in the newest plan that is shown, and whether each is done."""
        plan = self._shown.find_last(_WHOLE_PLAN)
        items = re.findall(_PLAN_ITEM, plan[0], re.MULTILINE) if plan is not None else []
        return {tuple(text.split(", ")): status == "done" for status, text in items if text != REPORT_ITEM}

    def _find_open_group(self) -> Generator[ScriptedAnswer, None, tuple[str, ...]]:
        """Return the routes that come next; nothing when all are done."""
        yield from self._recall_until_shown(_WHOLE_PLAN, "done] ")
        return next((group for group, is_done in self._get_plan_groups().items() if not is_done), ())

    def _tick_group(self, group: tuple[str, ...]) -> Generator[ScriptedAnswer, None, None]:
        """Write the plan down with one group more that is done."""
        yield from self._recall_until_shown(_WHOLE_PLAN, "done] ")
        groups = list(self._get_plan_groups())
        yield _make_plan_call([*map(", ".join, groups), REPORT_ITEM], done_count=groups.index(group) + 1)


_PLAN_ITEM = r"^- \[(open|active|done)\] (.+)$"
_WHOLE_PLAN = rf"(?:{_PLAN_ITEM.replace('$', chr(10))})+- \[(?:open|active)\] {REPORT_ITEM}"
"""A whole plan, not a line of one: each of its items, to the last."""
_LAST_LINE = r"last line of REPORT\.md must be exactly:\s+(\S.*?\.)(?=\s|…|\"|$)"


def _make_finding_pattern(route: str) -> str:
    return rf"{route}: (first wrong invoice INV\S+, surcharge \d+ -> \d+)"


def _make_call(text: str, name: str, /, **arguments: object) -> ScriptedAnswer:
    return ScriptedAnswer(text, ((name, arguments),))


def _make_plan_call(items: Sequence[str], done_count: int) -> ScriptedAnswer:
    """Return the call that writes the plan down: so many are done, the next one is being done."""
    states: list[Mapping[str, object]] = [
        {"text": text, "status": "done" if at < done_count else "active" if at == done_count else "open"}
        for at, text in enumerate(items)
    ]
    return _make_call("", "todo", items=states)


class ShownText(Struct, frozen=True):
    """A request's words: all of them, and those that came since the model spoke last."""

    text: str
    newest: str

    def find_last(self, pattern: str) -> re.Match[str] | None:
        """Return the last place where ``pattern`` stands; nothing where the request does not show it."""
        return next(reversed(self.find_all(pattern)), None)

    def find_all(self, pattern: str) -> list[re.Match[str]]:
        """Return all places where ``pattern`` stands, in the order in which they are read."""
        return list(re.finditer(pattern, self.text, re.MULTILINE))


def collect_shown_text(blocks: Sequence[PromptBlock]) -> ShownText:
    """Return what the messages of a request say."""
    message_blocks = [block for block in blocks if block.section == "messages"]
    newest_start = next(
        (at for at in range(len(message_blocks), 0, -1) if message_blocks[at - 1].role in ("assistant", "model")), 0
    )
    return ShownText(_join_block_text(message_blocks), _join_block_text(message_blocks[newest_start:]))


def _join_block_text(blocks: Sequence[PromptBlock]) -> str:
    """Return what blocks say, without the marks that a search puts around the words that it found."""
    return "\n".join([block.rendering.text for block in blocks]).replace("«", "").replace("»", "")
