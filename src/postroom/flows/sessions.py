"""Explicit sessions: one holder, messages in order, a state that travels with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic

from typing_extensions import TypeVar

from postroom.core import limits
from postroom.core.limits import Seconds
from postroom.core.message import Delivery, SessionClaim, SessionLock
from postroom.errors import (
    InvalidParameterError,
    MessageTooLargeError,
    ReceiptHandleExpiredError,
    SessionNotFoundError,
    UnsupportedError,
)
from postroom.flows.ids import new_token
from postroom.flows.link import Box, open_box
from postroom.flows.receive import receive

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)

MAX_STATE = 256 << 10


class HeldSession(Generic[T, R]):
    """A session lock of ours: what the sync and the async Session share."""

    __slots__ = ("_box", "_closed", "_lease", "_lock")

    def __init__(self, box: Box[T, R], lock: SessionLock, lease: float) -> None:
        self._box = box
        self._lock = lock
        self._lease = lease
        self._closed = False

    @property
    def session_id(self) -> str:
        return self._lock.id

    @property
    def locked_until(self) -> datetime:
        return datetime.fromtimestamp(self._lock.until, UTC)

    @property
    def remaining(self) -> float:
        """Seconds of the lock that are left."""
        return max(0.0, self._lock.until - self._box.driver.now())

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id} of {self._box.name}, {self.remaining:.0f} s left>"


async def accept(
    box: Box[T, R], session_id: str | None, lock_duration: Seconds | None, wait: Seconds
) -> tuple[SessionLock, float]:
    """Lock a session, or the one that is next in line."""
    if not box.driver.capabilities.can("sessions"):
        raise UnsupportedError(f"{box.driver.capabilities.store} has no sessions")
    if session_id is not None:
        limits.text(session_id, "session_id")
    patience = limits.seconds(wait, "wait_time_seconds", 0, limits.MAX_WAIT)
    lease = None if lock_duration is None else limits.seconds(lock_duration, "lock_duration", 0.001, limits.MAX_LEASE)
    if not box.ready:
        await open_box(box)
    if lease is None:
        _, rules, _ = await box.driver.info(box.name)
        lease = rules.lease
    lock = await box.driver.lock(box.name, session_id, lease=lease, wait=patience, token=new_token(), stop=box.closing)
    if lock is None:
        which = (
            "no session has a message that is ready"
            if session_id is None
            else f"session {session_id} is held by another"
        )
        raise SessionNotFoundError(f"{box.name}: {which}; wait longer with wait_time_seconds, or try again")
    return lock, lease


async def take(held: HeldSession[T, R], n: int, wait: float) -> list[tuple[Delivery, T]]:
    """The session's next messages, in order; they are ours while the lock is."""
    _check_open(held)
    return await receive(held._box, n, None, wait, SessionClaim(held._lock.id, held._lock.token))


async def renew(held: HeldSession[Any, Any], lock_duration: Seconds | None) -> None:
    _check_open(held)
    lease = held._lease
    if lock_duration is not None:
        lease = limits.seconds(lock_duration, "lock_duration", 0.001, limits.MAX_LEASE)
    lock = await held._box.driver.renew(held._box.name, held._lock, lease)
    if lock is None:
        raise _lost(held)
    held._lock = lock


async def close(held: HeldSession[Any, Any]) -> None:
    """Give the session back; what was received and not settled is returned, uncounted. A lost lock is no error here."""
    if not held._closed:
        held._closed = True
        await held._box.driver.unlock(held._box.name, held._lock)


async def get_state(held: HeldSession[Any, Any]) -> bytes | None:
    _check_open(held)
    return (await held._box.driver.get_state(held._box.name, held._lock.id)).value


async def set_state(held: HeldSession[Any, Any], value: bytes | None) -> None:
    await held._box.driver.set_state(held._box.name, held._lock, _check_state(held, value))


async def compare_and_set(held: HeldSession[Any, Any], expected: bytes | None, value: bytes | None) -> bool:
    """Write `value` if the state still is `expected`; whether it was."""
    _check_state(held, value)
    current = await held._box.driver.get_state(held._box.name, held._lock.id)
    if current.value != expected:
        return False
    written = await held._box.driver.set_state(held._box.name, held._lock, value, version=current.version)
    return written is not None


def _check_state(held: HeldSession[Any, Any], value: bytes | None) -> bytes | None:
    _check_open(held)
    if value is not None and not isinstance(value, bytes):
        raise InvalidParameterError(f"a session's state is bytes or None, not {type(value).__name__}")
    if value is not None and len(value) > MAX_STATE:
        raise MessageTooLargeError(f"a session's state takes {MAX_STATE} bytes at most, not {len(value)}")
    return value


def _check_open(held: HeldSession[Any, Any]) -> None:
    if held._closed:
        raise ReceiptHandleExpiredError(f"{held._box.name}: session {held._lock.id} was given back; accept it again")


def _lost(held: HeldSession[Any, Any]) -> ReceiptHandleExpiredError:
    return ReceiptHandleExpiredError(
        f"{held._box.name}: the lock on session {held._lock.id} ran out; accept it again, and renew it in time",
        code="stale",
    )
