"""Sources of the corpus: the interpreter's standard library, our own sentences, and small random pieces.

Code and English are read at run time from the standard library; nothing is downloaded, and no text of others is stored.
"""

from __future__ import annotations

import ast
import functools
import re
import sysconfig
import tomllib
from pathlib import Path
from pydoc_data import topics
from random import Random
from typing import Any

SHORTEST = 4_000
"""Fewest characters of a module that is read."""
MODULES = """
abc argparse ast base64 bdb bisect calendar cmd codecs collections/__init__ concurrent/futures/thread configparser
contextlib copy csv dataclasses datetime decimal difflib dis doctest email/message email/_header_value_parser enum
filecmp fnmatch fractions ftplib functools gettext glob gzip heapq hmac html/parser http/client http/cookiejar
http/server imaplib inspect ipaddress json/decoder json/encoder logging/__init__ logging/handlers mailbox mimetypes
multiprocessing/pool multiprocessing/managers netrc numbers optparse os pathlib pdb pickle pickletools platform
plistlib poplib pprint profile pstats pydoc queue quopri random rlcompleter sched selectors shelve shlex shutil
smtplib socket socketserver ssl statistics string stringprep subprocess symtable sysconfig tabnanny tarfile tempfile
textwrap threading timeit token tokenize tomllib/_parser trace traceback tracemalloc turtle types typing unittest/case
unittest/mock unittest/main urllib/parse urllib/request uuid warnings wave weakref webbrowser wsgiref/handlers
xml/dom/minidom xml/etree/ElementTree xmlrpc/client zipapp zipfile zipimport asyncio/base_events asyncio/events
asyncio/tasks asyncio/streams asyncio/queues asyncio/unix_events importlib/_bootstrap_external
importlib/metadata/__init__
""".split()  # noqa: SIM905
"""Modules of the standard library that are read; one that is missing from an interpreter is left out."""

HERE = Path(__file__).resolve().parent


@functools.cache
def library() -> tuple[tuple[str, str], ...]:
    """Return (path, text) of the installed standard library modules that are long enough for a chunk."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [root / f"{name}.py" for name in MODULES]
    texts = [(str(p.relative_to(root)), p.read_text("utf-8")) for p in paths if p.is_file()]
    return tuple((path, text) for path, text in texts if len(text) > SHORTEST)


@functools.cache
def trees() -> tuple[ast.Module, ...]:
    """Return the syntax trees of the library."""
    return tuple(ast.parse(text) for _, text in library())


@functools.cache
def names() -> tuple[str, ...]:
    """Return the identifiers of the library, each as often as it occurs, so that random choices follow that."""
    return tuple(re.findall(r"\b[A-Za-z_][A-Za-z0-9_]{2,}\b", "\n".join(text for _, text in library()[::5])))


@functools.cache
def paragraphs() -> tuple[str, ...]:
    """Return paragraphs of English: the language reference that ``help()`` shows, and docstrings."""
    texts = list(topics.topics.values())
    for tree in trees():
        texts += [d for node in ast.walk(tree) if isinstance(node, _DOCUMENTED) and (d := ast.get_docstring(node))]
    parts = [
        " ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text) if not part.startswith(" ")
    ]
    return tuple(part for part in parts if len(part) > 120 and part.count(" ") > len(part) / 9 and ">>>" not in part)


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def words() -> dict[str, dict[str, Any]]:
    """Return the sections of ``words.toml``."""
    return tomllib.loads((HERE / "words.toml").read_text("utf-8"))


@functools.cache
def slot(name: str) -> tuple[str, ...]:
    """Return the words that may fill slot ``name`` of a sentence."""
    return tuple(words()["slots"][name].replace("\n", "").split("|"))


class Pen(Random):
    """A random generator of names, paths, sentences and time stamps as agents see them."""

    def sentence(self, section: str) -> str:
        """Return one of our own sentences, its slots filled."""
        line = self.choice(words()[section]["lines"].strip().split("\n"))
        return re.sub(r"{(\w+)}", lambda found: self._filled(found[1]), line)

    def _filled(self, gap: str) -> str:
        if gap in ("a", "b"):
            return self.name()
        if gap in ("c", "d"):
            return self.kebab()
        return str(self.randrange(3, 400)) if gap == "n" else self.choice(slot(gap))

    def paragraph(self) -> str:
        """Return a paragraph of English."""
        return self.choice(paragraphs())

    def name(self) -> str:
        """Return an identifier as it occurs in code."""
        return self.choice(names())

    def camel(self) -> str:
        """Return an identifier in camelCase."""
        return camel(self.name())

    def pascal(self) -> str:
        """Return an identifier in PascalCase."""
        return self.camel().title()

    def key(self) -> str:
        """Return an identifier as a key of JSON: in camelCase or as it is."""
        name = self.name()
        return self.choice([camel(name), name])

    def kebab(self) -> str:
        """Return a word or two, with a hyphen or a space between."""
        return self.choice("- ").join(self.name().strip("_").lower().split("_")[0] for _ in range(self.randrange(1, 3)))

    def path(self) -> str:
        """Return the path of a file."""
        root = self.choice(
            ["/home/dev/projects/", "src/", "lib/", "./", "/usr/lib/python3/", "packages/core/src/", "tests/"]
        )
        return root + self.choice(library())[0].replace("/__init__", "")

    def hexes(self, length: int) -> str:
        """Return ``length`` hexadecimal digits."""
        return f"{self.getrandbits(4 * length):0{length}x}"

    def letters(self, length: int) -> str:
        """Return ``length`` letters and digits, as in ids."""
        return "".join(self.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", k=length))

    def stamp(self) -> str:
        """Return a date and a time to the millisecond."""
        day = f"20{self.randrange(22, 27)}-{self.randrange(1, 13):02}-{self.randrange(1, 29):02}"
        time = f"{self.randrange(24):02}:{self.randrange(60):02}:{self.randrange(60):02}"
        return f"{day}{self.choice('T ')}{time}.{self.randrange(1000):03}"

    def excerpt(self, lines: int) -> tuple[str, str, int]:
        """Return the path, text and first line number of some consecutive lines of a library file."""
        path, text = self.choice(library())
        rows = text.splitlines()
        start = self.randrange(max(1, len(rows) - lines))
        return path, "\n".join(rows[start : start + lines]), start + 1


def camel(name: str) -> str:
    """Return ``name``, written_so, inCamelCase."""
    head, *rest = name.strip("_").split("_")
    return head + "".join(part.capitalize() for part in rest)
