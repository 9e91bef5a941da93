"""A seeded corpus: fifteen classes of content that fill an agent's context, and traps for a token estimator.

Nothing is downloaded and nobody's text is stored. Code and English are read at run time from the standard library of
the interpreter; TypeScript and Elixir are that code, rewritten statement by statement; sentences of our own stand in
``words.toml``. The same interpreter and the same seed give the same corpus.
"""

from __future__ import annotations

import ast
import base64
import difflib
import functools
import json
import re
import sysconfig
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data import topics
from random import Random
from typing import Any

CHUNK = 4_000
"""Characters of a chunk: the size the reference measured, about a middling tool result."""
MODULES = """abc argparse ast base64 bdb bisect calendar cmd codecs collections/__init__ concurrent/futures/thread
configparser contextlib copy csv dataclasses datetime decimal difflib dis doctest email/message email/_header_value_parser
enum filecmp fnmatch fractions ftplib functools gettext glob gzip heapq hmac html/parser http/client http/cookiejar
http/server imaplib inspect ipaddress json/decoder json/encoder logging/__init__ logging/handlers mailbox mimetypes
multiprocessing/pool multiprocessing/managers netrc numbers optparse os pathlib pdb pickle pickletools platform plistlib
poplib pprint profile pstats pydoc queue quopri random rlcompleter sched selectors shelve shlex shutil smtplib
socket socketserver ssl statistics string stringprep subprocess symtable sysconfig tabnanny tarfile tempfile textwrap
threading timeit token tokenize tomllib/_parser trace traceback tracemalloc turtle types typing unittest/case
unittest/mock unittest/main urllib/parse urllib/request uuid warnings wave weakref webbrowser wsgiref/handlers
xml/dom/minidom xml/etree/ElementTree xmlrpc/client zipapp zipfile zipimport asyncio/base_events asyncio/events
asyncio/tasks asyncio/streams asyncio/queues asyncio/unix_events importlib/_bootstrap_external importlib/metadata/__init__
""".split()  # noqa: SIM905
"""Modules of the standard library that are read; one that is missing from an interpreter is left out."""

Maker = Callable[[Random], str]
"""Returns some text of a class, of any length."""

HERE = Path(__file__).resolve().parent


def chunks(name: str, count: int, seed: int = 11, size: int = CHUNK) -> list[str]:
    """Return ``count`` texts of ``size`` characters of class or trap ``name``; each has its own random state."""
    make = CLASSES.get(name) or TRAPS[name]
    return [_filled(make, Random(f"{seed}:{name}:{i}"), size) for i in range(count)]  # noqa: S311


def _filled(make: Maker, rng: Random, size: int) -> str:
    text = make(rng)
    while len(text) < size:
        text += "\n" + make(rng)
    return text[:size]


# -- what is read ------------------------------------------------------------------------------------------------------


