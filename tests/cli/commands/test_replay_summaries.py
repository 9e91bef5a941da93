"""``holdfast replay --summaries``: what a model's summaries keep and cost, and its answers recorded and replayed."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator, Sequence

import pytest

from holdfast.config import get_target
from holdfast.planning.summary.judge import SUMMARY_HEADINGS
from holdfast.state.costs import compute_cost
from holdfast.state.entries import Usage
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.provider.server.local_server import serve_provider

SMALL = ("--window", "16000", "--setup-tokens", "1000", "--policy", "holdfast", "--no-cuts")
PRICES = get_target("anthropic", "claude-sonnet-4-5").prices
_REQUIRED_NAMES = re.compile(r"exactly as they are written here: (.+)")
_USER_WORDS = re.compile(r"Please read \S+ and go on")
_FUNCTION_NAME = re.compile(r"function_\d+_\d+")


class SummaryAuthor:
    """The model: notes with the wanted names and some of the record, or an answer that is no summary."""

    def __init__(self) -> None:
        self.requests = 0
        self.is_able = True

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the notes for the prompt in the last block."""
        self.requests += 1
        if not self.is_able:
            return ScriptedAnswer("I am sorry, I cannot help with that.")
        prompt = blocks[-1].rendering.text
        names = _REQUIRED_NAMES.search(prompt)
        wishes = _USER_WORDS.findall(prompt)
        functions = list(dict.fromkeys(_FUNCTION_NAME.findall(prompt)))
        sections = {
            "Goal": " ".join([*wishes[-1:], *functions[:40]]),
            "Critical Context": f"{names[1] if names else ''} KEPT_BY_THE_MODEL",
        }
        return ScriptedAnswer("\n".join(f"## {name}\n- {sections.get(name, '(none)')}" for name in SUMMARY_HEADINGS))


@pytest.fixture
def author() -> SummaryAuthor:
    """Return the model behind ``served``."""
    return SummaryAuthor()


@pytest.fixture
def served(author: SummaryAuthor, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the strict provider with ``author`` as its model, and yield its address."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with serve_provider(Provider(ProviderSettings(), author)) as url:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
        yield url


def load_rows(result):
    """Return the rows by policy that a successful replay printed."""
    assert result.exit_code == 0, result.stderr
    return {row["policy"]: row for row in json.loads(result.stdout)}


def test_replay_compares_the_three_kinds_of_summaries(run, long_session, served, author):
    """One row for each kind; a model's calls are charged at the usage that the provider reported."""
    rows = load_rows(run("replay", long_session, *SMALL, "--json", "--summaries", "all", "--base-url", served))
    assert list(rows) == ["holdfast", "holdfast:both", "holdfast:model"]
    assert rows["holdfast"]["summaries"] is None
    for name in ("holdfast:both", "holdfast:model"):
        summaries = rows[name]["summaries"]
        assert summaries["written"] > 0, rows[name]["notes"]
        assert summaries["failed"] == 0
        usage = Usage(summaries["input_tokens"], summaries["output_tokens"])
        assert summaries["usd"] == pytest.approx(
            compute_cost(usage, get_target("anthropic", "claude-sonnet-4-5").prices)
        )
        assert 0 < summaries["usd"] < rows[name]["usd"]
    assert author.requests == rows["holdfast:both"]["summaries"]["calls"] + rows["holdfast:model"]["summaries"]["calls"]


def test_replay_shows_the_models_words_with_or_without_the_extract(run, long_session, served, tmp_path):
    """``both`` sends the model's summary and what it leaves out, ``model`` the summary alone."""
    run("replay", long_session, *SMALL, "--json", "--summaries", "all", "--base-url", served, "--dump", tmp_path / "d")
    bodies = {}
    for path in (tmp_path / "d").rglob("*"):
        if path.is_file():
            for line in path.read_text("utf-8").splitlines():
                bodies.setdefault(json.loads(line)["policy"], []).append(line)
    assert not any("KEPT_BY_THE_MODEL" in body for body in bodies["holdfast"])
    assert any("KEPT_BY_THE_MODEL" in body for body in bodies["holdfast:both"])
    assert any("KEPT_BY_THE_MODEL" in body for body in bodies["holdfast:model"])
    assert any("Beside the summary, from the log" in body for body in bodies["holdfast:both"])
    assert not any("## Lines" in body for body in bodies["holdfast:model"])


def test_replay_answers_are_recorded_and_replayed_without_the_provider(
    run, long_session, served, author, tmp_path, monkeypatch
):
    """The second run asks nobody, needs no key, and has the figures of the first."""
    answers = tmp_path / "answers.jsonl"
    arguments = ("replay", long_session, *SMALL, "--json", "--summaries", "both,model", "--answers", answers)
    first = load_rows(run(*arguments, "--base-url", served))
    assert stat.S_IMODE(answers.stat().st_mode) == 0o600
    asked = author.requests
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    second = load_rows(run(*arguments))
    assert author.requests == asked
    for name, row in first.items():
        for key in row.keys() - {"policy_ms_p50", "policy_ms_p95"}:
            assert second[name][key] == row[key], key


def test_replay_falls_back_to_the_extract_where_the_model_fails(run, long_session, served, author):
    """A refusal is told in the notes and paid for; every request is planned all the same."""
    author.is_able = False
    rows = load_rows(run("replay", long_session, *SMALL, "--json", "--summaries", "all", "--base-url", served))
    for name in ("holdfast:both", "holdfast:model"):
        summaries = rows[name]["summaries"]
        assert summaries["written"] == 0
        assert summaries["failed"] > 0
        assert summaries["usd"] > 0
        assert rows[name]["requests"] == rows["holdfast"]["requests"]
        assert any("wrote no acceptable summary" in note or "asked no more" in note for note in rows[name]["notes"])
    assert author.requests <= 2 * 2 * 3, "asked twice for each summary, until three in a row failed, for each row"


def test_replay_of_answers_tells_what_is_not_recorded(run, long_session, tmp_path, monkeypatch):
    """A file without the wanted answer is no reason to fail: the row says so, and has extracts."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    answers = tmp_path / "answers.jsonl"
    answers.write_text("")
    rows = load_rows(run("replay", long_session, *SMALL, "--json", "--summaries", "both", "--answers", answers))
    assert any("has no answer to this request" in note for note in rows["holdfast:both"]["notes"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--summaries", "some"], "--summaries 'some' is none of extract, both, model"),
        (["--summaries", "both"], "ANTHROPIC_API_KEY"),
        (["--summaries", "both", "--answers", "missing.jsonl"], "ANTHROPIC_API_KEY"),
    ],
)
def test_replay_refuses_summaries_that_nobody_can_write(run, long_session, monkeypatch, options, problem):
    """Wrong words and a missing key are told before the first file is read."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    result = run("replay", long_session, *SMALL, *options)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_replay_names_the_line_of_a_damaged_answer(run, long_session, tmp_path, monkeypatch):
    """Damaged files of answers are refused by line."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"request":"00","body":"{}"}\n{"request":1}\n')
    result = run("replay", long_session, *SMALL, "--summaries", "both", "--answers", answers)
    assert result.exit_code == 2
    assert "line 2" in result.stderr
