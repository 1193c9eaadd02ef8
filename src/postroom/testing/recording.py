"""What went through a driver, kept for a test to look at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from postroom.core.message import Accepted, Ack, Claimed, Delivery, Envelope, Put, Settled, Verdict
from postroom.drivers.api import Driver
from postroom.testing.faults import Faulty

_KEPT = 100_000


class Recording(Faulty):
    """A driver with faults that remembers what was sent and what was acknowledged, by queue and in order."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.keeps = True
        self.sent: dict[str, list[Envelope]] = {}
        self.acknowledged: dict[str, list[Delivery]] = {}
        self._held: OrderedDict[str, Delivery] = OrderedDict()

    def forget(self) -> None:
        """As if nothing had been sent or acknowledged yet."""
        self.sent.clear()
        self.acknowledged.clear()

    def _note_sent(self, queue: str, batch: Sequence[Envelope], results: Sequence[Put]) -> None:
        for envelope, result in zip(batch, results, strict=True):
            if self.keeps and isinstance(result, Accepted):
                self.sent.setdefault(queue, []).append(envelope)

    def _note_settled(self, queue: str, batch: Sequence[Verdict], outcomes: Sequence[Any]) -> None:
        for verdict, outcome in zip(batch, outcomes, strict=True):
            if isinstance(verdict, Ack) and isinstance(outcome, Settled):
                delivery = self._held.pop(verdict.handle, None)
                if delivery is not None:
                    self.acknowledged.setdefault(queue, []).append(delivery)
                for (target, envelope), put in zip(verdict.puts, outcome.puts, strict=True):
                    self._note_sent(target, [envelope], [put])

    async def put(self, queue: str, batch: Sequence[Envelope], **kwargs: Any) -> Any:
        async def put() -> list[Put]:
            results = await self.inner.put(queue, batch, **kwargs)
            self._note_sent(queue, batch, results)
            return results

        return await self.call("put", _given(put), queue, batch)

    async def claim(self, queue: str, n: int, **kwargs: Any) -> Any:
        async def claim() -> Claimed:
            claimed = await self.inner.claim(queue, n, **kwargs)
            for delivery in claimed.deliveries:
                self._held[delivery.handle] = delivery
            while len(self._held) > _KEPT:
                self._held.popitem(last=False)
            self._note_settled(queue, kwargs.get("settle", ()), claimed.outcomes)
            return claimed

        return await self.call("claim", _given(claim), queue, n)

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> Any:
        async def settle() -> Any:
            outcomes = await self.inner.settle(queue, batch)
            self._note_settled(queue, batch, outcomes)
            return outcomes

        return await self.call("settle", _given(settle), queue, batch)


class Discarding(Recording):
    """A driver that accepts everything and keeps nothing: sends are recorded, receives are empty."""

    async def put(self, queue: str, batch: Sequence[Envelope], **kwargs: Any) -> Any:
        async def put() -> list[Put]:
            await self.inner.info(queue)  # a queue that is not there is still an error
            place = len(self.sent.get(queue, ()))
            results: list[Put] = [Accepted(envelope.id, place + n + 1) for n, envelope in enumerate(batch)]
            self._note_sent(queue, batch, results)
            return results

        return await self.call("put", _given(put), queue, batch)


def _given(function: Any) -> Any:
    """`function`, which has its arguments already; a fault looks at those it is called with."""

    async def call(*_: object, **__: object) -> Any:
        return await function()

    return call
