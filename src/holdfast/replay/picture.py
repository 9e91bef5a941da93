"""The picture of one policy over a session: what each request is made of, the window, the cache, what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct
from rich.text import Text

from holdfast.replay.cache import compute_read_share
from holdfast.replay.measure import RequestPoint
from holdfast.replay.report import format_tokens_short

MAX_PICTURE_ROWS = 28
"""Lines of the picture; a longer session is shown in groups of requests."""
MAX_BAR_CELLS = 60
"""Cells of a bar where there is room."""
MIN_BAR_CELLS = 8
EVENT_COLUMNS = 13
"""Columns for what was decided: ``⟱ 48k→22k ✂2``."""
EMPTY_STYLE = "bright_black"
_CACHE_LEVELS = " ▁▂▃▄▅▆▇█"
COMPACTION_EVENTS = frozenset({"compaction", "slide", "history"})
"""Events after which older messages are out of sight."""


class ContentKind(Struct, frozen=True):
    """One kind of content: its colour, and its letter where there are no colours."""

    name: str
    letter: str
    style: str


CONTENT_KINDS = (
    ContentKind("frame", "f", "bright_black"),
    ContentKind("summary", "S", "magenta"),
    ContentKind("user", "u", "bright_green"),
    ContentKind("assistant", "a", "blue"),
    ContentKind("thinking", "t", "cyan"),
    ContentKind("results", "R", "yellow"),
    ContentKind("stubs", "r", "bright_red"),
    ContentKind("media", "m", "bright_magenta"),
)
_MERGED_KINDS = {"system": "frame", "tool": "results"}
"""Kinds that measuring tells apart and a picture does not."""


class RequestGroup(Struct, frozen=True):
    """Neighbouring requests on one line; ``first`` counts requests from 0."""

    first: int
    points: tuple[RequestPoint, ...]
    before: int = 0
    """Tokens of the request before the group, if there is one."""

    @property
    def largest(self) -> RequestPoint:
        """The largest request, the last of equals: the one whose bar is drawn."""
        return max(reversed(self.points), key=lambda point: point.tokens)

    @property
    def label(self) -> str:
        """The numbers of its requests."""
        last = self.first + len(self.points) - 1
        return f"#{self.first}" if last == self.first else f"#{self.first}-{last}"


def group_requests(points: Sequence[RequestPoint], rows: int = MAX_PICTURE_ROWS) -> list[RequestGroup]:
    """Return ``points`` in at most ``rows`` groups, oldest first.

    A compaction has a line of its own where they are few enough for that, so that its drop is seen.
    """
    if not points:
        return []
    drops = [at for at, point in enumerate(points) if point.event in COMPACTION_EVENTS]
    edges = sorted({0, *drops, *(at + 1 for at in drops)} - {len(points)})
    if len(edges) > rows:
        edges = [0]
    starts = _split_groups(edges, len(points), rows)
    stops = [*starts[1:], len(points)]
    pairs = zip(starts, stops, strict=True)
    return [RequestGroup(a, tuple(points[a:b]), points[a - 1].tokens if a else 0) for a, b in pairs if b > a]


def _split_groups(edges: list[int], count: int, rows: int) -> list[int]:
    """Return ``edges`` with more starts put in, the longest groups split first, until there are ``rows``."""
    pieces = dict.fromkeys(edges, 1)
    lengths = dict(zip(edges, (b - a for a, b in zip(edges, [*edges[1:], count], strict=True)), strict=True))
    for _ in range(rows - len(edges)):
        widest = max(edges, key=lambda at: lengths[at] / pieces[at], default=None)
        if widest is None or lengths[widest] <= pieces[widest]:
            break
        pieces[widest] += 1
    return [at + lengths[at] * piece // pieces[at] for at in edges for piece in range(pieces[at])]


def draw_policy_picture(
    name: str,
    points: Sequence[RequestPoint],
    window: int,
    usable: int,
    width: int = 100,
    *,
    letters: bool = False,
    rows: int = MAX_PICTURE_ROWS,
    legend: bool = True,
) -> Text:
    """Return the picture of policy ``name``, at most ``width`` columns wide, in ``rows`` lines and some around them.

    Bars are as long as the window or the largest request, whichever is more, with a mark at ``usable`` tokens.
    ``letters`` stand for colours where there are none; ``legend`` tells what all of it means.
    """
    if not points:
        return Text(f"{name}: no request")
    shown_groups = group_requests(points, rows)
    scale = max(window, *(point.tokens for point in points))
    label = max(len(group.label) for group in shown_groups)
    cells = max(MIN_BAR_CELLS, min(MAX_BAR_CELLS, width - label - 25 - EVENT_COLUMNS))
    draw = _PictureStyle(usable, scale, cells, label, width, letters)
    lines = [
        draw.draw_head(name),
        *(draw.draw_line(group) for group in shown_groups),
        *([draw.draw_legend()] if legend else []),
    ]
    return Text("\n").join(lines)


class _PictureStyle(Struct, frozen=True):
    """The measures that all lines of one picture share."""

    usable: int
    scale: int
    cells: int
    label: int
    width: int
    letters: bool

    def draw_head(self, name: str) -> Text:
        whole = f"{name}, request by request"
        title = whole if len(whole) <= self.cells else name[: self.cells]
        prefix = f"{'':{self.label}} {title:{self.cells}}"
        return Text(f"{prefix} {'tokens':>6} {'%':>4} {'cache':>5} {'$':>5}", style="dim")

    def draw_line(self, group: RequestGroup) -> Text:
        point = group.largest
        over = point.tokens > self.usable
        line = Text(f"{group.label:>{self.label}} ", style="")
        line.append_text(self.draw_bar(point))
        line.append(f" {format_tokens_short(point.tokens):>6}", style="red" if over else "")
        line.append(f" {_format_percent(point.tokens, self.usable):>4}", style="red" if over else "dim")
        share = compute_read_share(group_point.hit for group_point in group.points) or 0.0
        strip = _CACHE_LEVELS[round(share * (len(_CACHE_LEVELS) - 1))]
        line.append(f" {strip}", style="green" if share >= 0.5 else "yellow")
        line.append(f"{round(100 * share):>3}%", style="dim")
        line.append(f" {_format_dollars(sum(group_point.usd for group_point in group.points)):>5}")
        line.append_text(self.draw_events(group))
        line.rstrip()
        return line

    def draw_bar(self, point: RequestPoint) -> Text:
        """Return the bar of one request: cells by kind, then emptiness, the mark over both."""
        owners: list[ContentKind | None] = [*self._assign_cells(point)]
        owners += [None] * (self.cells - len(owners))
        mark = min(self.cells - 1, self.usable * self.cells // self.scale)
        bar = self._draw_cells(owners[:mark])
        under = owners[mark]
        bar.append("│", style="white" if under is None or self.letters else f"white on {under.style}")
        return bar.append_text(self._draw_cells(owners[mark + 1 :]))

    def _draw_cells(self, owners: Sequence[ContentKind | None]) -> Text:
        out = Text()
        for owner, run in groupby(owners):
            cell = "·" if owner is None else owner.letter if self.letters else "█"
            out.append(cell * len(list(run)), style=EMPTY_STYLE if owner is None else owner.style)
        return out

    def _assign_cells(self, point: RequestPoint) -> list[ContentKind]:
        """Return the kind of each full cell; ends are rounded, so that the lengths add up."""
        sizes: dict[str, int] = {}
        for kind, tokens in point.kinds.items():
            own = _MERGED_KINDS.get(kind, kind)
            sizes[own] = sizes.get(own, 0) + tokens
        owners: list[ContentKind] = []
        total = 0
        for content_kind in CONTENT_KINDS:
            total += sizes.get(content_kind.name, 0)
            owners += [content_kind] * (round(total * self.cells / self.scale) - len(owners))
        return owners[: self.cells]

    def draw_events(self, group: RequestGroup) -> Text:
        """Return the marks of a group: compactions with the sizes around them, other decisions, requests too big."""
        drops = [at for at, point in enumerate(group.points) if point.event in COMPACTION_EVENTS]
        cuts = sum(point.event in {"prune", "spill"} for point in group.points)
        over = sum(point.tokens > self.usable for point in group.points)
        out = Text()
        if len(drops) == 1:
            at = drops[0]
            before = group.points[at - 1].tokens if at else group.before
            out.append(f" ⟱ {_format_thousands(before)}→{_format_thousands(group.points[at].tokens)}", style="magenta")
        elif drops:
            out.append(f" ⟱×{len(drops)}", style="magenta")
        if cuts:
            out.append(f" ✂{cuts if cuts > 1 else ''}", style="yellow")
        if over:
            out.append(f" ✗{over if over > 1 else ''}", style="red")
        return out

    def draw_legend(self) -> Text:
        """Return what colours and marks mean, in as many lines as that takes."""
        pieces = [
            Text.assemble((kind.letter if self.letters else "█", kind.style), (f" {kind.name}", "dim"))
            for kind in CONTENT_KINDS
        ]
        marks = (
            "│ usable " + format_tokens_short(self.usable),
            "% of it",
            "⟱ older messages give way",
            "✂ spill or prune",
        )
        pieces += [Text(mark, style="dim") for mark in (*marks, "✗ over usable", "a line draws its largest request")]
        lines = [Text()]
        for piece in pieces:
            if lines[-1] and len(lines[-1]) + 2 + len(piece) > self.width - self.label - 1:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append_text(piece)
        return Text("\n").join([Text(" " * (self.label + 1)).append_text(line) for line in lines])


def _format_percent(part: int, whole: int) -> str:
    return f"{round(100 * part / whole)}%" if whole else ""


def _format_thousands(tokens: int) -> str:
    return f"{tokens / 1_000:.0f}k" if tokens >= 1_000 else str(tokens)


def _format_dollars(usd: float) -> str:
    if not usd:
        return "-"
    if usd < 0.995:
        return f"{usd:.2f}"[1:]
    return f"{usd:.2f}" if usd < 100 else f"{usd:.0f}"
