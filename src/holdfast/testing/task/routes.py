"""The facts of the task: ferry routes, what each agreed with its port, and what stands in its file instead.

All of it follows from the names by digests, so that every run has the same numbers and none can be guessed.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

AUDIT = "AU-6093-Q"
ORDER = "CO-58213"
SIGNED = "Checked for Maren Okafor, ledger 7741-K."
"""The last line that the user wants the report to have."""
NAMES = (
    ("harwich", "Hoek van Holland"),
    ("kristiansand", "Hirtshals"),
    ("rosslare", "Pembroke"),
    ("trelleborg", "Sassnitz"),
    ("ystad", "Swinoujscie"),
    ("cairnryan", "Larne"),
    ("travemuende", "Liepaja"),
    ("piraeus", "Heraklion"),
    ("brindisi", "Igoumenitsa"),
    ("algeciras", "Ceuta"),
    ("newhaven", "Dieppe"),
    ("gdansk", "Nynashamn"),
    ("stornoway", "Ullapool"),
    ("helsingborg", "Helsingor"),
    ("split", "Ancona"),
    ("toulon", "Ajaccio"),
    ("palermo", "Cagliari"),
    ("santander", "Portsmouth"),
    ("turku", "Mariehamn"),
    ("lerwick", "Aberdeen"),
    ("esbjerg", "Immingham"),
    ("bari", "Durres"),
    ("kiel", "Oslo"),
    ("calais", "Dover"),
    ("rostock", "Gedser"),
    ("visby", "Oskarshamn"),
    ("holyhead", "Dublin"),
    ("cork", "Roscoff"),
    ("barcelona", "Palma"),
    ("livorno", "Bastia"),
    ("tarifa", "Tangier"),
    ("varna", "Poti"),
)
"""Routes by their home port, and where they go."""


class Route(Struct, frozen=True):
    """One route: amounts are cents, shares are basis points."""

    name: str
    port: str
    surcharge: int
    """As agreed with the port."""
    discount: int
    wrong_surcharge: int
    """As it stands in the file."""
    wrong_discount: int
    invoice: str
    """The first invoice that came out wrong."""
    line: int
    """Where the log has it."""


def number(route: str, what: str, least: int, most: int) -> int:
    """Return a number from ``least`` to ``most`` that belongs to ``what`` of a route."""
    found = blake2b(f"{route}/{what}".encode(), digest_size=6).digest()
    return least + int.from_bytes(found) % (most - least + 1)


def _route(name: str, port: str) -> Route:
    surcharge, discount = number(name, "surcharge", 90, 480), number(name, "discount", 110, 900)
    return Route(
        name=name,
        port=port,
        surcharge=surcharge,
        discount=discount,
        wrong_surcharge=surcharge + number(name, "by how much", 7, 60),
        wrong_discount=discount - number(name, "how much less", 5, 90),
        invoice=f"INV-{number(name, 'invoice', 20_000, 89_999)}-{name[:2].upper()}",
        line=number(name, "line", 30, 60),
    )


ROUTES = tuple([_route(name, port) for name, port in NAMES])
