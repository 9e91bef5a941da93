"""The facts of the task: ferry routes, the amounts each agreed with its port, and the wrong ones in its file.

All numbers are derived from names by digests, so that every run has the same ones and no model can guess them.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

AUDIT_NUMBER = "AU-6093-Q"
CHANGE_ORDER = "CO-58213"
SIGNATURE_LINE = "Checked for Maren Okafor, ledger 7741-K."
"""The last line of the report, as the user demands it."""
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
"""The routes: home port and destination."""


class FerryRoute(Struct, frozen=True):
    """One route. Surcharges are in cents, discounts in basis points."""

    name: str
    port: str
    surcharge: int
    """The surcharge agreed with the port."""
    discount: int
    """The discount agreed with the port."""
    wrong_surcharge: int
    """The surcharge in the file."""
    wrong_discount: int
    """The discount in the file."""
    invoice: str
    """The first wrong invoice."""
    log_line: int
    """The line of the log with that invoice."""


def derive_fact_number(route: str, description: str, lowest: int, highest: int) -> int:
    """Derive the number for ``description`` of a route, from ``lowest`` to ``highest``, both included."""
    hash_bytes = blake2b(f"{route}/{description}".encode(), digest_size=6).digest()
    return lowest + int.from_bytes(hash_bytes) % (highest - lowest + 1)


def _make_route(name: str, port: str) -> FerryRoute:
    surcharge = derive_fact_number(name, "surcharge", 90, 480)
    discount = derive_fact_number(name, "discount", 110, 900)
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
