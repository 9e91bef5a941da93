"""What of a conversation survives five compactions, measured with compaction-conformance-kit beside its own methods.

Usage: uv run --group rulers --extra exact python bench/conformance_kit.py
         [--file FILE] [--method NAME…] [--tuning] [--json] [--check] [--write]

The kit plants statements of five types (safety rule, hard constraint, fact, goal state, user preference) in a
conversation, compacts it five times, and looks for the words of each statement in the text that is left. From the
second round on a method gets nothing but the text of the round before. No model is called.

What was fixed before the first run, and is not to be changed to get better figures:

- Suites and seeds are those in ``SUITES``. ``--tuning`` runs the same suites with other seeds; changes of the product
  are judged by those alone.
- Two adapters, both the policy as shipped, asked to compact (as a user's ``/compact``) at a window of 200,000. *With
  the log* is how the product works: it keeps the conversation, and a later compaction reads it again. *Text only*
  keeps nothing: each round begins a new conversation with the messages that the last one would send. A round that
  would gain nothing is refused by the product and leaves the text as it is.
- ``--check``: with either adapter, in every suite, and without a limit of size, at least ``LEAST_SURVIVAL`` of the
  statements of each type survive, pooled over the seeds of the suite. A statement survives as the kit defines it: all
  its words are there. The kit's own verdicts are laxer and are not used.
- Limits of size (a share of the characters of the whole conversation, the same in each round) are reported and not
  judged: at 10 % not even the statements fit.

Four methods of the kit, those with *checklist* in their name, recognize the kit's own prefixes ("FACT:" and so on), and
pinned-rules two of them. They keep nearly everything by construction.

``--file`` keeps results as they come, and goes on from there. ``--write`` puts the tables into docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from compaction_kit.canaries import seeded_canaries
from compaction_kit.cli import COMPACTORS
from compaction_kit.compacted import CompactedContext
from compaction_kit.corpus import build_random_session
from compaction_kit.generated import build_generated_session
from compaction_kit.runner import run_conformance
from compaction_kit.semantic_corpus import build_semantic_heldout_session, build_semantic_session
from compaction_kit.session import SeededSession, Turn, build_seeded_session
from ruler_results import ResultsFile, fill_page_part, format_table, name_versions

from holdfast import ConversationState, Message, PlanInputs, Policy, apply, plan
from holdfast.config import get_target

PACKAGE = "compaction-conformance-kit"
ROUNDS = 5
LEAST_SURVIVAL = 0.95
SUITES: dict[str, tuple[int, ...]] = {
    "seeded": (0,),
    "randomized": tuple(range(1, 13)),
    "generated": tuple(range(101, 113)),
    "semantic": tuple(range(1, 9)),
    "semantic-heldout": tuple(range(1, 9)),
}
"""Seeds of each suite. The first is one conversation that has no seed."""
TUNING_SUITES: dict[str, tuple[int, ...]] = {
    "randomized": tuple(range(21, 33)),
    "generated": tuple(range(201, 213)),
    "semantic": tuple(range(21, 29)),
    "semantic-heldout": tuple(range(21, 29)),
}
SIZE_LIMITS = (0.10, 0.20, 0.30)
"""Shares of the characters of the conversation, as in the kit's own benchmark; without the seeded suite."""
TYPES = ("safety_rule", "hard_constraint", "fact", "goal_state", "user_preference")
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
TAIL_SHARE = Policy().settings.compaction.tail_share

# -- our adapters ------------------------------------------------------------------------------------------------------


class LogCompactor:
    """Holdfast as it works: the conversation stays in the log, and each compaction reads it again."""

    name = "holdfast, with the log"

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._state: ConversationState | None = None
        self._text = ""

    def compact(self, turns: list[Turn], round_num: int = 1, budget_chars: int | None = None) -> CompactedContext:
        """Compact the conversation, of which ``turns`` may be only what was left of it the last time."""
        is_own_text = len(turns) == 1 and turns[0].text == self._text and self._state is not None
        if not is_own_text:
            self._messages, self._state = convert_turns(turns), None
        total_chars = sum(len(message.text) for message in self._messages)
        self._state, self._text = compact_within(self._messages, self._state, budget_chars, total_chars)
        return CompactedContext(self._text, self.name, round_num)


