"""The tree behind the lines of a Claude Code transcript.

Lines become nodes: all lines of one answer are one node, a compaction and its summary are one, every other message
is its own. Tool results follow the answer that made the calls, in call order, and whatever came next follows the
last result: lines of parallel tools link to the answer and not to each other. If a parent is not in the file, the
line before is taken as the parent: a damaged line stood there, or the tool never wrote it (claude-code#46603).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.formats.common.log import RecordingBuilder, order_parents_first
from holdfast.messages.message import Message


class ClaudeLinkFields(Protocol):
    """The fields of a line that linking needs."""

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
    """The field of an API message that linking needs."""

    id: str | None


L = TypeVar("L", bound=ClaudeLinkFields)
A = TypeVar("A", bound=ClaudeMessageId)


class ClaudeRecord(Struct, Generic[L, A]):
    """A line of the file. Those with ``is_kept`` are part of the conversation; the others only carry links."""

    number: int
    raw: bytes
    line: L
    is_kept: bool
    message: Message | None = None
    api: A | None = None
    is_microcompact: bool = False
    """Whether the tool tells on it which results it cleared, which is no message and no compaction."""
    is_link_target: bool = True
    """Whether links to its uuid lead to this line, and not to another one with the same uuid."""
    start: int = 0
    """Offset of the line in its file, in bytes."""
    length: int = 0
    place: int = -1
    """For a line without links, the index of the line at which its words reached the model; -1 for all others."""


NO_IDS: frozenset[str] = frozenset()


class ClaudeNode:
    """One message or compaction: the records it was read from, and its place in the tree."""

    __slots__ = (
        "answer_node",
        "answered_calls",
        "calls",
        "cleared_calls",
        "entry_id",
        "inserted",
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
        self.cleared_calls: frozenset[str] = NO_IDS
        """Of a microcompaction, the ids of the calls whose results it cleared."""
        self.answer_node: ClaudeNode | None = None
        self.parent: ClaudeNode | None = None
        self.inserted: ClaudeNode | None = None
        """A node without links that ends the branch after this one."""
        self.entry_id = ""
        """Id of the entry that holds its message, once it was added."""
        self.last_entry_id = ""
        """Id of its last entry, the parent of whatever follows."""

    @property
    def end(self) -> ClaudeNode:
        """The node that the next message follows: the last result of the answer if it has any."""
        answer = self.answer_node or self
        return answer.results[-1] if answer.results else answer


def link_records(
    records: Sequence[ClaudeRecord[L, A]], log: RecordingBuilder
) -> tuple[dict[str, list[int]], list[int]]:
    """Return the indexes of kept records by conversation ("" is the main one), and each record's parent.

    The parent is the nearest kept ancestor in the same conversation, or -1.
    """
    links, conversations = _resolve_links(records, log)
    nearest_kept: dict[int, int] = {}
    parents = [-1] * len(records)
    groups: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        if not record.is_kept:
            continue
        ancestor = _find_kept_record(records, links, nearest_kept, links[index])
        # A link into another conversation, as on the first line of a sub-agent's, makes no parent.
        if ancestor >= 0 and conversations[ancestor] == conversations[index]:
            parents[index] = ancestor
        groups.setdefault(conversations[index], []).append(index)
    _merge_unlinked_group(records, groups)
    return groups, parents


def _merge_unlinked_group(records: Sequence[ClaudeRecord[L, A]], groups: dict[str, list[int]]) -> None:
    """In the file of a sub-agent, words without links belong to its conversation and are no main one."""
    main = groups.get("", [])
    if main and len(groups) > 1 and all(records[index].place >= 0 for index in main):
        del groups[""]
        first = next(iter(groups))
        groups[first] = sorted([*groups[first], *main])


def _resolve_links(records: Sequence[ClaudeRecord[L, A]], log: RecordingBuilder) -> tuple[list[int], list[str]]:
    """Return for each record the record that its parent link leads to (-1: none), and its conversation."""
    index_by_uuid = {}
    for index, record in enumerate(records):
        if record.line.uuid and record.is_link_target:
            index_by_uuid[record.line.uuid] = index
    missing = -2  # a link to a uuid that is not in the file, unlike -1, no link at all
    links: list[int] = []
    conversations: list[str] = []
    last_kept: dict[str, int] = {}
    last_boundary = -1
    for index, record in enumerate(records):
        line = record.line
        # The boundary of a compaction has no parent, so that requests start there; its logical parent has the link.
        parent_uuid = line.parent_uuid
        if line.logical_parent_uuid is not None:
            parent_uuid = line.logical_parent_uuid
        link = -1 if parent_uuid is None else index_by_uuid.get(parent_uuid, missing)
        parent_conversation = conversations[link] if 0 <= link < index else ""
        conversation = _get_conversation_key(line, parent_conversation, index)
        conversations.append(conversation)
        previous = last_kept.get(conversation, -1)
        is_boundary = record.is_kept and record.message is None and not record.is_microcompact
        if is_boundary:
            # A compaction follows the conversation so far. A link to a line before the previous compaction would cut
            # everything in between out of the branch.
            leads_too_far_back = link < last_boundary
            if link == missing or leads_too_far_back:
                _report_missing_parent(log, record.number, parent_uuid, previous)
            if link < 0 or leads_too_far_back:
                link = previous
            last_boundary = index
        elif link == missing:
            _report_missing_parent(log, record.number, parent_uuid, previous)
            link = previous
        links.append(link)
        if record.is_kept and record.place < 0:
            last_kept[conversation] = index
    return links, conversations


def _report_missing_parent(log: RecordingBuilder, number: int, parent: str | None, previous: int) -> None:
    if parent is not None:
        consequence = "it starts the conversation"
        if previous >= 0:
            consequence = "the message before it is taken instead"
        log.report_problem(number, f"the parent {parent} is not in the file where it should be; {consequence}")


def _get_conversation_key(line: ClaudeLinkFields, parent_conversation: str, index: int) -> str:
    """Return the conversation of a line: "" for the main one, else the agent's id or the key of its first line."""
    if not line.is_sidechain:
        return ""
    # Older versions name no agent: there the sub-agent's first line stands for it.
    return line.agent_id or parent_conversation or line.uuid or f"line {index}"


