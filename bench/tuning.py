"""Try other numbers of the policy on recorded sessions, pooled by repository.

Usage: python bench/tuning.py FOLDER [--windows 64000:10000,32000:3000] [--settings JSON] [--set MODULE:NAME=VALUE …]

A window is given with the tokens of its setup. Sessions under FOLDER belong together by the first part of their names
(``entire-25.jsonl`` and ``entire-bc.jsonl`` are ``entire``). Sessions named ``cipherbox`` are left out: they are the
final test. For each repository the tool prints online fact recall and the cost relative to append-only, then their
means: the pool by repository, in which a repository with long sessions counts no more than another one.

``--set`` replaces a constant of a module below ``holdfast.planning``, such as
``extract.salience:AGE_DECAY_EXPONENT=0.5``, and ``--settings`` sections of the policy's settings.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec import Struct

from holdfast.config import get_target
from holdfast.formats import read_recording
from holdfast.planning.pipeline import Policy
from holdfast.replay.cache import SimulatedCache, price_request
from holdfast.replay.measure import (
    MeasurementSettings,
    SessionStudy,
    build_cache_request,
    change_target_window,
    compute_usable_window,
    simulate_requests,
)
from holdfast.replay.recall import RecallCounts
from holdfast.replay.session import make_replay_session
from holdfast.replay.tokenizer import get_tokenizer
from holdfast.state.entries import RequestSetup

MODEL = "claude-sonnet-4-5"
NO_WINDOW = 10_000_000
"""A window in which nothing overflows, for the cost of append-only."""
FINAL_TEST = "cipherbox"


class Job(Struct, frozen=True):
    """One session to replay with one policy in one window."""

    file: Path
    window: int
    setup_tokens: int
    policy: str
    settings: dict[str, Any]
    constants: tuple[str, ...]


class Outcome(Struct, frozen=True):
    """What a replay measured."""

    recall: RecallCounts
    usd: float
    over_window: int


@cache
def read_study(file: Path) -> SessionStudy:
    """Read a session and prepare it for measuring."""
    name, counter = get_tokenizer()
    target = get_target("anthropic", MODEL, window=NO_WINDOW, setup=RequestSetup("tuning", 0))
    session = make_replay_session(read_recording(file.read_bytes()), "anthropic")
    return SessionStudy(session, MeasurementSettings(NO_WINDOW, 0, target, name, counter))


@contextmanager
def override_constants(constants: Sequence[str]) -> Iterator[None]:
    """Set each ``module:NAME=value`` for a while; raise ``SystemExit`` for a name that the module does not have."""
    with ExitStack() as stack:
        for constant in constants:
            place, _, value = constant.partition("=")
            module_name, _, name = place.partition(":")
            module = importlib.import_module(f"holdfast.planning.{module_name}")
            if module_name.endswith("constants"):
                raise SystemExit(f"{constant}: give a module that imports the constant; each has its own copy")
            if not hasattr(module, name):
                raise SystemExit(f"{module.__name__} has no {name}; give the module that uses the constant")
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, ast.literal_eval(value))
        yield


def run_job(job: Job) -> Outcome:
    """Replay a session and add up recall and cost."""
    with override_constants(job.constants):
        return _replay_session(job)


def _replay_session(job: Job) -> Outcome:
    study = read_study(job.file)
    policy = Policy() if job.policy == "holdfast" else Policy.preset(job.policy)
    if job.settings:
        policy = policy.with_settings(**job.settings)
    target = change_target_window(study.setting.target, job.window, job.setup_tokens)
    study.setting = MeasurementSettings(
        job.window, job.setup_tokens, target, study.setting.tokenizer, study.setting.counter
    )
    cache_of_provider = SimulatedCache(target.cache_rules)
    recall = RecallCounts()
    usd = 0.0
    over_window = 0
    for request in simulate_requests(study, policy, target):
        texts: list[str] = []
        for sized_message in request.sized_messages:
            texts += study.dependencies.lookup.get_texts(sized_message)
        recall += study.dependencies.score_request(request.step.index, texts)
        over_window += request.tokens > compute_usable_window(job.window)
        blocks, breakpoints = build_cache_request(study, request.sized_messages, request.plan)
        cache_use = cache_of_provider.send_request(blocks, (b"setup", job.setup_tokens), breakpoints, request.step.at)
        output_tokens = study.count_message(study.session.messages[request.step.index])
        usd += price_request(cache_use, output_tokens, target.prices)
    return Outcome(recall, usd, over_window)


class RepositoryFigures(Struct, frozen=True):
    """What a setting gives on the sessions of one repository."""

    fact_recall: float
    cost: float
    """Relative to append-only, which sends everything each time."""
    over_window: int


def list_sessions(folder: Path) -> list[Path]:
    """Return the recorded sessions below a folder, without the final test; raise ``SystemExit`` if there are none."""
    files = [file for file in sorted(folder.rglob("*.jsonl")) if not file.name.startswith(FINAL_TEST)]
    if not files:
        raise SystemExit(f"{folder}: no recorded sessions (*.jsonl); give their folder")
    return files


def make_jobs(
    files: Sequence[Path], window: int, setup_tokens: int, settings: dict[str, Any], constants: Sequence[str]
) -> list[Job]:
    """Return the jobs that measure a setting in one window."""
    return [Job(file, window, setup_tokens, "holdfast", settings, tuple(constants)) for file in files]


def make_baseline_jobs(files: Sequence[Path], setup_tokens: int) -> list[Job]:
    """Return the jobs that measure append-only, to which costs are relative."""
    return [Job(file, NO_WINDOW, setup_tokens, "append-only", {}, ()) for file in files]


def pool_outcomes(
    files: Sequence[Path], outcomes: Sequence[Outcome], baselines: Sequence[Outcome]
) -> dict[str, RepositoryFigures]:
    """Return the figures of each repository; ``outcomes`` and ``baselines`` are in the order of ``files``."""
    figures: dict[str, RepositoryFigures] = {}
    for repository in sorted({get_repository(file) for file in files}):
        numbers = [number for number, file in enumerate(files) if get_repository(file) == repository]
        own_outcomes = [outcomes[number] for number in numbers]
        append_only_usd = sum(baselines[number].usd for number in numbers)
        figures[repository] = RepositoryFigures(
            sum((outcome.recall for outcome in own_outcomes), RecallCounts()).fact_recall or 0.0,
            sum(outcome.usd for outcome in own_outcomes) / append_only_usd,
            sum(outcome.over_window for outcome in own_outcomes),
        )
    return figures


def get_repository(file: Path) -> str:
    """Return the first part of a session's name, which its repository's sessions share."""
    return file.name.split("-")[0]


def parse_windows(text: str) -> list[tuple[int, int]]:
    """Return windows with the tokens of their setup, of ``64000:10000,32000:3000``."""
    pairs = [part.partition(":") for part in text.split(",")]
    return [(int(window), int(setup_tokens)) for window, _, setup_tokens in pairs]


def main() -> None:
    """Print the figures of each window."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", default="64000:10000,32000:3000")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--set", nargs="*", default=[], metavar="MODULE:NAME=VALUE")
    arguments = parser.parse_args()
    files = list_sessions(arguments.folder)
    with Pool() as pool:
        for window, setup_tokens in parse_windows(arguments.windows):
            jobs = make_jobs(files, window, setup_tokens, arguments.settings, arguments.set)
            outcomes = pool.map(run_job, [*jobs, *make_baseline_jobs(files, setup_tokens)], chunksize=1)
            print(f"window {window:,}, setup {setup_tokens:,}")
            figures = pool_outcomes(files, outcomes[: len(files)], outcomes[len(files) :])
            for repository, own in figures.items():
                print(f"  {repository:<12} {own.fact_recall:.4f} at {own.cost:.3f}, {own.over_window} over the window")
            mean_recall = mean(own.fact_recall for own in figures.values())
            print(f"  {'mean':<12} {mean_recall:.4f} at {mean(own.cost for own in figures.values()):.3f}")


if __name__ == "__main__":
    main()
