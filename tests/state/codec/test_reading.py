"""Any thread may decode any type at any time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
BUILTIN_TYPES = {"Any", "Raw", "bytes", "dict", "list", "object", "str", "tuple"}
"""Names of types that msgspec does not need to inspect."""

THREADS_SCRIPT = """
import sys
from threading import Barrier, Thread
from typing import Dict, List, Optional

import msgspec
from holdfast.state.codec.reading import convert_value, get_decoder

sys.setswitchinterval(1e-6)
TEXT = b'{"one": {"x": 1}, "more": [{"x": 2}], "named": {"a": {"x": 3}}}'


def new():
    class Inner(msgspec.Struct):
        x: Optional[int]
        text: Optional[str] = None

    class Outer(msgspec.Struct):
        one: "Inner"
        more: List["Inner"]
        named: Dict[str, "Inner"]

    globals().update(Inner=Inner)
    return Outer


def read(kind, start):
    start.wait()
    assert READ(kind).named["a"].x == 3


for _ in range(40):
    kind, start = new(), Barrier(8)
    threads = [Thread(target=read, args=(kind, start)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""

FORK_SCRIPT = """
import os, signal
from threading import Event, Thread

from holdfast.state.codec.reading import get_decoder
from msgspec import Struct

inspecting, forked = Event(), Event()


def pause_inspection():
    inspecting.set()
    forked.wait(0.5)
    return int


class Slow(Struct):
    x: "pause_inspection()"


class Mine(Struct):
    x: int


thread = Thread(target=get_decoder, args=(Slow,))
thread.start()
inspecting.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(get_decoder(Mine).decode(b'{"x": 1}').x + get_decoder(Slow).decode(b'{"x": 2}').x)
forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    "expression", ["get_decoder(kind).decode(TEXT)", "convert_value(msgspec.json.decode(TEXT), kind)"]
)
def test_reading_is_thread_safe_for_a_new_type(expression):
    """Eight threads decode a new type at once and each gets its value; without the lock the process crashed, as it did
    in MCP.
    """
    script = THREADS_SCRIPT.replace("READ(kind)", expression)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_get_decoder_works_in_a_child_forked_during_an_inspection():
    """A child that is forked while another thread inspects a type decodes that type and others."""
    ran = subprocess.run([sys.executable, "-c", FORK_SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("3\n", "")


def test_plan_works_on_systems_without_fork():
    """The pure half runs on every system: on Windows there is no ``os.fork`` and no ``register_at_fork``."""
    plans = (
        "import os, sys; del os.fork, os.register_at_fork; sys.modules['fcntl'] = None\n"
        "from holdfast import Message, Target, plan\n"
        "print(plan([Message.from_text('user', 'Hi.')], Target()).after > 0)"
    )
    ran = subprocess.run([sys.executable, "-c", plans], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def find_decoded_type(call: ast.Call) -> ast.expr | None:
    """Return the type that a call makes msgspec inspect, or None if it inspects none."""
    function_name = ast.unparse(call.func)
    if function_name.endswith("Decoder"):
        return call.args[0] if call.args else None
    if function_name == "msgspec.convert":
        return call.args[1]
    if function_name.endswith(".decode"):
        return next((keyword.value for keyword in call.keywords if keyword.arg == "type"), None)
    return None


@pytest.mark.long
def test_source_decodes_structs_only_through_reading():
    """Functions run in threads, so inside them only ``state/codec/reading.py`` may make msgspec inspect a struct."""
    found = []
    for file in SOURCE.rglob("*.py"):
        if file == SOURCE / "state" / "codec" / "reading.py":
            continue
        functions = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        calls = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)]
        for call, kind in [(call, find_decoded_type(call)) for call in calls]:
            names = {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)} if kind is not None else set()
            if not names <= BUILTIN_TYPES:
                found.append(f"{file.relative_to(SOURCE)}:{call.lineno}: {ast.unparse(call)}")
    assert found == []
