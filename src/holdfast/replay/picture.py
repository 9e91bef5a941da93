"""The picture of one policy over a session: what each request is made of, the window, the cache, what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct
from rich.text import Text

from holdfast.replay.cache import read_share
from holdfast.replay.measure import Point
from holdfast.replay.report import thousands

ROWS = 28
"""Lines of the picture; a longer session is shown in groups of requests."""
BAR = 60
"""Cells of a bar where there is room."""
LEAST_BAR = 8
EVENTS = 13
"""Columns for what was decided: ``⟱ 48k→22k ✂2``."""
EMPTY = "bright_black"
_STRIP = " ▁▂▃▄▅▆▇█"
COMPACTED = frozenset({"compaction", "slide", "history"})
"""Events after which older messages are out of sight."""


class Kind(Struct, frozen=True):
    """One kind of content: its colour, and its letter where there are no colours."""

    name: str
    letter: str
    style: str


KINDS = (
    Kind("frame", "f", "bright_black"),
    Kind("summary", "S", "magenta"),
    Kind("user", "u", "bright_green"),
    Kind("assistant", "a", "blue"),
    Kind("thinking", "t", "cyan"),
    Kind("results", "R", "yellow"),
    Kind("stubs", "r", "bright_red"),
    Kind("media", "m", "bright_magenta"),
)
_SAME = {"system": "frame", "tool": "results"}
"""Kinds that measuring tells apart and a picture does not."""


class Group(Struct, frozen=True):
    """Neighbouring requests on one line; ``first`` counts requests from 0."""

    first: int
    points: tuple[Point, ...]
    before: int = 0
    """Tokens of the request before the group, if there is one."""

    @property
    def largest(self) -> Point:
        """The largest request, the last of equals: the one whose bar is drawn."""
        return max(reversed(self.points), key=lambda point: point.tokens)

    @property
    def label(self) -> str:
        """The numbers of its requests."""
        last = self.first + len(self.points) - 1
        return f"#{self.first}" if last == self.first else f"#{self.first}-{last}"


def groups(points: Sequence[Point], rows: int = ROWS) -> list[Group]:
    """Return ``points`` in at most ``rows`` groups, oldest first.

    A compaction has a line of its own where they are few enough for that, so that its drop is seen.
    """
    if not points:
        return []
    drops = [at for at, point in enumerate(points) if point.event in COMPACTED]
    edges = sorted({0, *drops, *(at + 1 for at in drops)} - {len(points)})
    if len(edges) > rows:
        edges = [0]
    starts = _spread(edges, len(points), rows)
    stops = [*starts[1:], len(points)]
    pairs = zip(starts, stops, strict=True)
    return [Group(a, tuple(points[a:b]), points[a - 1].tokens if a else 0) for a, b in pairs if b > a]


def _spread(edges: list[int], count: int, rows: int) -> list[int]:
    """Return ``edges`` with more starts put in, the longest groups split first, until there are ``rows``."""
    pieces = dict.fromkeys(edges, 1)
    lengths = dict(zip(edges, (b - a for a, b in zip(edges, [*edges[1:], count], strict=True)), strict=True))
    for _ in range(rows - len(edges)):
        widest = max(edges, key=lambda at: lengths[at] / pieces[at], default=None)
        if widest is None or lengths[widest] <= pieces[widest]:
            break
        pieces[widest] += 1
    return [at + lengths[at] * piece // pieces[at] for at in edges for piece in range(pieces[at])]


def picture(
    name: str,
    points: Sequence[Point],
    window: int,
    usable: int,
    width: int = 100,
    *,
    letters: bool = False,
    rows: int = ROWS,
    legend: bool = True,
) -> Text:
    """Return the picture of policy ``name``, at most ``width`` columns wide, in ``rows`` lines and some around them.

    Bars are as long as the window or the largest request, whichever is more, with a mark at ``usable`` tokens.
    ``letters`` stand for colours where there are none; ``legend`` tells what all of it means.
    """
    if not points:
        return Text(f"{name}: no request")
    shown = groups(points, rows)
    scale = max(window, *(point.tokens for point in points))
    label = max(len(group.label) for group in shown)
    cells = max(LEAST_BAR, min(BAR, width - label - 25 - EVENTS))
    draw = _Draw(usable, scale, cells, label, width, letters)
    lines = [draw.head(name), *(draw.line(group) for group in shown), *([draw.legend()] if legend else [])]
    return Text("\n").join(lines)


class _Draw(Struct, frozen=True):
    """The measures that all lines of one picture share."""

    usable: int
    scale: int
    cells: int
    label: int
    width: int
    letters: bool

    def head(self, name: str) -> Text:
        whole = f"{name}, request by request"
        title = whole if len(whole) <= self.cells else name[: self.cells]
        left = f"{'':{self.label}} {title:{self.cells}}"
        return Text(f"{left} {'tokens':>6} {'%':>4} {'cache':>5} {'$':>5}", style="dim")

    def line(self, group: Group) -> Text:
        point = group.largest
        over = point.tokens > self.usable
        line = Text(f"{group.label:>{self.label}} ", style="")
        line.append_text(self.bar(point))
        line.append(f" {thousands(point.tokens):>6}", style="red" if over else "")
        line.append(f" {_percent(point.tokens, self.usable):>4}", style="red" if over else "dim")
        share = read_share(one.hit for one in group.points) or 0.0
        strip = _STRIP[round(share * (len(_STRIP) - 1))]
        line.append(f" {strip}", style="green" if share >= 0.5 else "yellow")
        line.append(f"{round(100 * share):>3}%", style="dim")
        line.append(f" {_dollars(sum(one.usd for one in group.points)):>5}")
        line.append_text(self.events(group))
        line.rstrip()
        return line

    def bar(self, point: Point) -> Text:
        """Return the bar of one request: cells by kind, then emptiness, the mark over both."""
        owners: list[Kind | None] = [*self._owners(point)]
        owners += [None] * (self.cells - len(owners))
        mark = min(self.cells - 1, self.usable * self.cells // self.scale)
        bar = self._cells(owners[:mark])
        under = owners[mark]
        bar.append("│", style="white" if under is None or self.letters else f"white on {under.style}")
        return bar.append_text(self._cells(owners[mark + 1 :]))

    def _cells(self, owners: Sequence[Kind | None]) -> Text:
        out = Text()
        for owner, run in groupby(owners):
            cell = "·" if owner is None else owner.letter if self.letters else "█"
            out.append(cell * len(list(run)), style=EMPTY if owner is None else owner.style)
        return out

    def _owners(self, point: Point) -> list[Kind]:
        """Return the kind of each full cell; ends are rounded, so that the lengths add up."""
        sizes: dict[str, int] = {}
        for kind, tokens in point.kinds.items():
            own = _SAME.get(kind, kind)
            sizes[own] = sizes.get(own, 0) + tokens
        owners: list[Kind] = []
        total = 0
        for one in KINDS:
            total += sizes.get(one.name, 0)
            owners += [one] * (round(total * self.cells / self.scale) - len(owners))
        return owners[: self.cells]

    def events(self, group: Group) -> Text:
        """Return the marks of a group: compactions with the sizes around them, other decisions, requests too big."""
        drops = [at for at, point in enumerate(group.points) if point.event in COMPACTED]
        cuts = sum(point.event in {"prune", "spill"} for point in group.points)
        over = sum(point.tokens > self.usable for point in group.points)
        out = Text()
        if len(drops) == 1:
            at = drops[0]
            before = group.points[at - 1].tokens if at else group.before
            out.append(f" ⟱ {_short(before)}→{_short(group.points[at].tokens)}", style="magenta")
        elif drops:
            out.append(f" ⟱×{len(drops)}", style="magenta")
        if cuts:
            out.append(f" ✂{cuts if cuts > 1 else ''}", style="yellow")
        if over:
            out.append(f" ✗{over if over > 1 else ''}", style="red")
        return out

    def legend(self) -> Text:
        """Return what colours and marks mean, in as many lines as that takes."""
        pieces = [
            Text.assemble((kind.letter if self.letters else "█", kind.style), (f" {kind.name}", "dim"))
            for kind in KINDS
        ]
        marks = ("│ usable " + thousands(self.usable), "% of it", "⟱ older messages give way", "✂ spill or prune")
        pieces += [Text(mark, style="dim") for mark in (*marks, "✗ over usable", "a line draws its largest request")]
        lines = [Text()]
        for piece in pieces:
            if lines[-1] and len(lines[-1]) + 2 + len(piece) > self.width - self.label - 1:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append_text(piece)
        return Text("\n").join([Text(" " * (self.label + 1)).append_text(line) for line in lines])


def _percent(part: int, whole: int) -> str:
    return f"{round(100 * part / whole)}%" if whole else ""


def _short(tokens: int) -> str:
    return f"{tokens / 1_000:.0f}k" if tokens >= 1_000 else str(tokens)


def _dollars(usd: float) -> str:
    if not usd:
        return "-"
    if usd < 0.995:
        return f"{usd:.2f}"[1:]
    return f"{usd:.2f}" if usd < 100 else f"{usd:.0f}"
