"""The tree behind the lines of a Claude Code transcript.

Lines become nodes: the lines of one answer are one node, a compaction and its summary are one node, each other message
is its own. Results stand right behind the answer that called for them, in call order, and what came next hangs on the
last of them. A parent that is not in the file is taken to be the line before: that is where a damaged line stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.formats.common.log import Log, ordered
from holdfast.messages.message import Message


class LineLike(Protocol):
    """What the tree needs of a line."""

    type: str
    uuid: str | None
    parent_uuid: str | None
    logical_parent_uuid: str | None
    agent_id: str | None
    request_id: str | None
    is_sidechain: bool | None
    is_meta: bool | None
    is_compact_summary: bool | None


class ApiLike(Protocol):
    """What the tree needs of an API message."""

    id: str | None


L = TypeVar("L", bound=LineLike)
A = TypeVar("A", bound=ApiLike)


class Record(Struct, Generic[L, A]):
    """A line of the file. ``kept`` ones are part of the conversation, the others only carry links."""

    number: int
    raw: bytes
    line: L
    kept: bool
    message: Message | None = None
    api: A | None = None
    named: bool = True
    """Whether links to its uuid mean this line."""
    start: int = 0
    """Where the line begins in its file, in bytes."""
    length: int = 0


NOBODY: frozenset[str] = frozenset()


class Node:
    """One message or compaction: the records it lies on, and where it hangs."""

    __slots__ = ("answered", "calls", "kind", "members", "owner", "parent", "results", "said", "tail")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.members = [index]
        self.calls: list[str] = []
        self.results: list[Node] = []
        self.answered: frozenset[str] = NOBODY
        self.owner: Node | None = None
        self.parent: Node | None = None
        self.said = ""
        """Id of the entry that holds its words, once it is there."""
        self.tail = ""
        """Id of its last entry, on which the next ones hang."""

    @property
    def end(self) -> Node:
        """The node on which what comes next hangs: the last result where there are any."""
        answer = self.owner or self
        return answer.results[-1] if answer.results else answer


def tree(records: Sequence[Record[L, A]], log: Log) -> tuple[dict[str, list[int]], list[int]]:
    """Return the indexes of kept records by conversation ("" is the main one), and each one's nearest kept ancestor."""
    links, group = _links(records, log)
    near: dict[int, int] = {}
    up = [-1] * len(records)
    groups: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        if record.kept:
            above = _nearest(records, links, near, links[index])
            up[index] = above if above >= 0 and group[above] == group[index] else -1
            groups.setdefault(group[index], []).append(index)
    return groups, up


def _links(records: Sequence[Record[L, A]], log: Log) -> tuple[list[int], list[str]]:
    """Return, for each record, the record its parent link means (-1: none), and its conversation."""
    place = {record.line.uuid: index for index, record in enumerate(records) if record.line.uuid and record.named}
    links: list[int] = []
    group: list[str] = []
    before: dict[str, int] = {}
    boundary = -1
    for index, record in enumerate(records):
        line = record.line
        parent = line.parent_uuid if line.logical_parent_uuid is None else line.logical_parent_uuid
        link = -1 if parent is None else place.get(parent, -2)
        group.append(_group(line, group[link] if 0 <= link < index else "", index))
        last = before.get(group[-1], -1)
        if record.kept and record.message is None:  # a compaction follows what was said before it
            if link == -2 or link < boundary:
                _report(log, record.number, parent, last)
            link = last if link < 0 or link < boundary else link
            boundary = index
        elif link == -2:
            _report(log, record.number, parent, last)
            link = last
        links.append(link)
        if record.kept:
            before[group[-1]] = index
    return links, group


def _report(log: Log, number: int, parent: str | None, last: int) -> None:
    if parent is not None:
        taken = "the message before it is taken instead" if last >= 0 else "it starts the conversation"
        log.problem(number, f"the parent {parent} is not in the file where it should be; {taken}")


def _group(line: LineLike, above: str, index: int) -> str:
    """Return the conversation of a line: "" for the main one, the agent's id, or its root line's."""
    if not line.is_sidechain:
        return ""
    return line.agent_id or above or line.uuid or f"line {index}"


def _nearest(records: Sequence[Record[L, A]], links: list[int], near: dict[int, int], index: int) -> int:
    """Return the first kept record from ``index`` up; remembers the way, so all together are linear."""
    trail = []
    while index >= 0 and not records[index].kept:
        if index in near:
            index = near[index]
            break
        near[index] = -1  # a circle of skipped lines leads nowhere
        trail.append(index)
        index = links[index]
    for passed in trail:
        near[passed] = index
    return index


