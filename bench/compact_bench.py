"""What compacted chats still say, measured with CompactBench beside its four methods, without a model or with one.

Usage: uv run --group rulers --extra exact python bench/compact_bench.py
         [--benchmarks-dir DIR] [--folder DIR] [--tuning] [--json] [--check] [--write]
         [--model NAME --url URL [--key-variable NAME] [--answers FILE]]

CompactBench makes short chats from templates (a rule said once, a decision that is replaced, people and their tasks),
compacts each, asks questions of a model that sees only the result, goes on with a turn, and compacts again. Its four
methods ask a model to write summaries, and every answer is a model's. Without one, this is what was fixed before the
first run, and is not to be changed to get better figures:

- *Cases*: every template of its suites ``elite_practice`` and ``starter``, ``CASES`` cases of each, ``DRIFT_CYCLES``
  further compactions, at its difficulties medium and hard; seed groups in ``SEED_GROUPS``. ``--tuning`` uses another
  seed group; changes of the product are judged by that alone. Cases in which two variables of a template drew the same
  phrase are ambiguous; they are counted and stay in, since they are the same for all methods.
- *Size*: every method has the same tokens, a half and a quarter of the chat: the floors of CompactBench's tiers
  Elite-Light and Elite-Mid. Who wrote more would win everything else.
- *Reader*: it answers with all that the result says, so a question that asks for a phrase measures whether the phrase
  is there at all: an upper bound for every method. A question that is passed by leaving a phrase out (18 templates have
  17 of them) is passed by an empty answer. Those need a model, and so do contradictions and CompactBench's own total.
- *Writer* in place of the model of its four methods, in two versions: *plain* chooses sentences by the frequency of
  their words, the oldest way to summarize without a model; *with cues* prefers sentences with a word for a rule, a
  decision or a responsibility, as the prompts ask for. Chosen sentences stand in their order; for the methods that ask
  for JSON they are sorted into its fields by the same cues. Prose and JSON of one method share its tokens.
- *Ours* is the product's extract of the whole chat, made on request, as lines with their speaker. Its frame is left
  out (a preface and headings), since the others have none.
- *Axes without a model*: rules, decisions, people, facts (each the share of questions whose phrase is there), and the
  drift over the further compactions. The ratio of sizes is given by the limit and only reported.

``--check``: on every axis, at either size, with either writer, no built-in method is ahead of ours by more than
``TIE``; drift is 1.0 for all methods that read the whole chat each time, so a tie there is no loss.

With ``--model`` the four methods write and all answers are read by that model, behind any server with the API of Chat
Completions; then CompactBench's own figures are reported, and nothing is judged. ``--answers`` records the answers of
the model, by a digest of each request, and replays them without a server.

``--folder`` keeps the event logs of CompactBench and goes on from there. Its wheel has no templates: without
``--benchmarks-dir`` pip fetches its source distribution into that folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

import bpe_openai
import compactbench.providers as provider_registry
from compactbench.compactors import Compactor, list_built_ins
from compactbench.contracts import CompactionArtifact, Transcript
from compactbench.dsl import DifficultyLevel, load_suite, resolve_variables
from compactbench.engine import derive_case_seed
from compactbench.providers import CompletionRequest, CompletionResponse, Provider
from compactbench.runner import RunArgs, run_experiment, to_run_result
from compactbench.scoring import compression
from ruler_results import fill_page_part, format_table, name_versions

from holdfast import Message, PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import get_result_text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.extract.returned_extract import expand_returned_extracts

PACKAGE = "compactbench"
SUITES = ("elite_practice", "starter")
DIFFICULTIES = ("medium", "hard")
CASES = 5
DRIFT_CYCLES = 5
SEED_GROUPS = {False: "holdfast-reported", True: "holdfast-tuning"}
"""Seed groups: what is reported, and what changes are judged by."""
SIZES = {"half": 2, "quarter": 4}
"""The ratio of the chat's tokens to those of its compaction, by name."""
WRITERS = ("plain", "cues")
TIE = 0.005
"""A difference of shares that is none: one question in two hundred."""
AXES = {
    "rules": "forbidden_behavior_retention",
    "decisions": "locked_decision_retention",
    "people": "entity_integrity",
    "facts": "immutable_fact_recall",
}
"""The axes and CompactBench's names for the kinds of question."""
OWN_METHOD = "holdfast"
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
SUMMARY_SIZES = tuple(int(1.25**step) for step in range(34, 9, -1))
"""Sizes of summaries that are tried, in the product's tokens: 1,972 down to 9."""
TAIL_SHARE = Policy().settings.compaction.tail_share
ENCODING = bpe_openai.get_encoding("cl100k_base")
# CompactBench would download this vocabulary.
compression._ENCODER_CACHE["cl100k_base"] = ENCODING  # noqa: SLF001


