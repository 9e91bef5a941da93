"""A seeded corpus: fifteen classes of content that fill an agent's context, and traps for a token estimator.

Nothing is downloaded, and no text of others is stored. Code and English are read at run time from the interpreter's
standard library; TypeScript and Elixir are that code, rewritten statement by statement; sentences of our own are in
``words.toml``. The same interpreter and the same seed give the same corpus.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rewrite
import sources
from sources import Pen

CHUNK = 4_000
"""Characters of a chunk, about the size of an average tool result; the reference measurement used the same."""
Maker = Callable[[Pen], str]
"""Returns text of a class; the length varies."""


def chunks(name: str, count: int, seed: int = 11, size: int = CHUNK) -> list[str]:
    """Return ``count`` texts of ``size`` characters of class or trap ``name``; each has its own random state."""
    make = CLASSES.get(name) or TRAPS[name]
    return [_filled(make, Pen(f"{seed}:{name}:{i}"), size) for i in range(count)]


def _filled(make: Maker, pen: Pen, size: int) -> str:
    text = make(pen)
    while len(text) < size:
        text += "\n" + make(pen)
    return text[:size]


# -- code --------------------------------------------------------------------------------------------------------------


def _python(pen: Pen) -> str:
    return pen.excerpt(120)[1]


def _elixir(pen: Pen) -> str:
    return rewrite.elixir(pen, _html)


# -- tool output -------------------------------------------------------------------------------------------------------


def _shell(pen: Pen) -> str:
    tool = pen.choice(["cd", "make", "git", "ls -la", "grep -rn", "uv run pytest"])
    command = f"$ {tool} {pen.path()} 2>&1 | tail -{pen.randrange(5, 99)}"
    return command + "\n" + pen.choice(_OUTPUTS)(pen)


def _grep(pen: Pen) -> str:
    files = pen.sample(sources.library(), 4)
    word = pen.choice(["def ", "self.", "import ", "return ", "raise "])
    rows = [(path, i, line) for path, text in files for i, line in enumerate(text.splitlines(), 1) if word in line]
    return "\n".join(f"{path}:{i}:{line}" for path, i, line in rows[: pen.randrange(8, 30)])


def _listing(pen: Pen) -> str:
    group = pen.choice(["", " staff"])
    rows = []
    for _ in range(pen.randrange(8, 25)):
        mode, links, size = pen.choice(["-rw-r--r--", "drw-r--r--@"]), pen.randrange(1, 20), pen.randrange(200, 2**20)
        day = f"{pen.choice(['Jan', 'Mar', 'Jun', 'Sep', 'Nov'])} {pen.randrange(1, 30):>2}"
        time = f"{pen.randrange(24):02}:{pen.randrange(60):02}"
        rows.append(f"{mode} {links} dev{group} {size:>8} {day} {time} {Path(pen.path()).name}")
    return "\n".join(rows)


def _diff(pen: Pen) -> str:
    path, text, _ = pen.excerpt(60)
    old = text.splitlines()
    kept = [line for line in old if pen.random() > 0.06]
    new = [re.sub(r"\bself\.(\w+)", r"self._\1", line) if pen.random() < 0.2 else line for line in kept]
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="")
    return "\n".join([f"diff --git a/{path} b/{path}", f"index {pen.hexes(7)}..{pen.hexes(7)} 100644", *lines])


def _pytest(pen: Pen) -> str:
    lines = ["=" * 28 + " test session starts " + "=" * 28, f"collected {pen.randrange(20, 900)} items", ""]
    for i in range(pen.randrange(5, 18)):
        outcome = pen.choice(["PASSED", "PASSED", "PASSED", "FAILED", "SKIPPED"])
        lines.append(f"tests/test_{pen.name().lower()}.py::test_{pen.name().lower()} {outcome} [{6 * i:3}%]")
    lines.append("." * pen.randrange(20, 70) + f" [{pen.randrange(100)}%]")
    lines.append(f"======= {pen.randrange(9)} failed, {pen.randrange(400)} passed in {pen.random() * 90:.2f}s =======")
    return "\n".join(lines)


def _git_log(pen: Pen) -> str:
    kinds = ["fix", "feat", "docs", "refactor", "test", "Add", "Update", "Merge branch", "Remove"]
    rows = [f"{pen.hexes(7)} {pen.choice(kinds)}: {pen.kebab()} {pen.paragraph()[:40]}" for _ in range(14)]
    return "\n".join(row.rstrip() for row in rows)


def _service_log(pen: Pen) -> str:
    levels, rows = ["INFO", "INFO", "DEBUG", "WARN", "ERROR"], []
    for _ in range(pen.randrange(6, 16)):
        fact = f"{pen.name()}={pen.randrange(9999)}"
        call = f"GET /api/{pen.kebab()} 200 {pen.randrange(900)}ms"
        detail = pen.choice([fact, call, pen.paragraph()[:70]])
        rows.append(f"{pen.stamp()} {pen.choice(levels)} [{pen.name().lower()}] {detail}")
    return "\n".join(rows)


def _find(pen: Pen) -> str:
    return "\n".join(pen.path() for _ in range(pen.randrange(6, 25)))


def _traceback(pen: Pen) -> str:
    rows = ["Traceback (most recent call last):"]
    for _ in range(pen.randrange(2, 7)):
        path, text, line = pen.excerpt(1)
        rows += [f'  File "/usr/lib/python3/{path}", line {line}, in {pen.name()}', f"    {text.strip()}"]
    return "\n".join([*rows, f"{pen.name().title()}Error: {pen.paragraph()[:60]}"])


def _install(pen: Pen) -> str:
    rows = []
    for _ in range(pen.randrange(5, 12)):
        name, version = pen.kebab().replace(" ", "-"), f"{pen.randrange(9)}.{pen.randrange(30)}.{pen.randrange(30)}"
        wheel = f"Downloading {name}-{version}-py3-none-any.whl ({pen.randrange(900)} kB)"
        warning = f"npm warn deprecated {name}@{version}: {pen.paragraph()[:50]}"
        rows.append(pen.choice([wheel, warning, f" + {name}=={version}", f"Compiling {pen.randrange(90)} files (.ex)"]))
    return "\n".join(rows)


def _diagnostic(pen: Pen) -> str:
    """A compiler's warning: line numbers, the line of code, an underline, the position."""
    path, text, line = pen.excerpt(1)
    bar, corner = pen.choice([("│", "└─"), ("|", "-->"), ("|", "|")])
    gutter = " " * pen.randrange(3, 8) + bar
    under = " " * pen.randrange(2, 50) + pen.choice("^~") * pen.randrange(1, 12)
    head = f"{pen.choice(['warning', 'error', 'note'])}: {pen.paragraph()[:80]}"
    place = f"{gutter[:-1]}{corner} {path}:{line}:{len(under)}"
    block = "\n".join([head, gutter, f" {line} {bar} {text}", f"{gutter} {under}", place, ""])
    return "\n".join([block] * pen.randrange(1, 4))


