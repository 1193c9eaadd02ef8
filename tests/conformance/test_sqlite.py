"""The conformance suite over the SQLite store: quickly in `make check`, and on a real disk in `make test`."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from postroom.testing.conformance import Conformance, UrlStore
from postroom.testing.conformance.world import Flavour


class InMemoryFile(UrlStore):
    """Making a database syncs it to disk, which takes far longer than a test: where the system has a disk in memory
    the file lies there."""

    many = 2_000

    def __init__(self, tmp_path: Path) -> None:
        memory = "/dev/shm"
        self.folder = tempfile.mkdtemp(prefix="postroom-", dir=memory if os.access(memory, os.W_OK) else None)
        super().__init__(tmp_path)

    def url_of(self, tmp_path: Path) -> str:
        return f"sqlite:///{self.folder}/test.db"

    def close(self) -> None:
        shutil.rmtree(self.folder)


class OnDisk(UrlStore):
    def url_of(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/test.db"


class TestSqlite(Conformance):
    store = InMemoryFile

    # The async flavour is the same statements in threads; see `test_memory` for who stands for which.
    @pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.slow)])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return request.param


@pytest.mark.slow
class TestSqliteOnDisk(Conformance):
    store = OnDisk
