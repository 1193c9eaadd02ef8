"""The conformance suite over the memory store: bodies as bytes, and handed over by reference."""

from pathlib import Path

import pytest

from postroom.testing.conformance import Conformance, UrlStore
from postroom.testing.conformance.world import Flavour, unique


class Memory(UrlStore):
    def url_of(self, tmp_path: Path) -> str:
        return f"memory://{unique()}?serialize=true"


class ByReference(UrlStore):
    def url_of(self, tmp_path: Path) -> str:
        return f"memory://{unique()}"


class TestMemory(Conformance):
    store = Memory

    # In `make check` memory stands for the async flavour and SQLite for the sync one; `make test` runs both on both.
    @pytest.fixture(params=[pytest.param("sync", marks=pytest.mark.slow), "async"])
    def flavour(self, request: pytest.FixtureRequest) -> Flavour:
        return request.param


@pytest.mark.slow
class TestMemoryByReference(Conformance):
    store = ByReference
