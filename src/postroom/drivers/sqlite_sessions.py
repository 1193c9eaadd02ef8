"""Explicit session locks, and what sessions carry."""

from __future__ import annotations

from postroom.core import refusals
from postroom.core.message import SessionLock, SessionState
from postroom.drivers.sqlite_file import SQL
from postroom.drivers.sqlite_ledger import Queue
from postroom.drivers.sqlite_step import Step


def lock(step: Step, queue: Queue, session: str | None, lease: float, token: str) -> SessionLock | None:
    """Lock this session, or the free one whose head is first in line."""
    step.tidy(queue)
    if session is None:
        row = step.run(SQL["first_session"], (queue.id,)).fetchone()
        if row is None:
            return None
        session = str(row[0])
    else:
        locked, _, _, held, *_ = step.session_places(queue, session)
        if locked or held is not None:
            return None
    step.mark_sessions(queue)
    until = step.now + lease
    step.run(SQL["session_lock"], (queue.id, session, token, until))
    step.count(queue.id, 0, 0)
    step.due(queue.id, until)
    step.rehead(queue, session)
    return SessionLock(session, token, until)


def valid(step: Step, queue: Queue, lock: SessionLock) -> bool:
    row = step.run(SQL["session"], (queue.id, lock.id)).fetchone()
    return row is not None and row[0] == lock.token and row[1] > step.now


def renew(step: Step, queue: Queue, lock: SessionLock, lease: float) -> SessionLock | None:
    if not valid(step, queue, lock):
        return None
    until = step.now + lease
    step.hold(queue, lock.id, until)
    return SessionLock(lock.id, lock.token, until)


def unlock(step: Step, queue: Queue, lock: SessionLock) -> bool:
    if not valid(step, queue, lock):
        return False
    held = step.run(SQL["session_held_after"], (queue.id, lock.id, 0)).fetchall()
    for (seq,) in reversed(held):
        row = step.row(seq)
        if row is not None:
            step.give_back(queue, row, counted=False)
    step.run(SQL["session_unlock"], (queue.id, lock.id))
    step.run(SQL["session_forget"], (queue.id, lock.id))
    step.count(queue.id, 0, 0)
    step.rehead(queue, lock.id)
    step.rings(queue.id, 0)
    return True


def get_state(step: Step, queue: Queue, session: str) -> SessionState:
    row = step.run(SQL["session"], (queue.id, session)).fetchone()
    return SessionState(None, 0) if row is None else SessionState(row[2], row[3])


def set_state(
    step: Step, queue: Queue, lock: SessionLock, value: bytes | None, version: int | None
) -> SessionState | None:
    if not valid(step, queue, lock):
        raise refusals.lock_lost(queue.name, lock.id)
    before = get_state(step, queue, lock.id).version
    if version is not None and version != before:
        return None
    step.run(SQL["session_write"], (value, before + 1, queue.id, lock.id))
    step.count(queue.id, 0, 0)
    return SessionState(value, before + 1)
