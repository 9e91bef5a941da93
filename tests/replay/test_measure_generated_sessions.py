"""Generated sessions: the promises of policy ``holdfast`` hold on the most difficult shapes we know."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.config import get_target
from holdfast.formats import read_recording
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.replay.measure import MeasurementSettings, SessionStudy, measure_policy
from holdfast.replay.report import PolicyRow, make_policy_verdict
from holdfast.replay.session import make_replay_session
from holdfast.state.entries import RequestSetup

pytestmark = pytest.mark.long

SETTINGS = [pytest.param(32_000, 3_000, marks=pytest.mark.long), (64_000, 10_000)]


class SessionBuilder:
    """Builds a Claude Code session line by line."""

    def __init__(self):
        self.lines = []
        self.calls = 0
        self.pick = random.Random(3)

    def add_line(self, role, message):
        number = len(self.lines)
        stamp = f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"
        parent = f"u{number - 1:05}" if number else None
        line = {"parentUuid": parent, "isSidechain": False, "type": role, "uuid": f"u{number:05}"}
        self.lines.append(line | {"message": message, "sessionId": "generated", "timestamp": stamp})

    def add_user(self, content):
        self.add_line("user", {"role": "user", "content": content})

    def add_answer(self, *blocks):
        known = {"id": f"m{len(self.lines)}", "model": "claude-sonnet-4-5", "stop_reason": "end_turn"}
        self.add_line("assistant", known | {"role": "assistant", "content": list(blocks)})

    def make_call(self, name="Bash", **arguments):
        self.calls += 1
        return {"type": "tool_use", "id": f"toolu_{self.calls:06}", "name": name, "input": arguments}

    def make_log(self, size):
        pick = self.pick.randrange
        line = "{} ERROR mod_{}.func_{} at src/pkg/file_{}.py:{} value={:x}".format
        return "\n".join(line(i, pick(99), pick(999), pick(99), pick(999), pick(1 << 40)) for i in range(size // 70))

    def encode(self):
        return "\n".join(json.dumps(line) for line in self.lines).encode()


def make_text(text):
    return {"type": "text", "text": text}


def make_result(call, content, **more):
    return {"type": "tool_result", "tool_use_id": call["id"], "content": content, **more}


def add_pasted_logs(builder):
    """Four pasted logs while the agent works."""
    for turn in range(6):
        first, second = builder.make_call(command="x"), builder.make_call(command="y")
        builder.add_user(f"go {turn}")
        builder.add_answer(make_text("ok"), first, second)
        builder.add_user([make_result(first, builder.make_log(3_000)), make_result(second, builder.make_log(9_000))])
        for _ in range(4):
            builder.add_user(f"paste {turn}\n" + builder.make_log(16_000))
        builder.add_answer(make_text(f"done with src/pkg/file_{turn}.py"))


def add_batches(builder):
    """Sixty parallel results, each too small to be spilled by itself."""
    for turn in range(6):
        calls = [builder.make_call(command=f"c{place}") for place in range(60)]
        builder.add_user(f"batch {turn}")
        builder.add_answer(*calls)
        builder.add_user([make_result(call, builder.make_log(1_900)) for call in calls])
        builder.add_answer(make_text("ok"))


def add_giant_messages(builder):
    """User messages and written files larger than the budget."""
    for turn in range(4):
        call = builder.make_call("Write", file_path=f"/a/b{turn}.py", content=builder.make_log(80_000))
        builder.add_user("w" * 30 + builder.make_log(110_000))
        builder.add_answer(call)
        builder.add_user([make_result(call, "ok")])
        builder.add_answer(make_text("x"))
        builder.add_user("中文字" * 20_000)
        builder.add_answer(make_text("z"))


def add_long_turn(builder):
    """One user message and ninety steps, with some failed and some blank results."""
    builder.add_user("one long turn")
    for step in range(90):
        call = builder.make_call("Read", file_path=f"/a/b{step % 17}.py")
        words = builder.make_log(builder.pick.randrange(200, 30_000))
        content = [make_text(""), make_text(words)] if step % 9 == 0 else words
        builder.add_answer(call)
        builder.add_user([make_result(call, content, is_error=step % 13 == 0)])
    builder.add_answer(make_text("end"))


def add_queued_messages(builder):
    """Forty messages of the user before the agent answers."""
    builder.add_user("go")
    builder.add_answer(make_text("k"))
    for number in range(40):
        builder.add_user(f"log {number}\n" + "word " * 2_000)
    builder.add_answer(make_text("k"))


@pytest.mark.uncounted
@pytest.mark.parametrize(
    "shape",
    [
        add_pasted_logs,
        add_batches,
        add_giant_messages,
        pytest.param(add_long_turn, marks=pytest.mark.long),
        add_queued_messages,
    ],
)
@pytest.mark.parametrize(("window", "setup_tokens"), SETTINGS)
def test_measure_policy_holdfast_sends_valid_fitting_requests(shape, window, setup_tokens):
    """On any shape of session no request is invalid or over the window, and no unseen user text is missing."""
    builder = SessionBuilder()
    shape(builder)
    target = get_target(
        "anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("t", setup_tokens, is_exact=True)
    )
    session = make_replay_session(read_recording(builder.encode(), "generated.jsonl"), "anthropic")
    study = SessionStudy(session, MeasurementSettings(window, setup_tokens, target, "estimate", estimate_text_tokens))
    figures = measure_policy(study, Policy.preset("holdfast"))
    assert figures.requests > 0
    assert (figures.invalid_requests, figures.over_window, figures.user_words_missing) == (0, 0, 0)


def test_measure_policy_counts_a_doubly_refused_request_once():
    """A request with too many images and over the window is one refused request of two."""
    builder = SessionBuilder()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    builder.add_user("go")
    builder.add_answer(make_text("k"))
    builder.add_user([make_text("word " * 40_000), *[image] * 101])
    builder.add_answer(make_text("k"))
    target = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
    session = make_replay_session(read_recording(builder.encode(), "generated.jsonl"), "anthropic")
    figures = measure_policy(
        SessionStudy(session, MeasurementSettings(32_000, 0, target, "estimate", estimate_text_tokens)),
        Policy("holdfast", stages=()),
    )
    assert (figures.requests, figures.invalid_requests, figures.over_window, figures.refused_requests) == (2, 1, 1, 1)
    assert "1 of 2 requests" in make_policy_verdict([PolicyRow(figures)]).plain


@pytest.mark.long
def test_replay_sends_the_same_bytes_with_any_hash_seed(tmp_path):
    """Two processes with different hash seeds send the same requests, byte for byte."""
    builder = SessionBuilder()
    add_long_turn(builder)
    file = tmp_path / "s.jsonl"
    file.write_bytes(builder.encode())
    dumps = [replay_and_dump(tmp_path / seed, file, seed) for seed in ("1", "2")]
    assert dumps[0]
    assert dumps[0] == dumps[1]


def replay_and_dump(folder: Path, file: Path, seed: str) -> bytes:
    environment = os.environ | {"PYTHONHASHSEED": seed, "HOME": str(folder)}
    arguments = ["replay", str(file), "--policy", "holdfast,pi", "--no-cuts", "--window", "32000", "--frame", "3000"]
    command = [sys.executable, "-m", "holdfast", *arguments, "--json", "--dump", str(folder)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.jsonl")))
