"""The conformance suite over the memory store: bodies as bytes, and handed over by reference."""

from pathlib import Path

import pytest

from postroom.testing.conformance import Conformance, UrlStore
from postroom.testing.conformance.world import unique


class Memory(UrlStore):
    def url_of(self, tmp_path: Path) -> str:
        return f"memory://{unique()}?serialize=true"


class ByReference(UrlStore):
    def url_of(self, tmp_path: Path) -> str:
        return f"memory://{unique()}"


class TestMemory(Conformance):
    store = Memory


@pytest.mark.slow
class TestMemoryByReference(Conformance):
    store = ByReference
