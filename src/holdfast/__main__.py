"""``holdfast`` and ``python -m holdfast``: what is loaded here is so little that ^C ends either without a traceback."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


def main() -> None:
    """Load the command line, run it and exit: 130 where that is interrupted."""
    try:
        from holdfast.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Error: interrupted; nothing was left half-written\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