def _find_kept_record(
    records: Sequence[ClaudeRecord[L, A]],
    links: list[int],
    nearest_kept: dict[int, int],
    index: int,
) -> int:
    """Return the first kept record from ``index`` upwards, or -1.

    Stores the result for every record on the way in ``nearest_kept``, so all look-ups together take linear time.
    """
    trail = []
    while index >= 0 and not records[index].is_kept:
        if index in nearest_kept:
            index = nearest_kept[index]
            break
        nearest_kept[index] = -1  # a cycle of skipped lines leads nowhere
        trail.append(index)
        index = links[index]
    for trail_index in trail:
        nearest_kept[trail_index] = index
    return index


def build_nodes(
    records: Sequence[ClaudeRecord[L, A]],
    indexes: Sequence[int],
    parents: Sequence[int],
    log: RecordingBuilder,
) -> list[ClaudeNode]:
    """Return the nodes of one conversation, parents first, each with its ``parent`` set."""
    node_by_record = _assign_nodes(records, indexes, parents)
    nodes = list(dict.fromkeys(node_by_record[index] for index in indexes))  # each once, in file order
    # Results are sorted before parents are set: a result's parent is the result before it.
    for node in nodes:
        node.results.sort(key=lambda result: _get_call_position(node, result, records))
    for node in nodes:
        node.parent = _find_node_parent(node, node_by_record, parents)
    _insert_unlinked_nodes(records, indexes, nodes, node_by_record)
    positions = {id(node): position for position, node in enumerate(nodes)}
    links = []
    for node in nodes:
        link = -1 if node.parent is None else positions[id(node.parent)]
        links.append(link)
    order, cycle_starts = order_parents_first(links)
    for number in cycle_starts:
        nodes[number].parent = None
        first = records[nodes[number].members[0]]
        log.report_problem(first.number, "its parents form a circle; it starts a branch of its own")
    return [nodes[number] for number in order]


def _insert_unlinked_nodes(
    records: Sequence[ClaudeRecord[L, A]],
    indexes: Sequence[int],
    nodes: Sequence[ClaudeNode],
    node_by_record: dict[int, ClaudeNode],
) -> None:
    """Put each node whose line has no links behind the line at its place, and what came next behind that node.

    Words that came while tools ran follow the results of all of them: nothing may stand between calls and results.
    """
    unlinked = [index for index in indexes if records[index].place >= 0]
    if not unlinked:
        return
    children: dict[int, list[ClaudeNode]] = {}
    for node in nodes:
        if records[node.members[0]].place < 0:
            children.setdefault(id(node.parent), []).append(node)
    inserted: set[int] = set()
    for index in sorted(unlinked, key=lambda index: (records[index].place, index)):
        node = node_by_record[index]
        place = records[index].place
        # The nearest line before the place; of lines without links, only those that have their own place already.
        position = bisect_left(indexes, place) - 1
        while position >= 0 and records[indexes[position]].place >= 0 and indexes[position] not in inserted:
            position -= 1
        before = find_last_node(node_by_record[indexes[position]]) if position >= 0 else None
        inserted.add(index)
        later = [child for child in children.get(id(before), ()) if child.members[0] > place]
        if later:
            child = later[0]
            children[id(before)].remove(child)
            child.parent = node
            children.setdefault(id(node), []).append(child)
        elif before is not None:
            before.inserted = node
        node.parent = before
        children.setdefault(id(before), []).append(node)


def find_last_node(node: ClaudeNode) -> ClaudeNode:
    """Return the node at which the conversation stands if ``node`` has the newest line."""
    last = node.end
    while last.inserted is not None:
        last = last.inserted
    return last


def iter_ancestors(node: ClaudeNode | None) -> Iterator[ClaudeNode]:
    """Yield ``node`` and its ancestors up to the root."""
    while node is not None:
        yield node
        node = node.parent


