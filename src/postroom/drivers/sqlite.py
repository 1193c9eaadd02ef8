"""The SQLite store: durable mailboxes in one file, for any number of threads and processes of one machine.

A verb is one write transaction (`BEGIN IMMEDIATE`) whose steps are in `sqlite_step` and its neighbours; here is what
surrounds them: which connection, how durable, who is woken afterwards, and how one waits. A wait holds neither a
transaction nor a lock nor a thread of the executor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Literal, TypeVar

from postroom.core import refusals
from postroom.core.address import Address
from postroom.core.definition import QueueStatus, Rules
from postroom.core.message import (
    Ack,
    Claimed,
    Delivery,
    Envelope,
    Outcome,
    Put,
    Refused,
    SessionClaim,
    SessionLock,
    SessionState,
    Stats,
    Verdict,
)
from postroom.drivers import sqlite_admin as admin
from postroom.drivers import sqlite_claim as claiming
from postroom.drivers import sqlite_put as putting
from postroom.drivers import sqlite_sessions as sessions
from postroom.drivers.io import Bell, Inline, Io, Threaded
from postroom.drivers.sqlite_ledger import Idle, Queue
from postroom.drivers.sqlite_settings import Settings, capabilities
from postroom.drivers.sqlite_settle import acknowledge
from postroom.drivers.sqlite_settle import settle as settle_all
from postroom.drivers.sqlite_step import Step
from postroom.drivers.sqlite_store import Store, WouldBlock
from postroom.drivers.sqlite_wait import Waiting
from postroom.errors import MailboxConnectionError, QueueNotFoundError

T = TypeVar("T")

# On an event loop: what is so small is carried out on the spot; what took longer than this shows that the disk is slow
# today, and for so many seconds nothing is.
_FEW, _BRIEF, _CAUTION = 100, 0.005, 10.0


def open(address: Address, *, flavour: Literal["sync", "async"], **options: Any) -> SqliteDriver:
    """`sqlite:///shop.db` is a relative path, `sqlite:////var/lib/shop.db` an absolute one."""
    settings = Settings.of(address, options)
    io: Io = Inline() if flavour == "sync" else Threaded(name="postroom-sqlite")
    return SqliteDriver(settings, io)


class SqliteDriver:
    """The waist over one file."""

    def __init__(self, settings: Settings, io: Io) -> None:
        self.io = io
        self._sync = io.flavour == "sync"  # the caller's own thread carries out every step
        self.capabilities = capabilities(settings)
        self.store = Store(settings, self._drop)
        self.place = f"{self.store.path} {settings.namespace}"
        self._send_full = settings.durability != "relaxed"  # sends, and whatever else must outlive a power cut
        self._take_full = settings.durability == "strict"  # what may be undone, as it can only cause a redelivery
        self._closed = Bell()
        self._slow_until = 0.0  # until then no step is carried out on the event loop
        self._dry: set[str] = set()  # queues where the latest claim that could wait found nothing at first

    def now(self) -> float:
        return self.store.now()

    def sibling(self) -> SqliteDriver:
        return self if self.io.flavour == "sync" else SqliteDriver(self.store.settings, Inline())

    # --- steps -------------------------------------------------------------------------------------------------

    def _on_the_spot(self, size: int) -> bool:
        """Whether an event loop may carry out a step on so many messages itself: handing it to a thread and back takes
        as long as the step."""
        return not self._sync and size <= _FEW and not self.store.site.lock.locked() and monotonic() >= self._slow_until

    async def _brief(self, work: Callable[[Step], T], full: bool, size: int) -> T:
        """A step that is short unless it is synced or somebody else is writing."""
        if not full and self._on_the_spot(size):
            start = monotonic()
            try:
                return self.store.write_at_once(work)
            except (WouldBlock, Idle):
                pass  # to delete an idle queue takes its time, too
            finally:
                if monotonic() - start > _BRIEF:
                    self._slow_until = start + _CAUTION  # a cold or busy disk: let a thread wait for it
        return await self.io.call(self.store.write, work, full)

    async def _glance(self, queue: str, waiting: Waiting) -> bool:
        """Whether it is plain at a glance that there is nothing to take. Listens first, then looks."""

        def work(step: Step) -> bool:
            found = step.catalog.names.get(queue)
            if found is None or not found.gives or found.rules.auto_delete_on_idle is not None:
                return False
            waiting.nothing(step, found, math.inf)
            if waiting.over:
                return False
            if step.rests(found):
                waiting.wake_by(step.next_due)
                return True
            waiting.changed()
            return False

        return self.store.glance(work) if self._on_the_spot(1) else await self.io.call(self.store.glance, work)

    def _look(self, name: str, work: Callable[[Step, Queue], T]) -> T:
        """Look at a queue without holding up writers, once time has done its work there."""

        def look(step: Step) -> tuple[T] | None:
            queue = step.look(name, timely=True)
            if queue is None or queue.rules.auto_delete_on_idle is not None or step.time_has_work:
                return None
            return (work(step, queue),)

        def look_again(step: Step) -> T:
            queue = step.look(name)
            return work(step, queue if queue is not None else step.queue(name))

        found = self.store.read(look)
        if found is not None:
            return found[0]
        self.store.write(lambda step: step.tidy(step.queue(name)), self._take_full)
        return self.store.read(look_again)

    def _wait(self, kind: Literal["claims", "sessions", "room"], seconds: float, stop: Bell | None) -> Waiting:
        return Waiting(self.io, self.store.site, self.store.clock, self._closed, stop, kind, seconds)

    # --- queues ------------------------------------------------------------------------------------------------

    async def ensure(self, queue: str, rules: Rules | None = None) -> bool:
        def is_there(step: Step) -> bool:
            found = step.look(queue)
            return found is not None and found.rules.auto_delete_on_idle is None

        def work(step: Step) -> bool:
            return admin.ensure(step, queue, rules)

        # Opening a mailbox asks this each time, and nearly always the queue is there: that must not cost a write.
        if rules is None and await self.io.call(self.store.read, is_there):
            return False
        try:
            return await self.io.call(self.store.write, work, self._send_full)
        except QueueNotFoundError:
            return await self.io.call(self.store.write, work, self._send_full)  # it had been idle too long: made anew

    async def drop(self, queue: str, *, only_empty: bool = False) -> int | None:
        def empty(step: Step) -> tuple[Queue, int | None]:
            found = step.queue(queue)
            if found.dead is None:
                raise refusals.lives_with_its_queue(queue)
            if not only_empty:
                return found, 0
            if admin.messages_in(step, found):
                return found, None
            admin.drop(step, found)
            return found, 0

        found, left = await self.io.call(self.store.write, empty, self._send_full)
        if left is None or only_empty:
            return left
        return await self.io.call(self._drop, found)

    def _drop(self, queue: Queue) -> int:
        dead = None if queue.dead is None else self.store.write(lambda step: step.queue_by_id(queue.dead or 0), False)
        parts = [part for part in (queue, dead) if part is not None]
        removed = sum(self._empty(part) for part in parts)

        def rest(step: Step) -> int:
            """What came meanwhile goes in the step that deletes the queue."""
            found = step.look(queue.name)
            if found is None or found.id != queue.id:
                return 0
            more = sum(admin.purge_all(step, part) for part in parts)
            admin.drop(step, found)
            return more

        return removed + self.store.write(rest, self._send_full)

    def _empty(self, queue: Queue) -> int:
        """Remove the messages that are there now, in several transactions, so that others get a turn."""
        last = self.store.write(lambda step: step.last_number(), False)
        removed, more = 0, True
        while more:
            some, more = self.store.write(lambda step: admin.purge_some(step, queue, last), self._send_full)
            removed += some
        return removed

    async def queues(self) -> list[str]:
        def work() -> list[str]:
            for name in self.store.read(admin.short_lived):
                try:
                    self.store.write(lambda step, name=name: step.queue_unless_idle(name), False)  # type: ignore[misc]
                except QueueNotFoundError:
                    pass  # it had been idle for too long, and is deleted now
            return self.store.read(admin.names)

        return await self.io.call(work)

    async def info(self, queue: str) -> tuple[Stats, Rules, QueueStatus]:
        def work(step: Step, found: Queue) -> tuple[Stats, Rules, QueueStatus]:
            return admin.info(step, found), found.rules, found.status

        return await self.io.call(self._look, queue, work)

    async def set_status(self, queue: str, status: QueueStatus) -> None:
        def work(step: Step) -> None:
            found = step.queue(queue)
            admin.define(step, found, found.rules, status)

        await self.io.call(self.store.write, work, self._send_full)

    async def peek(self, queue: str, n: int, *, after: int = 0) -> list[Delivery]:
        return await self.io.call(self._look, queue, lambda step, found: admin.peek(step, found, n, after))

    async def purge(self, queue: str) -> int:
        def work() -> int:
            found = self.store.write(lambda step: step.queue(queue), False)
            removed = self._empty(found)
            self.store.write(lambda step: admin.purge_rest(step, found), self._send_full)
            return removed

        return await self.io.call(work)

    async def redrive(self, queue: str, seqs: Sequence[int], *, target: str | None = None) -> list[Outcome]:
        def work(step: Step) -> list[Outcome]:
            return admin.redrive(step, step.queue(queue), seqs, target)

        return await self.io.call(self.store.write, work, self._send_full)

    # --- in ----------------------------------------------------------------------------------------------------

    async def put(self, queue: str, batch: Sequence[Envelope], *, stop: Bell | None = None) -> list[Put]:
        def work(step: Step) -> list[Put]:
            return putting.put(step, step.queue(queue), batch)

        full = self._send_full
        results = self.store.write(work, full) if self._sync else await self.io.call(self.store.write, work, full)
        if Refused not in map(type, results) or not any(map(putting.waits, results)):
            return results
        return await self._put_rest(queue, batch, results, stop)

    async def _put_rest(
        self, queue: str, batch: Sequence[Envelope], results: list[Put], stop: Bell | None
    ) -> list[Put]:
        """A full queue may be one that lets its senders wait: put what did not fit as room comes."""
        rules = await self.io.call(self._look, queue, lambda step, found: found.rules)
        if rules.overflow != "wait":
            return results
        waiting = self._wait("room", rules.overflow_timeout, stop)
        left = [i for i, result in enumerate(results) if putting.waits(result)]

        def work(step: Step) -> list[Put]:
            found = step.queue(queue)
            put = putting.put(step, found, [batch[i] for i in left])
            if any(map(putting.waits, put)):
                waiting.nothing(step, found, step.next_expiry)
            return put

        try:
            while left and not waiting.over:
                waiting.arm()
                for i, result in zip(left, await self.io.call(self.store.write, work, self._send_full), strict=True):
                    results[i] = result
                left = [i for i in left if putting.waits(results[i])]
                if left and not waiting.over:
                    await waiting.sleep()
        finally:
            waiting.leave()
        return results

    # --- out ---------------------------------------------------------------------------------------------------

    async def claim(
        self,
        queue: str,
        n: int,
        *,
        lease: float | None,
        wait: float,
        claim_id: str,
        session: SessionClaim | None = None,
        max_deliveries: int | None = None,
        settle: Sequence[Verdict] = (),
        stop: Bell | None = None,
        again: bool = False,
    ) -> Claimed:
        waiting = self._wait("claims" if session is None else "sessions", wait, stop) if wait > 0 else None
        outcomes: list[Outcome] = []
        more = False

        def work(step: Step) -> Claimed:
            nonlocal outcomes, more
            found = step.queue(queue, timely=True)
            if settle:
                outcomes = settle_all(step, found, settle, putting.put_reply)
                found = step.queue(queue, timely=True)  # which may be another one now, and later
            if self._closed.rung:
                return _NOTHING
            if not found.gives:
                raise refusals.receiving_off(queue, found.status)
            site = self.store.site
            if site.fences and site.fenced(claim_id, step.now):
                return _NOTHING
            if again:
                buried, expired = step.tidy(found, max_deliveries)
                if held := claiming.held_deliveries(step, found, claim_id, site.claims.get(claim_id)):
                    return Claimed(held, (), buried, expired)
                step.reread(found)
            taken = claiming.claim(
                step, found, n, lease=lease, claim_id=claim_id, session=session, limit=max_deliveries
            )
            if taken.deliveries:
                site.remember(claim_id, taken.deliveries)
                self._claimed(step, found, len(taken.deliveries), n)
                return taken
            due = step.reread(found) if step.time_has_work else step.next_due
            # One step puts away so many and no more; what we want may lie behind them.
            more = bool(taken.buried or taken.expired or due <= step.now)
            if waiting is not None and not more:
                waiting.nothing(step, found, due)
            return taken

        # Whoever found nothing last time will likely find nothing now, and must not hold up the sender it waits for.
        glance = waiting is not None and session is None and not settle and not again and queue in self._dry
        full = self._take_full or (bool(settle) and self._send_full and _carries(settle))
        buried = expired = 0
        first = True
        try:
            while settle or not self._closed.rung:
                if waiting is not None:
                    waiting.arm()
                    if glance and first and await self._glance(queue, waiting):
                        first = False
                        await waiting.sleep()
                        continue
                if self._sync:
                    taken = self.store.write(work, full)
                else:
                    taken = await self._brief(work, full, n + len(settle))
                settle, full = (), self._take_full
                buried, expired = buried + taken.buried, expired + taken.expired
                if first and waiting is not None and not more:
                    first = False
                    (self._dry.discard if taken.deliveries else self._dry.add)(queue)
                if not taken.deliveries:
                    if more:
                        continue
                    if waiting is not None and not waiting.over and not self._closed.rung:
                        await waiting.sleep()
                        continue
                if outcomes or buried or expired:
                    return Claimed(taken.deliveries, outcomes, buried, expired)
                return taken
            return Claimed((), outcomes, buried, expired)
        except MailboxConnectionError:
            if not self._closed.rung or settle:
                raise
            return Claimed((), outcomes, buried, expired)  # closed while we were on our way to look again
        finally:
            if waiting is not None:
                waiting.leave()

    def _claimed(self, step: Step, queue: Queue, taken: int, wanted: int) -> None:
        """What was promoted or shown on the way and is taken already is no news to others."""
        if step.told is not None and queue.id in (ready := step.told.ready):
            ready[queue.id] = max(0, ready[queue.id] - taken)
        if taken == wanted and self.store.site.posts:
            step.news.chain = queue.id

    async def settle(self, queue: str, batch: Sequence[Verdict]) -> list[Outcome]:
        def work(step: Step) -> list[Outcome]:
            if batch and (remembered := step.catalog.names.get(queue)) is not None:
                done = acknowledge(step, remembered, batch)
                if done is not None:
                    return done
            return settle_all(step, step.queue(queue), batch, putting.put_reply)

        full = self._take_full or (self._send_full and _carries(batch))
        return self.store.write(work, full) if self._sync else await self._brief(work, full, len(batch))

    async def abandon(self, queue: str, claim_id: str) -> None:
        site = self.store.site

        def work(step: Step) -> None:
            found = step.look(queue)
            if found is None:
                return
            for row in reversed(claiming.held(step, found, claim_id, site.claims.get(claim_id))):
                step.give_back(found, row, counted=False)

        # The fence stands before the step begins: a claim with this id either was committed before, and then the step
        # finds what it took, or comes after, and then it sees the fence.
        site.fence(claim_id, self.now())
        if self._sync:
            self.store.write(work, self._take_full)
        else:
            await self._brief(work, self._take_full, 1)

    # --- sessions ----------------------------------------------------------------------------------------------

    async def lock(
        self, queue: str, session: str | None, *, lease: float, wait: float, token: str, stop: Bell | None = None
    ) -> SessionLock | None:
        waiting = self._wait("sessions", wait, stop)

        def work(step: Step) -> SessionLock | None:
            found = step.queue(queue)
            if not found.gives:
                raise refusals.receiving_off(queue, found.status)
            if found.dead is None or found.rules.sessions == "off":
                raise refusals.no_sessions(queue)
            lock = sessions.lock(step, found, session, lease, token)
            if lock is None:
                waiting.nothing(step, found, step.reread(found))
            return lock

        try:
            while not self._closed.rung:
                waiting.arm()
                lock = await self.io.call(self.store.write, work, self._take_full)
                if lock is not None or waiting.over:
                    return lock
                await waiting.sleep()
            return None
        finally:
            waiting.leave()

    async def renew(self, queue: str, lock: SessionLock, lease: float) -> SessionLock | None:
        def work(step: Step) -> SessionLock | None:
            return sessions.renew(step, step.queue(queue), lock, lease)

        return await self.io.call(self.store.write, work, self._take_full)

    async def unlock(self, queue: str, lock: SessionLock) -> bool:
        def work(step: Step) -> bool:
            return sessions.unlock(step, step.queue(queue), lock)

        return await self.io.call(self.store.write, work, self._take_full)

    async def get_state(self, queue: str, session: str) -> SessionState:
        def work(step: Step) -> SessionState:
            return sessions.get_state(step, step.queue(queue), session)

        return await self.io.call(self.store.read, work)

    async def set_state(
        self, queue: str, lock: SessionLock, value: bytes | None, *, version: int | None = None
    ) -> SessionState | None:
        def work(step: Step) -> SessionState | None:
            return sessions.set_state(step, step.queue(queue), lock, value, version)

        return await self.io.call(self.store.write, work, self._send_full)

    async def close(self) -> None:
        self._closed.ring_for_good()
        await self.io.call(self.store.close)
        await self.io.close()


_NOTHING = Claimed()


def _carries(batch: Sequence[Verdict]) -> bool:
    """Whether an acknowledge in it carries messages, which must be as durable as any send."""
    for verdict in batch:  # noqa: SIM110  # `any` would make a generator each time
        if type(verdict) is Ack and verdict.puts:
            return True
    return False
