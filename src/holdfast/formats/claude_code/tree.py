"""The tree behind the lines of a Claude Code transcript.

Lines become nodes: the lines of one answer are one node, a compaction and its summary are one node, each other message
is its own. Results stand right behind the answer that called for them, in call order, and what came next hangs on the
last of them. A parent that is not in the file is taken to be the line before: that is where a damaged line stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.formats.common.log import RecordingBuilder, order_parents_first
from holdfast.messages.message import Message


class ClaudeLinkFields(Protocol):
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


class ClaudeMessageId(Protocol):
    """What the tree needs of an API message."""

    id: str | None


L = TypeVar("L", bound=ClaudeLinkFields)
A = TypeVar("A", bound=ClaudeMessageId)


class ClaudeRecord(Struct, Generic[L, A]):
    """A line of the file. ``is_kept`` ones are part of the conversation, the others only carry links."""

    number: int
    raw: bytes
    line: L
    is_kept: bool
    message: Message | None = None
    api: A | None = None
    is_link_target: bool = True
    """Whether links to its uuid mean this line."""
    start: int = 0
    """Where the line begins in its file, in bytes."""
    length: int = 0


NO_IDS: frozenset[str] = frozenset()


class ClaudeNode:
    """One message or compaction: the records it lies on, and where it hangs."""

    __slots__ = (
        "answer_node",
        "answered_calls",
        "calls",
        "entry_id",
        "kind",
        "last_entry_id",
        "members",
        "parent",
        "results",
    )

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.members = [index]
        self.calls: list[str] = []
        self.results: list[ClaudeNode] = []
        self.answered_calls: frozenset[str] = NO_IDS
        self.answer_node: ClaudeNode | None = None
        self.parent: ClaudeNode | None = None
        self.entry_id = ""
        """Id of the entry that holds its words, once it is there."""
        self.last_entry_id = ""
        """Id of its last entry, on which the next ones hang."""

    @property
    def end(self) -> ClaudeNode:
        """The node on which what comes next hangs: the last result where there are any."""
        answer = self.answer_node or self
        return answer.results[-1] if answer.results else answer


def link_records(
    records: Sequence[ClaudeRecord[L, A]], log: RecordingBuilder
) -> tuple[dict[str, list[int]], list[int]]:
    """Return the indexes of kept records by conversation ("" is the main one), and each one's nearest kept ancestor."""
    links, group = _resolve_links(records, log)
    near: dict[int, int] = {}
    up = [-1] * len(records)
    groups: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        if record.is_kept:
            above = _find_kept_record(records, links, near, links[index])
            up[index] = above if above >= 0 and group[above] == group[index] else -1
            groups.setdefault(group[index], []).append(index)
    return groups, up


def _resolve_links(records: Sequence[ClaudeRecord[L, A]], log: RecordingBuilder) -> tuple[list[int], list[str]]:
    """Return, for each record, the record its parent link means (-1: none), and its conversation."""
    place = {
        record.line.uuid: index for index, record in enumerate(records) if record.line.uuid and record.is_link_target
    }
    links: list[int] = []
    group: list[str] = []
    before: dict[str, int] = {}
    boundary = -1
    for index, record in enumerate(records):
        line = record.line
        parent = line.parent_uuid if line.logical_parent_uuid is None else line.logical_parent_uuid
        link = -1 if parent is None else place.get(parent, -2)
        group.append(_get_conversation_key(line, group[link] if 0 <= link < index else "", index))
        last = before.get(group[-1], -1)
        if record.is_kept and record.message is None:  # a compaction follows what was said before it
            if link == -2 or link < boundary:
                _report_missing_parent(log, record.number, parent, last)
            link = last if link < 0 or link < boundary else link
            boundary = index
        elif link == -2:
            _report_missing_parent(log, record.number, parent, last)
            link = last
        links.append(link)
        if record.is_kept:
            before[group[-1]] = index
    return links, group


def _report_missing_parent(log: RecordingBuilder, number: int, parent: str | None, last: int) -> None:
    if parent is not None:
        consequence = "the message before it is taken instead" if last >= 0 else "it starts the conversation"
        log.report_problem(number, f"the parent {parent} is not in the file where it should be; {consequence}")


def _get_conversation_key(line: ClaudeLinkFields, above: str, index: int) -> str:
    """Return the conversation of a line: "" for the main one, the agent's id, or its root line's."""
    if not line.is_sidechain:
        return ""
    return line.agent_id or above or line.uuid or f"line {index}"


def _find_kept_record(
    records: Sequence[ClaudeRecord[L, A]], links: list[int], nearest_kept: dict[int, int], index: int
) -> int:
    """Return the first kept record from ``index`` up; remembers the way, so all together are linear."""
    trail = []
    while index >= 0 and not records[index].is_kept:
        if index in nearest_kept:
            index = nearest_kept[index]
            break
        nearest_kept[index] = -1  # a circle of skipped lines leads nowhere
        trail.append(index)
        index = links[index]
    for trail_index in trail:
        nearest_kept[trail_index] = index
    return index