def _boxes(pen: Pen) -> str:
    rule = pen.choice("─━═-=") * pen.randrange(20, 100)
    head = f"{pen.choice('✓✗✔●▶')} {pen.sentence('prose')[:70]}"
    rows = ["│   " * pen.randrange(4) + pen.choice("├└") + f"── {Path(pen.path()).name}" for _ in range(9)]
    return "\n".join([rule, head, rule, *rows])


_OUTPUTS: list[Maker] = [_grep, _listing, _diff, _pytest, _git_log, _service_log, _find, _traceback, _install]
_OUTPUTS += [_grep, _diff, _pytest, _boxes, _diagnostic]  # code and test runs are the most


# -- words -------------------------------------------------------------------------------------------------------------


def _prose(pen: Pen) -> str:
    blocks = [_bullets, _paragraph, _paragraph, _paragraph, _markdown_table, _remarks, _remarks]
    mark = pen.choice(["", "", "✅ ", "🚀 ", "### ", "1. "])
    title = f"## {mark}{pen.kebab().title()} {pen.paragraph()[:24].rsplit(' ', 1)[0]}"
    return "\n\n".join([title, *(make(pen) for make in pen.sample(blocks, 4))])


def _paragraph(pen: Pen) -> str:
    return pen.paragraph().replace('"', pen.choice(['"', "`", "**", "“"]))[:700]


def _remarks(pen: Pen) -> str:
    return " ".join(pen.sentence("prose") for _ in range(pen.randrange(2, 6)))


