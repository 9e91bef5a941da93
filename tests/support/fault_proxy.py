"""A proxy on the loopback that hands bytes through to a server, and can be told to fail in many ways.

It does not read what it hands through, so signed requests stay valid.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

PIECE_BYTES = 1 << 14


@dataclass
class Faults:
    """What the proxy does with the next connections."""

    answers: list[bytes] = field(default_factory=list)
    """Answers given instead of the server's, one a connection, the first first."""
    lasting_answer: bytes = b""
    """The answer to every connection after those."""
    is_refusing: bool = False
    """Connections are closed at once."""
    delay: float = 0.0
    """Seconds before an answer is handed on."""
    cut_answer_after: int | None = None
    """Bytes of an answer after which the connection is closed."""
    cut_request_after: int | None = None
    """Bytes of requests on a connection after which it is closed."""


def make_answer(status: str, body: str = "", **headers: str) -> bytes:
    """Return an HTTP answer after which the connection is closed."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join([*lines, "", ""]) + body).encode()


class FaultProxy:
    """Listens at ``endpoint`` and hands on to ``port``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._faults = Faults()
        self._connections: set[socket.socket] = set()
        self.count = 0
        """Connections so far."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def faults(self) -> Faults:
        """What the proxy does with connections; setting it closes those that a client keeps open."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        with self._lock:
            self._faults = faults
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        time.sleep(0.05)  # the client notices that they are closed

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, ExitStack() as cleanup:
            cleanup.callback(self._connections.discard, client)
            with self._lock:
                self.count += 1
                self._connections.add(client)
                faults = self._faults
                answer = faults.answers.pop(0) if faults.answers else faults.lasting_answer
            if faults.is_refusing:
                return
            if answer:
                client.settimeout(2)
                client.recv(PIECE_BYTES)
                time.sleep(faults.delay)
                client.sendall(answer)
                # What the client still sends is read: closing before would reset the connection, answer and all.
                with suppress(OSError):
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(PIECE_BYTES):
                        pass
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                forward = threading.Thread(
                    target=self._hand_on, args=(client, server, faults.cut_request_after, 0.0), daemon=True
                )
                forward.start()
                self._hand_on(server, client, faults.cut_answer_after, faults.delay)

    @staticmethod
    def _hand_on(source: socket.socket, target: socket.socket, limit: int | None, delay: float) -> None:
        sent = 0
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                time.sleep(delay)
                if limit is not None and sent + len(piece) > limit:
                    target.sendall(piece[: limit - sent])
                    break
                target.sendall(piece)
                sent += len(piece)
        for connection in (source, target):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
