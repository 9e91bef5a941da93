"""Sessions nobody saw: what policy ``holdfast`` promises must hold on the nastiest shapes we can think of."""

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


class Talk:
    """A Claude Code session in the making."""

    def __init__(self):
        self.lines = []
        self.calls = 0
        self.pick = random.Random(3)

    def say(self, role, message):
        number = len(self.lines)
        stamp = f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"
        parent = f"u{number - 1:05}" if number else None
        line = {"parentUuid": parent, "isSidechain": False, "type": role, "uuid": f"u{number:05}"}
        self.lines.append(line | {"message": message, "sessionId": "nasty", "timestamp": stamp})

    def user(self, content):
        self.say("user", {"role": "user", "content": content})

    def agent(self, *blocks):
        known = {"id": f"m{len(self.lines)}", "model": "claude-sonnet-4-5", "stop_reason": "end_turn"}
        self.say("assistant", known | {"role": "assistant", "content": list(blocks)})

    def call(self, name="Bash", **given):
        self.calls += 1
        return {"type": "tool_use", "id": f"toolu_{self.calls:06}", "name": name, "input": given}

    def log(self, size):
        pick = self.pick.randrange
        line = "{} ERROR mod_{}.func_{} at src/pkg/file_{}.py:{} value={:x}".format
        return "\n".join(line(i, pick(99), pick(999), pick(99), pick(999), pick(1 << 40)) for i in range(size // 70))

    def data(self):
        return "\n".join(json.dumps(line) for line in self.lines).encode()


def text(words):
    return {"type": "text", "text": words}


def result(call, content, **more):
    return {"type": "tool_result", "tool_use_id": call["id"], "content": content, **more}


def pasted(talk):
    """Four pasted logs while the agent works."""
    for turn in range(6):
        one, two = talk.call(command="x"), talk.call(command="y")
        talk.user(f"go {turn}")
        talk.agent(text("ok"), one, two)
        talk.user([result(one, talk.log(3_000)), result(two, talk.log(9_000))])
        for _ in range(4):
            talk.user(f"paste {turn}\n" + talk.log(16_000))
        talk.agent(text(f"done with src/pkg/file_{turn}.py"))


def batches(talk):
    """Sixty results at once, each too small to be spilled alone."""
    for turn in range(6):
        calls = [talk.call(command=f"c{place}") for place in range(60)]
        talk.user(f"batch {turn}")
        talk.agent(*calls)
        talk.user([result(call, talk.log(1_900)) for call in calls])
        talk.agent(text("ok"))


def giants(talk):
    """Words of the user and written files that are larger than the room."""
    for turn in range(4):
        call = talk.call("Write", file_path=f"/a/b{turn}.py", content=talk.log(80_000))
        talk.user("w" * 30 + talk.log(110_000))
        talk.agent(call)
        talk.user([result(call, "ok")])
        talk.agent(text("x"))
        talk.user("中文字" * 20_000)
        talk.agent(text("z"))


def long_turn(talk):
    """One request of the user and ninety steps, some results failed, some blank."""
    talk.user("one long turn")
    for step in range(90):
        call = talk.call("Read", file_path=f"/a/b{step % 17}.py")
        words = talk.log(talk.pick.randrange(200, 30_000))
        content = [text(""), text(words)] if step % 9 == 0 else words
        talk.agent(call)
        talk.user([result(call, content, is_error=step % 13 == 0)])
    talk.agent(text("end"))


def queued(talk):
    """Forty messages of the user before the agent answers."""
    talk.user("go")
    talk.agent(text("k"))
    for number in range(40):
        talk.user(f"log {number}\n" + "word " * 2_000)
    talk.agent(text("k"))


@pytest.mark.uncounted
@pytest.mark.parametrize("shape", [pasted, batches, giants, pytest.param(long_turn, marks=pytest.mark.long), queued])
@pytest.mark.parametrize(("window", "frame"), SETTINGS)
def test_measure_policy_holdfast_sends_valid_fitting_requests(shape, window, frame):
    """On any shape of session no request is invalid or over the window, and no unseen user text is missing."""
    talk = Talk()
    shape(talk)
    place = get_target("anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("t", frame, is_exact=True))
    session = make_replay_session(read_recording(talk.data(), "nasty.jsonl"), "anthropic")
    study = SessionStudy(session, MeasurementSettings(window, frame, place, "estimate", estimate_text_tokens))
    made = measure_policy(study, Policy.preset("holdfast"))
    assert made.requests > 0
    assert (made.invalid_requests, made.over_window, made.user_words_missing) == (0, 0, 0)


def test_measure_policy_counts_a_doubly_refused_request_once():
    """A request with too many images and over the window is one refused request of two."""
    talk = Talk()
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    talk.user("go")
    talk.agent(text("k"))
    talk.user([text("word " * 40_000), *[picture] * 101])
    talk.agent(text("k"))
    place = get_target("anthropic", "claude-sonnet-4-5", window=32_000)
    session = make_replay_session(read_recording(talk.data(), "nasty.jsonl"), "anthropic")
    made = measure_policy(
        SessionStudy(session, MeasurementSettings(32_000, 0, place, "estimate", estimate_text_tokens)),
        Policy("holdfast", stages=()),
    )
    assert (made.requests, made.invalid_requests, made.over_window, made.refused_requests) == (2, 1, 1, 1)
    assert "1 of 2 requests" in make_policy_verdict([PolicyRow(made)]).plain


@pytest.mark.long
def test_replay_sends_the_same_bytes_with_any_hash_seed(tmp_path):
    """Two processes with different hash seeds send the same requests, byte for byte."""
    talk = Talk()
    long_turn(talk)
    file = tmp_path / "s.jsonl"
    file.write_bytes(talk.data())
    dumps = [dump(tmp_path / seed, file, seed) for seed in ("1", "2")]
    assert dumps[0]
    assert dumps[0] == dumps[1]


def dump(folder: Path, file: Path, seed: str) -> bytes:
    given = os.environ | {"PYTHONHASHSEED": seed, "HOME": str(folder)}
    order = ["replay", str(file), "--policy", "holdfast,pi", "--no-cuts", "--window", "32000", "--frame", "3000"]
    command = [sys.executable, "-m", "holdfast", *order, "--json", "--dump", str(folder)]
    subprocess.run(command, env=given, check=True, capture_output=True)
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.jsonl")))