def _bullets(pen: Pen) -> str:
    mark, close = pen.choice([("- ", ""), ("* ", ""), ("- ✅ ", ""), ("- **", "**"), ("1. ", "")])
    rows = [f"{mark}{pen.kebab()}{close} — {pen.sentence('prose')}" for _ in range(pen.randrange(3, 7))]
    return "\n".join(rows)


def _markdown_table(pen: Pen) -> str:
    marks = ["✅", "❌", "⚠️", "yes", "no", pen.randrange(999)]
    rows = [f"| `{pen.name()}` | {pen.kebab()} | {pen.choice(marks)} |" for _ in range(pen.randrange(3, 8))]
    return "\n".join(["| Name | Meaning | Done |", "|---|:---|---|", *rows])


def _dialogue(pen: Pen) -> str:
    return pen.choice(["\n", " ", "\n\n"]).join(pen.sentence("dialogue") for _ in range(8))


def _chinese(pen: Pen) -> str:
    section = pen.choice(["chinese", "chinese", "chinese", "chinese", "literary"])
    return "".join(pen.sentence(section) for _ in range(pen.randrange(2, 9)))


def _chinese_code(pen: Pen) -> str:
    path, text, _ = pen.excerpt(pen.randrange(8, 25))
    head = pen.choice(["## ", "", "1. ", "**注意** "]) + pen.sentence("chinese")
    code = f"```python\n# {path}：{pen.sentence('chinese')}\n{text}\n```"
    return f"{head}\n\n{code}\n\n{_chinese(pen)[:120]} `{pen.name()}`"


# -- JSON --------------------------------------------------------------------------------------------------------------


def _tool_call(pen: Pen) -> str:
    name, arguments = pen.choice([_read, _edit, _edit, _bash, _search, _plan])(pen)
    call = {"type": "tool_use", "id": "toolu_01" + pen.letters(22), "name": name, "input": arguments}
    separators = pen.choice([(",", ":"), (",", ":"), (", ", ": ")])
    return json.dumps(call, ensure_ascii=False, separators=separators)


def _read(pen: Pen) -> tuple[str, Any]:
    return "Read", {"file_path": pen.path(), "offset": pen.randrange(900), "limit": 120}


def _edit(pen: Pen) -> tuple[str, Any]:
    path, text, _ = pen.excerpt(pen.randrange(3, 30))
    if pen.random() < 0.4:
        path, text = f"src/{pen.camel()}.ts", rewrite.typescript(pen)[: pen.randrange(100, 1_500)]
    if pen.random() < 0.4:
        return "Write", {"file_path": path, "content": text}
    new = text.replace("self", pen.name()) + "\n"
    return "Edit", {"replace_all": False, "file_path": path, "old_string": text, "new_string": new}


def _bash(pen: Pen) -> tuple[str, Any]:
    command = f"cd {pen.path()} && grep -n '{pen.name()}' {pen.path()} | head -{pen.randrange(40)}"
    return "Bash", {"command": command, "description": pen.sentence("prose")[:60]}


def _search(pen: Pen) -> tuple[str, Any]:
    pattern = f"{pen.name()}|{pen.name()}"
    return "Grep", {"pattern": pattern, "path": pen.path(), "output_mode": "content", "-n": True}


def _plan(pen: Pen) -> tuple[str, Any]:
    states = ["pending", "completed", "in_progress"]
    keys = ("content", "status", "activeForm")
    rows = [(pen.sentence("prose"), pen.choice(states), pen.kebab()) for _ in range(pen.randrange(1, 5))]
    return "TodoWrite", {"todos": [dict(zip(keys, row, strict=True)) for row in rows]}


_VALUES: list[Callable[[Pen], Any]] = [
    lambda pen: pen.randrange(100_000),
    lambda pen: pen.randrange(10**12, 2 * 10**12),
    lambda pen: round(pen.random() * 1000, pen.randrange(1, 5)),
    lambda pen: pen.choice([True, False, None]),
    Pen.name,
    Pen.kebab,
    Pen.path,
    lambda pen: pen.sentence("prose"),
    lambda pen: pen.stamp().replace(" ", "T") + "Z",
    lambda pen: f"https://{pen.name().lower()}.example.com/{pen.kebab().replace(' ', '/')}?id={pen.randrange(9999)}",
    lambda pen: f"^{pen.randrange(9)}.{pen.randrange(20)}.{pen.randrange(20)}",
    lambda pen: [pen.name() for _ in range(pen.randrange(5))],
]
"""Values for the fields of a record."""


