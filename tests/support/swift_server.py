"""A real S3-compatible server for tests: OpenStack Swift with its S3 API, on the loopback, with one disk in a folder.

``HOLDFAST_SWIFT`` names the folder with its programs; ``pip install swift`` in an environment of its own makes one
(``requirements/s3-server.txt``). It keeps its objects in files, checks signatures, and knows conditions.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import httpx2
import obstore

from holdfast.store.blobs.object_location import ObjectLocation, connect_bucket

ACCESS_KEY = "test:tester"
SECRET_KEY = "testing-secret"
START_SECONDS = 60.0
_KINDS = ("object", "container", "account")
_FILTERS = "catch_errors proxy-logging cache listing_formats bulk s3api tempauth slo dlo proxy-logging proxy-server"


def find_swift() -> Path | None:
    """Return the folder with Swift's programs, or None if there is none."""
    folder = os.environ.get("HOLDFAST_SWIFT")
    if folder:
        return Path(folder)
    program = shutil.which("swift-proxy-server")
    return Path(program).parent if program else None


def create_bucket(endpoint: str, name: str) -> None:
    """Create a bucket, for which obstore has no operation: its client signs the request."""
    location = ObjectLocation(name, "", endpoint, "us-east-1")
    client = connect_bucket(location, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)
    httpx2.put(obstore.sign(client, "PUT", "", timedelta(seconds=60))).raise_for_status()


class SwiftServer:
    """Four processes that together are an S3-compatible server at ``endpoint``."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._ports = dict(zip((*_KINDS, "proxy"), _find_free_ports(4), strict=True))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.endpoint = f"http://127.0.0.1:{self._ports['proxy']}"
        self._write_settings()

    def start(self) -> None:
        """Start all processes and wait until the server answers."""
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self._folder)}
        with (self._folder / "output.txt").open("ab") as output:
            for kind in (*_KINDS, "proxy"):
                command = [str(self._programs / f"swift-{kind}-server"), str(self._folder / f"{kind}.conf")]
                process = subprocess.Popen(
                    command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
                )
                self._processes.append(process)
        for port, process in zip(self._ports.values(), self._processes, strict=True):
            self._wait_for_listener(port, process)

    def _wait_for_listener(self, port: int, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    output = (self._folder / "output.txt").read_text(errors="replace")
                    raise RuntimeError(f"Swift did not start: {output[-2_000:]}") from None
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        """End all processes at once, as a loss of power does; what was stored stays in the folder."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def find_object_files(self) -> list[Path]:
        """Return the files with the content of objects."""
        return sorted((self._folder / "devices").rglob("*.data"))

    def _write_settings(self) -> None:
        (self._folder / "devices" / "d1").mkdir(parents=True)
        self._write(
            "swift.conf",
            "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = one\ndefault = yes\n",
        )
        for kind in _KINDS:
            builder = str(self._folder / f"{kind}.builder")
            device = f"r1z1-127.0.0.1:{self._ports[kind]}/d1"
            for arguments in (("create", "4", "1", "0"), ("add", device, "1"), ("rebalance",)):
                command = [str(self._programs / "swift-ring-builder"), builder, *arguments]
                subprocess.run(command, check=True, capture_output=True)
            storage = f"devices = {self._folder}/devices\nmount_check = false\ndisable_fallocate = true"
            pipeline = f"[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = egg:swift#{kind}\n"
            self._write(f"{kind}.conf", f"{self._make_defaults(kind)}\n{storage}\n{pipeline}")
        sections = [f"{self._make_defaults('proxy')}\n[pipeline:main]\npipeline = {_FILTERS}"]
        sections.append("[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true")
        sections.append(f"[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = {SECRET_KEY} .admin")
        sections.append("[filter:s3api]\nuse = egg:swift#s3api\nlocation = us-east-1\nmin_segment_size = 5242880")
        sections.append("[filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = 127.0.0.1:1")
        for name in ("catch_errors", "listing_formats", "bulk", "slo", "dlo"):
            sections.append(f"[filter:{name}]\nuse = egg:swift#{name}")
        sections.append("[filter:proxy-logging]\nuse = egg:swift#proxy_logging")
        self._write("proxy.conf", "\n".join(sections) + "\n")

    def _make_defaults(self, kind: str) -> str:
        listener = f"bind_ip = 127.0.0.1\nbind_port = {self._ports[kind]}\nworkers = 0"
        return f"[DEFAULT]\nswift_dir = {self._folder}\nuser = {getpass.getuser()}\nlog_level = ERROR\n{listener}"

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)


def _find_free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are found before one is given back."""
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