@functools.cache
def library() -> tuple[tuple[str, str], ...]:
    """Return (path, text) of the standard library's modules that are there and long enough for a chunk."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [root / f"{name}.py" for name in MODULES]
    texts = [(str(p.relative_to(root)), p.read_text("utf-8")) for p in paths if p.is_file()]
    return tuple((path, text) for path, text in texts if len(text) > CHUNK)


@functools.cache
def _trees() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(text) for _, text in library())


@functools.cache
def names() -> tuple[str, ...]:
    """Return the identifiers of the library as often as they occur, so that a choice follows their frequency."""
    return tuple(re.findall(r"\b[A-Za-z_][A-Za-z0-9_]{2,}\b", "\n".join(text for _, text in library()[::5])))


@functools.cache
def paragraphs() -> tuple[str, ...]:
    """Return paragraphs of English: the language reference that ``help()`` shows, and docstrings."""
    texts = list(topics.topics.values())
    for tree in _trees():
        texts += [d for node in ast.walk(tree) if isinstance(node, _DOCUMENTED) and (d := ast.get_docstring(node))]
    parts = [" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text) if not part.startswith(" ")]
    return tuple(part for part in parts if len(part) > 120 and part.count(" ") > len(part) / 9 and ">>>" not in part)


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def _words() -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / "words.toml").read_text("utf-8"))


@functools.cache
def _slot(name: str) -> tuple[str, ...]:
    return tuple(_words()["slots"][name].replace("\n", "").split("|"))


def _sentence(rng: Random, section: str) -> str:
    """Return one of our own sentences, its slots filled."""
    line = rng.choice(_words()[section]["lines"].strip().split("\n"))
    filler = {"a": _name, "b": _name, "c": _kebab, "d": _kebab, "n": lambda r: str(r.randrange(3, 400))}
    return re.sub(r"{(\w+)}", lambda m: filler.get(m[1], lambda r: r.choice(_slot(m[1])))(rng), line)


def _name(rng: Random) -> str:
    return rng.choice(names())


def _camel(name: str) -> str:
    head, *rest = name.strip("_").split("_")
    return head + "".join(part.capitalize() for part in rest)


def _kebab(rng: Random) -> str:
    return rng.choice("- ").join(_name(rng).strip("_").lower().split("_")[0] for _ in range(rng.randrange(1, 3)))


def _path(rng: Random) -> str:
    root = rng.choice(["/home/dev/projects/", "src/", "lib/", "./", "/usr/lib/python3/", "packages/core/src/", "tests/"])
    return root + rng.choice(library())[0].replace("/__init__", "")


def _hexes(rng: Random, length: int) -> str:
    return f"{rng.getrandbits(4 * length):0{length}x}"


def _random_id(rng: Random, length: int = 24) -> str:
    return "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", k=length))


def _stamp(rng: Random) -> str:
    day = f"20{rng.randrange(22, 27)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
    return f"{day}{rng.choice('T ')}{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(1000):03}"


def _excerpt(rng: Random, lines: int) -> tuple[str, str, int]:
    """Return the path, text and first line number of some consecutive lines of a library file."""
    path, text = rng.choice(library())
    rows = text.splitlines()
    start = rng.randrange(max(1, len(rows) - lines))
    return path, "\n".join(rows[start : start + lines]), start + 1


# -- code --------------------------------------------------------------------------------------------------------------


def _python(rng: Random) -> str:
    return _excerpt(rng, 120)[1]


@functools.cache
def _functions() -> tuple[ast.stmt, ...]:
    return tuple(n for t in _trees() for n in t.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and len(n.body) > 1)


def _typescript(rng: Random) -> str:
    unit = rng.choice(["\t", "  ", "    "])
    parts = [f'import {{ {_camel(_name(rng))}, type {_camel(_name(rng)).title()} }} from "../{_camel(_name(rng))}.js";' for _ in range(3)]
    for _ in range(3):
        parts += ["\n".join(_ts(rng.choice(_functions()), rng)), ""]
    return "\n".join(parts).replace("\t", unit)[: rng.randrange(2_000, 6_000)]


_TS_WORDS = [
    (r"\bself\.", "this."), (r"\bNone\b", "null"), (r"\bTrue\b", "true"), (r"\bFalse\b", "false"), (r" and ", " && "),
    (r" or ", " || "), (r"\bnot ", "!"), (r" is ", " === "), (r" == ", " === "), (r" != ", " !== "), (r"\bf'", "'"),
    (r"'", '"'), (r"\blen\((\w+)\)", r"\1.length"), (r"\.append\(", ".push("), (r"\bisinstance\((\w+), (\w+)\)", r"\1 instanceof \2"),
]  # fmt: skip
_TS_TYPES = ["string", "number", "boolean", "void", "string[]", "Promise<void>", "Record<string, unknown>", "unknown", "Options"]


def _ts_code(node: ast.AST) -> str:
    text = ast.unparse(node)
    for pattern, put in _TS_WORDS:
        text = re.sub(pattern, put, text)
    return re.sub(r"\b_*[a-z]+(?:_[a-z]+)+\b", lambda m: _camel(m[0]), text)


def _ts(node: ast.stmt, rng: Random, pad: str = "") -> Iterator[str]:
    """Yield the lines of TypeScript that say what ``node`` says in Python."""
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            yield from _ts_definition(node, rng, pad)
        case ast.If() | ast.While() | ast.For() | ast.With() | ast.Try():
            yield f"{pad}{_ts_head(node)} {{"
            yield from _ts_body(node.body, rng, pad)
            if getattr(node, "orelse", None):
                yield f"{pad}}} else {{"
                yield from _ts_body(node.orelse, rng, pad)  # type: ignore[union-attr]
            yield f"{pad}}} catch (error) {{\n{pad}\tthrow error;\n{pad}}}" if isinstance(node, ast.Try) else f"{pad}}}"
        case ast.Assign():
            const = "" if isinstance(node.targets[0], ast.Attribute) else rng.choice(["const ", "const ", "let "])
            yield f"{pad}{const}{_ts_code(node.targets[0])} = {_ts_code(node.value)};"
        case ast.Expr(ast.Constant()) | ast.Pass() | ast.Import() | ast.ImportFrom():
            yield f"{pad}// {rng.choice(paragraphs())[: rng.randrange(20, 80)]}"
        case _:
            yield f"{pad}{_ts_code(node).replace('raise ', 'throw new ')};"


def _ts_body(body: list[ast.stmt], rng: Random, pad: str) -> Iterator[str]:
    for node in body:
        yield from _ts(node, rng, pad + "\t")


def _ts_head(node: ast.stmt) -> str:
    match node:
        case ast.For():
            return f"for (const {_ts_code(node.target)} of {_ts_code(node.iter)})"
        case ast.If() | ast.While():
            return f"{type(node).__name__.lower()} ({_ts_code(node.test)})"
    return "try"


def _ts_definition(node: ast.ClassDef | ast.FunctionDef, rng: Random, pad: str) -> Iterator[str]:
    if doc := ast.get_docstring(node):
        yield f"{pad}/**"
        yield from (f"{pad} * {line}" for line in textwrap.wrap(doc[:300], 90))
        yield f"{pad} */"
    if isinstance(node, ast.ClassDef):
        yield f"{pad}export class {node.name} {{"
    else:
        args = [f"{_camel(a.arg)}{rng.choice(['', '', '?'])}: {rng.choice(_TS_TYPES)}" for a in node.args.args if a.arg != "self"]
        keyword = rng.choice(["private ", "async ", "", ""]) if pad else rng.choice(["export function ", "async function "])
        yield f"{pad}{keyword}{_camel(node.name)}({', '.join(args)}): {rng.choice(_TS_TYPES)} {{"
    yield from _ts_body(node.body[1:] if doc else node.body, rng, pad)
    yield f"{pad}}}\n"


def _elixir(rng: Random) -> str:
    module = f"{_camel(_name(rng)).title()}.{_camel(_name(rng)).title()}"
    lines = [f"defmodule {module} do", "  @moduledoc false", f"  alias {module}.{{{_camel(_name(rng)).title()}, Repo}}", ""]
    for _ in range(4):
        lines += _ex(rng.choice(_functions()), rng, "  ")
        lines += textwrap.indent(_html(rng), "    ").splitlines()[: rng.choice([0, 0, 12])]
    start, mark = rng.choice([1, 1, rng.randrange(900)]), rng.choice(["→", "→", "\t", "|"])
    lines = "\n".join(lines).splitlines()[:140]
    return "\n".join(f"{i:6}{mark}{line}" for i, line in enumerate(lines, start))


_EX_WORDS = [
    (r"\bself\.", "state."), (r"\bself\b", "state"), (r"\bNone\b", "nil"), (r"\bTrue\b", "true"), (r"\bFalse\b", "false"),
    (r"'", '"'), (r"\{\}", "%{}"), (r"\blen\(", "length("), (r"\bisinstance\(", "is_struct("), (r"\.append\(", " ++ ("),
]  # fmt: skip


def _ex_code(node: ast.AST) -> str:
    text = ast.unparse(node)
    for pattern, put in _EX_WORDS:
        text = re.sub(pattern, put, text)
    return re.sub(r"\b(\w+)=(?=[\w\"\[])", r"\1: ", text)


def _ex(node: ast.stmt, rng: Random, pad: str) -> Iterator[str]:
    """Yield the lines of Elixir that say about what ``node`` says in Python."""
    match node:
        case ast.ClassDef():
            yield from _ex_body(node.body, rng, pad[2:])
        case ast.FunctionDef():
            if doc := ast.get_docstring(node):
                yield f'{pad}@doc """\n{textwrap.indent(doc[:300], pad)}\n{pad}"""'
            args = ", ".join(rng.choice([a.arg, f"%{{{a.arg}: {a.arg}}}", f":{a.arg}"]) for a in node.args.args if a.arg != "self")
            yield f"{pad}{rng.choice(['def', 'defp'])} {node.name.strip('_')}({args}) do"
            yield from _ex_body(node.body[1:] if doc else node.body, rng, pad)
            yield f"{pad}end\n"
        case ast.If():
            yield f"{pad}if {_ex_code(node.test)} do"
            yield from _ex_body(node.body, rng, pad)
            yield f"{pad}end"
        case ast.For() | ast.While() | ast.With():
            yield f"{pad}Enum.{rng.choice(['each', 'map', 'reduce'])}({_name(rng).lower()}, fn {_name(rng).lower()} ->"
            yield from _ex_body(node.body, rng, pad)
            yield f"{pad}end)"
        case ast.Try():
            yield f"{pad}case {_name(rng).lower()}({_name(rng).lower()}) do\n{pad}  {{:ok, value}} ->"
            yield from _ex_body(node.body, rng, pad + "  ")
            yield f"{pad}  {{:error, reason}} -> {{:error, inspect(reason)}}\n{pad}end"
        case ast.Expr(ast.Call(ast.Attribute() as function, args)):
            rest = ", ".join(_ex_code(arg) for arg in args)
            yield f"{pad}{_ex_code(function.value)}\n{pad}|> {function.attr}({rest})"
        case _:
            yield pad + _ex_code(node).removeprefix("return ")


def _ex_body(body: list[ast.stmt], rng: Random, pad: str) -> Iterator[str]:
    for node in body:
        yield from _ex(node, rng, pad + "  ")


# -- tool output -------------------------------------------------------------------------------------------------------


def _shell(rng: Random) -> str:
    makers = [_grep, _listing, _diff, _pytest, _git_log, _service_log, _find, _traceback, _install, _boxes, _diagnostic]
    command = f"$ {rng.choice(['cd', 'make', 'git', 'ls -la', 'grep -rn', 'uv run pytest'])} {_path(rng)} 2>&1 | tail -{rng.randrange(5, 99)}"
    return "\n".join([command, rng.choice(makers)(rng)])


def _grep(rng: Random) -> str:
    rows = [(path, i, line) for path, text in rng.sample(library(), 4) for i, line in enumerate(text.splitlines(), 1)]
    word = f"{rng.choice(['def ', 'self.', 'import ', 'return ', 'raise '])}"
    hits = [f"{path}:{i}:{line}" for path, i, line in rows if word in line]
    return "\n".join(hits[: rng.randrange(8, 30)])


def _listing(rng: Random) -> str:
    row = "{}rw-r--r--{} {} dev{} {:>8} {} {:>2} {:02}:{:02} {}"
    months, kind = ["Jan", "Mar", "Jun", "Sep", "Nov"], rng.choice(["", " staff"])
    return "\n".join(
        row.format(rng.choice("-d"), rng.choice(["", "@"]), rng.randrange(1, 20), kind, rng.randrange(200, 2**20),
                   rng.choice(months), rng.randrange(1, 30), rng.randrange(24), rng.randrange(60),
                   Path(_path(rng)).name)
        for _ in range(rng.randrange(8, 25))
    )  # fmt: skip


def _diff(rng: Random) -> str:
    path, text, _ = _excerpt(rng, 60)
    old = text.splitlines()
    new = [re.sub(r"\bself\.(\w+)", r"self._\1", line) if rng.random() < 0.2 else line for line in old if rng.random() > 0.06]
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="")
    return f"diff --git a/{path} b/{path}\nindex {_hexes(rng, 7)}..{_hexes(rng, 7)} 100644\n" + "\n".join(lines)


def _pytest(rng: Random) -> str:
    lines = ["=" * 28 + " test session starts " + "=" * 28, f"collected {rng.randrange(20, 900)} items", ""]
    for i in range(rng.randrange(5, 18)):
        outcome = rng.choice(["PASSED", "PASSED", "PASSED", "FAILED", "SKIPPED"])
        lines.append(f"tests/test_{_name(rng).lower()}.py::test_{_name(rng).lower()} {outcome} [{6 * i:3}%]")
    lines.append("." * rng.randrange(20, 70) + f" [{rng.randrange(100)}%]")
    return "\n".join([*lines, f"========= {rng.randrange(9)} failed, {rng.randrange(400)} passed in {rng.random() * 90:.2f}s ========="])


def _git_log(rng: Random) -> str:
    words = [rng.choice(["fix", "feat", "docs", "refactor", "test", "Add", "Update", "Merge branch", "Remove"]) for _ in range(14)]
    return "\n".join(f"{_hexes(rng, 7)} {w}: {_kebab(rng)} {rng.choice(paragraphs())[:40]}".rstrip() for w in words)


def _service_log(rng: Random) -> str:
    levels, out = ["INFO", "INFO", "DEBUG", "WARN", "ERROR"], []
    for _ in range(rng.randrange(6, 16)):
        detail = rng.choice([f"{_name(rng)}={rng.randrange(9999)}", f"GET /api/{_kebab(rng)} 200 {rng.randrange(900)}ms", rng.choice(paragraphs())[:70]])
        out.append(f"{_stamp(rng)} {rng.choice(levels)} [{_name(rng).lower()}] {detail}")
    return "\n".join(out)


def _find(rng: Random) -> str:
    return "\n".join(_path(rng) for _ in range(rng.randrange(6, 25)))


def _traceback(rng: Random) -> str:
    frames = []
    for _ in range(rng.randrange(2, 7)):
        path, text, line = _excerpt(rng, 1)
        frames.append(f'  File "/usr/lib/python3/{path}", line {line}, in {_name(rng)}\n    {text.strip()}')
    body = "\n".join(frames)
    return f"Traceback (most recent call last):\n{body}\n{_name(rng).title()}Error: {rng.choice(paragraphs())[:60]}"


def _install(rng: Random) -> str:
    lines = []
    for _ in range(rng.randrange(5, 12)):
        name, version = _kebab(rng).replace(" ", "-"), ".".join(str(rng.randrange(30)) for _ in range(3))
        lines.append(rng.choice([f"Downloading {name}-{version}-py3-none-any.whl ({rng.randrange(900)} kB)", f" + {name}=={version}", f"npm warn deprecated {name}@{version}: {rng.choice(paragraphs())[:50]}", f"Compiling {rng.randrange(90)} files (.ex)"]))
    return "\n".join(lines)


def _diagnostic(rng: Random) -> str:
    """A compiler's warning: a gutter, the line, an underline, the place."""
    path, text, line = _excerpt(rng, 1)
    bar, corner = rng.choice([("│", "└─"), ("|", "-->"), ("|", "|")])
    gutter = " " * rng.randrange(3, 8)
    under = " " * rng.randrange(2, 50) + rng.choice("^~") * rng.randrange(1, 12)
    head = f"{rng.choice(['warning', 'error', 'note'])}: {rng.choice(paragraphs())[:80]}"
    block = f"{head}\n{gutter}{bar}\n {line} {bar} {text}\n{gutter}{bar} {under}\n{gutter}{corner} {path}:{line}:{len(under)}\n"
    return "\n".join([block] * rng.randrange(1, 4))