class TextCompactor:
    """Holdfast without its log: a new conversation begins with the messages that the last one would have sent."""

    name = "holdfast, text only"

    def compact(self, turns: list[Turn], round_num: int = 1, budget_chars: int | None = None) -> CompactedContext:
        """Compact ``turns``; a single one is the text of the last round, taken apart into its messages."""
        messages = split_rendered_text(turns[0].text) if len(turns) == 1 else convert_turns(turns)
        total_chars = sum(len(message.text) for message in messages)
        _, text = compact_within(messages, None, budget_chars, total_chars)
        return CompactedContext(text, self.name, round_num)


def convert_turns(turns: Iterable[Turn]) -> list[Message]:
    """Return the messages of a conversation; its system prompt is part of every request and no message."""
    return [Message.from_text(turn.role, turn.text) for turn in turns if turn.role != "system"]


def compact_within(
    messages: list[Message], state: ConversationState | None, max_chars: int | None, total_chars: int
) -> tuple[ConversationState, str]:
    """Compact on request; return the state afterwards and the text of the messages that would be sent.

    With ``max_chars`` the largest summary is searched for with which the text is not longer.
    """
    if max_chars is None:
        return _compact_once(messages, state, Policy())
    # The product's setting is in tokens, the limit of the kit in characters. So sizes are tried by halving steps, from
    # more tokens than the limit could ever hold.
    share = min(1.0, max_chars / max(1, total_chars))
    best: tuple[ConversationState, str] | None = None
    low, high = 0, max_chars
    while high - low > 8:
        middle = (low + high) // 2
        policy = Policy().with_settings(
            summary={"max_tokens": max(middle, 1)}, compaction={"tail_share": TAIL_SHARE * share}
        )
        attempt = _compact_once(messages, state, policy)
        if len(attempt[1]) <= max_chars:
            best, low = attempt, middle
        else:
            high = middle
    return best or _compact_once(messages, state, Policy().with_settings(summary={"max_tokens": 1}))


def _compact_once(
    messages: list[Message], state: ConversationState | None, policy: Policy
) -> tuple[ConversationState, str]:
    new_plan = plan(messages, TARGET, policy, state=state, inputs=PlanInputs(force_compaction=True))
    return new_plan.state, render_messages(apply(messages, new_plan))


def render_messages(messages: list[Message]) -> str:
    """Return the text of ``messages``, each after a line end with its role in brackets, as the kit renders turns.

    A summary, which is the first if there is one, has no mark: it is text that the product wrote.
    """
    texts = []
    for index, message in enumerate(messages):
        texts.append(message.text if index == 0 and message.role == "user" else f"[{message.role}] {message.text}")
    return "\n".join(texts)


def split_rendered_text(text: str) -> list[Message]:
    """Return the messages of a text by ``render_messages``."""
    first, *lines = text.split("\n")
    roles, texts = ["user"], [first]
    for line in lines:
        role = next((role for role in ("user", "assistant") if line.startswith(f"[{role}] ")), None)
        if role is None:
            texts[-1] += f"\n{line}"
        else:
            roles.append(role)
            texts.append(line[len(role) + 3 :])
    return [Message.from_text(role, text) for role, text in zip(roles, texts, strict=True)]  # type: ignore[arg-type]


OWN_METHODS: dict[str, Callable[[], Any]] = {LogCompactor.name: LogCompactor, TextCompactor.name: TextCompactor}
METHODS: dict[str, Callable[[], Any]] = {**OWN_METHODS, **COMPACTORS}

# -- runs --------------------------------------------------------------------------------------------------------------


def build_session(suite: str, seed: int) -> tuple[SeededSession, list[Any], dict[str, Any]]:
    """Return a conversation of a suite, its statements, and what is known of updates and near duplicates in it."""
    if suite == "seeded":
        return build_seeded_session(), seeded_canaries(), {}
    if suite == "randomized":
        return *build_random_session(seed), {}
    if suite == "generated":
        return *build_generated_session(seed), {}
    build = build_semantic_session if suite == "semantic" else build_semantic_heldout_session
    session, canaries, meta = build(seed)
    return session, canaries, meta


