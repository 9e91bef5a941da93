"""A TCP proxy that cuts a connection at a byte, swallows what is sent, or delays it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Literal, NamedTuple, Self

Direction = Literal["to_server", "to_client"]
FaultKind = Literal["reset", "close_client", "abandon", "swallow"]
"""What happens at the byte: both sides are reset; both are closed, and the server reads what came before to its end;
the client's side is closed and the server's left open in silence, as when the client's machine is lost; or everything
from there on is swallowed in both directions, with both sides left open.
"""
PIECE_BYTES = 1 << 16


class Fault(NamedTuple):
    """Happens once, when ``at_byte`` bytes have gone in a direction, over all connections since the fault was set."""

    kind: FaultKind
    direction: Direction
    at_byte: int


class TcpFaultProxy:
    """Forwards connections from a port of the loopback to ``port``."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.delay = 0.0
        """Seconds by which each piece is delayed, in each direction."""
        self.byte_counts: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        """Bytes forwarded since the fault was set."""
        self.has_struck = False
        self._fault: Fault | None = None
        self._turn = threading.Lock()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A listener that is only closed would go on waiting in the other thread.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._turn:
            for end in self._sockets:
                end.close()

    def set_fault(self, fault: Fault | None) -> None:
        """Count bytes from zero and let ``fault`` happen once."""
        with self._turn:
            self._fault = fault
            self.has_struck = False
            self.byte_counts = {"to_server": 0, "to_client": 0}

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._turn:
                self._sockets += [client, server]
            connection = _ProxiedConnection(self, client, server)
            threading.Thread(target=connection.forward, args=("to_server",), daemon=True).start()
            threading.Thread(target=connection.forward, args=("to_client",), daemon=True).start()

    def take(self, direction: Direction, length: int) -> tuple[int, Fault | None]:
        """Count ``length`` bytes; return how many of them go on, and the fault that happens after those."""
        with self._turn:
            before = self.byte_counts[direction]
            fault = self._fault
            strikes = fault is not None and fault.direction == direction and before + length > fault.at_byte
            if fault is not None and strikes:
                self._fault = None
                self.has_struck = True
                self.byte_counts[direction] = fault.at_byte
                return fault.at_byte - before, fault
            self.byte_counts[direction] += length
            return length, None


class _ProxiedConnection:
    def __init__(self, proxy: TcpFaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_swallowing = False
        self._is_abandoned = False

    def forward(self, direction: Direction) -> None:
        source, target = self._client, self._server
        if direction == "to_client":
            source, target = target, source
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if self._proxy.delay:
                    time.sleep(self._proxy.delay)
                if self._is_swallowing:
                    continue
                length, fault = self._proxy.take(direction, len(piece))
                target.sendall(piece[:length])
                if fault is not None and fault.kind == "swallow":
                    self._is_swallowing = True
                elif fault is not None:
                    self._cut(fault.kind)
                    return
        if self._is_abandoned:
            return
        # The other side learns of an end, also of one that ended in silence.
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _cut(self, kind: FaultKind) -> None:
        self._is_abandoned = kind == "abandon"
        if kind == "reset":
            for end in (self._client, self._server):
                # With a linger time of 0 the end of the connection is a reset. It comes once no thread reads any more.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RD)
                end.close()
            return
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        if kind == "close_client":
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)