def _boxes(rng: Random) -> str:
    rule = rng.choice("─━═-=") * rng.randrange(20, 100)
    rows = ["│   " * rng.randrange(4) + rng.choice(["├── ", "└── "]) + Path(_path(rng)).name for _ in range(rng.randrange(4, 14))]
    return "\n".join([rule, f"{rng.choice('✓✗✔●▶')} {_sentence(rng, 'prose')[:70]}", rule, *rows])


# -- words -------------------------------------------------------------------------------------------------------------


def _prose(rng: Random) -> str:
    blocks = [_bullets, _paragraph, _paragraph, _paragraph, _markdown_table, _remarks, _remarks]
    mark = rng.choice(["", "", "✅ ", "🚀 ", "### ", "1. "])
    title = f"## {mark}{_kebab(rng).title()} {rng.choice(paragraphs())[:24].rsplit(' ', 1)[0]}"
    return "\n\n".join([title, *(make(rng) for make in rng.sample(blocks, 4))])


def _paragraph(rng: Random) -> str:
    return rng.choice(paragraphs()).replace('"', rng.choice(['"', "`", "**", "“"]))[:700]


def _remarks(rng: Random) -> str:
    return " ".join(_sentence(rng, "prose") for _ in range(rng.randrange(2, 6)))


def _bullets(rng: Random) -> str:
    mark = rng.choice(["- ", "* ", "- ✅ ", "- **", "1. "])
    rows = [f"{mark}{_kebab(rng)}{'**' if '**' in mark else ''} — {_sentence(rng, 'prose')}" for _ in range(rng.randrange(3, 7))]
    return "\n".join(rows)