def _field(pen: Pen, depth: int = 2) -> Any:
    """Return a JSON value as in the answers of web services; one in three is an object with fields."""
    if depth and pen.random() < 0.35:
        return {pen.key(): _field(pen, depth - 1) for _ in range(pen.randrange(2, 7))}
    return pen.choice(_VALUES)(pen)


def _records(pen: Pen) -> list[dict[str, Any]]:
    keys = [pen.key() for _ in range(pen.randrange(3, 10))]
    return [{"id": i, **{key: _field(pen) for key in keys}} for i in range(pen.randrange(1, 6))]


def _json_pretty(pen: Pen) -> str:
    return json.dumps(_records(pen), indent=pen.choice([2, 2, 4]), ensure_ascii=False)


def _json_minified(pen: Pen) -> str:
    return json.dumps(_records(pen), separators=(",", ":"), ensure_ascii=False)


# -- letters and digits ------------------------------------------------------------------------------------------------


def _base64(pen: Pen) -> str:
    size = pen.randrange(600, 4_000)
    data = pen.choice([pen.randbytes(size), pen.randbytes(size), pen.excerpt(size // 30)[1].encode()[:size]])
    text = base64.b64encode(data).decode()
    return pen.choice([text, "data:image/png;base64," + text, "\n".join(textwrap.wrap(text, 76))])


def _hex(pen: Pen) -> str:
    length, mark = pen.choice([32, 40, 64]), pen.choice(["", "sha256:"])
    rows = [mark + pen.hexes(length) + pen.choice(["", "  " + pen.path()]) for _ in range(12)]
    return "\n".join(rows)


def _uuid_log(pen: Pen) -> str:
    word, rows = pen.choice(["request", "session", "trace_id=", "job", "user"]), []
    for _ in range(12):
        uuid = "-".join(pen.hexes(length) for length in (8, 4, 4, 4, 12))
        what = pen.choice(["started", "done", pen.sentence("prose")[:40], pen.path(), pen.randrange(9999)])
        rows.append(f"{pen.stamp()} {word} {uuid} {what}")
    return "\n".join(rows)


def _padded_table(pen: Pen) -> str:
    widths, bar = [pen.randrange(9, 32) for _ in range(pen.randrange(3, 8))], pen.choice([" | ", "  ", " │ "])
    kinds = [pen.choice(_CELLS) for _ in widths]
    rows = [bar.join(kind(pen)[:w].ljust(w) for kind, w in zip(kinds, widths, strict=True)) for _ in range(20)]
    line, cross = ("─", "┼") if "│" in bar else ("-", "+")
    rule = bar.replace(" ", line).replace("|", cross).replace("│", cross).join(line * w for w in widths)
    return "\n".join([rows[0], rule, *rows[1:]])


_CELLS: list[Maker] = [
    Pen.name,
    Pen.name,
    Pen.kebab,
    Pen.path,
    lambda pen: str(pen.randrange(10**6)),
    lambda pen: f"{pen.random() * 100:.2f}",
    lambda pen: pen.stamp()[:16],
]
"""Values for the columns of a table."""


CLASSES: dict[str, Maker] = {
    "python": _python,
    "typescript": rewrite.typescript,
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


# -- traps -------------------------------------------------------------------------------------------------------------


def _language(name: str) -> Maker:
    """Return a function that makes text in one language from its sentences in random order."""
    parts = sources.words()["languages"][name].split(". ")
    return lambda pen: " ".join(pen.sample(parts, len(parts)))


def _dense_emoji(pen: Pen) -> str:
    return "".join(pen.choice(sources.slot("emoji")) for _ in range(60))


def _emoji_chat(pen: Pen) -> str:
    return " ".join(f"{pen.sentence('dialogue')} {pen.choice(sources.slot('emoji'))}" for _ in range(6))


def _escaped(pen: Pen) -> str:
    """JSON with strings escaped to ASCII, so that one character becomes six."""
    return json.dumps({pen.name(): pen.choice([_chinese, _language("russian"), _language("korean")])(pen)})


def _ansi(pen: Pen) -> str:
    colours = ["1", "2", "31", "32", "38;5;208"]
    return "\n".join(f"\x1b[{pen.choice(colours)}m{pen.name()}\x1b[0m {pen.kebab()}" for _ in range(20))


def _numbers(pen: Pen) -> str:
    digits = pen.randrange(1, 7)
    return "\n".join(",".join(f"{pen.uniform(-99, 99):.{digits}f}" for _ in range(8)) for _ in range(20))


def _html(pen: Pen) -> str:
    rows = []
    for _ in range(20):
        link = f'<a href="/{pen.name()}">{pen.kebab()}</a>'
        box = f'<div class="{pen.kebab()} px-{pen.randrange(9)} text-sm">{link}</div>'
        rows.append("  " * pen.randrange(6) + box)
    return "\n".join(rows)


def _tabbed(pen: Pen) -> str:
    kinds = [pen.choice(_CELLS) for _ in range(pen.randrange(3, 8))]
    return "\n".join("\t".join(kind(pen) for kind in kinds) for _ in range(20))


_SCRIPT = """
if [ -z "${A}" ] || [ ! -f "${A}/b" ]; then
    a="$(b --c "$a" | grep -v '^#' | cut -d: -f2)"
my ($a, %b) = @_; return $self->{a} unless defined $b{$c};
for a in "$@"; do echo "$b: $a" >&2; done
export A="${A:-/usr/local/b}"; a=$((a + 1))
$a =~ s/^b+\\s*//g and push @{$c}, \\@a;
    *) echo "unknown option $1"; exit 1 ;;
"""
_HEADER = """
#define A_B(a, b) ((a)->b & A_B)
static inline int a_b(const struct a *b, size_t c);
#include <a/b.h>
extern void a_b(A *a, unsigned long b) __attribute__((a));
/* a: b when the c is a, see b() */
    A_B = 0x1f, /* a */
#ifndef A_B
"""


def _lines(pattern: str) -> Maker:
    """Return a function that makes lines like ``pattern``, in which single letters become names in the same case."""

    def make(pen: Pen) -> str:
        def named(found: re.Match[str]) -> str:
            return pen.name().strip("_").upper() if found[0] == "A" else pen.name().strip("_").lower()

        lines = pattern.strip().split("\n")
        return "\n".join(re.sub(r"\b[Aabc]\b|(?<=_)B", named, pen.choice(lines)) for _ in range(20))

    return make


def _shouting(pen: Pen) -> str:
    return pen.paragraph().upper()


def _camels(pen: Pen) -> str:
    return pen.choice([" ", ".", ", ", "_"]).join(pen.camel() + pen.pascal() for _ in range(30))


def _letters(pen: Pen) -> str:
    return "".join(pen.choices("abcdefghijklmnopqrstuvwxyz", k=600))


def _printable(pen: Pen) -> str:
    return "".join(chr(pen.randrange(33, 127)) for _ in range(600))


def _latin(pen: Pen) -> str:
    return pen.randbytes(600).decode("latin-1")


def _hexdump(pen: Pen) -> str:
    rows = (pen.hexes(32) for _ in range(20))
    return "\n".join(f"{16 * i:08x}: {' '.join(re.findall('....', row))}  {'.' * 16}" for i, row in enumerate(rows))


def _repeated(text: str) -> Maker:
    return lambda _: text * (10_000 // len(text))


SCRIPTS: dict[str, Maker] = {
    **{name: _language(name) for name in sources.words()["languages"]},
    "emoji": _dense_emoji,
    "emoji in chat": _emoji_chat,
}
"""Languages beside English and Chinese, and pictures."""
FORMATS: dict[str, Maker] = {
    "\\u escapes": _escaped,
    "terminal colours": _ansi,
    "columns of numbers": _numbers,
    "HTML": _html,
    "tab-separated": _tabbed,
    "shell and Perl": _lines(_SCRIPT),
    "C header": _lines(_HEADER),
    "boxes and rules": _boxes,
    "CAPITALS": _shouting,
    "camelCase": _camels,
    "hex dump": _hexdump,
}
"""Other formats that programs write."""
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
"""Text without words: random characters, or the same one 10,000 times."""
TRAPS: dict[str, Maker] = SCRIPTS | FORMATS | NOISE
"""Content outside the fifteen classes whose tokens an estimator could count far too low."""
