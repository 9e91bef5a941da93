"""Python rewritten as TypeScript and as Elixir, statement by statement.

The result need not run. It has the names, comments and nesting of real code, in the syntax of the other language.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Callable, Iterator

import sources
from sources import Pen


@functools.cache
def _functions() -> tuple[ast.stmt, ...]:
    return tuple(
        n for t in sources.trees() for n in t.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and len(n.body) > 1
    )


def typescript(pen: Pen) -> str:
    """Return TypeScript of a few library functions and classes, imports first."""
    unit = pen.choice(["\t", "  ", "    "])
    line = 'import {{ {}, type {} }} from "../{}.js";'
    parts = [line.format(pen.camel(), pen.pascal(), pen.camel()) for _ in range(3)]
    for _ in range(3):
        parts += ["\n".join(_ts(pen.choice(_functions()), pen)), ""]
    return "\n".join(parts).replace("\t", unit)[: pen.randrange(2_000, 6_000)]


_TS_WORDS = [
    (r"\bself\.", "this."), (r"\bNone\b", "null"), (r"\bTrue\b", "true"), (r"\bFalse\b", "false"), (r" and ", " && "),
    (r" or ", " || "), (r"\bnot ", "!"), (r" is ", " === "), (r" == ", " === "), (r" != ", " !== "), (r"\bf'", "'"),
    (r"'", '"'), (r"\blen\((\w+)\)", r"\1.length"), (r"\.append\(", ".push("),
    (r"\bisinstance\((\w+), (\w+)\)", r"\1 instanceof \2"),
]  # fmt: skip
_TS_TYPES = "string number boolean void string[] Promise<void> Map<string,Entry> unknown Options".split()  # noqa: SIM905


def _ts_code(node: ast.AST) -> str:
    text = ast.unparse(node)
    for pattern, put in _TS_WORDS:
        text = re.sub(pattern, put, text)
    return re.sub(r"\b_*[a-z]+(?:_[a-z]+)+\b", lambda m: sources.camel(m[0]), text)


def _ts(node: ast.stmt, pen: Pen, pad: str = "") -> Iterator[str]:
    """Yield the lines of TypeScript for a Python ``node``."""
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            yield from _ts_definition(node, pen, pad)
        case ast.If() | ast.While() | ast.For() | ast.With() | ast.Try():
            yield f"{pad}{_ts_head(node)} {{"
            yield from _ts_body(node.body, pen, pad)
            if getattr(node, "orelse", None):
                yield f"{pad}}} else {{"
                yield from _ts_body(node.orelse, pen, pad)  # type: ignore[union-attr]
            yield f"{pad}}} catch (error) {{\n{pad}\tthrow error;\n{pad}}}" if isinstance(node, ast.Try) else f"{pad}}}"
        case ast.Assign():
            const = "" if isinstance(node.targets[0], ast.Attribute) else pen.choice(["const ", "const ", "let "])
            yield f"{pad}{const}{_ts_code(node.targets[0])} = {_ts_code(node.value)};"
        case ast.Expr(ast.Constant()) | ast.Pass() | ast.Import() | ast.ImportFrom():
            yield f"{pad}// {pen.paragraph()[: pen.randrange(20, 80)]}"
        case _:
            yield f"{pad}{_ts_code(node).replace('raise ', 'throw new ')};"


def _ts_body(body: list[ast.stmt], pen: Pen, pad: str) -> Iterator[str]:
    for node in body:
        yield from _ts(node, pen, pad + "\t")


def _ts_head(node: ast.stmt) -> str:
    match node:
        case ast.For():
            return f"for (const {_ts_code(node.target)} of {_ts_code(node.iter)})"
        case ast.If() | ast.While():
            return f"{type(node).__name__.lower()} ({_ts_code(node.test)})"
    return "try"


def _ts_definition(node: ast.ClassDef | ast.FunctionDef, pen: Pen, pad: str) -> Iterator[str]:
    if doc := ast.get_docstring(node):
        yield f"{pad}/**"
        yield from (f"{pad} * {line}" for line in textwrap.wrap(doc[:300], 90))
        yield f"{pad} */"
    if isinstance(node, ast.ClassDef):
        yield f"{pad}export class {node.name} {{"
    else:
        args = [
            f"{sources.camel(a.arg)}{pen.choice(['', '', '?'])}: {pen.choice(_TS_TYPES)}"
            for a in node.args.args
            if a.arg != "self"
        ]
        keyword = (
            pen.choice(["private ", "async ", "", ""]) if pad else pen.choice(["export function ", "async function "])
        )
        yield f"{pad}{keyword}{sources.camel(node.name)}({', '.join(args)}): {pen.choice(_TS_TYPES)} {{"
    yield from _ts_body(node.body[1:] if doc else node.body, pen, pad)
    yield f"{pad}}}\n"


def elixir(pen: Pen, fill: Callable[[Pen], str]) -> str:
    """Return a numbered listing of Elixir, as tools that read files show it; ``fill`` makes the markup inside."""
    module = f"{pen.pascal()}.{pen.pascal()}"
    lines = [
        f"defmodule {module} do",
        "  @moduledoc false",
        f"  alias {module}.{{{pen.pascal()}, Repo}}",
        "",
    ]
    for _ in range(4):
        lines += _ex(pen.choice(_functions()), pen, "  ")
        lines += textwrap.indent(fill(pen), "    ").splitlines()[: pen.choice([0, 0, 12])]
    start, mark = pen.choice([1, 1, pen.randrange(900)]), pen.choice(["→", "→", "\t", "|"])
    lines = "\n".join(lines).splitlines()[:140]
    return "\n".join(f"{i:6}{mark}{line}" for i, line in enumerate(lines, start))


_EX_WORDS = [
    (r"\bself\b", "state"), (r"\bNone\b", "nil"), (r"\bTrue\b", "true"), (r"\bFalse\b", "false"),
    (r"'", '"'), (r"\{\}", "%{}"), (r"\blen\(", "length("), (r"\bisinstance\(", "is_struct("), (r"\.append\(", " ++ ("),
]  # fmt: skip


def _ex_code(node: ast.AST) -> str:
    text = ast.unparse(node)
    for pattern, put in _EX_WORDS:
        text = re.sub(pattern, put, text)
    return re.sub(r"\b(\w+)=(?=[\w\"\[])", r"\1: ", text)


def _ex(node: ast.stmt, pen: Pen, pad: str) -> Iterator[str]:
    """Yield lines of Elixir that roughly correspond to a Python ``node``."""
    match node:
        case ast.ClassDef():
            yield from _ex_body(node.body, pen, pad[2:])
        case ast.FunctionDef():
            if doc := ast.get_docstring(node):
                yield f'{pad}@doc """\n{textwrap.indent(doc[:300], pad)}\n{pad}"""'
            args = ", ".join(
                pen.choice([a.arg, f"%{{{a.arg}: {a.arg}}}", f":{a.arg}"]) for a in node.args.args if a.arg != "self"
            )
            yield f"{pad}{pen.choice(['def', 'defp'])} {node.name.strip('_')}({args}) do"
            yield from _ex_body(node.body[1:] if doc else node.body, pen, pad)
            yield f"{pad}end\n"
        case ast.If():
            yield f"{pad}if {_ex_code(node.test)} do"
            yield from _ex_body(node.body, pen, pad)
            yield f"{pad}end"
        case ast.For() | ast.While() | ast.With():
            verb = pen.choice(["each", "map", "reduce"])
            yield f"{pad}Enum.{verb}({pen.name().lower()}, fn {pen.name().lower()} ->"
            yield from _ex_body(node.body, pen, pad)
            yield f"{pad}end)"
        case ast.Try():
            yield f"{pad}case {pen.name().lower()}({pen.name().lower()}) do\n{pad}  {{:ok, value}} ->"
            yield from _ex_body(node.body, pen, pad + "  ")
            yield f"{pad}  {{:error, reason}} -> {{:error, inspect(reason)}}\n{pad}end"
        case ast.Expr(ast.Call(ast.Attribute() as function, args)):
            rest = ", ".join(_ex_code(arg) for arg in args)
            yield f"{pad}{_ex_code(function.value)}\n{pad}|> {function.attr}({rest})"
        case _:
            yield pad + _ex_code(node).removeprefix("return ")


def _ex_body(body: list[ast.stmt], pen: Pen, pad: str) -> Iterator[str]:
    for node in body:
        yield from _ex(node, pen, pad + "  ")