def _assign_nodes(
    records: Sequence[ClaudeRecord[L, A]],
    indexes: Sequence[int],
    parents: Sequence[int],
) -> dict[int, ClaudeNode]:
    """Return the node of each record, results attached to their answers."""
    node_by_record: dict[int, ClaudeNode] = {}
    answers: dict[tuple[str, str | None], ClaudeNode] = {}
    callers: dict[str, ClaudeNode] = {}
    unattached: list[tuple[ClaudeNode, list[str]]] = []
    for index in indexes:
        record = records[index]
        if record.is_microcompact:
            node_by_record[index] = ClaudeNode("microcompact", index)
        elif record.message is None or record.line.is_compact_summary:
            node_by_record[index] = _find_compaction_node(records, node_by_record.get(parents[index]), index)
        elif record.message.role == "assistant":
            node = _find_answer_node(records, node_by_record, answers, parents, index)
            node_by_record[index] = node
            for call in record.message.calls:
                node.calls.append(call.id)
                callers[call.id] = node
        else:
            node = ClaudeNode("user", index)
            node_by_record[index] = node
            call_ids = [result.call_id for result in record.message.results]
            if call_ids and not _attach_result(node, call_ids, callers):
                unattached.append((node, call_ids))
    # Results whose lines come before the line of their call.
    for node, call_ids in unattached:
        _attach_result(node, call_ids, callers)
    return node_by_record


def _find_compaction_node(records: Sequence[ClaudeRecord[L, A]], above: ClaudeNode | None, index: int) -> ClaudeNode:
    """Return the compaction that record ``index`` opens, or the one above it if the record is its summary."""
    if above is not None and above.kind == "compaction" and len(above.members) == 1:
        is_boundary = records[above.members[0]].message is None
        is_summary = records[index].message is not None
        if is_boundary and is_summary:
            above.members.append(index)
            return above
    return ClaudeNode("compaction", index)


def _find_answer_node(
    records: Sequence[ClaudeRecord[L, A]],
    node_by_record: dict[int, ClaudeNode],
    answers: dict[tuple[str, str | None], ClaudeNode],
    parents: Sequence[int],
    index: int,
) -> ClaudeNode:
    """Return the answer that record ``index`` continues, or a new one.

    Lines with the same message id and request are one answer, if only its own lines and tool results lie between
    them. Otherwise the id was used again: some servers behind a gateway give every answer the same id.
    """
    record = records[index]
    if record.api is None or not record.api.id:
        return ClaudeNode("assistant", index)
    key = (record.api.id, record.line.request_id)
    node = answers.get(key)
    if node is not None:
        is_sibling = parents[index] == parents[node.members[0]]
        if is_sibling or _find_node_above(records, node_by_record, parents, index) is node:
            node.members.append(index)
            return node
    node = answers[key] = ClaudeNode("assistant", index)
    return node


def _find_node_above(
    records: Sequence[ClaudeRecord[L, A]],
    node_by_record: dict[int, ClaudeNode],
    parents: Sequence[int],
    index: int,
) -> ClaudeNode | None:
    """Return the nearest node above ``index`` that is no tool result, meta line or microcompaction, or None."""
    visited_indexes: set[int] = set()
    index = parents[index]
    while index >= 0 and index not in visited_indexes:
        message = records[index].message
        # Meta lines, and results of tools that ran in parallel, lie between the lines of one answer.
        is_between = message is not None and (message.role == "tool" or records[index].line.is_meta)
        is_skipped = is_between or records[index].is_microcompact
        if not is_skipped:
            return node_by_record.get(index)
        visited_indexes.add(index)
        index = parents[index]
    return None


def _attach_result(node: ClaudeNode, call_ids: list[str], callers: dict[str, ClaudeNode]) -> bool:
    """Attach a result to the answer that made its calls, and return whether one without that result was found."""
    for call_id in call_ids:
        caller = callers.get(call_id)
        if caller is not None and call_id not in caller.answered_calls:
            caller.answered_calls |= frozenset(call_ids)
            caller.results.append(node)
            node.answer_node = caller
            return True
    return False


def _get_call_position(caller: ClaudeNode, result: ClaudeNode, records: Sequence[ClaudeRecord[L, A]]) -> int:
    """Return the position of the first call that ``result`` answers; results of unknown calls sort last."""
    position = len(caller.calls)
    message = records[result.members[0]].message
    if message is None:
        return position
    for tool_result in message.results:
        if tool_result.call_id in caller.calls:
            position = min(position, caller.calls.index(tool_result.call_id))
    return position


def _find_node_parent(
    node: ClaudeNode,
    node_by_record: dict[int, ClaudeNode],
    parents: Sequence[int],
) -> ClaudeNode | None:
    """Return the node before ``node``, or None at the root."""
    answer = node.answer_node
    if answer is not None:
        position = answer.results.index(node)
        return answer.results[position - 1] if position else answer
    above = node_by_record.get(parents[node.members[0]])
    return None if above is None else above.end
