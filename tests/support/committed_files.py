"""The files of the repository, with git or without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_IGNORED = {".git", ".venv", "__pycache__", "dist", "build", "uv.lock"}


def list_committed_files() -> list[Path]:
    """Return the files in git, or without git the files that would be committed."""
    try:
        result = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return _list_all_files()
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()] or _list_all_files()


def _list_all_files() -> list[Path]:
    names = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [ROOT / name for name in names if not _IGNORED & set(name.parts) and not _is_cache(name)]


def _is_cache(name: Path) -> bool:
    return name.suffix in {".pyc", ".egg-info"} or any(
        part.endswith("_cache") or part == ".hypothesis" for part in name.parts
    )
