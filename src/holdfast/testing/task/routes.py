"""The facts of the task: ferry routes, what each agreed with its port, and what stands in its file instead.

All of it follows from the names by digests, so that every run has the same numbers and none can be guessed.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

AUDIT_NUMBER = "AU-6093-Q"
CHANGE_ORDER = "CO-58213"
SIGNATURE_LINE = "Checked for Maren Okafor, ledger 7741-K."
"""The last line that the user wants the report to have."""
ROUTE_NAMES = (
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


class FerryRoute(Struct, frozen=True):
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
    log_line: int
    """Where the log has it."""


def derive_fact_number(route: str, description: str, lowest: int, highest: int) -> int:
    """Return a number from ``lowest`` to ``highest`` that belongs to ``description`` of a route."""
    hash_bytes = blake2b(f"{route}/{description}".encode(), digest_size=6).digest()
    return lowest + int.from_bytes(hash_bytes) % (highest - lowest + 1)


def _make_route(name: str, port: str) -> FerryRoute:
    surcharge, discount = derive_fact_number(name, "surcharge", 90, 480), derive_fact_number(name, "discount", 110, 900)
    return FerryRoute(
        name=name,
        port=port,
        surcharge=surcharge,
        discount=discount,
        wrong_surcharge=surcharge + derive_fact_number(name, "by how much", 7, 60),
        wrong_discount=discount - derive_fact_number(name, "how much less", 5, 90),
        invoice=f"INV-{derive_fact_number(name, 'invoice', 20_000, 89_999)}-{name[:2].upper()}",
        log_line=derive_fact_number(name, "line", 30, 60),
    )


ROUTES = tuple([_make_route(name, port) for name, port in ROUTE_NAMES])
