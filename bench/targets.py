"""Measure the promises about policy ``holdfast`` on recorded sessions.

Usage: python bench/targets.py [FILE…] [--check]      (default: every session under ../shared/data)

For each session and for the pool: validity and size at windows of 32,000 (3,000 of them setup), 64,000 and 96,000
(10,000 of them setup), cost and online fact recall compared with every other policy, recall at cuts compared with the
oracle, and the same bytes in two runs. ``--check`` exits 1 if a promise is broken. Recall and cost are promised for a
pool of sessions; of a single one (the example, if there are no others beside the checkout) they are only printed.
"""

from __future__ import annotations

import argparse
import sys
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct

from holdfast.config import get_target
from holdfast.formats import Recording, read_recording
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.replay.measure import MeasurementSettings, PolicyFigures, SessionStudy, measure_cuts, measure_policy
from holdfast.replay.recall_at_cuts import CutScore, compute_interval, pool_scores
from holdfast.replay.session import make_replay_session
from holdfast.replay.tokenizer import get_tokenizer
from holdfast.state.entries import RequestSetup

MODEL = "claude-sonnet-4-5"
SETTINGS = ((64_000, 10_000, 0.990, 0.39), (96_000, 10_000, None, None), (32_000, 3_000, 0.975, 0.29))
"""Window, setup_tokens, least pooled online fact recall, largest pooled cost relative to append-only."""
CUTS = {"4000": 0.80, "8000": 0.93, "16000": 0.98}
"""Least pooled fact recall at cuts, by budget in tokens."""
GAIN, HANDLES = 0.50, 0.98


class Tally(Struct):
    """Sums over sessions for one policy."""

    usd: float = 0.0
    append_only: float = 0.0
    facts: int = 0
    total: int = 0

    def add(self, one: PolicyFigures, base: PolicyFigures) -> None:
        """Add the figures of one session."""
        self.usd += one.usd
        self.append_only += base.usd
        self.facts += one.online.facts
        self.total += one.online.total

    @property
    def cost(self) -> float:
        """Cost relative to append-only."""
        return self.usd / self.append_only if self.append_only else 1.0

    @property
    def recall(self) -> float:
        """Pooled online fact recall."""
        return self.facts / self.total if self.total else 1.0


def study(recording: Recording, window: int, setup_tokens: int) -> SessionStudy:
    """Prepare a recording for a replay with this window and setup."""
    name, counter = get_tokenizer()
    place = get_target("anthropic", MODEL, window=window, setup=RequestSetup("bench", setup_tokens))
    return SessionStudy(
        make_replay_session(recording, "anthropic"), MeasurementSettings(window, setup_tokens, place, name, counter)
    )


def digest(made: SessionStudy, policy: Policy) -> tuple[PolicyFigures, str]:
    """Return the figures of a policy and a digest of all its request bodies."""
    seen = blake2b(digest_size=16)
    return measure_policy(made, policy, keep=lambda _step, body: seen.update(body)), seen.hexdigest()


def online(recordings: dict[str, Recording], window: int, setup_tokens: int) -> tuple[dict[str, Tally], list[str]]:
    """Print each session's figures at one setting; return the pool and the broken promises."""
    tallies = {name: Tally() for name in PRESETS}
    wrong: list[str] = []
    print(f"\nwindow {window:,}, setup_tokens {setup_tokens:,}")
    for file, recording in recordings.items():
        made = study(recording, window, setup_tokens)
        ours, first = digest(made, Policy.preset("holdfast"))
        if digest(made, Policy.preset("holdfast"))[1] != first:
            wrong.append(f"{file}: other bytes when run twice")
        if ours.invalid_requests or ours.over_window or ours.user_words_missing:
            wrong.append(f"{file} at {window}: invalid, over or words missing")
        base = measure_policy(made, Policy.preset("append-only"))
        judged = base.tokens_peak > 2 * window
        told = "" if judged else " (not judged for cost)"
        print(f"  {file}: {ours.requests} requests, append-only peak {base.tokens_peak:,}{told}")
        known = {"holdfast": ours, "append-only": base}
        for name in PRESETS:
            one = known.get(name) or measure_policy(made, Policy.preset(name))
            print(f"    {name:<12} {_line(one, base)}")
            if judged:
                tallies[name].add(one, base)
    for name, tally in tallies.items():
        print(f"  pooled {name:<12} cost {tally.cost:.3f}   online fact recall {tally.recall:.4f}")
    return tallies, wrong


