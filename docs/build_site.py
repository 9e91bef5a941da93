"""Build the README and these pages into a searchable site, or serve it on this machine.

Usage: python docs/build_site.py [serve]

The site is written to build/site/html. A link that leads nowhere ends the build. Links to files of the repository that
are no pages (sources, tests) become plain text, since the site does not hold them. In place of the example session the
site has what the inspector exports of it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "site"
PAGES_BY_SOURCE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages from the root of the repository, and what they are called in the site."""
EXAMPLE_SESSION = Path("examples/long-session.jsonl")
EXPORTED_SESSION = Path("example-session.html")
"""What the site has in its place."""

_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])+)\]\((?P<target>[^()\s]+)\)")
_IMAGE = re.compile(r"(?P<head>!\[[^\]]*\]\()(?P<target>[^()\s]+)(?=\))")


def copy_pages(target: Path) -> None:
    """Write all pages into ``target``, with their links as the site has them."""
    sources = [ROOT / name for name in PAGES_BY_SOURCE]
    sources += [page for page in sorted((ROOT / "docs").rglob("*.md")) if page != ROOT / "docs" / "index.md"]
    for source in sources:
        site_path = _get_site_path(source)
        assert site_path is not None
        page = target / site_path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(rewrite_links(source.read_text("utf-8"), source, page.relative_to(target)), "utf-8")
    shutil.copytree(ROOT / "docs" / "images", target / "images")


def export_example_session(target: Path) -> None:
    """Write the example session into ``target`` as the one file that ``holdfast inspect --export`` makes of it."""
    command = [sys.executable, "-m", "holdfast", "inspect", str(ROOT / EXAMPLE_SESSION)]
    subprocess.run([*command, "--export", str(target / EXPORTED_SESSION)], check=True)


def rewrite_links(text: str, source: Path, page: Path) -> str:
    """Return the text of a page whose links lead to pages of the site; links elsewhere in the repository are text."""

    def rewrite_link(match: re.Match[str]) -> str:
        path, mark, anchor = match["target"].partition("#")
        if "://" in path or not path:
            return match[0]
        site_path = _get_site_path((source.parent / path).resolve())
        if site_path is None:
            return match["text"]
        return f"[{match['text']}]({_make_relative(site_path, page)}{mark}{anchor})"

    def rewrite_image(match: re.Match[str]) -> str:
        image = (source.parent / match["target"]).resolve().relative_to(ROOT / "docs")
        return match["head"] + _make_relative(image, page)

    return _IMAGE.sub(rewrite_image, _LINK.sub(rewrite_link, text))


def _get_site_path(source: Path) -> Path | None:
    """Return the path in the site of a page of the repository, or None for any other file."""
    relative = source.relative_to(ROOT)
    if str(relative) in PAGES_BY_SOURCE:
        return Path(PAGES_BY_SOURCE[str(relative)])
    if relative == Path("docs/index.md"):
        return Path("index.md")  # the site's own navigation says the same
    if relative == EXAMPLE_SESSION:
        return EXPORTED_SESSION
    if relative.parts[0] == "docs" and relative.suffix == ".md":
        return relative.relative_to("docs")
    return None


def _make_relative(path: Path, page: Path) -> str:
    """Return ``path`` as a link on ``page``; both are relative to the site."""
    return "../" * len(page.parent.parts) + path.as_posix()


def main() -> int:
    """Build the site, or serve it; return the exit code of the generator."""
    shutil.rmtree(BUILD, ignore_errors=True)
    copy_pages(BUILD / "pages")
    export_example_session(BUILD / "pages")
    shutil.copy(ROOT / "docs" / "zensical.toml", BUILD / "zensical.toml")
    command = ["serve"] if sys.argv[1:] == ["serve"] else ["build", "--strict"]
    return subprocess.run([sys.executable, "-m", "zensical", *command], cwd=BUILD, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
