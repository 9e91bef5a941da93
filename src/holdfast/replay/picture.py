"""The picture of one policy over a session: what each request consists of, the window, the cache, the decisions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct
from rich.text import Text

from holdfast.replay.cache import compute_read_share
from holdfast.replay.measure import RequestPoint
from holdfast.replay.report import format_tokens_short

MAX_PICTURE_ROWS = 28
"""Lines of the picture; the requests of a longer session are grouped."""
MAX_BAR_CELLS = 60
"""Cells of a bar if there is room."""
MIN_BAR_CELLS = 8
EVENT_COLUMNS = 13
"""Columns for decisions, such as ``⟱ 48k→22k ✂2``."""
EMPTY_STYLE = "bright_black"
_CACHE_LEVELS = " ▁▂▃▄▅▆▇█"
COMPACTION_EVENTS = frozenset({"compaction", "slide", "history"})
"""Events after which older messages are no longer shown."""


class ContentKind(Struct, frozen=True):
    """One kind of content: its colour, and its letter if there are no colours."""

    name: str
    letter: str
    style: str


CONTENT_KINDS = (
    ContentKind("setup", "p", "bright_black"),
    ContentKind("summary", "S", "magenta"),
    ContentKind("user", "u", "bright_green"),
    ContentKind("assistant", "a", "blue"),
    ContentKind("thinking", "t", "cyan"),
    ContentKind("results", "R", "yellow"),
    ContentKind("stubs", "r", "bright_red"),
    ContentKind("media", "m", "bright_magenta"),
)
_MERGED_KINDS = {"system": "setup", "tool": "results"}
"""Kinds that are measured apart but drawn as one."""


class RequestGroup(Struct, frozen=True):
    """Consecutive requests on one line; ``first`` counts requests from 0."""

    first: int
    points: tuple[RequestPoint, ...]
    before: int = 0
    """Tokens of the request before the group; 0 without one."""

    @property
    def largest(self) -> RequestPoint:
        """The largest request, for which the bar is drawn; the last one of equals."""
        return max(reversed(self.points), key=lambda point: point.tokens)

    @property
    def label(self) -> str:
        """The numbers of its requests."""
        last = self.first + len(self.points) - 1
        return f"#{self.first}" if last == self.first else f"#{self.first}-{last}"


def group_requests(points: Sequence[RequestPoint], rows: int = MAX_PICTURE_ROWS) -> list[RequestGroup]:
    """Group ``points`` into at most ``rows`` lines, oldest first.

    Each compaction has a line of its own, so that the drop is visible, unless there are too many.
    """
    if not points:
        return []
    edges = {0}
    for index, point in enumerate(points):
        if point.event in COMPACTION_EVENTS:
            edges |= {index, index + 1}
    edges.discard(len(points))
    # Too many compactions for a line each: equal groups instead.
    if len(edges) > rows:
        edges = {0}
    starts = _split_groups(sorted(edges), len(points), rows)
    groups: list[RequestGroup] = []
    for start, stop in zip(starts, [*starts[1:], len(points)], strict=True):
        if stop > start:
            tokens_before = points[start - 1].tokens if start else 0
            groups.append(RequestGroup(start, tuple(points[start:stop]), tokens_before))
    return groups


def _split_groups(starts: list[int], count: int, rows: int) -> list[int]:
    """Return ``starts`` of groups over ``count`` requests with more of them, until there are ``rows`` groups.

    The longest groups are split first, each into equal pieces.
    """
    lengths: dict[int, int] = {}
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        lengths[start] = stop - start
    pieces = dict.fromkeys(starts, 1)
    for _ in range(rows - len(starts)):
        longest = max(starts, key=lambda start: lengths[start] / pieces[start], default=None)
        if longest is None or lengths[longest] <= pieces[longest]:
            break
        pieces[longest] += 1
    new_starts: list[int] = []
    for start in starts:
        new_starts += [start + lengths[start] * piece // pieces[start] for piece in range(pieces[start])]
    return new_starts


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
    """Draw the picture of policy ``name``, at most ``width`` columns wide, with ``rows`` lines for requests.

    Bars are scaled to the window or the largest request, whichever is larger, with a mark at ``usable`` tokens. With
    ``letters`` the kinds are told by letters instead of colours; ``legend`` explains all of it.
    """
    if not points:
        return Text(f"{name}: no request")
    groups = group_requests(points, rows)
    scale = max(window, *(point.tokens for point in points))
    label_width = max(len(group.label) for group in groups)
    cells = max(MIN_BAR_CELLS, min(MAX_BAR_CELLS, width - label_width - 25 - EVENT_COLUMNS))
    style = _PictureStyle(usable, scale, cells, label_width, width, letters)
    lines = [style.draw_head(name)]
    lines += [style.draw_line(group) for group in groups]
    if legend:
        lines.append(style.draw_legend())
    return Text("\n").join(lines)


class _PictureStyle(Struct, frozen=True):
    """The measures that all lines of one picture share, and how to draw them."""

    usable: int
    scale: int
    cells: int
    label_width: int
    width: int
    letters: bool

    def draw_head(self, name: str) -> Text:
        full_title = f"{name}, request by request"
        title = full_title if len(full_title) <= self.cells else name[: self.cells]
        prefix = f"{'':{self.label_width}} {title:{self.cells}}"
        return Text(f"{prefix} {'tokens':>6} {'%':>4} {'cache':>5} {'$':>5}", style="dim")

    def draw_line(self, group: RequestGroup) -> Text:
        point = group.largest
        is_over = point.tokens > self.usable
        line = Text(f"{group.label:>{self.label_width}} ", style="")
        line.append_text(self.draw_bar(point))
        line.append(f" {format_tokens_short(point.tokens):>6}", style="red" if is_over else "")
        line.append(f" {_format_percent(point.tokens, self.usable):>4}", style="red" if is_over else "dim")
        read_share = compute_read_share(group_point.hit for group_point in group.points) or 0.0
        level = _CACHE_LEVELS[round(read_share * (len(_CACHE_LEVELS) - 1))]
        line.append(f" {level}", style="green" if read_share >= 0.5 else "yellow")
        line.append(f"{round(100 * read_share):>3}%", style="dim")
        line.append(f" {_format_dollars(sum(group_point.usd for group_point in group.points)):>5}")
        line.append_text(self.draw_events(group))
        line.rstrip()
        return line

    def draw_bar(self, point: RequestPoint) -> Text:
        """Draw the bar of one request: cells by kind, then empty ones, with the mark of ``usable`` over both."""
        kinds: list[ContentKind | None] = [*self._assign_cells(point)]
        kinds += [None] * (self.cells - len(kinds))
        mark = min(self.cells - 1, self.usable * self.cells // self.scale)
        bar = self._draw_cells(kinds[:mark])
        kind_under_mark = kinds[mark]
        mark_style = "white"
        if kind_under_mark is not None and not self.letters:
            mark_style = f"white on {kind_under_mark.style}"
        bar.append("│", style=mark_style)
        return bar.append_text(self._draw_cells(kinds[mark + 1 :]))

    def _draw_cells(self, kinds: Sequence[ContentKind | None]) -> Text:
        cells = Text()
        for kind, run in groupby(kinds):
            length = len(list(run))
            if kind is None:
                cells.append("·" * length, style=EMPTY_STYLE)
            else:
                cells.append((kind.letter if self.letters else "█") * length, style=kind.style)
        return cells

    def _assign_cells(self, point: RequestPoint) -> list[ContentKind]:
        """Return the kind of each full cell. Positions are rounded, not lengths, so that the lengths add up."""
        tokens_by_kind: dict[str, int] = {}
        for name, tokens in point.kinds.items():
            drawn_name = _MERGED_KINDS.get(name, name)
            tokens_by_kind[drawn_name] = tokens_by_kind.get(drawn_name, 0) + tokens
        kinds: list[ContentKind] = []
        total = 0
        for kind in CONTENT_KINDS:
            total += tokens_by_kind.get(kind.name, 0)
            end = round(total * self.cells / self.scale)
            kinds += [kind] * (end - len(kinds))
        return kinds[: self.cells]

    def draw_events(self, group: RequestGroup) -> Text:
        """Draw the marks of a group: compactions with the sizes around them, other decisions, requests too large."""
        compactions = [index for index, point in enumerate(group.points) if point.event in COMPACTION_EVENTS]
        reduced_count = sum(point.event in {"prune", "spill"} for point in group.points)
        over_count = sum(point.tokens > self.usable for point in group.points)
        marks = Text()
        if len(compactions) == 1:
            index = compactions[0]
            before = group.points[index - 1].tokens if index else group.before
            after = group.points[index].tokens
            marks.append(f" ⟱ {_format_thousands(before)}→{_format_thousands(after)}", style="magenta")
        elif compactions:
            marks.append(f" ⟱×{len(compactions)}", style="magenta")
        if reduced_count:
            marks.append(f" ✂{reduced_count if reduced_count > 1 else ''}", style="yellow")
        if over_count:
            marks.append(f" ✗{over_count if over_count > 1 else ''}", style="red")
        return marks

    def draw_legend(self) -> Text:
        """Draw the meaning of colours and marks, in as many lines as needed."""
        pieces: list[Text] = []
        for kind in CONTENT_KINDS:
            sample = kind.letter if self.letters else "█"
            pieces.append(Text.assemble((sample, kind.style), (f" {kind.name}", "dim")))
        marks = (
            "│ usable " + format_tokens_short(self.usable),
            "% of it",
            "⟱ older messages give way",
            "✂ spill or prune",
            "✗ over usable",
            "a line draws its largest request",
        )
        pieces += [Text(mark, style="dim") for mark in marks]
        max_length = self.width - self.label_width - 1
        lines = [Text()]
        for piece in pieces:
            if lines[-1] and len(lines[-1]) + 2 + len(piece) > max_length:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append_text(piece)
        indent = " " * (self.label_width + 1)
        return Text("\n").join([Text(indent).append_text(line) for line in lines])


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
