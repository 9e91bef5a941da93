"""A model that does the task. It follows a plan; whatever it needs to know it takes from what the request shows.

What the request shows no more it reads back with ``fetch_result``, as a model does that knows what it has forgotten.
Where it cannot, or where something is not as it should be, it stops and says so.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from re import Match

from msgspec import Struct

from holdfast.testing.provider.blocks import Block
from holdfast.testing.provider.calls import Said
from holdfast.testing.provider.reading import Request

TOGETHER = 4
"""Routes in one item of the plan."""
TRIES = 3
"""How often something that was forgotten is looked for."""
REPORTING = "write and check REPORT.md"


class Lost(Exception):
    """Something that is needed is neither shown nor found."""


class Worker:
    """The model, as a provider's script.

    ``recalled`` counts what it had to read back; ``is_done`` once the report is written and found right.
    """

    def __init__(self) -> None:
        self.recalled = 0
        self.is_done = False
        self._shown = View("", "")
        self._work = self._working()

    def next(self, request: Request, blocks: Sequence[Block]) -> Said:
        """Return what the model says to a request that shows ``blocks``."""
        del request
        self._shown = view(blocks)
        return next(self._work)

    def _working(self) -> Generator[Said, None, None]:
        try:
            yield from self._started()
            while group := (yield from self._open_group()):
                for route in group:
                    yield from self._corrected(route)
                yield from self._ticked(group)
            yield from self._reported()
            yield Said("REPORT.md is written and checked: every route is as agreed with its port.")
        except Lost as lost:
            yield Said(f"I cannot go on: {lost}.")
        while True:
            yield Said("There is nothing left to do.")

    # -- parts of the work ---------------------------------------------------------------------------------------------

    def _started(self) -> Generator[Said, None, None]:
        yield _call("I begin with the handover.", "read", path="HANDOVER.md")
        routes = [found[1] for found in self._shown.every(r"^- (\w+): \w+ to ")]
        yield _call("Now the audit, which can be taken only once.", "bash", command="sh audit")
        groups = [", ".join(routes[at : at + TOGETHER]) for at in range(0, len(routes), TOGETHER)]
        yield _planned([*groups, REPORTING], done=0)

    def _corrected(self, route: str) -> Generator[Said, None, None]:
        """Correct one route: its log, its file, what was agreed, the change, the check."""
        yield _call("", "grep", pattern="ERROR", folder=f"logs/{route}.log")
        invoice = self._newest(rf"{route}\.log:\d+: .* invoice (INV\S+) of ", f"a wrong invoice of {route}")[1]
        yield _call(f"The first wrong invoice of {route} is {invoice}.", "read", path=f"fares/{route}.py")
        before = self._newest(r"^SURCHARGE = (\d+)\n(?:.*\n)DISCOUNT = (\d+)", f"the amounts of {route}")
        agreed = rf"{route}: agreed surcharge (\d+) cents, agreed discount (\d+) basis points"
        yield from self._known(agreed, f"{route}: agreed surcharge")
        after = self._shown.find(agreed)
        assert after is not None
        yield from self._changed(route, invoice, before, after)
        yield _call("", "bash", command=f"sh check {route}")
        self._newest(f"{route}: as agreed with the port", f"that {route} is right now")

    def _changed(self, route: str, invoice: str, before: Match[str], after: Match[str]) -> Generator[Said, None, None]:
        found = f"{route}: first wrong invoice {invoice}, surcharge {before[1]} -> {after[1]}"
        edits = [
            ("edit", {"path": f"fares/{route}.py", "old": f"{name} = {before[at]}", "new": f"{name} = {after[at]}"})
            for at, name in enumerate(("SURCHARGE", "DISCOUNT"), 1)
        ]
        yield Said(f"{found}, discount {before[2]} -> {after[2]}.", tuple(edits))

    def _reported(self) -> Generator[Said, None, None]:
        """Write the report from what the request shows, or shows again."""
        yield from self._known(_PLAN, "done] ")
        routes = [route for group in self._groups() for route in group]
        for route in routes:
            yield from self._known(_finding(route), f"{route}: first wrong invoice")
        yield from self._known(r"audit (AU-\S+?)[:\s]", "audit AU")
        yield from self._known(r"change order (CO-\d+)", "change order CO")
        yield from self._known(_LAST, "The last line of REPORT.md must be exactly")
        yield _call("", "write", path="REPORT.md", text=self._report(routes))
        yield _call("", "bash", command="sh check report")
        self._newest("the report is complete and right", "that the report is right")
        self.is_done = True

    def _report(self, routes: Sequence[str]) -> str:
        told = {route: self._shown.find(_finding(route)) for route in routes}
        lines = [f"- {route}: {found[1]}" for route, found in told.items() if found is not None]
        audit, order, last = map(self._shown.find, (r"audit (AU-\S+?)[:\s]", r"change order (CO-\d+)", _LAST))
        assert audit is not None and order is not None and last is not None  # noqa: PT018
        return "\n".join(["# Fares after release 41", "", f"Audit {audit[1]}, {order[0]}.", "", *lines, "", last[1]])

    # -- knowing -------------------------------------------------------------------------------------------------------

    def _known(self, pattern: str, words: str) -> Generator[Said, None, None]:
        """Do what it takes until the request shows ``pattern``: search the history for ``words``, and read on."""
        for _ in range(TRIES):
            if self._shown.find(pattern):
                return
            self.recalled += 1
            yield _call(f"I no longer see: {words}", "fetch_result", search=f'"{words}"')
            found = re.search(r'recall\(id="(\w+)"\) tool', self._shown.newest)
            if self._shown.find(pattern) is None and found is not None:
                yield _call("", "fetch_result", id=found[1])
        if self._shown.find(pattern) is None:
            raise Lost(f"nothing shows {words!r} any more")

    def _newest(self, pattern: str, what: str) -> Match[str]:
        """Return the first place of ``pattern`` in the newest results."""
        found = View(self._shown.newest, "").every(pattern)
        if not found:
            raise Lost(f"the last result does not tell {what}")
        return found[0]

    # -- the plan ------------------------------------------------------------------------------------------------------

    def _groups(self) -> dict[tuple[str, ...], bool]:
        """Return the groups of routes in the newest plan that is shown, and whether each is done."""
        plan = self._shown.find(_PLAN)
        items = re.findall(_ITEM, plan[0], re.MULTILINE) if plan is not None else []
        return {tuple(text.split(", ")): status == "done" for status, text in items if text != REPORTING}

    def _open_group(self) -> Generator[Said, None, tuple[str, ...]]:
        """Return the routes that come next; nothing when all are done."""
        yield from self._known(_PLAN, "done] ")
        return next((group for group, done in self._groups().items() if not done), ())

    def _ticked(self, done: tuple[str, ...]) -> Generator[Said, None, None]:
        """Write the plan down with one group more that is done."""
        yield from self._known(_PLAN, "done] ")
        groups = list(self._groups())
        yield _planned([*map(", ".join, groups), REPORTING], done=groups.index(done) + 1)


_ITEM = r"^- \[(open|active|done)\] (.+)$"
_PLAN = rf"(?:{_ITEM.replace('$', chr(10))})+- \[(?:open|active)\] {REPORTING}"
"""A whole plan, not a line of one: each of its items, to the last."""
_LAST = r"last line of REPORT\.md must be exactly:\s+(\S.*?\.)(?=\s|…|\"|$)"


def _finding(route: str) -> str:
    return rf"{route}: (first wrong invoice INV\S+, surcharge \d+ -> \d+)"


def _call(text: str, name: str, /, **arguments: object) -> Said:
    return Said(text, ((name, arguments),))


def _planned(items: Sequence[str], done: int) -> Said:
    """Return the call that writes the plan down: so many are done, the next one is being done."""
    states: list[Mapping[str, object]] = [
        {"text": text, "status": "done" if at < done else "active" if at == done else "open"}
        for at, text in enumerate(items)
    ]
    return _call("", "todo", items=states)


class View(Struct, frozen=True):
    """A request's words: all of them, and those that came since the model spoke last."""

    text: str
    newest: str

    def find(self, pattern: str) -> re.Match[str] | None:
        """Return the last place where ``pattern`` stands; nothing where the request does not show it."""
        return next(reversed(self.every(pattern)), None)

    def every(self, pattern: str) -> list[re.Match[str]]:
        """Return all places where ``pattern`` stands, in the order in which they are read."""
        return list(re.finditer(pattern, self.text, re.MULTILINE))


def view(blocks: Sequence[Block]) -> View:
    """Return what the messages of a request say."""
    said = [block for block in blocks if block.section == "messages"]
    spoken = next((at for at in range(len(said), 0, -1) if said[at - 1].role in ("assistant", "model")), 0)
    return View(_words(said), _words(said[spoken:]))


def _words(blocks: Sequence[Block]) -> str:
    """Return what blocks say, without the marks that a search puts around the words that it found."""
    return "\n".join([block.rendering.text for block in blocks]).replace("«", "").replace("»", "")
