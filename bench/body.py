"""The body all figures are about: typed, and 100 bytes as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Order:
    id: int
    sku: str
    qty: int
    note: str


def order(n: int = 1, qty: int = 3) -> Order:
    return Order(100_000 + n % 900_000, "SKU-0001", qty, "x" * 47)
