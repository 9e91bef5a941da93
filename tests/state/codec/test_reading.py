"""Types are read by any thread at any time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
PLAIN = {"Any", "Raw", "bytes", "dict", "list", "object", "str", "tuple"}
"""Names of types that msgspec has nothing to remember of."""

AT_ONCE = """
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
    for one in threads:
        one.start()
    for one in threads:
        one.join()
"""

FORKS = """
import os, signal
from threading import Event, Thread

from holdfast.state.codec.reading import get_decoder
from msgspec import Struct

looking, forked = Event(), Event()


def held_up():
    looking.set()
    forked.wait(0.5)
    return int


class Slow(Struct):
    x: "held_up()"


class Mine(Struct):
    x: int


thread = Thread(target=get_decoder, args=(Slow,))
thread.start()
looking.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(get_decoder(Mine).decode(b'{"x": 1}').x + get_decoder(Slow).decode(b'{"x": 2}').x)
forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("read", ["get_decoder(kind).decode(TEXT)", "convert_value(msgspec.json.decode(TEXT), kind)"])
def test_threads_that_read_a_type_for_the_first_time(read):
    """Eight threads read a new type at once and each has its value; the process does not crash, as it did in MCP."""
    script = AT_ONCE.replace("READ(kind)", read)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_child_forked_while_a_type_is_looked_at():
    """A child that is forked while another thread looks at a type reads values of that type and of others."""
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("3\n", "")


def test_where_no_process_forks_requests_are_planned():
    """The pure half runs on every system: Python has no forks on Windows, and nothing to register with."""
    plans = (
        "import os, sys; del os.fork, os.register_at_fork; sys.modules['fcntl'] = None\n"
        "from holdfast import Message, Target, plan\n"
        "print(plan([Message.from_text('user', 'Hi.')], Target()).after > 0)"
    )
    ran = subprocess.run([sys.executable, "-c", plans], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def looks(call: ast.Call) -> ast.expr | None:
    """Return the type that a call makes msgspec look at, if it is one of msgspec's calls that do."""
    told = ast.unparse(call.func)
    if told.endswith("Decoder"):
        return call.args[0] if call.args else None
    if told == "msgspec.convert":
        return call.args[1]
    if told.endswith(".decode"):
        return next((one.value for one in call.keywords if one.arg == "type"), None)
    return None


@pytest.mark.long
def test_no_function_looks_at_a_type_by_itself():
    """A struct is read inside a function by ``reading`` alone, as functions run in threads."""
    found = []
    for file in SOURCE.rglob("*.py"):
        if file == SOURCE / "state" / "codec" / "reading.py":
            continue
        functions = [
            one
            for one in ast.walk(ast.parse(file.read_text()))
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        calls = [one for function in functions for one in ast.walk(function) if isinstance(one, ast.Call)]
        for call, kind in [(call, looks(call)) for call in calls]:
            names = {one.id for one in ast.walk(kind) if isinstance(one, ast.Name)} if kind is not None else set()
            if not names <= PLAIN:
                found.append(f"{file.relative_to(SOURCE)}:{call.lineno}: {ast.unparse(call)}")
    assert found == []
