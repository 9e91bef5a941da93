"""Write ``src/holdfast/data/common_references.txt``: references that every project has, so that recall ignores them.

Keywords and builtins of Python and JavaScript, the public names of Python's standard library (read from its modules,
without modules that do something when imported), and the commonest file names of projects. Only keys that
``extract_references`` can yield are written. Run it with the oldest Python we support::

    uv run python bench/common_references.py
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import keyword
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from holdfast.messages.references import extract_references

TARGET = Path(__file__).parent.parent / "src" / "holdfast" / "data" / "common_references.txt"
LARGEST = 300_000
"""Largest size of the list in the wheel, in bytes."""

ACTING = {"antigravity", "this", "idlelib", "turtledemo", "__main__", "lib2to3", "turtle", "tkinter", "test"}
"""Modules that open a window, print, or contain nothing that people import."""
SUBMODULES = (
    "asyncio.subprocess collections.abc concurrent.futures curses.ascii email.message email.mime.multipart "
    "email.mime.text email.parser email.policy email.utils encodings.idna html.entities html.parser http.client "
    "http.cookiejar http.cookies http.server importlib.abc importlib.machinery importlib.metadata importlib.resources "
    "importlib.util json.decoder json.encoder logging.config logging.handlers multiprocessing.connection "
    "multiprocessing.managers multiprocessing.pool multiprocessing.shared_memory os.path unittest.mock "
    "urllib.error urllib.parse urllib.request urllib.robotparser wsgiref.simple_server xml.dom.minidom "
    "xml.etree.ElementTree xml.sax.handler xmlrpc.client xmlrpc.server zoneinfo"
)

JAVASCRIPT = """
AbortController AbortSignal addEventListener AggregateError ArrayBuffer asyncIterator BigInt BigInt64Array
BigUint64Array charAt charCodeAt clearImmediate clearInterval clearTimeout codePointAt copyWithin DataView
decodeURI decodeURIComponent defineProperties defineProperty deleteProperty encodeURI encodeURIComponent
endsWith EvalError FinalizationRegistry findIndex findLast findLastIndex flatMap Float32Array Float64Array forEach
fromCharCode fromCodePoint fromEntries FormData getDate getDay getFullYear getHours getMilliseconds getMinutes
getMonth getOwnPropertyDescriptor getOwnPropertyDescriptors getOwnPropertyNames getOwnPropertySymbols
getPrototypeOf getSeconds getTime getTimezoneOffset getUTCDate getUTCDay getUTCFullYear getUTCHours getUTCMinutes
getUTCMonth getUTCSeconds globalThis groupBy hasOwn hasOwnProperty indexOf instanceof Int16Array Int32Array Int8Array
InternalError isArray isConcatSpreadable isExtensible isFinite isFrozen isInteger isNaN isPrototypeOf isSafeInteger
isSealed lastIndex lastIndexOf localeCompare localStorage matchAll MAX_SAFE_INTEGER MAX_VALUE MIN_SAFE_INTEGER
MIN_VALUE NEGATIVE_INFINITY ownKeys padEnd padStart parseFloat parseInt POSITIVE_INFINITY preventExtensions
propertyIsEnumerable queueMicrotask RangeError ReadableStream reduceRight ReferenceError RegExp removeEventListener
replaceAll setDate setFullYear setHours setImmediate setInterval setMilliseconds setMinutes setMonth setPrototypeOf
setSeconds setTime setTimeout SharedArrayBuffer startsWith structuredClone substr SyntaxError TextDecoder TextEncoder
toDateString toExponential toFixed toISOString toJSON toLocaleDateString toLocaleLowerCase toLocaleString
toLocaleTimeString toLocaleUpperCase toLowerCase toPrecision toPrimitive toReversed toSorted toSpliced toString
toStringTag toTimeString toUpperCase toUTCString trimEnd trimStart TypeError Uint16Array Uint32Array Uint8Array
Uint8ClampedArray URIError URLSearchParams valueOf WeakMap WeakRef WeakSet withResolvers WritableStream
appendChild className createElement currentTarget documentElement firstChild getAttribute getElementById
getElementsByClassName innerHTML innerText lastChild nodeType parentNode preventDefault querySelector querySelectorAll
removeChild sessionStorage setAttribute stopPropagation textContent XMLHttpRequest
"""
"""ECMAScript's globals and methods, and the names of the platform that every page uses."""