def children(records: Sequence[Record[L, A]], indexes: Sequence[int], up: Sequence[int], log: Log) -> list[Node]:
    """Return the nodes of one conversation, parents first, each with its ``parent`` set."""
    home = _nodes(records, indexes, up)
    nodes = list(dict.fromkeys(home[index] for index in indexes))
    for node in nodes:
        node.results.sort(key=lambda result: _turn(node, result, records))
    for node in nodes:
        node.parent = _parent(node, home, up)
    position = {id(node): number for number, node in enumerate(nodes)}
    links = [position[id(node.parent)] if node.parent is not None else -1 for node in nodes]
    order, cut = ordered(links)
    for number in cut:
        nodes[number].parent = None
        first = records[nodes[number].members[0]]
        log.problem(first.number, "its parents form a circle; it starts a branch of its own")
    return [nodes[number] for number in order]


def climbed(node: Node | None) -> Iterator[Node]:
    """Yield ``node`` and what stands above it, up to the root."""
    while node is not None:
        yield node
        node = node.parent


def _nodes(records: Sequence[Record[L, A]], indexes: Sequence[int], up: Sequence[int]) -> dict[int, Node]:
    """Return the node of each record."""
    home: dict[int, Node] = {}
    answers: dict[tuple[str, str | None], Node] = {}
    owners: dict[str, Node] = {}
    early: list[tuple[Node, list[str]]] = []
    for index in indexes:
        record = records[index]
        if record.message is None or record.line.is_compact_summary:
            home[index] = _compaction(records, home.get(up[index]), index)
        elif record.message.role == "assistant":
            home[index] = node = _answer(records, home, answers, up, index)
            for call in record.message.calls:
                node.calls.append(call.id)
                owners[call.id] = node
        else:
            home[index] = node = Node("user", index)
            ids = [result.call_id for result in record.message.results]
            if ids and not _settle(node, ids, owners):
                early.append((node, ids))
    for node, ids in early:
        _settle(node, ids, owners)
    return home


def _compaction(records: Sequence[Record[L, A]], above: Node | None, index: int) -> Node:
    """Return the compaction that record ``index`` opens, or whose summary it is."""
    if above is not None and above.kind == "compaction" and len(above.members) == 1:
        opened, told = records[above.members[0]].message is None, records[index].message is not None
        if opened and told:
            above.members.append(index)
            return above
    return Node("compaction", index)


def _answer(
    records: Sequence[Record[L, A]],
    home: dict[int, Node],
    answers: dict[tuple[str, str | None], Node],
    up: Sequence[int],
    index: int,
) -> Node:
    """Return the answer that record ``index`` goes on with, or a new one.

    Same message id and same request: one answer, if only its own lines and tool results lie between.
    """
    record = records[index]
    if record.api is None or not record.api.id:
        return Node("assistant", index)
    key = (record.api.id, record.line.request_id)
    node = answers.get(key)
    if node is None or not (up[index] == up[node.members[0]] or _reached(records, home, up, index) is node):
        node = answers[key] = Node("assistant", index)
    else:
        node.members.append(index)
    return node


def _reached(records: Sequence[Record[L, A]], home: dict[int, Node], up: Sequence[int], index: int) -> Node | None:
    """Return the node above ``index``, tool results and meta lines left out."""
    passed: set[int] = set()
    index = up[index]
    while index >= 0 and index not in passed:
        message = records[index].message
        if message is None or not (message.role == "tool" or records[index].line.is_meta):
            return home.get(index)
        passed.add(index)
        index = up[index]
    return None


def _settle(node: Node, ids: list[str], owners: dict[str, Node]) -> bool:
    """Make ``node`` a result of the answer that called for it, unless those calls have their results."""
    for id_ in ids:
        owner = owners.get(id_)
        if owner is not None and id_ not in owner.answered:
            owner.answered |= frozenset(ids)
            owner.results.append(node)
            node.owner = owner
            return True
    return False


def _turn(owner: Node, result: Node, records: Sequence[Record[L, A]]) -> int:
    message = records[result.members[0]].message
    ids = [found.call_id for found in message.results] if message is not None else []
    return min((owner.calls.index(id_) for id_ in ids if id_ in owner.calls), default=len(owner.calls))


def _parent(node: Node, home: dict[int, Node], up: Sequence[int]) -> Node | None:
    """Return what ``node`` hangs on."""
    if node.owner is not None:
        place = node.owner.results.index(node)
        return node.owner.results[place - 1] if place else node.owner
    above = home.get(up[node.members[0]])
    return None if above is None else above.end
