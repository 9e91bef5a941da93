"""Where blobs are in object storage: ``s3://BUCKET/PREFIX``, with credentials from the environment.

The variables are those that every program for S3 reads: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``. Without keys there, the roles of containers and machines in
the cloud are asked.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Store

S3_SCHEME = "s3://"
CONNECT_SECONDS = 5.0
"""Seconds for a connection. Chosen by judgement: a server that is there answers in milliseconds."""
REQUEST_SECONDS = 60.0
"""Seconds for one request. Chosen by judgement: a part of an upload (5 MB) passes in them over 1 Mbit/s."""
MAX_RETRIES = 4
"""How often a request is repeated after a 5xx or a lost connection. Chosen by judgement, see ``RETRY_SECONDS``."""
RETRY_SECONDS = 30.0
"""Seconds after which a request is not repeated any more.

Chosen by judgement: whoever stores a text waits for it with a request of a user behind it, and a server that is not
back by then is not merely restarting.
"""
_URL_PARAMETERS = ("endpoint", "region")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables with the server's address, the strongest first, as in Amazon's own programs."""
_SIMPLE_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")


class ObjectLocation(Struct, frozen=True):
    """A folder of a bucket. ``endpoint`` and ``region`` are empty where the environment decides."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""

    @property
    def name(self) -> str:
        """The location as messages show it: never with credentials."""
        return f"{S3_SCHEME}{self.bucket}/{self.prefix}" if self.prefix else f"{S3_SCHEME}{self.bucket}"


def parse_object_location(url: str) -> ObjectLocation:
    """Parse ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME``; raise ``ConfigError`` for anything else.

    The URL itself is in no message: what is wrong with it may be that it has credentials.
    """
    try:
        parts = urlsplit(url)
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ConfigError(f"the location of the blobs is no URL; {_describe_form()}") from None
    if parts.scheme != "s3":
        raise ConfigError(f"the location of the blobs does not begin with {S3_SCHEME}; {_describe_form()}")
    if "@" in parts.netloc:
        msg = "the location of the blobs has credentials; take them out and set AWS_ACCESS_KEY_ID and the others"
        raise ConfigError(msg)
    for name in parameters:
        if name not in _URL_PARAMETERS:
            shown_name = name if _SIMPLE_NAME.match(name) else "one"
            msg = (
                f"the location of the blobs has a parameter {shown_name} that is not known (credentials belong in "
                f"AWS_ACCESS_KEY_ID and the others); {_describe_form()}"
            )
            raise ConfigError(msg)
    prefix = parts.path.strip("/")
    names = [parts.netloc, *prefix.split("/")] if prefix else [parts.netloc]
    for name in names:
        if not _SIMPLE_NAME.match(name) or name in {".", ".."}:
            msg = "bucket and folders of the location of the blobs are names of letters, digits and . _ -"
            raise ConfigError(f"{msg}; {_describe_form()}")
    endpoint = parameters.get("endpoint", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"the endpoint of the blobs does not begin with http:// or https://; {_describe_form()}")
    return ObjectLocation(parts.netloc, prefix, endpoint, parameters.get("region", ""))


def make_subfolder(location: ObjectLocation, name: str) -> ObjectLocation:
    """Return the folder ``name`` in ``location``."""
    prefix = f"{location.prefix}/{name}" if location.prefix else name
    return replace(location, prefix=prefix)


def format_object_location(location: ObjectLocation) -> str:
    """Return ``location`` as ``parse_object_location`` reads it."""
    values = {"endpoint": location.endpoint, "region": location.region}
    query = urlencode({name: value for name, value in values.items() if value})
    return f"{location.name}?{query}" if query else location.name


def connect_bucket(location: ObjectLocation, **options: Any) -> S3Store:
    """Return obstore's client of the bucket. Nothing is sent before the first operation.

    ``options`` are further settings of obstore's ``S3Store``, such as credentials from elsewhere than the environment.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as error:
        msg = f"blobs at {location.name} need obstore, which is not installed: pip install 'holdfast[s3]'"
        raise ConfigError(msg) from error
    endpoint = location.endpoint
    for variable in _ENDPOINT_VARIABLES:
        endpoint = endpoint or os.environ.get(variable, "")
    settings: dict[str, Any] = {
        "client_options": {
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            # Whoever writes http:// wants it: a server on this machine or in the same cluster.
            "allow_http": endpoint.startswith("http://"),
        },
        "retry_config": {
            "max_retries": MAX_RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    }
    if endpoint:
        settings["endpoint"] = endpoint
    if location.region:
        settings["region"] = location.region
    try:
        return S3Store(location.bucket, prefix=location.prefix or None, **(settings | options))
    except (BaseError, TypeError, ValueError) as error:
        # obstore's own message may quote the value that it does not like, which may be a credential.
        msg = f"the settings for {location.name} are refused ({type(error).__name__}); check the variables AWS_*"
        raise ConfigError(msg) from None


def _describe_form() -> str:
    return f"write {S3_SCHEME}BUCKET/PREFIX, or with ?endpoint=https://HOST&region=NAME behind it"
