"""What a store says when it says no: one wording, whatever store it is."""

from __future__ import annotations

from postroom.errors import (
    InvalidParameterError,
    MailboxFullError,
    QueueNotFoundError,
    ReceiptHandleExpiredError,
    ServiceUnavailableError,
    UnsupportedError,
)


def no_queue(queue: str) -> QueueNotFoundError:
    return QueueNotFoundError(f"{queue}: no such queue; create_queue() makes one, and so does opening a mailbox")


def idle_queue(queue: str) -> QueueNotFoundError:
    return QueueNotFoundError(f"{queue}: the queue was deleted after it had been idle for its limit")


def no_target(where: str, id: str) -> QueueNotFoundError:
    return QueueNotFoundError(f"{where}: no such queue to redrive message {id} to")


def sending_off(queue: str, status: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"{queue}: sending is off (status {status})")


def receiving_off(queue: str, status: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"{queue}: receiving is off (status {status})")


def not_sent_there(queue: str) -> UnsupportedError:
    return UnsupportedError(f"{queue}: messages become dead letters by dying, not by being sent there")


def lives_with_its_queue(queue: str) -> UnsupportedError:
    return UnsupportedError(f"{queue}: a dead-letter queue lives and goes with its queue; purge it instead")


def needs_session(queue: str) -> InvalidParameterError:
    return InvalidParameterError(f"{queue}: this queue takes messages with a session_id only")


def sessions_off(queue: str) -> InvalidParameterError:
    return InvalidParameterError(f"{queue}: sessions are off for this queue; leave out session_id")


def dedup_off(queue: str) -> InvalidParameterError:
    return InvalidParameterError(f"{queue}: duplicate detection is off for this queue; leave out dedup_id")


def full_of_messages(queue: str, held: int, limit: int) -> MailboxFullError:
    return MailboxFullError(f"{queue}: full with {held} of {limit} messages")


def full_of_bytes(queue: str, taken: int, limit: int, size: int) -> MailboxFullError:
    return MailboxFullError(f"{queue}: {taken} of {limit} bytes are taken, no room for {size} more")


def no_sessions(queue: str) -> UnsupportedError:
    return UnsupportedError(f"{queue}: this queue has no sessions")


def no_dead_sessions(queue: str) -> UnsupportedError:
    return UnsupportedError(f"{queue}: dead letters keep their session_id but are in no session")


def lock_lost(queue: str, session: str) -> ReceiptHandleExpiredError:
    return ReceiptHandleExpiredError(
        f"{queue}: the lock on session {session} ran out or was given back; accept the session again, and renew it in "
        "time"
    )


def dies_once(queue: str) -> UnsupportedError:
    return UnsupportedError(f"{queue}: a dead letter cannot be dead-lettered again; acknowledge or redrive it")


def dead_lettering_off(queue: str) -> UnsupportedError:
    return UnsupportedError(f"{queue}: dead-lettering is off for this queue; acknowledge the message or nack it")


def unburied(queue: str, dead_letter_queue: str | None) -> MailboxFullError:
    return MailboxFullError(
        f"{queue}: its dead-letter queue {dead_letter_queue} is missing, closed or full; the message stays where it is"
    )


def no_dead_letter(queue: str, id: str) -> InvalidParameterError:
    return InvalidParameterError(f"{queue}: message {id} is no dead letter")
