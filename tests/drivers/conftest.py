"""Drivers, driven directly: one opener for the tests of this directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.core.address import Address
from postroom.drivers import sqlite
from postroom.drivers.io import drive

Opener = Callable[..., sqlite.SqliteDriver]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "shop.db"


@pytest.fixture
def opened(shop: Path) -> Iterator[Opener]:
    """Opens a sync driver of the file, or of another one, and closes it at the end."""
    drivers: list[sqlite.SqliteDriver] = []

    def opener(path: Path | None = None, **options: Any) -> sqlite.SqliteDriver:
        address = Address("sqlite", f"/{shop if path is None else path}")
        driver = sqlite.open(address, flavour="sync", **options)
        drivers.append(driver)
        return driver

    yield opener
    for driver in drivers:
        drive(driver.close())
