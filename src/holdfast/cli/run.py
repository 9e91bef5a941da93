"""``holdfast run``: a client with a proxy of its own, which is there as long as the client is."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from holdfast.cli.beginning import Child, Ended, ended
from holdfast.cli.faults import Stopped
from holdfast.cli.places import file_of, is_missing, store_option, store_place
from holdfast.cli.proxying import asked, in_force, proxy_options, total
from holdfast.cli.starting import launched
from holdfast.cli.terminal import as_json_bytes, clean, json_option, many
from holdfast.proxy.launching import VARIABLES