def _line(one: PolicyFigures, base: PolicyFigures) -> str:
    recall = one.online.fact_recall
    told = "  -  " if recall is None else f"{recall:.4f}"
    return (
        f"invalid {one.invalid_requests:3} over {one.over_window:3} words missing {one.user_words_missing:3} "
        f"cost {one.usd / base.usd:.3f} facts {told} hit {one.cache_hit or 0:.3f} compactions {one.compactions:3} "
        f"p95 {one.policy_ms_p95:.1f} ms"
    )


def better(tallies: dict[str, Tally]) -> list[str]:
    """Return the policies that beat ours by the definition in docs/metrics.md, append-only excepted."""
    own = tallies["holdfast"]
    found = []
    for name, other in tallies.items():
        if name in {"holdfast", "append-only"} or not other.total:
            continue
        more = other.recall > own.recall and other.cost <= own.cost
        cheaper = other.cost < own.cost and other.recall >= own.recall
        found += [name] if more or cheaper else []
    return found


def at_cuts(recordings: dict[str, Recording]) -> list[str]:
    """Print recall at cuts for each session and the pool; return the broken promises."""
    total: dict[str, CutScore] = {}
    sessions: dict[str, list[tuple[int, int]]] = {}
    print("\nat cuts (facts / names / handles / z-gain / stale, oracle)")
    for file, recording in recordings.items():
        for room, kept in measure_cuts(study(recording, 64_000, 10_000), Policy.preset("holdfast")).items():
            score = kept.score
            total[room] = total.get(room, CutScore()) + score
            sessions.setdefault(room, []).append((score.kept_facts, score.dependencies))
            if score.dependencies:
                print(f"  {file} {room:>6}: {_figures(score)}")
    for room, score in total.items():
        print(f"  pooled {room:>6}: {_figures(score)}  interval {compute_interval(sessions[room])}")
    return [*_broken(total)]


def _figures(score: CutScore) -> str:
    made = pool_scores([score])
    cells = (made.fact_recall, made.name_recall, made.handle_recall, made.z_gain, made.stale, made.oracle)
    return " ".join("  -  " if cell is None else f"{cell:.3f}" for cell in cells) + f"  of {made.dependencies}"


def _broken(total: dict[str, CutScore]) -> list[str]:
    wrong = []
    handles = pool_scores(total.values()).handle_recall or 1.0
    print(f"  handles over all rooms: {handles:.4f}")
    for room, least in CUTS.items():
        recall = pool_scores([total[room]]).fact_recall
        if recall is not None and recall < least:
            wrong.append(f"fact recall at {room}: {recall:.3f} under {least}")
    gain = pool_scores([total["8000"]]).z_gain
    if gain is not None and gain < GAIN:
        wrong.append(f"z-gain at 8000: {gain:.3f} under {GAIN}")
    if handles < HANDLES:
        wrong.append(f"handle recall {handles:.3f} under {HANDLES}")
    return wrong


def main() -> int:
    """Print all figures; with ``--check``, exit 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    shared = Path(__file__).parents[2] / "shared" / "data"
    example = Path(__file__).parents[1] / "examples" / "long-session.jsonl"
    files = args.files or sorted(shared.glob("*/*.jsonl")) or [example]
    recordings = {file.stem[:12]: read_recording(file.read_bytes(), file.name) for file in files}
    wrong, short = list[str](), list[str]()
    for window, setup_tokens, recall, cost in SETTINGS:
        tallies, bad = online(recordings, window, setup_tokens)
        wrong += bad
        own = tallies["holdfast"]
        if recall is not None and own.total and own.recall < recall:
            short.append(f"online fact recall {own.recall:.4f} under {recall} at {window}")
        if cost is not None and own.total and own.cost > cost:
            short.append(f"cost {own.cost:.3f} over {cost} at {window}")
        short += [f"{name} is better at {window}" for name in better(tallies)]
    short += at_cuts(recordings)
    if len(recordings) > 1:
        wrong += short
    else:
        print("", *(f"of one session alone, not judged: {one}" for one in short), sep="\n")
    print("\n" + ("\n".join(wrong) if wrong else "every promise is kept"))
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
