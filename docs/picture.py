"""Draw what commands print: ``docs/images/demo.svg``, and ``replay.svg`` of the example session.

    uv run --extra exact python docs/picture.py [demo|replay]

The command runs as a user would run it, in a terminal with colours of 100 columns; its output becomes the picture, and
nothing in it comes from elsewhere: no font, no style sheet, no script.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
COMMANDS = {"demo": ["holdfast", "demo"], "replay": ["holdfast", "replay", "examples/long-session.jsonl"]}
"""The pictures and what they show."""
COLUMNS = 100
LARGEST = 100_000
"""Bytes of the picture: a README should load at once."""
_FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""  # noqa: E501
"""Rich's own frame, without the fonts that it loads from the net."""
_THEME = TerminalTheme(
    (22, 24, 29),
    (216, 219, 226),
    [(22, 24, 29), (224, 108, 117), (126, 191, 120), (214, 173, 96), (97, 150, 230), (190, 120, 210), (86, 182, 194),
     (200, 204, 212)],
    [(92, 99, 112), (230, 140, 120), (152, 220, 140), (240, 205, 130), (130, 175, 245), (215, 150, 230),
     (120, 205, 215), (240, 242, 246)],
)  # fmt: skip


def printed(command: Sequence[str]) -> str:
    """Return what ``command`` prints in a terminal with colours."""
    wanted = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(COLUMNS)}
    kept = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "HOLDFAST_STORE"}}
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [program, *command[1:]], cwd=ROOT, env=kept | wanted, capture_output=True, text=True, check=True
    )
    return done.stdout


def drawn(name: str, text: str) -> str:
    """Return ``text``, with its colours, as the SVG of the picture called ``name``."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(f"$ {' '.join(COMMANDS[name])}\n{text.rstrip()}"))
    picture = console.export_svg(title="", theme=_THEME, code_format=_FORMAT, unique_id=name)
    return re.sub(r"[ \t]+\n", "\n", picture)


def main() -> None:
    """Write the pictures asked for, or all; refuse one that is too large."""
    for name in sys.argv[1:] or COMMANDS:
        picture = drawn(name, printed(COMMANDS[name]))
        size = len(picture.encode())
        if size > LARGEST:
            sys.exit(f"the picture has {size:,} bytes, {LARGEST:,} are allowed; make it narrower")
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / f"{name}.svg").write_text(picture, "utf-8")
        print(f"docs/images/{name}.svg: {size:,} bytes")


if __name__ == "__main__":
    main()