def build_nodes(
    records: Sequence[ClaudeRecord[L, A]], indexes: Sequence[int], parents: Sequence[int], log: RecordingBuilder
) -> list[ClaudeNode]:
    """Return the nodes of one conversation, parents first, each with its ``parent`` set."""
    home = _assign_nodes(records, indexes, parents)
    nodes = list(dict.fromkeys(home[index] for index in indexes))
    for node in nodes:
        node.results.sort(key=lambda result: _get_call_position(node, result, records))
    for node in nodes:
        node.parent = _find_node_parent(node, home, parents)
    position = {id(node): number for number, node in enumerate(nodes)}
    links = [position[id(node.parent)] if node.parent is not None else -1 for node in nodes]
    order, cycle_starts = order_parents_first(links)
    for number in cycle_starts:
        nodes[number].parent = None
        first = records[nodes[number].members[0]]
        log.report_problem(first.number, "its parents form a circle; it starts a branch of its own")
    return [nodes[number] for number in order]


def iter_ancestors(node: ClaudeNode | None) -> Iterator[ClaudeNode]:
    """Yield ``node`` and what stands above it, up to the root."""
    while node is not None:
        yield node
        node = node.parent


def _assign_nodes(
    records: Sequence[ClaudeRecord[L, A]], indexes: Sequence[int], parents: Sequence[int]
) -> dict[int, ClaudeNode]:
    """Return the node of each record."""
    home: dict[int, ClaudeNode] = {}
    answers: dict[tuple[str, str | None], ClaudeNode] = {}
    owners: dict[str, ClaudeNode] = {}
    early: list[tuple[ClaudeNode, list[str]]] = []
    for index in indexes:
        record = records[index]
        if record.message is None or record.line.is_compact_summary:
            home[index] = _find_compaction_node(records, home.get(parents[index]), index)
        elif record.message.role == "assistant":
            home[index] = node = _find_answer_node(records, home, answers, parents, index)
            for call in record.message.calls:
                node.calls.append(call.id)
                owners[call.id] = node
        else:
            home[index] = node = ClaudeNode("user", index)
            ids = [result.call_id for result in record.message.results]
            if ids and not _attach_result(node, ids, owners):
                early.append((node, ids))
    for node, ids in early:
        _attach_result(node, ids, owners)
    return home


def _find_compaction_node(records: Sequence[ClaudeRecord[L, A]], above: ClaudeNode | None, index: int) -> ClaudeNode:
    """Return the compaction that record ``index`` opens, or whose summary it is."""
    if above is not None and above.kind == "compaction" and len(above.members) == 1:
        is_boundary, is_summary = records[above.members[0]].message is None, records[index].message is not None
        if is_boundary and is_summary:
            above.members.append(index)
            return above
    return ClaudeNode("compaction", index)


def _find_answer_node(
    records: Sequence[ClaudeRecord[L, A]],
    home: dict[int, ClaudeNode],
    answers: dict[tuple[str, str | None], ClaudeNode],
    parents: Sequence[int],
    index: int,
) -> ClaudeNode:
    """Return the answer that record ``index`` goes on with, or a new one.

    Same message id and same request: one answer, if only its own lines and tool results lie between.
    """
    record = records[index]
    if record.api is None or not record.api.id:
        return ClaudeNode("assistant", index)
    key = (record.api.id, record.line.request_id)
    node = answers.get(key)
    if node is None or not (
        parents[index] == parents[node.members[0]] or _find_node_above(records, home, parents, index) is node
    ):
        node = answers[key] = ClaudeNode("assistant", index)
    else:
        node.members.append(index)
    return node


def _find_node_above(
    records: Sequence[ClaudeRecord[L, A]], home: dict[int, ClaudeNode], parents: Sequence[int], index: int
) -> ClaudeNode | None:
    """Return the node above ``index``, tool results and meta lines left out."""
    visited_indexes: set[int] = set()
    index = parents[index]
    while index >= 0 and index not in visited_indexes:
        message = records[index].message
        if message is None or not (message.role == "tool" or records[index].line.is_meta):
            return home.get(index)
        visited_indexes.add(index)
        index = parents[index]
    return None


def _attach_result(node: ClaudeNode, ids: list[str], owners: dict[str, ClaudeNode]) -> bool:
    """Make ``node`` a result of the answer that called for it, unless those calls have their results."""
    for id_ in ids:
        owner = owners.get(id_)
        if owner is not None and id_ not in owner.answered_calls:
            owner.answered_calls |= frozenset(ids)
            owner.results.append(node)
            node.answer_node = owner
            return True
    return False


def _get_call_position(owner: ClaudeNode, result: ClaudeNode, records: Sequence[ClaudeRecord[L, A]]) -> int:
    message = records[result.members[0]].message
    ids = [tool_result.call_id for tool_result in message.results] if message is not None else []
    return min((owner.calls.index(id_) for id_ in ids if id_ in owner.calls), default=len(owner.calls))


def _find_node_parent(node: ClaudeNode, home: dict[int, ClaudeNode], parents: Sequence[int]) -> ClaudeNode | None:
    """Return what ``node`` hangs on."""
    if node.answer_node is not None:
        place = node.answer_node.results.index(node)
        return node.answer_node.results[place - 1] if place else node.answer_node
    above = home.get(parents[node.members[0]])
    return None if above is None else above.end