def _markdown_table(rng: Random) -> str:
    rows = [f"| `{_name(rng)}` | {_kebab(rng)} | {rng.choice(['✅', '❌', '⚠️', 'yes', rng.randrange(999)])} |" for _ in range(rng.randrange(3, 8))]
    return "\n".join(["| Name | Meaning | Done |", "|---|:---|---|", *rows])


def _dialogue(rng: Random) -> str:
    return rng.choice(["\n", " ", "\n\n"]).join(_sentence(rng, "dialogue") for _ in range(8))


def _chinese(rng: Random) -> str:
    section = rng.choice(["chinese", "chinese", "chinese", "literary"])
    return "".join(_sentence(rng, section) for _ in range(rng.randrange(2, 9)))


def _chinese_code(rng: Random) -> str:
    path, text, _ = _excerpt(rng, rng.randrange(8, 25))
    head = rng.choice(["## ", "", "1. ", "**注意** "]) + _sentence(rng, "chinese")
    return f"{head}\n\n```python\n# {path}：{_sentence(rng, 'chinese')}\n{text}\n```\n\n{_chinese(rng)[:120]} `{_name(rng)}`"


# -- JSON --------------------------------------------------------------------------------------------------------------


def _tool_call(rng: Random) -> str:
    path, text, _ = _excerpt(rng, rng.randrange(3, 30))
    if rng.random() < 0.4:
        path, text = "src/" + _camel(_name(rng)) + ".ts", _typescript(rng)[: rng.randrange(100, 1_500)]
    edited = text.replace("self", _name(rng)) + "\n"
    todo = {"content": _sentence(rng, "prose"), "status": rng.choice(["pending", "completed", "in_progress"]), "activeForm": _kebab(rng)}
    name, arguments = rng.choice([
        ("Read", {"file_path": _path(rng), "offset": rng.randrange(900), "limit": 120}),
        ("Edit", {"replace_all": False, "file_path": path, "old_string": text, "new_string": edited}),
        ("Write", {"file_path": path, "content": text}),
        ("Bash", {"command": f"cd {_path(rng)} && grep -n '{_name(rng)}' {path} | head -{rng.randrange(40)}", "description": _sentence(rng, "prose")[:60]}),
        ("Grep", {"pattern": f"{_name(rng)}|{_name(rng)}", "path": _path(rng), "output_mode": "content", "-n": True}),
        ("TodoWrite", {"todos": [todo, {**todo, "content": _sentence(rng, "prose")}]}),
    ])  # fmt: skip
    call = {"type": "tool_use", "id": "toolu_01" + _random_id(rng, 22), "name": name, "input": arguments}
    compact = rng.random() < 0.6
    return json.dumps(call, ensure_ascii=False, separators=(",", ":") if compact else None)