def run_method(name: str, suite: str, seed: int, limit: float | None) -> dict[str, Any]:
    """Return how many statements of each type survive each round, and what the last text is like."""
    session, canaries, meta = build_session(suite, seed)
    run = run_conformance(session, METHODS[name](), rounds=ROUNDS, canaries=canaries, budget_fraction=limit)
    totals = dict.fromkeys(TYPES, 0)
    for canary in canaries:
        totals[canary.type.value] += 1
    survived = []
    for one in run.rounds:
        counts = dict.fromkeys(TYPES, 0)
        for canary in canaries:
            counts[canary.type.value] += one.survived[canary.id]
        survived.append(counts)
    final = run.rounds[-1]
    text = final.context.text.lower()
    updated = [canary for canary in canaries if canary.superseded_tokens]
    resolved = stale = 0
    for canary in updated:
        is_stale = any(token.lower() in text for token in canary.superseded_tokens)
        is_latest = all(token.lower() in text for token in canary.required_tokens)
        stale += is_stale
        resolved += is_latest and not is_stale
    pairs = meta.get("distinct_pairs", [])
    return {
        "totals": totals,
        "survived": survived,
        "lost": sorted(id_ for id_, kept in final.survived.items() if not kept),
        "chars": [one.output_chars for one in run.rounds],
        "original_chars": run.rounds[0].input_chars,
        "is_within_limit": all(one.within_budget for one in run.rounds),
        "updates": len(updated),
        "resolved": resolved,
        "stale": stale,
        "pairs": len(pairs),
        "pairs_kept": sum(final.survived[first] and final.survived[second] for first, second in pairs),
    }


def list_runs(suites: dict[str, tuple[int, ...]], names: list[str]) -> Iterator[tuple[str, str, int, float | None]]:
    """Yield every run: without a limit, then with each limit where the kit's own benchmark has them."""
    for suite, seeds in suites.items():
        for limit in (None, *(SIZE_LIMITS if suite != "seeded" else ())):
            for name in names:
                for seed in seeds:
                    yield name, suite, seed, limit


# -- report ------------------------------------------------------------------------------------------------------------


