"""Measuring: what one policy's requests over one session cost, and what they lost. METRICS.md defines each figure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from statistics import quantiles
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.sized_message import Slot
from holdfast.planning.pipeline import Policy
from holdfast.planning.settings import HANDLE
from holdfast.providers.request_body import body
from holdfast.providers.rules import validate
from holdfast.replay.cache import FRAME, Block, Cache, Hit, blocks, cost, read_share
from holdfast.replay.cuts import OUT_OF_MEMORY, Cut, CutScore, pool, positions
from holdfast.replay.recall import Dependencies, Hits
from holdfast.replay.session import Session
from holdfast.replay.simulate import Judge, Sent, simulate
from holdfast.replay.tokenizer import Counter
from holdfast.state.branch.branch import Branch
from holdfast.state.entries import Frame
from holdfast.state.plan import Plan
from holdfast.state.target import Target

BUDGETS = (4_000, 8_000, 16_000)
"""Rooms in tokens at which contexts are scored (METRICS, "Recall, at cuts")."""
LARGEST_RESERVE = 20_000
"""usable = window - min(20,000, window / 4) (METRICS, "Reserve")."""
UNMEASURABLE = (HoldfastError, *OUT_OF_MEMORY)
"""What may end the run for one figure; the other figures of the row stand."""
GAP = "fewest steps between compactions"
"""How the note begins that every policy has which compacts twice."""


class Setting(Struct, frozen=True):
    """What a replay is asked for, beside the session and the policy."""

    window: int
    frame: int
    target: Target
    """For the window; its limits are changed where a figure asks for another."""
    tokenizer: str
    counter: Counter


class Point(Struct, frozen=True):
    """One request, as the picture shows it."""

    step: int
    tokens: int
    kinds: dict[str, int]
    """Tokens of the messages by kind: user, assistant, thinking, results, summary, stubs, media."""
    hit: Hit
    usd: float
    event: str = ""


class Measured(Struct, frozen=True):
    """All figures of one policy over one session; ``points`` are left out of the JSON."""

    policy: str
    requests: int
    invalid_requests: int
    over_window: int
    refused: int
    """Requests that are invalid or over the window; one that is both counts once."""
    user_words_missing: int
    tokens_sum: int
    tokens_peak: int
    cache_hit: float | None
    usd: float
    online: Hits
    mutations: int
    compactions: int
    policy_ms_p50: float
    policy_ms_p95: float
    notes: tuple[str, ...]
    points: tuple[Point, ...] = ()
    is_priced: bool = True
    """Whether anybody told the prices of the model; else ``usd`` is 0 and means nothing."""

    @property
    def cost(self) -> float | None:
        """Return the dollars, if they are known."""
        return self.usd if self.is_priced else None


class Study:
    """One session made ready: what no policy changes is worked out once."""

    def __init__(self, session: Session, setting: Setting) -> None:
        self.session = session
        self.setting = setting
        self.factor = session.factor(setting.counter)
        self.messages: list[Message] = [slot.message for slot in session.slots]
        self.steps = [step.index for step in session.steps]
        self.dependencies = Dependencies(self.messages, self.steps)
        self._known: dict[bytes, list[Block]] = {}
        self._cuts: list[Cut] | None = None

    def blocks(self, slot: Slot) -> list[Block]:
        """Return the blocks of a message as sent, in the judge's tokens."""
        found = self._known.get(slot.digest)
        if found is None:
            raw = blocks(slot.message, self.setting.counter)
            found = self._known[slot.digest] = [(digest, round(self.factor * tokens)) for digest, tokens in raw]
        return found

    def tokens(self, slot: Slot) -> int:
        """Return the judge's tokens of a message as sent."""
        return sum(tokens for _, tokens in self.blocks(slot))

    def count(self, text: str) -> int:
        """Return the judge's tokens of a text."""
        return round(self.factor * self.setting.counter(text))

    def cuts(self) -> list[Cut]:
        """Return the cuts of the session with their dependencies."""
        if self._cuts is None:
            sizes = [self.tokens(slot) for slot in self.session.slots]
            lookup = self.dependencies.lookup
            self._cuts = [
                Cut(self.messages, place, self.count, lookup=lookup, steps=self.steps)
                for place in positions(self.messages, sizes, self.steps)
            ]
        return self._cuts


