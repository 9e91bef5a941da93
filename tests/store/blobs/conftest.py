"""A real S3-compatible server for the tests of this folder, started once."""

from __future__ import annotations

import secrets

import pytest
from swift_server import SwiftServer, create_bucket, find_swift

from holdfast.store.blobs.object_location import ObjectLocation


@pytest.fixture(scope="session")
def swift(tmp_path_factory):
    """Start the server; skip the test where there is none."""
    programs = find_swift()
    if programs is None:
        pytest.skip("there is no Swift; install it as requirements/s3-server.txt says, and name it with HOLDFAST_SWIFT")
    server = SwiftServer(programs, tmp_path_factory.mktemp("swift"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def bucket(swift):
    """Create a bucket of the test; return its location."""
    name = f"bucket-{secrets.token_hex(6)}"
    create_bucket(swift.endpoint, name)
    return ObjectLocation(name, "blobs", swift.endpoint, "us-east-1")
