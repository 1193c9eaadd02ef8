"""Queues themselves: made, defined, counted, looked into, emptied, deleted."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.core import refusals
from postroom.core.address import dead_letters_of, is_dead_letters
from postroom.core.definition import PLAIN, QueueStatus, Rules
from postroom.core.message import GONE, SETTLED, Delivery, Outcome, Refused, Stats, unpack_record
from postroom.drivers.sqlite_claim import delivery
from postroom.drivers.sqlite_file import SQL
from postroom.drivers.sqlite_ledger import Queue, pack_rules
from postroom.drivers.sqlite_step import BLOCKED, DELAYED, FLIGHT, LATER, READY, Step
from postroom.errors import QueueNotFoundError, UnsupportedError

LAST = (1 << 63) - 1
CHUNK = 10_000  # rows one transaction deletes: others get a turn in between


def ensure(step: Step, name: str, rules: Rules | None) -> bool:
    step.queue_unless_idle(name)  # one that has been idle for too long is deleted, and made anew
    found = step.look(name)
    if found is None:
        if is_dead_letters(name):
            raise QueueNotFoundError(f"{name}: there is no such queue, so there are no dead letters of it")
        _make(step, name, PLAIN if rules is None else rules)
        return True
    if rules is not None:
        if found.dead is None:
            raise UnsupportedError(f"{name}: a dead-letter queue has no definition of its own")
        define(step, found, rules, found.status)
    return False


def _make(step: Step, name: str, rules: Rules) -> None:
    namespace, active, now = step.catalog.namespace, str(QueueStatus.ACTIVE), step.now
    id, dead = step.number(), step.number()
    for row in (
        (id, namespace, name, None, pack_rules(rules), active, now, now),
        (dead, namespace, dead_letters_of(name), id, pack_rules(PLAIN), active, now, now),
    ):
        step.run(SQL["make_queue"], row)
        step.run(SQL["make_tally"], (row[0], now))
    step.count(id, 0, 0)
    step.new_edition()


def define(step: Step, queue: Queue, rules: Rules, status: QueueStatus) -> None:
    step.run(SQL["define_queue"], (pack_rules(rules), str(status), step.now, queue.id))
    step.count(queue.id, 0, 0)
    step.new_edition()
    step.news.changed.add(queue.id)


def info(step: Step, queue: Queue) -> Stats:
    live, size, dropped, expired, _ = step.run(SQL["tally"], (queue.id,)).fetchone()
    in_flight, scheduled = step.run(SQL["in_time"], (queue.id,)).fetchone()
    since = [
        step.run(SQL["first_of_priority"], (queue.id, priority)).fetchone()[1]
        for (priority,) in step.run(SQL["priorities"], (queue.id, queue.id)).fetchall()
    ]
    grave = step.dead_queue(queue)
    dead = 0 if grave is None else step.run(SQL["tally"], (grave.id,)).fetchone()[0]
    return Stats(
        ready=live - in_flight - scheduled,
        scheduled=scheduled,
        in_flight=in_flight,
        dead=dead,
        bytes=size,
        oldest_age=max(0.0, step.now - min(since)) if since else None,
        dropped=dropped,
        expired=expired,
        created_at=queue.created_at,
        updated_at=queue.updated_at,
    )


def peek(step: Step, queue: Queue, n: int, after: int) -> list[Delivery]:
    seqs: set[int] = set()
    for (priority,) in step.run(SQL["priorities"], (queue.id, queue.id)).fetchall():
        seqs.update(seq for (seq,) in step.run(SQL["peek_ready"], (queue.id, priority, after, n)))
    seqs.update(seq for (seq,) in step.run(SQL["peek_due"], (queue.id, after, n)))
    if queue.sessions:
        seqs.update(seq for (seq,) in step.run(SQL["peek_blocked"], (queue.id, after, n)))
    seen = []
    for seq in sorted(seqs)[:n]:
        row = step.row(seq)
        if row is not None:
            if row.state == FLIGHT:
                state = "in_flight" if row.due_at is not None and row.due_at > step.now else "lapsed"
            else:
                state = "scheduled" if row.state in (LATER, DELAYED) else "ready"
            seen.append(delivery(step, row, handle="", state=state))
    return seen


def purge_some(step: Step, queue: Queue, last: int) -> tuple[int, bool]:
    """Remove up to CHUNK messages with a seq up to `last`: how many, and whether there may be more."""
    removed = size = 0
    unblocked: set[tuple[int, str]] = set()
    for name in ("some_ready", "some_due", "some_blocked"):
        rows = step.run(SQL[name], (queue.id, last, CHUNK - removed)).fetchall()
        for _, its_size, body_ref, blocks, session in rows:
            size += its_size
            if body_ref is not None:
                step.run(SQL["drop_body"], (body_ref,))
            if blocks is not None:
                unblocked.add((blocks, session))
        step.run_many(SQL["remove"], [row[:1] for row in rows])
        removed += len(rows)
        if removed >= CHUNK:
            break
    step.count(queue.id, -removed, -size)
    step.frees(queue, removed)
    for blocks, session in unblocked:
        step.unblock(blocks, session)
    return removed, removed >= CHUNK


def purge_rest(step: Step, queue: Queue) -> None:
    """What is not messages: dedup records and session locks. A dead letter that holds up its session still does."""
    step.run(SQL["dedup_clear"], (queue.id,))
    step.run(SQL["purge_locks"], (queue.id,))
    step.run(SQL["purge_sessions"], (queue.id,))
    # What was sent while the purge was on its way may have queued behind a message or a lock that is gone now.
    for (session,) in step.run(SQL["sessions_of"], (queue.id,)).fetchall():
        step.rehead(queue, session)
    step.news.changed.add(queue.id)


def purge_all(step: Step, queue: Queue) -> int:
    """All there is, in this one step."""
    removed, more = 0, True
    while more:
        some, more = purge_some(step, queue, LAST)
        removed += some
    return removed


def names(step: Step) -> list[str]:
    return [name for (name,) in step.run(SQL["list_queues"], (step.catalog.namespace,)).fetchall()]


def short_lived(step: Step) -> list[str]:
    """The queues that are deleted when idle."""
    return [name for name in names(step) if (q := step.look(name)) is not None and q.rules.auto_delete_on_idle]


def drop(step: Step, queue: Queue) -> None:
    """Delete an emptied queue. Its messages are gone by now; `purge_some` took them."""
    for id in (queue.id, queue.dead):
        if id is not None:
            step.run(SQL["dedup_clear"], (id,))
            step.run(SQL["drop_sessions"], (id,))
            step.run(SQL["drop_tally"], (id,))
            step.run(SQL["drop_queue"], (id,))
            step.news.changed.add(id)
    step.run(SQL["unblock_all"], (queue.id,))
    step.new_edition()


def messages_in(step: Step, queue: Queue) -> int:
    ids = [id for id in (queue.id, queue.dead) if id is not None]
    return sum(step.run(SQL["tally"], (id,)).fetchone()[0] for id in ids)


def redrive(step: Step, dead: Queue, seqs: Sequence[int], target: str | None) -> list[Outcome]:
    step.tidy(dead)
    return [_revive(step, dead, seq, target) for seq in seqs]


def _revive(step: Step, dead: Queue, seq: int, target: str | None) -> Outcome:
    row = step.row(seq)
    if row is None or row.queue != dead.id or row.state == FLIGHT:
        return GONE
    death, _ = unpack_record(row.record)
    if death is None:
        return Refused(refusals.no_dead_letter(dead.name, row.id))
    name = death.source if target is None else target
    home = step.look(name)
    if home is None or home.dead is None:
        return Refused(refusals.no_target(name, row.id))
    if (full := step.no_room(home, row.size)) is not None:
        return Refused(full)
    ttl = home.rules.ttl if row.ttl is None else row.ttl
    member = row.session is not None
    expires_at = None if ttl is None else step.now + ttl
    step.run(SQL["revive"], (home.id, BLOCKED if member else READY, step.now, expires_at, seq))
    step.count(home.id, 1, row.size)
    step.left(dead, row)
    if row.blocks is not None:
        step.unblock(row.blocks, row.session)
    if row.session is not None:
        step.mark_sessions(home)
        step.rehead(home, row.session)
    else:
        step.rings(home.id)
    return SETTLED
