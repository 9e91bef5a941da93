"""Files that the session reads and writes: a nightly log, its limits, two small scripts and their tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from session_record import digest, number

if TYPE_CHECKING:
    from session_tools import Name

LOG, LIMITS = "var/log/soak-0427.log", "var/soak/limits.toml"
LIMITS_TEXT = """# Limits of the nightly soak run.
window = 64_000
usable = 48_640          # window less reserve
lane_timeout_seconds = 185
retries = 3
alarm = "HF-W2040"       # an estimate within two per cent of usable
"""
SURFACE = '''"""Print the public names of every module: a line for each module, or JSON rows with --json."""

import ast
import json
import sys
from pathlib import Path

BUDGET = 960
SOURCE = Path("src/holdfast")


def surface(path):
    """Return one row for each public definition at the top of the module: where it is and its own words."""
    rows = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found = [target.id for target in node.targets]
        else:
            continue
        for name in found:
            if not name.startswith("_"):
                rows.append({"module": str(path), "name": name, "kind": type(node).__name__, "line": node.lineno,
                             "end": node.end_lineno, "text": ast.unparse(node)[:TEXT]})
    return rows


TEXT = 300


def listed(path):
    """Return the names in the module's ``__all__``; nothing if it has none."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)]
    return None


def main(arguments):
    """Print the surface of the named modules, or of all; exit status 3 when it is over the budget."""
    paths = [Path(name) for name in arguments if name.endswith(".py")] or sorted(SOURCE.rglob("*.py"))
    rows = [row for path in paths for row in surface(path)]
    if "--json" in arguments:
        print(json.dumps(rows, indent=1))
        return 0
    for path in paths:
        names = {row["name"] for row in rows if row["module"] == str(path)}
        print(f"{path}: {len(names)} public, {len(names - set(listed(path) or ()))} not listed")
    print(f"{len(rows)} of {BUDGET} names")
    return 3 if len(rows) > BUDGET else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''
BROKEN = "            found = [target.id for target in node.targets]\n"
REPAIR = """            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            leaves = [leaf for target in targets for leaf in ast.walk(target)]
            found = [leaf.id for leaf in leaves if isinstance(leaf, ast.Name)]
"""
TEST = '''"""The surface: what a module defines in public, it lists."""

import unittest

from tools.surface import SOURCE, listed, surface

DONE = ("state", "messages", "planning")


class Surface(unittest.TestCase):
    """Each module that has an ``__all__`` lists all its public names."""

    def test_defined_is_listed(self):
        for path in sorted(SOURCE.rglob("*.py")):
            if path.parent.name in DONE and (names := listed(path)) is not None:
                with self.subTest(path=str(path)):
                    self.assertEqual([], sorted({row["name"] for row in surface(path)} - set(names)))
'''


LENGTHS = '''"""Print the longest functions and the share that is under 50 lines."""

import ast
from pathlib import Path

found = []
for path in sorted(Path("src").rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((node.end_lineno - node.lineno + 1, f"{path}:{node.lineno} {node.name}"))
found.sort(key=lambda item: (-item[0], item[1]))
for size, place in found[:40]:
    print(place, size, "lines")
print(f"{sum(size < 50 for size, _ in found)} of {len(found)} functions are under 50 lines")
'''
NIGHT = (
    ("INFO", "planned {} slots for the next request and kept the prefix of {} tokens byte for byte"),
    ("INFO", "answer arrived after {} ms, usage reported {} tokens of input, calibration moved a little"),
    ("INFO", "nothing to do for this step, the branch stands at {} entries and {} tokens are held"),
    ("DEBUG", "result of {} characters stays whole because the model has seen it, blob {} was not needed"),
    ("DEBUG", "lane was busy for {} ms, the waiting step had number {} and kept its place in the queue"),
    ("WARN", "HF-W2040 estimate of {} tokens is within two per cent of usable, lane {} is told to compact"),
)


def soak_log(points: list[Name]) -> str:
    """Return a nightly log of 92 KB with real modules, functions and lines, and one error."""
    lines: list[str] = []
    size = 0
    while size < 92_000:
        turn = len(lines)
        at, (level, words) = points[number(0, len(points) - 1, "at", turn)], NIGHT[number(0, 4, "kind", turn)]
        level, words = NIGHT[5] if turn % 83 == 40 else (level, words)
        clock = f"{1 + turn // 360:02}:{turn // 6 % 60:02}:{turn % 6 * 10 + number(0, 9, turn):02}"
        place = f"{at.path.removeprefix('src/').removesuffix('.py').replace('/', '.')}.{at.name}:{at.line}"
        said = words.format(number(900, 48_000, "a", turn), number(200, 9_000, "b", turn))
        line = f"{clock} {level:<5} {place} s-{digest('night', turn // 9).hex()[:7]} {said}"
        lines.append(line if turn != 431 else "\n".join([line, *error(clock, points)]))
        size += len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


def error(clock: str, points: list[Name]) -> list[str]:
    """Return the lines of the error, with two real places in its traceback."""
    places = [*points, *(point for point in points if point.path.endswith("state/calibration/token_estimate.py"))][-2:]
    return [
        f"{clock} ERROR HF-E5127 request of 61,884 tokens over usable 48,960 in session s-7f3a91c, lane L-19 gives up",
        "Traceback (most recent call last):",
        *(f'  File "src/{at.path.removeprefix("src/")}", line {at.line}, in {at.name}' for at in places),
        "BudgetError: 13,244 tokens too many after 3 retries; nothing left to prune in branch b-0c44e9",
    ]


def names_test(title: str, names: list[tuple[str, list[str]]]) -> str:
    """Return a unittest that imports each name of each module and checks for a docstring."""
    lines = [
        f'"""Each public name of {title} can be imported, and what is a function or class says what it does."""',
        "",
        "import inspect",
        "import unittest",
        "",
    ]
    for module, own in names:
        lines += [f"from {module} import {name} as {name}_" for name in own]
    every = ", ".join(f"{name}_" for _, own in names for name in own)
    lines += [
        "",
        f"NAMES = ({every},)",
        "",
        "",
        "class Names(unittest.TestCase):",
        '    """A name without words is no public name."""',
        "",
        "    def test_documented(self):",
        "        for name in NAMES:",
        "            if inspect.isclass(name) or inspect.isfunction(name):",
        "                self.assertTrue(inspect.getdoc(name), name.__name__)",
    ]
    return "\n".join(lines) + "\n"
