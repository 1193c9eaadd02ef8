"""What concerns two queues, which may lie on two servers, and so cannot be one step: dead letters that go to a queue of
another name, redrives from there, replies that ride on an acknowledge, sessions that wait for a dead letter elsewhere.

The order is always: copy, store there, remove here. Each step can be repeated, and when a client dies in between, a
message is in two places for a while, and never in none: here it stays parked, and whoever looks next carries it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import urandom
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from postroom.core import refusals
from postroom.core.address import is_dead_letters, origin_of
from postroom.core.limits import MAX_BATCH
from postroom.core.message import (
    GONE,
    SETTLED,
    STALE,
    Ack,
    Bury,
    Envelope,
    Outcome,
    Put,
    Refused,
    Settled,
    Verdict,
)
from postroom.drivers.redis_answers import no_room, outcomes_of
from postroom.drivers.redis_rows import delivery, verdict_text
from postroom.drivers.redis_scripts import Keys
from postroom.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    OperationTimeoutError,
    QueueNotFoundError,
)

if TYPE_CHECKING:
    from postroom.drivers.redis import RedisDriver
    from postroom.drivers.redis_queues import RedisQueues

_BRIEF = 1.0  # seconds that one parcel may take on the way of somebody who wants something else
_WHY: dict[bytes, Outcome] = {b"stale": STALE, b"gone": GONE, b"held": GONE}


async def carry(driver: RedisQueues, keys: Keys, parcels: bytes, seconds: float = 5.0) -> int:
    """What a script left to be carried. How many were buried; what cannot be now is tried again later, by anybody."""
    buried, end = 0, monotonic() + seconds
    for kind, seq, queue, *rest in msgspec.msgpack.decode(parcels, type=list[list[str]]):
        if monotonic() >= end:
            break  # who looks next, when its parking is over
        number = seq.encode()
        try:
            if kind == "bury":
                reason, description = rest
                outcome = await bury(driver, keys, number, b"", queue, reason, description, most=_BRIEF)
                buried += outcome is SETTLED
            else:
                # Where it has another number than there, that one follows the queue's name.
                home, _, there = queue.partition("\n")
                await _free(driver, home, there.encode() or number, rest[0])
                await driver.run("carry", keys, b"told", number, most=_BRIEF)
        except (MailboxConnectionError, OperationTimeoutError):
            break  # that node is away: for the others as well there will be another time
        except MailboxError:
            pass
    return buried


async def _free(driver: RedisQueues, queue: str, seq: bytes, session: str) -> None:
    try:
        home = driver.keys(queue)
        reply = await driver.run("carry", home, b"free", seq, session.encode(), most=_BRIEF)
        if reply[2]:
            await carry(driver, home, reply[2])
    except QueueNotFoundError:
        pass  # and with it its sessions


async def bury(
    driver: RedisQueues,
    keys: Keys,
    seq: bytes,
    claim_id: bytes,
    target: str,
    reason: str,
    description: str,
    most: float = math.inf,
) -> Outcome:
    """To a dead-letter queue of another name."""
    carrier = claim_id or _carrier()
    _, why, *copied = await driver.run("carry", keys, b"copy", seq, claim_id, carrier, most=most)
    if why:
        return _WHY[why]
    data, past, _, holds = copied
    there = driver.keys(target)
    given = (keys.name.encode(), reason.encode(), description.encode(), holds)
    try:
        _, why, *parcels = await driver.run("carry", there, b"bury", seq, data, past, *given, once=True, most=most)
    except QueueNotFoundError:
        why, parcels = b"missing", []
    if why:
        if not claim_id:
            await driver.run("carry", keys, b"back", seq, carrier, b"park", most=most)
        return Refused(refusals.unburied(keys.name, target))
    if parcels and parcels[0]:
        await carry(driver, there, parcels[0])
    return await _remove(driver, keys, seq, carrier, holds, theirs=bool(claim_id))


async def _remove(
    driver: RedisQueues, keys: Keys, seq: bytes, carrier: bytes, holds: bytes, *, theirs: bool
) -> Outcome:
    # Once: repeated, it would find the message gone by our own doing.
    given = (seq, carrier, holds, b"1" if theirs else b"")
    _, why, *parcels = await driver.run("carry", keys, b"gone", *given, once=True)
    if why:
        return _WHY[why]
    if parcels and parcels[0]:
        await carry(driver, keys, parcels[0])
    return SETTLED


def _carrier() -> bytes:
    """Who holds a message that is on its way: as unguessable as a claim."""
    return urandom(16).hex().encode()


# --- redrive ---------------------------------------------------------------------------------------------------------


async def redrive(driver: RedisQueues, keys: Keys, seqs: Sequence[int], target: str | None) -> list[Outcome]:
    home = origin_of(keys.name)
    numbers = [b"%016d" % seq for seq in seqs]
    if not keys.dead or (target is not None and target != home):
        await driver.run("exists", keys)
        return [await _revive(driver, keys, number, target) for number in numbers]
    flag = b"" if target is None else b"1"
    _, answer, parcels = await driver.run("redrive", keys, flag, *numbers, once=True)
    if parcels:
        await carry(driver, keys, parcels)
    outcomes: list[Outcome] = []
    for number, (kind, *rest) in zip(numbers, msgspec.msgpack.decode(answer), strict=True):
        if kind == "s":
            outcomes.append(SETTLED)
        elif kind == "g":
            outcomes.append(GONE)
        elif kind == "o":
            outcomes.append(await _revive(driver, keys, number, rest[0]))
        elif kind == "n":
            outcomes.append(Refused(refusals.no_dead_letter(keys.name, number.decode().lstrip("0"))))
        else:
            outcomes.append(Refused(no_room(home, rest[0], int(rest[1]), int(rest[2]), 0)))
    return outcomes


async def _revive(driver: RedisQueues, keys: Keys, seq: bytes, target: str | None) -> Outcome:
    """One dead letter to a queue in another slot."""
    carrier = _carrier()
    _, why, *copied = await driver.run("carry", keys, b"copy", seq, b"", carrier)
    if why:
        return _WHY[why]
    data, past, source, _ = copied
    id = delivery(seq, data, past, state="ready").envelope.id
    refused = await _revive_there(driver, keys, seq, data, past, source.decode(), target, id)
    if refused is not None:
        await driver.run("carry", keys, b"back", seq, carrier, b"")
        return Refused(refused)
    return await _remove(driver, keys, seq, carrier, b"", theirs=False)


async def _revive_there(
    driver: RedisQueues, keys: Keys, seq: bytes, data: bytes, past: bytes, source: str, target: str | None, id: str
) -> MailboxError | None:
    """Why it cannot go there, or None: it is there."""
    if not source:
        return refusals.no_dead_letter(keys.name, id)
    where = source if target is None else target
    if where == keys.name:
        return InvalidParameterError(f"{where}: message {id} is in this queue already; name another target")
    if is_dead_letters(where):
        return refusals.no_target(where, id)
    try:
        reply = await driver.run("carry", driver.keys(where), b"revive", seq, data, past, once=True)
    except QueueNotFoundError:
        return refusals.no_target(where, id)
    if reply[1]:
        _, _, what, taken, limit = reply
        return no_room(where, what.decode(), int(taken), int(limit), len(data))
    if reply[2]:
        await carry(driver, driver.keys(where), reply[2])
    return None


# --- verdicts that are not one script's work -------------------------------------------------------------------------


async def settle(driver: RedisDriver, keys: Keys, batch: Sequence[Verdict]) -> list[Outcome]:
    """Any verdicts, in order; as few scripts as possible."""
    outcomes: list[Outcome | None] = [None] * len(batch)
    line: list[tuple[int, bytes]] = []

    async def flush() -> None:
        if not line:
            return
        _, answer, parcels = await driver.run("settle", keys, *[text for _, text in line], once=True)
        if parcels:
            await carry(driver, keys, parcels)
        for (place, text), one in zip(line, answer.split(b","), strict=True):
            verdict = batch[place]
            if one[:1] == b"m" and isinstance(verdict, Bury):
                seq, claim_id = text[1:17], text[18:].partition(b"\n")[0]
                elsewhere = one[1:].decode()
                outcomes[place] = await bury(
                    driver, keys, seq, claim_id, elsewhere, verdict.reason, verdict.description
                )
            else:
                [outcomes[place]] = outcomes_of(keys.name, one)
        line.clear()

    for place, verdict in enumerate(batch):
        try:
            text = verdict_text(verdict)
        except InvalidParameterError as error:
            outcomes[place] = Refused(error)
            continue
        if text is None:
            outcomes[place] = GONE
        elif isinstance(verdict, Ack) and verdict.puts:
            await flush()
            outcomes[place] = await _acknowledge(driver, keys, text, verdict)
        else:
            line.append((place, text))
            if len(line) >= MAX_BATCH:
                await flush()
    await flush()
    return outcomes  # type: ignore[return-value]  # every place was filled above


async def _acknowledge(driver: RedisDriver, keys: Keys, text: bytes, verdict: Ack) -> Outcome:
    """An acknowledge that carries messages. They are sent before it, under their dedup ids: if we die in between, they
    are sent again with the next delivery, and are known."""
    _, answer, _ = await driver.run("settle", keys, b"V" + text[1:])
    if answer != b"s":
        return outcomes_of(keys.name, answer)[0]
    puts = tuple([await _put(driver, queue, envelope) for queue, envelope in verdict.puts])
    _, answer, parcels = await driver.run("settle", keys, text, once=True)
    if parcels:
        await carry(driver, keys, parcels)
    [outcome] = outcomes_of(keys.name, answer)
    return Settled(puts) if outcome is SETTLED else outcome


async def _put(driver: RedisDriver, queue: str, envelope: Envelope) -> Put:
    try:
        [put] = await driver.put(queue, [envelope])
    except MailboxConnectionError:
        raise
    except MailboxError as error:
        return Refused(error)
    return put
