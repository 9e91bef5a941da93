"""Errors of object storage as our own: what the server said, and one thing to do; never a credential.

The messages of a client and of a server may quote the request with its key and signature, so only the status and the
server's code for the error are taken from them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.errors import StoreError, StoreReadOnly

ERROR_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
"""The code of an error in the body of an answer."""
_STATUS = re.compile(r"status code: (\d{3})")
_RIGHTS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"


class ServerUnavailable(StoreError):
    """The server does not answer, or says that it cannot: asking again at once would be as useless."""


class _Refusal(NamedTuple):
    """A kind of refusal: the codes and statuses that mean it, and what is said of it."""

    codes: tuple[str, ...]
    statuses: tuple[str, ...]
    problem: str
    advice: str
    error: type[StoreError] = StoreError


_REFUSALS = (
    _Refusal(
        ("NoSuchBucket",),
        (),
        "has no such bucket (any more)",
        "create it, or correct the location of the blobs",
    ),
    _Refusal(
        ("RequestTimeTooSkewed", "RequestExpired"),
        (),
        "has a clock that differs too much from this machine's",
        "set the clock of this machine",
    ),
    _Refusal(
        ("InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioStorageFull"),
        ("507",),
        "takes no more; every stored text is kept",
        "make room there",
        StoreReadOnly,
    ),
    _Refusal(
        ("PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"),
        ("301", "307"),
        "is in another region",
        "set AWS_REGION to it",
    ),
    _Refusal(
        (
            "AuthorizationHeaderMalformed",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidSecurity",
            "InvalidToken",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        ),
        ("401",),
        "does not accept the credentials",
        "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if they are temporary, AWS_SESSION_TOKEN",
    ),
    _Refusal(
        (),
        ("403",),
        "does not allow it with these credentials",
        f"correct them, or give them {_RIGHTS}",
    ),
    _Refusal(
        (),
        ("405", "501"),
        "has no such operation",
        "use a server that speaks S3",
    ),
    _Refusal(
        ("SlowDown", "InternalError", "ServiceUnavailable"),
        ("429", "500", "502", "503", "504"),
        "is not able to answer, also when asked again; every stored text is kept",
        "try again later",
        ServerUnavailable,
    ),
)
"""The first that fits is meant: a code says more than a status."""


def is_missing_object(error: Exception) -> bool:
    """Return whether the server said that there is no such object, in a bucket that exists."""
    return isinstance(error, FileNotFoundError) and _find(ERROR_CODE, str(error)) != "NoSuchBucket"


def build_object_error(error: Exception, subject: str, name: str) -> StoreError:
    """Return the ``StoreError`` for an error of the client; ``subject`` says what was not done, ``name`` where."""
    text = str(error)
    status = _find(_STATUS, text)
    code = _find(ERROR_CODE, text)
    if status or code:
        return describe_refusal(status, code, subject, name)
    if "redirect" in text and "region" in text:  # what obstore makes of an answer that leads to another region
        return describe_refusal("301", "", subject, name)
    # Nobody answered, or not at an address of ours: the client asks machines in the cloud for credentials.
    if "credential" in text.lower() or "169.254." in text:
        return StoreError(
            f"{subject}: there are no credentials for {name}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return describe_silence(subject, name)


def describe_refusal(status: str, code: str, subject: str, name: str) -> StoreError:
    """Return the ``StoreError`` for an answer with ``status`` and the server's ``code``, of which one may be empty."""
    said = " ".join([part for part in (status, code) if part])
    for refusal in _REFUSALS:
        if code in refusal.codes or status in refusal.statuses:
            return refusal.error(f"{subject}: {name} {refusal.problem} ({said}); {refusal.advice}")
    return StoreError(f"{subject}: {name} refused it ({said}); check the location of the blobs")


def describe_silence(subject: str, name: str) -> StoreError:
    """Return the ``StoreError`` for a server that did not answer, or stopped in the middle of an answer."""
    return ServerUnavailable(
        f"{subject}: {name} does not answer; check AWS_ENDPOINT_URL and the network (stored texts are kept), "
        "and try again"
    )


def _find(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