FILES = """
README.md CHANGELOG.md CONTRIBUTING.md LICENSE.md LICENSE.txt SECURITY.md CODE_OF_CONDUCT.md AGENTS.md CLAUDE.md
SKILL.md TODO.md NOTES.md index.md
package.json package-lock.json tsconfig.json tsconfig.base.json tsconfig.build.json jsconfig.json eslint.config.js
eslint.config.mjs prettier.config.js vite.config.ts vite.config.js vitest.config.ts jest.config.js jest.config.ts
babel.config.js webpack.config.js rollup.config.js next.config.js tailwind.config.js tailwind.config.ts
postcss.config.js pnpm-lock.yaml pnpm-workspace.yaml yarn.lock biome.json turbo.json lerna.json deno.json
index.js index.ts index.tsx index.jsx index.html index.css index.mjs main.js main.ts main.tsx main.css app.js app.ts
app.tsx App.tsx App.jsx app.css types.ts utils.ts utils.js constants.ts config.ts config.js server.js server.ts
styles.css style.css globals.css global.css layout.tsx page.tsx
__init__.py __main__.py setup.py setup.cfg pyproject.toml poetry.lock uv.lock requirements.txt requirements-dev.txt
tox.ini pytest.ini conftest.py manage.py main.py app.py utils.py config.py settings.py models.py views.py urls.py
tests.py types.py helpers.py constants.py cli.py server.py client.py
Cargo.toml Cargo.lock main.rs lib.rs mod.rs build.rs main.go go.mod go.sum
mix.exs mix.lock config.exs dev.exs prod.exs test.exs runtime.exs test_helper.exs
pom.xml build.gradle settings.gradle Main.java composer.json composer.lock Gemfile.lock index.php
docker-compose.yml docker-compose.yaml config.json config.yaml config.yml config.toml settings.json launch.json
tasks.json data.json ci.yml test.yml build.yml release.yml main.yml dependabot.yml pre-commit-config.yaml
CMakeLists.txt main.c main.cpp main.h output.txt out.txt test.txt log.txt error.log debug.log
/dev/null /dev/stdin /dev/stdout /dev/stderr /bin/bash /bin/sh /usr/bin /usr/local /usr/lib /usr/bin/env
/usr/bin/python3 /etc/hosts /etc/passwd /tmp/test ./node_modules node_modules/.bin .github/workflows .git/config
.git/hooks src/index.ts src/index.js src/main.ts src/main.rs src/lib.rs src/main.py
pre-commit package-lock docker-compose node-modules
"""
"""File names that are in most repositories, and folders that are on every machine."""

LOCALS = "this.props arguments.length prototype __proto__ __dirname __filename module.exports process.env console.log"


def modules() -> Iterator[ModuleType]:
    """Yield the public modules of the standard library that this Python has."""
    names = [name for name in sorted(sys.stdlib_module_names) if not name.startswith("_") and name not in ACTING]
    for name in [*names, *SUBMODULES.split()]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield importlib.import_module(name)
        except ImportError:
            continue  # a module of another operating system


def public(module: ModuleType) -> Iterator[str]:
    """Yield the public names of a module and of its classes."""
    yield from module.__name__.split(".")
    for name, value in list(vars(module).items()):
        if name.startswith("_"):
            continue
        yield name
        if inspect.isclass(value):
            yield from (inner for inner in vars(value) if not inner.startswith("_"))


def words() -> Iterator[str]:
    """Yield the candidates for the list."""
    yield from (*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *dir(object), *dir(type))
    for kind in (str, bytes, dict, list, set, int, float, BaseException):
        yield from dir(kind)
    for module in modules():
        yield from public(module)
    yield from (*JAVASCRIPT.split(), *FILES.split(), *LOCALS.split())


def keys() -> list[str]:
    """Return the sorted keys of all references in the candidates."""
    return sorted({key for word in words() for _, key in extract_references(word)})


def main() -> None:
    """Write the list and print its length."""
    head = [
        "# References that belong to every project; made by bench/common_references.py, one key a line.",
        f"# Python {platform.python_version()} and its standard library, ECMAScript, commonest file names.",
    ]
    text = "\n".join([*head, *keys()]) + "\n"
    if len(text) >= LARGEST:
        msg = f"the list has {len(text):,} bytes, more than the {LARGEST:,} it may have: leave out a module in ACTING"
        raise SystemExit(msg)
    TARGET.write_text(text, "utf-8")
    print(f"{TARGET.name}: {text.count(chr(10)) - len(head):,} keys, {len(text):,} bytes")


if __name__ == "__main__":
    main()
