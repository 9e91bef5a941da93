"""Serve the inspector on this machine until it is stopped."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from contextlib import closing
from threading import Event
from types import FrameType
from urllib.parse import unquote

import uvicorn

from holdfast.inspector.app import ABOUT_PATH, STORE_HEADER, make_inspector_app
from holdfast.inspector.sources import InspectedStore

LOOPBACK = "127.0.0.1"
"""The one address that the inspector listens at: what it shows is for whoever sits at this machine."""
ASK_SECONDS = 0.5
"""Seconds that a program at a port that is taken has to say what it is. Chosen by judgement: it is on this machine."""
CLOSE_SECONDS = 3
"""Seconds that answers have to come to their end when the server stops. Chosen by judgement: a page that follows a
session looks once a second whether it is time, and is cut off with an error otherwise."""


def open_listener(port: int) -> socket.socket:
    """Return a socket that listens at ``port``, or at a free one for 0. Raises ``OSError`` if the port is taken."""
    return socket.create_server((LOOPBACK, port))


def find_inspector(port: int) -> str | None:
    """Return the name of the store that an inspector at ``port`` of this machine shows; None if none answers there."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", ABOUT_PATH)
        response = connection.getresponse()
        name = response.getheader(STORE_HEADER)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return None if name is None else unquote(name)


def serve_inspector(source: InspectedStore, listener: socket.socket, on_ready: Callable[[str], object]) -> None:
    """Serve ``source`` at ``listener`` until the process gets a signal; ``on_ready`` is called with the address."""
    stopping = Event()
    config = uvicorn.Config(
        make_inspector_app(source, is_stopping=stopping.is_set),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    with closing(listener), closing(source.comparisons):
        on_ready(f"http://{LOOPBACK}:{listener.getsockname()[1]}")
        _InspectorServer(config, stopping).run(sockets=[listener])


class _InspectorServer(uvicorn.Server):
    """Tells the pages that follow a session when it stops."""

    def __init__(self, config: uvicorn.Config, stopping: Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, because of a signal."""
        self._stopping.set()
        super().handle_exit(sig, frame)