def count_tokens(text: str) -> int:
    """Count tokens as CompactBench does."""
    return len(ENCODING.encode(text)) if text else 0


# -- ours --------------------------------------------------------------------------------------------------------------


class HoldfastCompactor(Compactor):  # type: ignore[misc]
    """The product's extract of the whole chat, within the size that ``ratio`` gives; no model is asked."""

    name: ClassVar[str] = OWN_METHOD
    version: ClassVar[str] = "1"
    ratio: ClassVar[int] = 2

    async def compact(
        self,
        transcript: Transcript,
        config: dict[str, Any] | None = None,  # noqa: ARG002
        previous_artifact: CompactionArtifact | None = None,  # noqa: ARG002
    ) -> CompactionArtifact:
        """Return the artifact of a chat, which always holds all turns so far."""
        messages = [Message.from_text(turn.role.value, turn.content) for turn in transcript.turns]
        max_tokens = sum(count_tokens(turn.content) for turn in transcript.turns) // self.ratio
        return CompactionArtifact(summaryText=extract_within(messages, max_tokens))


def extract_within(messages: list[Message], max_tokens: int) -> str:
    """Return the longest extract of ``messages`` that is within ``max_tokens``, as lines with their speaker.

    The product's settings are in its own tokens and it rounds in its own way, so sizes are tried from large to small.
    No summary of a real window is as small as a quarter of these chats; where even the smallest extract is too long,
    lines are left out from its beginning, but none with a word for a rule as long as there are others.
    """
    best, shortest = "", ""
    for summary_tokens in SUMMARY_SIZES:
        for tail_share in (TAIL_SHARE / 2, 0.0):
            text = render_extract(messages, summary_tokens, tail_share)
            if count_tokens(best) < count_tokens(text) <= max_tokens:
                best = text
            if not shortest or count_tokens(text) < count_tokens(shortest):
                shortest = text
    return best or _drop_lines(shortest, max_tokens)


def _drop_lines(text: str, max_tokens: int) -> str:
    lines = text.split("\n")
    while lines and count_tokens("\n".join(lines)) > max_tokens:
        without_rule = [line for line in lines[:-1] if not _RULE_WORDS.search(line)]
        lines.remove((without_rule or lines)[0])
    return "\n".join(lines)


def render_extract(messages: list[Message], summary_tokens: int, tail_share: float) -> str:
    """Compact on request with a summary of ``summary_tokens``; return what a request would then show, without frame."""
    policy = Policy().with_settings(summary={"max_tokens": summary_tokens}, compaction={"tail_share": tail_share})
    new_plan = plan(messages, TARGET, policy, inputs=PlanInputs(force_compaction=True))
    shown = [build_sized_message(message) for message in apply(messages, new_plan)]
    lines = []
    for sized_message in expand_returned_extracts(shown):
        message = sized_message.message
        result_texts = [get_result_text(result) for result in message.results]
        text = "\n".join([message.text, *result_texts]).strip()
        lines.append(f"{message.role}: {text}" if message.role in ("user", "assistant") else text)
    return "\n".join(lines)


# -- the reader and the writers that stand in for a model ------------------------------------------------------------