def usable(window: int) -> int:
    """Return what a request may hold of a window."""
    return window - min(LARGEST_RESERVE, window // 4)


def window_for(room: int, frame: int) -> int:
    """Return the smallest window whose usable part holds ``frame`` and ``room``."""
    need = room + frame
    window = need + min(LARGEST_RESERVE, -(-need // 3))
    while usable(window) < need:
        window += 1
    return window


def simulate_requests(study: Study, policy: Policy, target: Target) -> Iterator[Sent]:
    """Yield the requests of ``policy`` over the session, planned for ``target``."""
    return simulate(study.session, policy, target, Judge(study.tokens, study.setting.frame))


def target_at_cuts(setting: Setting, budget: int) -> Target:
    """Return the target of the run that is scored at cuts: its window leaves ``budget`` tokens for messages.

    That window is none that anybody gave, so messages say what it was made for.
    """
    window = window_for(budget, setting.frame)
    return with_window(setting.target, window, setting.frame, f"made for {budget:,} tokens of messages")


def with_window(target: Target, window: int, frame: int, origin: str = "--window") -> Target:
    """Return ``target`` with another window and a frame of so many tokens; messages name ``origin`` for the window."""
    return replace(
        target,
        limits=replace(target.limits, window=window, origin=origin),
        frame=Frame("replay", frame, exact=True),
    )


def measure_policy(
    study: Study,
    policy: Policy,
    tick: Callable[[], Any] = lambda: None,
    keep: Callable[[int, bytes], Any] | None = None,
) -> Measured:
    """Return the figures of ``policy`` over the session; ``keep`` is given each request's step and body."""
    setting = study.setting
    run = _Run(study, policy, keep)
    for sent in simulate_requests(study, policy, with_window(setting.target, setting.window, setting.frame)):
        run.take(sent)
        tick()
    return run.measured()


class _Run:
    """Figures as they add up, request by request."""

    def __init__(self, study: Study, policy: Policy, keep: Callable[[int, bytes], Any] | None) -> None:
        self._study, self._policy, self._keep = study, policy, keep
        self._cache = Cache(study.setting.target.cache)
        self._limit = usable(study.setting.window)
        self._before: list[Block] = []
        self._points: list[Point] = []
        self._seconds: list[float] = []
        self._notes: dict[str, int] = {}
        self._online = Hits()
        self._invalid = self._missing = self._mutations = self._compactions = self._over = self._refused = 0
        self._since = 0
        """First slot that no request had shown when the last compaction ran."""
        self._shown = 0
        """How many slots the request before could show."""
        self._last_compaction: int | None = None
        self._shortest: int | None = None

    def take(self, sent: Sent) -> None:
        study, plan = self._study, sent.plan
        if plan.compaction is not None:
            self._compacted(sent)
        data = self._body(sent)
        is_invalid = any(finding.level == "error" for finding in validate(data, study.setting.target.api))
        is_over = sent.tokens > self._limit
        self._invalid += is_invalid
        self._over += is_over
        self._refused += is_invalid or is_over
        if self._keep is not None:
            self._keep(sent.step.index, data)
        texts = [text for slot in sent.slots for text in study.dependencies.lookup.said(slot)]
        self._online += study.dependencies.score(sent.step.index, texts)
        self._missing += _missing_words(plan.branch, self._since, texts)
        self._seconds.append(sent.seconds)
        for notice in plan.notices:
            self._notes[notice.rule] = self._notes.get(notice.rule, 0) + 1
        self._shown = sent.step.index
        self._price(sent)

    def _compacted(self, sent: Sent) -> None:
        number = len(self._points)
        if self._last_compaction is not None:
            gap = number - self._last_compaction
            self._shortest = gap if self._shortest is None else min(self._shortest, gap)
        self._last_compaction = number
        self._compactions += 1
        if sent.plan.compaction is not None and sent.plan.compaction.summary is not None:
            self._since = self._shown

    def _body(self, sent: Sent) -> bytes:
        target = self._study.setting.target
        needed = {"max_tokens": LARGEST_RESERVE} if target.api == "anthropic" else {}
        return body(target.api, target.model, sent.slots, frame_fields=needed, options=sent.plan.options)

    def _price(self, sent: Sent) -> None:
        study = self._study
        request, marks = _request(study, sent.slots, sent.plan)
        self._mutations += self._before != request[: len(self._before)]
        self._before = request
        frame = (b"frame", study.setting.frame)
        usd = self._summary_call(sent, frame)
        hit = self._cache.send(request, frame, marks, sent.step.at)
        output = study.tokens(study.session.slots[sent.step.index])
        usd += self._paid(hit, output)
        kinds = _kinds(study, sent)
        self._points.append(Point(sent.step.index, sent.tokens, kinds, hit, usd, _event(sent)))

    def _summary_call(self, sent: Sent, frame: Block) -> float:
        """Return what the call for a model's summary cost, where the policy would have made one."""
        compaction = sent.plan.compaction
        if not self._policy.settings.replay_pays_summaries or compaction is None or compaction.summary is None:
            return 0.0
        before = [block for slot in sent.before for block in self._study.blocks(slot)]
        hit = self._cache.send(before, frame, [len(before) - 1], sent.step.at)
        words = compaction.summary.parts[0]  # what a model would have written; files read again behind it are not
        output = self._study.count(words.text) if isinstance(words, Text) else 0
        return self._paid(hit, output)

    def _paid(self, hit: Hit, output: int) -> float:
        """Return what a call cost; 0 where nobody told the prices."""
        prices = self._study.setting.target.prices
        return 0.0 if prices.assumed else cost(hit, output, prices)

    def measured(self) -> Measured:
        points = self._points
        p50, p95 = _percentiles(self._seconds)
        notes = [f"{rule} x{times}" for rule, times in self._notes.items()]
        if self._shortest is not None:
            notes.append(f"{GAP}: {self._shortest}")
        return Measured(
            policy=self._policy.name,
            requests=len(points),
            invalid_requests=self._invalid,
            over_window=self._over,
            refused=self._refused,
            user_words_missing=self._missing,
            tokens_sum=sum(point.tokens for point in points),
            tokens_peak=max((point.tokens for point in points), default=0),
            cache_hit=read_share(point.hit for point in points),
            usd=sum(point.usd for point in points),
            online=self._online,
            mutations=self._mutations,
            compactions=self._compactions,
            policy_ms_p50=p50,
            policy_ms_p95=p95,
            notes=tuple(notes),
            points=tuple(points),
            is_priced=not self._study.setting.target.prices.assumed,
        )


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return (seconds[0] * 1e3, seconds[0] * 1e3) if seconds else (0.0, 0.0)
    cut = quantiles(seconds, n=20, method="inclusive")
    return cut[9] * 1e3, cut[18] * 1e3


def _request(study: Study, slots: Sequence[Slot], plan: Plan) -> tuple[list[Block], list[int]]:
    """Return the blocks of a request and where its breakpoints stand among them."""
    request: list[Block] = []
    ends: list[int] = []
    for slot in slots:
        request += study.blocks(slot)
        ends.append(len(request) - 1)
    marks = [ends[place] for place in plan.options.markers if place < len(ends)]
    return request, [FRAME, *marks] if plan.options.frame_marker else marks


def _missing_words(branch: Branch, since: int, texts: list[str]) -> int:
    """Return how many messages of the user are not there that must be: those since the last compaction, the newest."""
    users = [i for i in range(len(branch.slots)) if branch.messages[i].starts_turn and branch.messages[i].text.strip()]
    wanted = {index for index in users if index >= since} | set(users[-1:])
    return sum(not _is_told(branch, index, texts) for index in wanted)


def _is_told(branch: Branch, index: int, texts: list[str]) -> bool:
    """Return whether each text of a user's message is in the request verbatim, or spilled with its handle there."""
    for place, part in enumerate(branch.messages[index].parts):
        if not isinstance(part, Text) or any(part.text.strip() in text for text in texts):
            continue
        spilled = [edit for edit in branch.edits.get(index, ()) if edit.span.part == place and edit.blob]
        if not any(edit.blob[:HANDLE] in text for edit in spilled for text in texts):
            return False
    return True


_KINDS = {"Thinking": "thinking", "ToolResult": "results", "Media": "media"}
"""Parts that are told apart in the picture; others count for who said them."""


def _kinds(study: Study, sent: Sent) -> dict[str, int]:
    """Return the tokens of a request by kind: frame, summary, user, assistant, thinking, results, stubs, media."""
    out = {"frame": study.setting.frame}
    branch = sent.plan.branch
    summary = branch.compaction.summary if branch.compaction else None
    for slot in sent.slots:
        for part, (_, tokens) in zip(slot.message.parts, study.blocks(slot), strict=False):
            kind = _KINDS.get(type(part).__name__, slot.message.role)
            if slot.message is summary:
                kind = "summary"
            elif kind == "results" and slot.raw is None and slot.base is not None:
                kind = "stubs"
            out[kind] = out.get(kind, 0) + tokens
    return out


def _event(sent: Sent) -> str:
    plan = sent.plan
    if plan.compaction is not None:
        return plan.compaction.trigger if plan.compaction.trigger in {"slide", "history"} else "compaction"
    rules = {edit.rule for edit in plan.record}
    return "prune" if rules & {"prune", "trim"} else "spill" if "spill" in rules else ""


class Kept(Struct, frozen=True):
    """What a policy keeps at the cuts of a session in one room."""

    score: CutScore = CutScore()
    """Where it is missing, the dependencies alone: they are the session's, not the policy's."""
    over: int = 0
    """Requests scored that did not fit; they are scored as they are, not squeezed."""
    missing: str = ""
    """Why the score could not be measured; empty where it was."""


def measure_cuts(study: Study, policy: Policy, tick: Callable[[], Any] = lambda: None) -> dict[str, Kept]:
    """Return what ``policy`` keeps at the cuts, for each budget of ``BUDGETS``.

    A budget at which the run fails, as one that leaves no room for a request, says why; the others are measured.
    """
    found: dict[str, Kept] = {}
    for budget in BUDGETS:
        try:
            found[str(budget)] = _measure_cuts_at(study, policy, budget, tick)
        except UNMEASURABLE as error:
            why = str(error).partition(". ")[0] or type(error).__name__  # the advice behind it is for --window
            found[str(budget)] = Kept(_count_dependencies(study), missing=why)
    return found


def _measure_cuts_at(study: Study, policy: Policy, budget: int, tick: Callable[[], Any]) -> Kept:
    cuts = {cut.position: cut for cut in study.cuts()}
    if not cuts:
        return Kept()
    score, over = CutScore(), 0
    target = target_at_cuts(study.setting, budget)
    for sent in simulate_requests(study, policy, target):
        tick()
        cut = cuts.pop(sent.step.index, None)
        if cut is not None:
            score += cut.score([slot.message for slot in sent.slots], budget)
            over += sent.tokens > usable(target.limits.window)
        if not cuts:
            break
    return Kept(score, over)


def _count_dependencies(study: Study) -> CutScore:
    """Return the dependencies at all cuts of the session; none where the cuts themselves could not be made."""
    try:
        return CutScore(dependencies=sum(len(cut.dependencies) for cut in study.cuts()))
    except UNMEASURABLE:
        return CutScore()


def cuts_json(scores: dict[str, CutScore], missing: Container[str] = ()) -> dict[str, Any]:
    """Return the figures of cuts as the report gives them; of a budget in ``missing`` all but the dependencies null."""
    out: dict[str, Any] = {}
    for budget, score in scores.items():
        figures = msgspec.structs.asdict(pool([score]))
        if budget in missing:
            figures = {name: value if name == "dependencies" else None for name, value in figures.items()}
        out[budget] = figures
    return out