def pool_runs(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one method in one suite at one limit, pooled over the seeds by count, not by median."""
    totals = {kind: sum(one["totals"][kind] for one in outcomes) for kind in TYPES}
    rounds = []
    for number in range(ROUNDS):
        kept = {kind: sum(one["survived"][number][kind] for one in outcomes) for kind in TYPES}
        rounds.append({kind: kept[kind] / totals[kind] if totals[kind] else None for kind in TYPES})
        rounds[-1]["all"] = sum(kept.values()) / sum(totals.values())
    sums = {
        name: sum(one[name] for one in outcomes) for name in ("updates", "resolved", "stale", "pairs", "pairs_kept")
    }
    return {
        "sessions": len(outcomes),
        "statements": totals,
        "survival": rounds,
        "size": sum(one["chars"][-1] for one in outcomes) / sum(one["original_chars"] for one in outcomes),
        "size_first_round": sum(one["chars"][0] for one in outcomes) / sum(one["original_chars"] for one in outcomes),
        "is_within_limit": all(one["is_within_limit"] for one in outcomes),
        **sums,
    }


def pool_all(results: ResultsFile, suites: dict[str, tuple[int, ...]], names: list[str]) -> list[dict[str, Any]]:
    """Return the pooled figures of every method, suite and limit."""
    grouped: dict[tuple[str, float | None, str], list[dict[str, Any]]] = {}
    for name, suite, seed, limit in list_runs(suites, names):
        grouped.setdefault((suite, limit, name), []).append(results.outcomes[make_key(name, suite, seed, limit)])
    return [
        {"suite": suite, "limit": limit, "method": name, **pool_runs(outcomes)}
        for (suite, limit, name), outcomes in grouped.items()
    ]


def make_key(name: str, suite: str, seed: int, limit: float | None) -> str:
    """Return the name of a run in a results file."""
    return f"{name}/{suite}/{seed}/{limit or 'no limit'}"


def find_broken_bars(rows: list[dict[str, Any]]) -> list[str]:
    """Return each type of which one of our adapters loses more than ``LEAST_SURVIVAL`` allows."""
    broken = []
    for row in rows:
        if row["method"] not in OWN_METHODS or row["limit"] is not None:
            continue
        for kind in TYPES:
            rate = row["survival"][-1][kind]
            if rate is not None and rate < LEAST_SURVIVAL:
                broken.append(f"{row['method']}, {row['suite']}: {kind} {rate:.3f} under {LEAST_SURVIVAL}")
    return broken


def render_tables(rows: list[dict[str, Any]], suites: dict[str, tuple[int, ...]]) -> str:
    """Return the tables in Markdown: without a limit by suite, then with limits over the suites that have them."""
    head = (
        "method",
        *(kind.replace("_", " ") for kind in TYPES),
        "all, rounds 1 to 5",
        "size",
        "updates: latest alone / stale there",
    )
    parts = []
    for suite, seeds in suites.items():
        own = [row for row in rows if row["suite"] == suite and row["limit"] is None]
        title = f"{suite}, seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{suite}, one conversation"
        parts.append(f"*{title}*\n\n{format_table(head, [_format_row(row) for row in own])}")
    limit_head = ("method", *(f"{limit:.0%}: all, updates resolved, pairs" for limit in SIZE_LIMITS))
    for suite in suites:
        limited = [row for row in rows if row["suite"] == suite and row["limit"] is not None]
        if limited:
            lines = []
            for name in dict.fromkeys(row["method"] for row in limited):
                cells = [_format_limited(row) for row in limited if row["method"] == name]
                lines.append((_mark_own(name), *cells))
            parts.append(f"*{suite}, with a limit of size*\n\n{format_table(limit_head, lines)}")
    return "\n".join(parts)


def _format_row(row: dict[str, Any]) -> tuple[str, ...]:
    final = row["survival"][-1]
    curve = ", ".join(f"{one['all']:.2f}" for one in row["survival"])
    updates = f"{row['resolved']} / {row['stale']} of {row['updates']}" if row["updates"] else "-"
    cells = [_format_share(final[kind]) for kind in TYPES]
    return (_mark_own(row["method"]), *cells, curve, f"{row['size']:.0%}", updates)


def _format_limited(row: dict[str, Any]) -> str:
    text = f"{row['survival'][-1]['all']:.2f}"
    if row["updates"]:
        text += f", {row['resolved']}/{row['updates']}"
    if row["pairs"]:
        text += f", {row['pairs_kept']}/{row['pairs']}"
    return text if row["is_within_limit"] else f"{text} (over the limit)"


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _mark_own(name: str) -> str:
    return f"**{name}**" if name in OWN_METHODS else name


def main() -> int:
    """Run what is not in the file yet and print the tables; with ``--check``, exit 1 if a bar is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, help="keep results here, and go on from there")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this method; may be repeated")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this suite; may be repeated")
    parser.add_argument("--tuning", action="store_true", help="use the seeds for tuning, not those that are reported")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is broken")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/results.md")
    args = parser.parse_args()
    suites = TUNING_SUITES if args.tuning else SUITES
    subject = {**name_versions(PACKAGE, __file__), "seeds": {suite: list(seeds) for suite, seeds in suites.items()}}
    if args.suite:
        suites = {suite: seeds for suite, seeds in suites.items() if suite in args.suite}
    names = args.method or list(METHODS)
    results = ResultsFile(args.file, subject)
    for name, suite, seed, limit in list_runs(suites, names):
        key = make_key(name, suite, seed, limit)
        if key not in results.outcomes:
            results.add(key, run_method(name, suite, seed, limit))

    rows = pool_all(results, suites, names)
    broken = find_broken_bars(rows)
    if args.json:
        print(json.dumps({**subject, "rounds": ROUNDS, "rows": rows, "broken": broken}, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in subject.items() if name != "seeds"))
        print(render_tables(rows, suites))
        print("\n".join(broken) if broken else f"no type under {LEAST_SURVIVAL} after {ROUNDS} rounds")
    if args.write:
        versions = (
            f"{PACKAGE} {subject[PACKAGE]}, {ROUNDS} rounds; Holdfast {subject['holdfast']}, code {subject['code']}."
        )
        fill_page_part("conformance-kit", f"{versions}\n\n{render_tables(rows, suites)}")
    return int(args.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