def _record(rng: Random, depth: int = 2) -> Any:
    """Return a JSON value as services answer with: keys of code, values of all kinds."""
    value: Any = rng.choice([
        lambda: rng.randrange(100_000), lambda: round(rng.random() * 1000, rng.randrange(1, 5)), lambda: rng.choice([True, False, None]),
        lambda: _kebab(rng), lambda: _sentence(rng, "prose"), lambda: _stamp(rng).replace(" ", "T") + "Z", lambda: _path(rng),
        lambda: f"https://{_name(rng).lower()}.example.com/{_kebab(rng).replace(' ', '/')}?id={rng.randrange(9999)}",
        lambda: _name(rng), lambda: rng.randrange(10**12, 2 * 10**12), lambda: f"^{rng.randrange(9)}.{rng.randrange(20)}.{rng.randrange(20)}",
        lambda: [_name(rng) for _ in range(rng.randrange(5))],
    ])()  # fmt: skip
    if depth and rng.random() < 0.35:
        return {rng.choice([_camel, str])(_name(rng)): _record(rng, depth - 1) for _ in range(rng.randrange(2, 7))}
    return value


def _records(rng: Random) -> list[dict[str, Any]]:
    keys = [rng.choice([_camel, str])(_name(rng)) for _ in range(rng.randrange(3, 10))]
    return [{"id": i, **{key: _record(rng) for key in keys}} for i in range(rng.randrange(1, 6))]