_RULE_WORDS = re.compile(r"\b(?:never|don't|do not|must|under no circumstances|instead)\b", re.IGNORECASE)
_CONTEXT = re.compile(
    r"summary of a prior conversation:\n\n(.*)\n\n(?:Based only on this|The user now says)", re.DOTALL
)
_SOURCE = re.compile(r"(?:CONVERSATION|TURNS):\n(.*)\n\n(?:SUMMARY|JSON|HEADER):$", re.DOTALL)
_PARTS = re.compile(r"\n\n((?:PARTIAL \d+: .*))\n\nFINAL SUMMARY:$", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_SPEAKER = re.compile(r"^(?:USER|ASSISTANT|SYSTEM): ")
_WORD = re.compile(r"[a-z]{3,}")
_COMMON_WORDS = """
the and for that this with you your are was were have has had not but what who how can will would should could about
from our out let its they them their there here when where which any all want
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_CUES = {
    "forbidden_behaviors": re.compile(r"\b(?:never|not|don't|under no circumstances|must|rules?)\b", re.IGNORECASE),
    "locked_decisions": re.compile(r"\b(?:plan|instead|let's|approach|decid\w*|we're going|scratch)\b", re.IGNORECASE),
    "immutable_facts": re.compile(r"\b(?:goal|owns?|leads?|leading|handles?|contact|with|between)\b|->", re.IGNORECASE),
}
"""Words by which the writer *with cues* prefers a sentence; by them both writers sort sentences into fields of JSON."""


class ReadingProvider(Provider):  # type: ignore[misc]
    """Answers questions with all that the compacted chat says, and writes summaries by choosing sentences."""

    key: ClassVar[str] = "reading"
    writer: ClassVar[str] = "plain"
    ratio: ClassVar[int] = 2
    shares: ClassVar[tuple[float, float]] = (1.0, 0.0)
    """Of the size: for prose, and for JSON."""

    async def complete(self, request: CompletionRequest) -> CompletionResponse:
        """Answer one request."""
        text = self._answer(request)
        return CompletionResponse(text, count_tokens(request.prompt), count_tokens(text), request.model)

    def _answer(self, request: CompletionRequest) -> str:
        context = _CONTEXT.search(request.prompt)
        if context is not None:
            return "Understood, let us go on." if request.prompt.endswith("ASSISTANT:") else context[1]
        partial_summaries = _PARTS.search(request.prompt)
        if partial_summaries is not None:  # each is already within its share
            return re.sub(r"^PARTIAL \d+: ", "", partial_summaries[1], flags=re.MULTILINE)
        source = _SOURCE.search(request.prompt)
        if source is None:
            raise ValueError(f"unknown prompt of CompactBench: {request.prompt[:80]!r}")
        is_json = request.prompt.endswith("JSON:")
        return write_summary(source[1], self.writer, self.shares[is_json] / self.ratio, is_json=is_json)


def write_summary(source: str, writer: str, share: float, *, is_json: bool) -> str:
    """Return sentences of ``source`` in at most ``share`` of its tokens, in their order, as prose or JSON."""
    sentences = [_SPEAKER.sub("", sentence) for sentence in _SENTENCE.split(source) if sentence.strip()]
    words_by_sentence = [[word for word in _WORD.findall(one.lower()) if word not in _COMMON] for one in sentences]
    counts = Counter(word for words in words_by_sentence for word in words)
    total = max(1, counts.total())
    scores = []
    for sentence, words in zip(sentences, words_by_sentence, strict=True):
        frequency = sum(counts[word] for word in words) / (total * max(1, len(words)))
        has_cue = writer == "cues" and any(cue.search(sentence) for cue in _CUES.values())
        scores.append(frequency + has_cue)
    remaining = share * sum(count_tokens(sentence) for sentence in sentences)
    chosen: set[int] = set()
    for index in sorted(range(len(sentences)), key=lambda index: (-scores[index], index)):
        cost = count_tokens(sentences[index])
        if cost <= remaining and sentences[index] not in {sentences[one] for one in chosen}:
            chosen.add(index)
            remaining -= cost
    kept = [sentences[index] for index in sorted(chosen)]
    if not is_json:
        return "\n".join(kept)
    fields: dict[str, Any] = {name: [] for name in (*_CUES, "deferred_items", "unresolved_items")}
    for sentence in kept:
        name = next((name for name, cue in _CUES.items() if cue.search(sentence)), "unresolved_items")
        fields[name].append(sentence[:500])
    return json.dumps({**fields, "entity_map": {}})


# -- a model -----------------------------------------------------------------------------------------------------------


class ModelProvider(Provider):  # type: ignore[misc]
    """A server with the API of Chat Completions, or answers that one gave before."""

    key: ClassVar[str] = "model"
    url: ClassVar[str] = ""
    api_key: ClassVar[str] = ""
    answers: ClassVar[Path | None] = None
    known: ClassVar[dict[str, dict[str, Any]]] = {}

    async def complete(self, request: CompletionRequest) -> CompletionResponse:
        """Answer one request from the recorded answers, else ask the server and record its answer."""
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [{"role": "user", "content": request.prompt}],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.response_format:
            body["response_format"] = request.response_format
        digest = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=12).hexdigest()
        if digest not in self.known:
            if not self.url:
                raise SystemExit(f"no recorded answer to the request {digest}; give --url to ask {request.model}")
            self.known[digest] = await self._ask(body)
            if self.answers is not None:
                with self.answers.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"request": digest, **self.known[digest]}) + "\n")
        answer = self.known[digest]
        return CompletionResponse(answer["text"], answer["input"], answer["output"], request.model)

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        import httpx2

        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        async with httpx2.AsyncClient(timeout=300) as client:
            answer = await client.post(f"{self.url.rstrip('/')}/chat/completions", json=body, headers=headers)
        if answer.status_code != 200:
            raise SystemExit(f"{self.url} answered {answer.status_code}: {answer.text[:300]}")
        decoded = answer.json()
        usage = decoded.get("usage") or {}
        text = decoded["choices"][0]["message"]["content"] or ""
        return {"text": text, "input": usage.get("prompt_tokens", 0), "output": usage.get("completion_tokens", 0)}


# -- runs --------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One method on one suite at one difficulty and size; ``writer`` is that of the built-in methods."""

    method: str
    suite: str
    difficulty: str
    size: str
    writer: str

    @property
    def file_name(self) -> str:
        """Name of the event log of this run."""
        return "-".join(self) + ".jsonl"


def list_runs(writers: Sequence[str]) -> Iterator[Run]:
    """Yield every run; ours is the same with either writer and runs once."""
    for size in SIZES:
        for suite in SUITES:
            for difficulty in DIFFICULTIES:
                yield Run(OWN_METHOD, suite, difficulty, size, "none")
                for method in list_built_ins():
                    for writer in writers:
                        yield Run(method, suite, difficulty, size, writer)


def execute(run: Run, folder: Path, benchmarks: Path, seed_group: str, model: str) -> Path:
    """Run what is not in the event log yet; return the log."""
    path = folder / run.file_name
    if path.exists() and '"run_end"' in path.read_text("utf-8"):
        return path
    HoldfastCompactor.ratio = SIZES[run.size]
    provider: type[Provider] = ModelProvider
    if run.writer != "model":
        prose_shares = {
            "naive-summary": 1.0,
            "structured-state": 0.0,
            "hierarchical-summary": 0.5,
            "hybrid-ledger": 0.25,
        }
        prose_share = prose_shares.get(run.method, 1.0)
        shares = (prose_share, 1.0 - prose_share)
        provider = type(
            "Reader", (ReadingProvider,), {"writer": run.writer, "ratio": SIZES[run.size], "shares": shares}
        )
    provider_registry._REGISTRY["holdfast-bench"] = provider  # noqa: SLF001
    spec = f"{Path(__file__)}:HoldfastCompactor" if run.method == OWN_METHOD else f"built-in:{run.method}"
    resolver = sys.modules["compactbench.runner.run"]
    if run.method == OWN_METHOD:  # loading this file again by its path would make another class, without the ratio
        resolver.resolve_compactor_class = lambda _spec: HoldfastCompactor  # type: ignore[attr-defined]
    else:
        from compactbench.runner import resolve_compactor_class

        resolver.resolve_compactor_class = resolve_compactor_class  # type: ignore[attr-defined]
    arguments = RunArgs(
        method_spec=spec,
        suite_key=run.suite,
        provider_key="holdfast-bench",
        model=model,
        difficulty=DifficultyLevel(run.difficulty),
        drift_cycles=DRIFT_CYCLES,
        case_count_per_template=CASES,
        seed_group=seed_group,
        benchmarks_dir=benchmarks,
        output_path=path,
        resume=True,
    )
    asyncio.run(run_experiment(arguments))
    return path


def count_ambiguous_cases(benchmarks: Path, seed_group: str) -> int:
    """Return the number of cases in which two variables of the template drew the same phrase."""
    count = 0
    for suite in SUITES:
        templates = load_suite(benchmarks / suite)
        versions = {template.version for template in templates}
        version = versions.pop() if len(versions) == 1 else "mixed"
        for template in templates:
            for slot in range(CASES):
                seed = derive_case_seed(f"{suite}@{version}", seed_group, slot)
                phrases = resolve_variables(list(template.variables), seed)
                count += len(set(phrases.values())) < len(phrases)
    return count


def find_benchmarks(named: Path | None, folder: Path) -> Path:
    """Return the folder of the suites; without a name fetch CompactBench's source distribution into ``folder``."""
    from importlib.metadata import version

    if named is not None:
        return named
    unpacked = folder / f"{PACKAGE}-{version(PACKAGE)}"
    if not unpacked.exists():
        wanted = f"{PACKAGE}=={version(PACKAGE)}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        subprocess.run([*command, "--dest", str(folder), wanted], check=True)
        with tarfile.open(f"{unpacked}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return unpacked / "benchmarks" / "public"


# -- report ------------------------------------------------------------------------------------------------------------


def measure_logs(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the figures of one method over several event logs: the axes without a model, and CompactBench's own."""
    results = [to_run_result(path) for path in paths]
    cases = [case for result in results for case in result.cases]
    kept: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    drifts = []
    for case in cases:
        cycle_scores = []
        for cycle in case.cycles:
            items = [item for item in cycle.scorecard.item_scores if item.check_type == "contains_normalized"]
            for item in items:
                kept[item.item_type] += item.score
                asked[item.item_type] += 1
            weight = sum(item.weight for item in items)
            cycle_scores.append(sum(item.score * item.weight for item in items) / weight if weight else 1.0)
        deltas = [score - cycle_scores[0] for score in cycle_scores[1:]]
        drifts.append(max(0.0, min(1.0, 1 + sum(deltas) / max(1, len(deltas)))))
    cycles = [cycle for case in cases for cycle in case.cycles]
    return {
        **{axis: kept[kind] / asked[kind] if asked[kind] else None for axis, kind in AXES.items()},
        "drift": sum(drifts) / len(drifts),
        "ratio": sum(cycle.scorecard.compression_ratio for cycle in cycles) / len(cycles),
        "cases": len(cases),
        "questions": {axis: asked[kind] for axis, kind in AXES.items()},
        "own_figures": {
            "overall": sum(case.case_score for case in cases) / len(cases),
            "drift_resistance": sum(case.drift_resistance for case in cases) / len(cases),
            "contradictions": sum(cycle.scorecard.contradiction_rate for cycle in cycles) / len(cycles),
        },
    }


def find_broken_bars(rows: list[dict[str, Any]]) -> list[str]:
    """Return each axis on which a built-in method is ahead of ours by more than a tie."""
    broken = []
    for size in SIZES:
        own = next(row for row in rows if row["size"] == size and row["method"] == OWN_METHOD)
        for row in rows:
            if row["size"] != size or row["method"] == OWN_METHOD:
                continue
            for axis in (*AXES, "drift"):
                if row[axis] is not None and row[axis] > own[axis] + TIE:
                    broken.append(
                        f"{size}, {axis}: {row['method']} ({row['writer']}) {row[axis]:.3f}, ours {own[axis]:.3f}"
                    )
    return broken


def render_tables(rows: list[dict[str, Any]], *, with_model: bool) -> str:
    """Return a table for each size."""
    head: tuple[str, ...] = ("method", "writer", *AXES, "drift", "size ratio")
    if with_model:
        head = (*head, "overall", "drift resistance", "contradictions")
    parts = []
    for size, ratio in SIZES.items():
        lines = []
        for row in rows:
            if row["size"] != size:
                continue
            name = f"**{row['method']}**" if row["method"] == OWN_METHOD else row["method"]
            cells = ["-" if row[axis] is None else f"{row[axis]:.3f}" for axis in (*AXES, "drift")]
            if with_model:
                cells += [f"{value:.3f}" for value in row["own_figures"].values()]
                cells.insert(5, f"{row['ratio']:.1f}")
            else:
                cells.append(f"{row['ratio']:.1f}")
            lines.append((name, row["writer"], *cells))
        parts.append(f"*1/{ratio} of the chat's tokens*\n\n{format_table(head, lines)}")
    return "\n".join(parts)


def main() -> int:
    """Run what is not in the folder yet and print the tables; with ``--check``, exit 1 if a bar is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmarks-dir", type=Path, help="folder of the suites; else they are fetched")
    parser.add_argument("--folder", type=Path, help="keep event logs here, and go on from there")
    parser.add_argument("--tuning", action="store_true", help="use the seed group for tuning, not the reported one")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is broken")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/results.md")
    parser.add_argument("--model", default="", help="a model that writes for the built-in methods and answers")
    parser.add_argument("--url", default="", help="address of its server, up to /chat/completions")
    parser.add_argument("--key-variable", default="OPENAI_API_KEY", help="variable that holds the key")
    parser.add_argument("--answers", type=Path, help="record the model's answers here, and replay them")
    args = parser.parse_args()
    ModelProvider.url, ModelProvider.answers = args.url, args.answers
    ModelProvider.api_key = os.environ.get(args.key_variable, "")
    if args.answers is not None and args.answers.exists():
        for line in args.answers.read_text("utf-8").splitlines():
            answer = json.loads(line)
            ModelProvider.known[answer.pop("request")] = answer
    seed_group = SEED_GROUPS[args.tuning]
    subject = {**name_versions(PACKAGE, __file__), "seed_group": seed_group, "model": args.model or "none"}
    digest = blake2b(json.dumps(subject).encode(), digest_size=6).hexdigest()
    with TemporaryDirectory() as temporary:
        base = args.folder or Path(temporary)
        folder = base / digest  # results of another version are in another folder
        folder.mkdir(parents=True, exist_ok=True)
        benchmarks = find_benchmarks(args.benchmarks_dir, base)
        logs: dict[tuple[str, str, str], list[Path]] = {}
        for run in list_runs(("model",) if args.model else WRITERS):
            writer = "model" if args.model else run.writer
            log = execute(run._replace(writer=writer), folder, benchmarks, seed_group, args.model or "none")
            logs.setdefault((run.size, run.method, run.writer), []).append(log)
        rows = [
            {"size": size, "method": method, "writer": writer, **measure_logs(paths)}
            for (size, method, writer), paths in logs.items()
        ]
        subject["ambiguous_cases"] = count_ambiguous_cases(benchmarks, seed_group)
    broken = [] if args.model else find_broken_bars(rows)
    if args.json:
        print(json.dumps({**subject, "rows": rows, "broken": broken}, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in subject.items()))
        print(render_tables(rows, with_model=bool(args.model)))
        print("\n".join(broken) if broken else "no built-in method is ahead on an axis that needs no model")
    if args.write:
        fill_page_part("compactbench", render_page(subject, rows, with_model=bool(args.model)))
    return int(args.check and bool(broken))


def render_page(subject: dict[str, Any], rows: list[dict[str, Any]], *, with_model: bool) -> str:
    """Return the part of docs/results.md: versions, seeds and tables."""
    model = f"model {subject['model']}" if with_model else "no model"
    versions = (
        f"{PACKAGE} {subject[PACKAGE]}, seed group {subject['seed_group']}, {rows[0]['cases']} cases of "
        f"{1 + DRIFT_CYCLES} compactions ({subject['ambiguous_cases']} ambiguous ones at each difficulty, in which two "
        f"variables drew the same phrase), {model}; Holdfast {subject['holdfast']}, code {subject['code']}."
    )
    return f"{versions}\n\n{render_tables(rows, with_model=with_model)}"


if __name__ == "__main__":
    sys.exit(main())
