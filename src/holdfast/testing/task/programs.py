"""The programs of the task: the computation of fares, the audit, and the checks."""

from __future__ import annotations

from hashlib import blake2b

from holdfast.testing.task.routes import AUDIT_NUMBER, CHANGE_ORDER, SIGNATURE_LINE


def compute_facts_digest(*values: object) -> str:
    """Return a digest of ``values``, by which the checks recognize facts without revealing them to the model."""
    return blake2b(" ".join(map(str, values)).encode(), digest_size=8).hexdigest()


FARES_TEMPLATE = '''\
"""Fares of the route {title} to {route.port}: amounts are whole cents, shares are basis points."""

from __future__ import annotations

ROUTE = "{route.name}"
PORT = "{route.port}"
CROSSING = {minutes}
"""Minutes."""
SURCHARGE = {route.wrong_surcharge}
"""Cents for each ticket, as agreed with the port."""
DISCOUNT = {route.wrong_discount}
"""Basis points off the way back, as agreed with the port."""
SEASONS = {{"low": {low}, "usual": 100, "high": {high}}}
"""Per cent of the base fare."""
WEEKEND = {weekend}
"""Cents for each ticket from Friday noon to Sunday."""
FUEL = {fuel}
"""Cents for each deck a vehicle goes up."""
BANDS = (
{bands}
)
"""Who travels, the base fare in cents, and the deck."""


def base(kind: str) -> int:
    """Return the base fare of a kind of traveller; KeyError for one that this route does not carry."""
    return next((cents for name, cents, _ in BANDS if name == kind), 0) or missing(kind)


def missing(kind: str) -> int:
    """Refuse a kind of traveller."""
    raise KeyError(f"{{ROUTE}} carries no {{kind}}")


def deck(kind: str) -> int:
    """Return the deck on which a kind of traveller stands."""
    return next(level for name, _, level in BANDS if name == kind)


def fare(kind: str, season: str = "usual", *, weekend: bool = False) -> int:
    """Return what one way costs."""
    cents = base(kind) * SEASONS[season] // 100 + SURCHARGE
    cents += WEEKEND if weekend else 0
    return cents + (deck(kind) - 1) * FUEL


def both_ways(kind: str, season: str = "usual") -> int:
    """Return what there and back costs: the way back is cheaper, half cents are rounded up."""
    there = fare(kind, season)
    return there + there - (there * DISCOUNT + 5_000) // 10_000


def invoice(kinds: list[str], season: str = "usual") -> int:
    """Return the total of an invoice."""
    return sum(both_ways(kind, season) for kind in kinds)
'''
"""A file of fares, to be formatted with a route."""

AUDIT_PROGRAM = f'''\
"""Ask every port what was agreed. A port answers once."""

import pathlib
import sys

answers = pathlib.Path("tools/audit.txt")
if not answers.exists():
    sys.exit("audit {AUDIT_NUMBER} was taken; the ports answer once")
print("audit {AUDIT_NUMBER}: the ports answer")
print(answers.read_text(encoding="utf-8"), end="")
print("audit {AUDIT_NUMBER} is closed; no copy was kept")
answers.unlink()
'''

CHECK_PROGRAM = f'''\
"""Check the fares of a route, or the report: sh check ROUTE, sh check report."""

import hashlib
import pathlib
import re
import runpy
import sys

AGREED = {{line.split()[0]: line.split()[1:] for line in pathlib.Path("tools/agreed.txt").read_text().splitlines()}}


def digest(*said):
    return hashlib.blake2b(" ".join(map(str, said)).encode(), digest_size=8).hexdigest()


def route(name):
    if name not in AGREED:
        sys.exit(f"no route is called {{name}}; there are {{', '.join(AGREED)}}")
    found = runpy.run_path(f"fares/{{name}}.py")
    bad = 0
    for season in found["SEASONS"]:
        for kind, _, _ in found["BANDS"]:
            cents = found["both_ways"](kind, season)
            bad += type(cents) is not int
            print(f"{{name}}: {{kind}}, {{season}} season, there and back: {{cents}} cents")
    agrees = digest(name, found["SURCHARGE"], found["DISCOUNT"]) == AGREED[name][0]
    print(f"{{name}}: {{'as agreed with the port' if agrees else 'not as agreed: SURCHARGE or DISCOUNT is wrong'}}")
    sys.exit(0 if agrees and not bad else 1)


def report():
    text = pathlib.Path("REPORT.md").read_text(encoding="utf-8")
    wrong = [name for name in AGREED if not told(text, name)]
    wrong += [what for what in ("{AUDIT_NUMBER}", "{CHANGE_ORDER}") if what not in text]
    lines = text.splitlines()
    wrong += [] if digest(lines[-1] if lines else "") == "{compute_facts_digest(SIGNATURE_LINE)}" else ["last line"]
    print(f"the report is {{'wrong about ' + ', '.join(wrong) if wrong else 'complete and right'}}")
    sys.exit(1 if wrong else 0)


def told(text, name):
    found = re.search(rf"^- {{name}}: first wrong invoice (\\S+), surcharge (\\d+) -> (\\d+)$", text, re.MULTILINE)
    return found is not None and digest(name, *found.groups()) == AGREED[name][1]


report() if sys.argv[1:] == ["report"] else route("".join(sys.argv[1:]))
'''
