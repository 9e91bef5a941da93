"""Write a long coding session in Claude Code's format: scripted people, real tools on this repository's files.

    python examples/make_long_session.py [--source DIR] [--out FILE]

Each command runs in a temporary copy of the sources, and edits are applied there. What the assistant says later (paths,
lines, names, numbers) comes from what the tools printed before. Times and ids come from counters, so the same sources
and the same Python give the same bytes.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from session_files import BROKEN, LENGTHS, LIMITS, LIMITS_TEXT, LOG, REPAIR, SURFACE, TEST, names_test, soak_log
from session_record import Session, number
from session_tools import Workshop, bash, call, imported, modules, outline, place, public, python, told

ENOUGH = 222
"""Least number of steps, two messages each; the review continues until then."""
OPENINGS = ("{} now.", "Next is {}.", "On to {}.", "I take {} next.", "Let me look at {}.")
ENTRIES = "src/holdfast/state/entries.py"
RUN = bash("python tools/surface.py", "Print the surface")
PROVE = bash("python -m unittest tests.unit.test_surface", "Run the surface test")


def orientation(s: Session) -> None:
    """Scene: the task and its rules, and a first look at the sources."""
    s.user(
        "We are getting Holdfast ready for its first release: ticket HF-2291, base commit 4e8c1d7. Every module under "
        "src/holdfast shall list its public names in `__all__`, tools/surface.py shall print them, and a test shall "
        "prove that the two agree. Rules: never change the public names in state/entries.py; answer in British "
        "English; no new dependencies; tests must run with plain `python -m unittest`, the release container has "
        "nothing else; leave the tests that are there alone; do not commit, I do that. Have a look round first and "
        "tell me your plan."
    )
    s.step(
        bash("git log --oneline -6", "Show recent commits"),
        call("Glob", pattern="src/**/*.py"),
        thought="I should see the layout and the history before I plan anything.",
    )
    s.step(call("Read", "README.md"), call("Read", "pyproject.toml"), text="The README and the project file first.")
    s.step(call("Read", ENTRIES), text="state/entries.py has a rule of its own, so I read it now.")
    for path in ("planning/settings.py", "state/calibration/token_estimate.py", "errors.py"):
        s.step(call("Read", f"src/holdfast/{path}"))
    s.step(call("Grep", "src", pattern="__all__"), call("Grep", "tests", pattern="^def test_", head_limit=50))
    lines = 'for p in sorted(pathlib.Path("src").rglob("*.py")): print(len(p.read_text().splitlines()), p)'
    s.step(python(f"import pathlib\n{lines}", "Count the lines of each module"))
    entries = told([s.shown[name] for name in public(s.shop, ENTRIES) if name in s.shown])
    s.step(
        text="Plan for HF-2291:\n1. tools/surface.py from the syntax tree, nothing imported.\n2. `__all__` in state/, "
        "then messages/ and planning/, then the rest, file by file.\n3. tests/unit/test_surface.py with unittest.\n\n"
        f"In state/entries.py I shall only add the list; its names stay as they are: {entries}."
    )


def script(s: Session) -> None:
    """Scene: write tools/surface.py, which fails on its first run and is corrected."""
    s.user(
        "Good. Start with tools/surface.py, with --json too. The release has a budget of 960 public names: over it the "
        "script must leave with exit status 3."
    )
    s.step(call("Write", "tools/surface.py", content=SURFACE), text="A first version; the budget of 960 is a constant.")
    trouble = s.step(RUN)[0].splitlines()[-1]
    s.step(
        call("Read", "tools/surface.py", offset=14, limit=14), thought=f"{trouble}: not every target is a plain name."
    )
    s.step(
        call("Edit", "tools/surface.py", replace_all=False, old_string=BROKEN, new_string=REPAIR),
        text=f"`{trouble}`: annotated assignments have one target, tuples have several leaves. I take both apart.",
    )
    total = s.step(RUN)[0].splitlines()[-1]
    s.step(bash("python tools/surface.py --json", "Print all rows as JSON"))
    s.step(text=f"tools/surface.py works: {total}, exit status 3 above that. --json has a row for each name.")


def visit(s: Session, path: str, *, check: bool = True, forget: bool = False) -> None:
    """Read a module, look at its neighbours, add its list of names and check it."""
    text, names, short = s.shop.text(path), public(s.shop, path), path.removeprefix("src/holdfast/")
    longest = max(outline(path, text), key=lambda name: (name.name in names, name.end - name.line))
    s.step(call("Read", path), text=OPENINGS[number(0, 4, path)].format(short) if number(0, 2, path) else "")
    if text.count("\n") > 420:
        s.step(call("Read", path, offset=421))
    old = [name for name in s.recall(imported(text)) if name.path != path]
    if old and number(0, 2, "back", path):
        back = old[0]
        s.step(
            call("Read", back.path, offset=max(1, back.line - 2), limit=min(40, back.end - back.line + 6)),
            text=f"It leans on {told([back])}; I look at that once more.",
        )
    unknown = sorted(imported(text) - s.shown.keys())
    if unknown:
        s.step(call("Grep", "src", pattern=rf"(class|def) {unknown[0]}\b|^{unknown[0]}\b", head_limit=8))
    users = [call("Grep", where, pattern=rf"\b{longest.name}\b", head_limit=30) for where in ("src", "tests")]
    asked = f"Who uses `{longest.name}` (line {longest.line})?" if number(0, 2, "asked", path) else ""
    s.step(*users[: number(1, 2, "users", path)], text=asked, thought=cousin(s, longest.name, path))
    anchor, kept = place(text)
    listed = sorted({*names, *kept} - ({names[-1]} if forget else set()))
    new = ("" if kept else f"{anchor}\n\n") + "\n".join(["__all__ = [", *(f'    "{name}",' for name in listed), "]"])
    passing = f" It works on {told(old[1:3])}, as I read there." if old[1:] else ""
    s.step(
        call("Edit", path, replace_all=False, old_string=anchor, new_string=new),
        text=f"{short} gets its list, {len(listed)} long and sorted.{passing}",
    )
    s.edited[path] = [*s.shop.text(path).split("\n"), "__all__ = ["].index("__all__ = [") + 1
    if check:
        s.step(bash(f"python tools/surface.py {path}", f"Check {short}"))


def cousin(s: Session, name: str, path: str) -> str:
    """Return a remark about a similar name seen long ago, or an empty string if there is none."""
    stem = max(name.strip("_").split("_"), key=len)[:5].lower()
    like = [at for at in s.recall(set(s.shown)) if stem in at.name.lower() and at.path != path]
    return f"`{name}` reminds me of {told(like[:2])}; the names should not be confused." if like else ""


def close(s: Session, title: str, paths: list[str]) -> None:
    """Write a page with the names that were found, and check that they can be imported."""
    seen = [(path, [name for name in s.shown.values() if name.path == path]) for path in paths]
    rows = [f"| {path} | {name.line} | `{name.text[:110]}` |\n" for path, names in seen for name in names[:4]]
    content = f"# Surface of {title}\n\n| module | line as read | definition |\n|---|---|---|\n{''.join(rows)}"
    s.step(call("Write", f"docs/surface-{title}.md", content=content), text=f"I note it in docs/surface-{title}.md.")
    dotted = [path.removeprefix("src/").removesuffix(".py").replace("/", ".") for path in paths]
    listed = [(module, public(s.shop, path)[:5]) for module, path in zip(dotted, paths, strict=True)]
    stem = f"test_names_{title.replace('-', '_')}"
    s.step(call("Write", f"tests/unit/{stem}.py", content=names_test(title, listed)))
    proof = s.step(bash(f"python -m unittest tests.unit.{stem}", f"Import the names of {title}"))[0].splitlines()[-1]
    widest = max(paths, key=lambda path: len(public(s.shop, path)))
    s.step(
        text=f"{title} is done: {len(paths)} modules; the import test ends with `{proof}`. The widest is {widest} with "
        f"{len(public(s.shop, widest))} names, its list stands at line {s.edited[widest]}."
    )


def model(s: Session) -> None:
    """Scene: review the values, one file at a time."""
    s.user(
        "Right. Now state/, one file at a time please. When a package is done, write its definitions down in "
        "docs/surface-NAME.md and a test that the names can be imported and have docstrings."
    )
    paths = modules(s.shop, "state")
    for path in paths:
        visit(s, path)
    close(s, "state", paths)


def soak(s: Session) -> None:
    """Scene: read a log of 92 KB with one error and find its cause."""
    s.user(
        f"Something else: {LOG} is from the nightly soak run; I am told it ended with an HF-E error. What happened? "
        f"Its limits are in {LIMITS}.",
        wait=437,
    )
    s.step(call("Read", LIMITS), call("Read", LOG, limit=2000), text="I read the limits and the whole log.")
    found = s.step(call("Grep", LOG, pattern="HF-E|BudgetError|  File "))[0]
    s.step(call("Grep", LOG, pattern="HF-W2040", head_limit=30), thought="Was there a warning before the error?")
    for path, line, name in re.findall(r'File "(\S+)", line (\d+), in (\w+)', found):
        look = call("Read", path, offset=max(1, int(line) - 3), limit=32)
        s.step(look, text=f"The traceback names `{name}` at {path}:{line}.")
    count = "from holdfast.messages.size.tokens import estimate_text_tokens"
    code = f'import pathlib\n{count}\nprint(estimate_text_tokens(pathlib.Path("{LOG}").read_text()))'
    size = s.step(python(code, "Estimate the tokens of the log"))[0].splitlines()[-1]
    s.step(
        text="HF-E5127: a request of 61,884 tokens met usable 48,960, and session s-7f3a91c gave up in lane L-19, "
        "13,244 tokens over after 3 retries (branch b-0c44e9). `retries = 3` and `usable = 48_640` in "
        f"{LIMITS} agree with that. HF-W2040 came often before it, so nobody compacted in time. (Our estimate of the "
        f"log itself: {size} tokens.) I have changed nothing."
    )


def middle(s: Session) -> None:
    """Scene: review messages/ and planning/; one name of one module is forgotten."""
    s.user("Fine, leave that for now, I shall open a ticket for it. Go on with messages/ and planning/.")
    paths = modules(s.shop, "messages", "planning", each=11)
    slip = [path for path in paths if len(public(s.shop, path)) > 1 and not place(s.shop.text(path))[1]][:3][-1]
    for turn, path in enumerate(paths):
        if turn == len(paths) // 2:
            aside(s)
        visit(s, path, check=path != slip and turn % 2 == 0, forget=path == slip)
    close(s, "messages-planning", paths)


def aside(s: Session) -> None:
    """Scene: answer a question between two files and get another request."""
    s.user(
        "In between: does anything in state/ import from messages/ or planning/? Imports must go one way only. And no "
        "`__all__` in an `__init__.py`, please.",
        wait=21,
    )
    hits = s.step(call("Grep", "src/holdfast/state", pattern=r"from holdfast\.(messages|planning)"))[0]
    finding = "Nothing does." if hits.startswith("No ") else f"One place does: {hits.splitlines()[0]}."
    s.step(text=f"{finding} And each `__init__.py` stays without a list. I carry on.")


def proof(s: Session) -> None:
    """Scene: write the test, see it fail, and list the forgotten name."""
    s.user("Write the test now, tests/unit/test_surface.py. Mind the rule about how tests must run.")
    s.step(call("Write", "tests/unit/test_surface.py", content=TEST), text="Plain unittest, as you asked at the start.")
    path = re.findall(r"path='(\S+?)'", s.step(PROVE)[0])[0]
    *_, last, missing = public(s.shop, path)
    s.step(
        call("Read", path, offset=s.edited[path], limit=24),
        thought=f"{path} lacks `{missing}`: my own slip, its list is at line {s.edited[path]}.",
    )
    new = f'    "{last}",\n    "{missing}",\n]'
    s.step(
        call("Edit", path, replace_all=False, old_string=f'    "{last}",\n]', new_string=new),
        text=f"The test is right: I forgot `{missing}` in {path}.",
    )
    s.step(PROVE)
    s.step(text=f"tests/unit/test_surface.py passes with plain unittest. It found one slip, `{missing}` in {path}.")


def rest(s: Session) -> None:
    """Scene: repeat early facts after a long break, then review the other packages."""
    s.user(
        "Back from lunch. Which error number was in that log, and in which session? And what was the budget of names "
        "and the exit status? Then the packages that are left, the four widest modules of each.",
        wait=4_460,
    )
    left = modules(s.shop, "providers", "formats", "store", "replay", "cli", each=4)
    s.step(
        bash("git status --short", "Show what is changed"),
        text="It was HF-E5127 in session s-7f3a91c (61,884 tokens over usable 48,960). The budget is 960 names, exit "
        "status 3 above it. Now the rest; first where we stand.",
    )
    for turn, path in enumerate(left):
        visit(s, path, check=turn % 3 == 0)
    more = sorted({path.split("/")[-2] for path in left})
    new = f"DONE = {('state', 'messages', 'planning', *more)}".replace("'", '"')
    old = 'DONE = ("state", "messages", "planning")'
    s.step(
        call("Edit", "tests/unit/test_surface.py", replace_all=False, old_string=old, new_string=new),
        text=f"The test still looks at state, messages and planning alone; {', '.join(more)} join them.",
    )
    s.step(PROVE)
    close(s, "rest", left)


def lengths(s: Session) -> None:
    """Scene: list the longest functions, study the largest module, and rename a private function."""
    s.user(
        "How long are our functions? 95 in 100 should be under 50 lines. Show me the longest, and take our largest "
        "module apart with ast."
    )
    run = bash("python tools/lengths.py", "List the longest functions")
    listing = s.step(call("Write", "tools/lengths.py", content=LENGTHS), run)[1]
    where, line, name, size = re.findall(r"(src/\S+):(\d+) (\w+) (\d+)", listing)[0]
    look = call("Read", where, offset=max(1, int(line) - 2), limit=int(size) + 4)
    s.step(look, text=f"`{name}` in {where} has {size} lines.")
    path = max(s.shop.names("**/*.py", "src"), key=lambda path: len(s.shop.text(path)))
    s.step(bash(f"python -m ast {path}", "Dump the syntax tree"), text=f"The largest module is {path}.")
    s.step(text=f"Longest: `{name}`, {where}:{line}, {size} lines. {listing.splitlines()[-1]}. I would split nothing.")
    text = s.shop.text(path)
    private = [at.name for at in outline(path, text) if at.text.startswith("def _")]
    private = [old for old in private if text.count(old) == len(re.findall(rf"\b{old}\b", text)) > 1]
    if private:
        rename(s, path, private[-1])


def rename(s: Session, path: str, old: str) -> None:
    """Rename a private function everywhere in its module."""
    s.user(f"Not today. But rename `{old}` in {path} to `{old}_once`, wherever it is used.")
    s.step(call("Grep", "src", pattern=rf"\b{old}\b"))
    s.step(call("Edit", path, replace_all=True, old_string=old, new_string=f"{old}_once"))
    s.step(call("Grep", "src", pattern=rf"\b{old}"), bash(f"python -m py_compile {path}", "Does it still compile?"))
    s.step(text=f"`{old}` is `{old}_once` now in {path}; the other modules are as they were.")


def numbers(s: Session) -> None:
    """Scene: find the readers of each setting, with many small searches for names seen long ago."""
    home = max(s.shown.values(), key=lambda name: name.fields)
    constants = {name.name for name in s.shown.values() if re.match(r"[A-Z_]+ = [\d_.]+$", name.text)}
    old = next(iter([*s.recall(constants, 40, 999), *s.shown.values()]))
    s.user(
        f"Who reads each field of `{home.name}`, in {home.path}? I want a table, docs/numbers.md. And `{old.name}`: "
        "which file was that in, what is it, and who uses it?",
        wait=738,
    )
    s.step(call("Grep", "src", pattern=rf"\b{old.name}\b"), text=f"`{old.text}`, {old.path}:{old.line}. Who uses it:")
    body = "\n".join(s.shop.text(home.path).splitlines()[home.line - 1 : home.end])
    rows: list[str] = []
    for name in re.findall(r"^    (\w+): ", body, re.MULTILINE)[:24]:
        look = call("Grep", "src", pattern=rf"\.{name}\b", head_limit=12)
        hits = s.step(look, text=f"`{name}`:" if len(name) % 3 == 0 else "")[0]
        places = re.findall(r"^src/holdfast/(\S+?:\d+):", hits, re.MULTILINE)[:3]
        rows.append(f"| `{name}` | {', '.join(places) or 'nobody'} |\n")
    content = f"# Who reads `{home.name}`\n\n| field | read at |\n|---|---|\n{''.join(rows)}"
    s.step(call("Write", "docs/numbers.md", content=content))
    idle = sum(row.endswith("nobody |\n") for row in rows)
    s.step(text=f"docs/numbers.md has {len(rows)} fields of `{home.name}`; fields that nobody reads: {idle}.")


def review(s: Session) -> None:
    """Scene: check every list again at the line where it was written; then run all checks."""
    s.user(
        "Review your own work: look at every list again where you put it, run everything, and give me the diff stat. "
        "And was state/entries.py left as I asked?"
    )
    s.step(bash("git diff --stat", "Show the size of the changes"))
    s.step(call("Read", ENTRIES, limit=40), text="state/entries.py first.")
    for turn, (path, line) in enumerate(s.edited.items()):
        if turn > 14 and s.steps > ENOUGH:
            break
        s.step(call("Read", path, offset=max(1, line - 3), limit=24), text=f"Line {line}." if turn % 2 else "")
    proof = s.step(PROVE, bash("python -m compileall -q src tools", "Compile everything"))[0].splitlines()[-1]
    total = s.step(RUN)[0].splitlines()[-1]
    s.step(
        text=f"All {len(s.edited)} lists stand where I put them; {total}; the test ends with `{proof}`. In "
        f"state/entries.py only the list was added, its {len(public(s.shop, ENTRIES))} names are those that 9b02f6e "
        "froze. I have committed nothing."
    )


def notes(s: Session) -> None:
    """Scene: write release notes that need facts from the whole session."""
    s.user(
        "Last thing: release notes in docs/release-HF-2291.md. Name the ticket, the base commit, the soak error with "
        "its numbers, the scripts, and what is left to do."
    )
    first, *_, last = s.edited
    content = (
        f"# HF-2291: the public surface\n\nBase commit 4e8c1d7.\n\n- `__all__` in {len(s.edited)} modules, from "
        f"{first} to {last}.\n- tools/surface.py: budget 960 names, exit status 3 above it. tools/lengths.py.\n"
        "- tests/unit/test_surface.py, plain unittest.\n- Names of state/entries.py unchanged (frozen in 9b02f6e).\n\n"
        "## Open\n\n- HF-E5127, session s-7f3a91c: 61,884 tokens over usable 48,960, lane L-19, 13,244 too many.\n"
    )
    s.step(call("Write", "docs/release-HF-2291.md", content=content), bash("git status --short", "Show all changes"))
    s.step(
        text="docs/release-HF-2291.md is written: ticket, base commit 4e8c1d7, HF-E5127 with its numbers, both "
        "scripts. HF-E5127 is the one thing left open. Nothing is committed, no dependency was added."
    )


SCENES = (orientation, script, model, soak, middle, proof, rest, lengths, numbers, review, notes)


def main() -> None:
    """Run the scenes in a copy of the sources and write the session."""
    here = Path(__file__).resolve().parent
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--source", type=Path, default=here.parent)
    options.add_argument("--out", type=Path, default=here / "long-session.jsonl")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop.of(given.source, Path(folder).resolve())
        points = [at for path in shop.names("**/*.py", "src") for at in outline(path, shop.text(path))]
        shop.write(LIMITS, LIMITS_TEXT)
        shop.write(LOG, soak_log([at for at in points if at.text.startswith("def ")]))
        shop.begin()
        session = Session(shop)
        for scene in SCENES:
            scene(session)
    given.out.write_text("\n".join(session.lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