def _json_pretty(rng: Random) -> str:
    return json.dumps(_records(rng), indent=rng.choice([2, 2, 4]), ensure_ascii=False)


def _json_minified(rng: Random) -> str:
    return json.dumps(_records(rng), separators=(",", ":"), ensure_ascii=False)


# -- letters and digits ------------------------------------------------------------------------------------------------


def _base64(rng: Random) -> str:
    data = rng.choice([rng.randbytes, rng.randbytes, lambda n: _excerpt(rng, n // 30)[1].encode()[:n]])(rng.randrange(600, 4_000))
    text = base64.b64encode(data).decode()
    return rng.choice([text, "data:image/png;base64," + text, "\n".join(textwrap.wrap(text, 76))])


def _hex(rng: Random) -> str:
    length = rng.choice([32, 40, 64])
    names_ = rng.choice([lambda: "", lambda: "  " + _path(rng), lambda: "sha256:"])
    rows = [_hexes(rng, length) + rng.choice(["", names_()]) for _ in range(12)]
    return "\n".join(rows)


def _uuid_log(rng: Random) -> str:
    word, lines = rng.choice(["request", "session", "trace_id=", "job", "user"]), []
    for _ in range(12):
        digits = _hexes(rng, 32)
        uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        lines.append(f"{_stamp(rng)} {word} {uuid} {rng.choice(['started', 'done', _sentence(rng, 'prose')[:40], _path(rng), rng.randrange(9999)])}")
    return "\n".join(lines)


def _padded_table(rng: Random) -> str:
    widths, bar = [rng.randrange(8, 26) for _ in range(rng.randrange(3, 8))], rng.choice([" | ", "  ", " │ "])
    cell = [_name, _name, _kebab, _path, lambda r: str(r.randrange(10**6)), lambda r: f"{r.random() * 100:.2f}", lambda r: _stamp(r)[:16]]
    kinds = [rng.choice(cell) for _ in widths]
    rows = [bar.join(kind(rng)[:w].ljust(w) for kind, w in zip(kinds, widths, strict=True)) for _ in range(20)]
    line, cross = ("─", "┼") if "│" in bar else ("-", "+")
    rule = bar.replace(" ", line).replace("|", cross).replace("│", cross).join(line * w for w in widths)
    return "\n".join([rows[0], rule, *rows[1:]])


CLASSES: dict[str, Maker] = {
    "python": _python,
    "typescript": _typescript,
    "elixir, line numbers": _elixir,
    "shell and logs": _shell,
    "assistant prose": _prose,
    "tool-call JSON": _tool_call,
    "JSON pretty": _json_pretty,
    "JSON minified": _json_minified,
    "English dialogue": _dialogue,
    "Chinese and code": _chinese_code,
    "Chinese": _chinese,
    "base64": _base64,
    "hex and hashes": _hex,
    "uuid and time log": _uuid_log,
    "padded table": _padded_table,
}
"""The fifteen classes of the reference measurement."""


def _language(name: str) -> Maker:
    """Return a maker of text in one language: its sentences in random order."""
    return lambda rng: " ".join(rng.sample(parts := _words()["languages"][name].split(". "), len(parts)))


def _dense_emoji(rng: Random) -> str:
    return "".join(rng.choice(_slot("emoji")) for _ in range(60))


def _emoji_chat(rng: Random) -> str:
    return " ".join(f"{_sentence(rng, 'dialogue')} {rng.choice(_slot('emoji'))}" for _ in range(6))


def _escaped(rng: Random) -> str:
    """JSON whose strings are escaped to ASCII: six characters where there was one."""
    language = rng.choice(["chinese", "russian", "korean"])
    return json.dumps({_name(rng): _chinese(rng) if language == "chinese" else _words()["languages"][language]})


def _ansi(rng: Random) -> str:
    return "\n".join(f"\x1b[{rng.choice([1, 2, 31, 32, '38;5;208'])}m{_name(rng)}\x1b[0m {_kebab(rng)}" for _ in range(20))


def _numbers(rng: Random) -> str:
    digits = rng.randrange(1, 7)
    return "\n".join(",".join(f"{rng.uniform(-99, 99):.{digits}f}" for _ in range(8)) for _ in range(20))


def _html(rng: Random) -> str:
    rows = ["  " * rng.randrange(6) + f'<div class="{_kebab(rng)} px-{rng.randrange(9)} text-sm"><a href="/{_name(rng)}">{_kebab(rng)}</a></div>' for _ in range(20)]
    return "\n".join(rows)


def _shouting(rng: Random) -> str:
    return rng.choice(paragraphs()).upper()


def _camels(rng: Random) -> str:
    return rng.choice([" ", ".", ", ", "_"]).join(_camel(_name(rng)) + _camel(_name(rng)).title() for _ in range(30))


def _letters(rng: Random) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=600))


def _printable(rng: Random) -> str:
    return "".join(chr(rng.randrange(33, 127)) for _ in range(600))


def _latin(rng: Random) -> str:
    return rng.randbytes(600).decode("latin-1")


def _hexdump(rng: Random) -> str:
    rows = (_hexes(rng, 32) for _ in range(20))
    return "\n".join(f"{16 * i:08x}: {' '.join(re.findall('....', row))}  {'.' * 16}" for i, row in enumerate(rows))


def _repeated(text: str) -> Maker:
    return lambda _: text * (10_000 // len(text))


SCRIPTS: dict[str, Maker] = {
    **{name: _language(name) for name in _words()["languages"]},
    "emoji": _dense_emoji,
    "emoji in chat": _emoji_chat,
}
"""Languages beside English and Chinese, and pictures."""
FORMATS: dict[str, Maker] = {
    "\\u escapes": _escaped,
    "terminal colours": _ansi,
    "columns of numbers": _numbers,
    "HTML": _html,
    "boxes and rules": _boxes,
    "CAPITALS": _shouting,
    "camelCase": _camels,
    "hex dump": _hexdump,
}
"""What machines write beside the fifteen classes."""
NOISE: dict[str, Maker] = {
    "random ASCII": _printable,
    "random bytes as latin-1": _latin,
    "random small letters": _letters,
    "spaces": _repeated(" "),
    "newlines": _repeated("\n"),
    "tabs": _repeated("\t"),
    "one letter": _repeated("a"),
    "one digit": _repeated("0"),
    "dashes": _repeated("-"),
    "one emoji": _repeated("\U0001f600"),
    "one ideograph": _repeated("\u7684"),
}
"""Text without words: chance, and 10,000 times the same."""
TRAPS: dict[str, Maker] = SCRIPTS | FORMATS | NOISE
"""Content outside the fifteen classes that could be counted far too low."""
