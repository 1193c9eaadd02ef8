"""Everything that can go wrong, as one tree.

Every error answers two questions a program asks: whose fault is it, and may I try again? `transient` says
whether the same call may succeed later, `retry_after` when (seconds, if the store said so), and `code` is the
store's own word for it.

    MailboxError
    ├── InvalidParameterError        an argument is out of range, of a wrong type or malformed (also a ValueError)
    ├── ConfigurationError           the settings cannot work: unknown scheme, missing extra, foreign file
    ├── UnsupportedError             this store cannot do that, and says so instead of pretending
    ├── MailboxFullError             a bounded queue is at its limit                                    transient
    ├── MessageTooLargeError         body or attributes over the limit; nothing was stored
    ├── SerializationError           a body does not fit the mailbox's type
    ├── InvalidMessageError          a stored message is not one of ours
    ├── ReceiptHandleExpiredError    the lease was lost: redelivered, lapsed in a session, or gone
    ├── MessageFinalizedError        this Message object was settled before
    ├── MessageNotFoundError         no such message
    ├── QueueNotFoundError           no such queue
    ├── SessionNotFoundError         no free session to accept                                          transient
    ├── MailboxResolutionError       a name (often a reply_to) leads to no mailbox
    ├── ReplyNotAvailableError       the message asked for no reply
    ├── MailboxConnectionError       the store cannot be reached                                        transient
    ├── AuthenticationError          the store refused who we are
    ├── OperationTimeoutError        no answer in time; it may have happened (also a TimeoutError)      transient
    ├── RateLimitError               the store asks us to slow down                                     transient
    ├── ServiceUnavailableError      busy, locked, disabled or full for the moment                      transient
    ├── DurabilityError              stored, but on too few replicas
    └── NoReplyError                 ask() ran out of time (also a TimeoutError)

Handlers raise outcomes, which are not errors:

    HandlerOutcome
    ├── Retry(delay=0)               give it back, uncounted: not now
    ├── Reject(reason)               to the dead letters, now
    └── Discard()                    acknowledge, without a reply
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar


class MailboxError(Exception):
    """Anything Postroom raises."""

    default_transient: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        transient: bool | None = None,
        retry_after: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = self.default_transient if transient is None else transient
        self.retry_after = retry_after
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions travel between processes (multiprocessing, test runners): keep the keyword attributes.
        return (_revive, (type(self), str(self), self.transient, self.retry_after, self.code))

    def copy(self) -> MailboxError:
        """The same failure for another caller: one exception object must not be raised in two threads."""
        twin = _revive(type(self), str(self), self.transient, self.retry_after, self.code)
        twin.__cause__ = self.__cause__
        return twin


def _revive(
    kind: type[MailboxError], message: str, transient: bool, retry_after: float | None, code: str | None
) -> MailboxError:
    return kind(message, transient=transient, retry_after=retry_after, code=code)


class InvalidParameterError(MailboxError, ValueError):
    """An argument is out of range, of a wrong type or malformed. Nothing was sent or stored."""


class ConfigurationError(MailboxError):
    """The settings cannot work: an unknown scheme, a missing extra, a file that is not ours."""


class UnsupportedError(MailboxError):
    """This store cannot do that. `Capabilities` tells beforehand."""


class MailboxFullError(MailboxError):
    """A bounded queue is at its limit; the message was not stored."""

    default_transient = True


class MessageTooLargeError(MailboxError):
    """Body or attributes are over the limit; the message was not stored."""


class SerializationError(MailboxError):
    """A body does not fit the mailbox's type."""


class InvalidMessageError(MailboxError):
    """What is stored is not a message of ours."""


class ReceiptHandleExpiredError(MailboxError):
    """The lease is lost: the message was redelivered, lapsed in its session, or is gone."""


class MessageFinalizedError(MailboxError):
    """This Message was already settled; a message is settled once."""


class MessageNotFoundError(MailboxError):
    """No such message."""


class QueueNotFoundError(MailboxError):
    """No such queue."""


class SessionNotFoundError(MailboxError):
    """No free session to accept now."""

    default_transient = True


class MailboxResolutionError(MailboxError):
    """A name leads to no mailbox, or to one that may not be used."""


class ReplyNotAvailableError(MailboxError):
    """The message carries no `reply_to`."""


class MailboxConnectionError(MailboxError):
    """The store cannot be reached."""

    default_transient = True


class AuthenticationError(MailboxError):
    """The store refused our credentials or rights."""


class OperationTimeoutError(MailboxError, TimeoutError):
    """No answer in time. What was asked may have happened."""

    default_transient = True


class RateLimitError(MailboxError):
    """The store asks us to slow down."""

    default_transient = True


class ServiceUnavailableError(MailboxError):
    """The store is there but cannot serve now: busy, locked, disabled, out of room."""

    default_transient = True


class DurabilityError(MailboxError):
    """Stored on fewer replicas than asked. The message may exist."""


class NoReplyError(MailboxError, TimeoutError):
    """`ask` waited and no reply came in time."""


_LONGEST = 3650 * 86_400  # as for any delay


class HandlerOutcome(Exception):
    """What a handler decided about its message. Raised, never an error."""


class Retry(HandlerOutcome):
    """Give the message back, uncounted, to be delivered again after `delay` seconds."""

    def __init__(self, delay: float | timedelta = 0) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= _LONGEST:
            # Here, where it fails in the handler like any other mistake, and not when the message is to be settled.
            raise InvalidParameterError(f"Retry's delay is 0 to {_LONGEST} seconds or a timedelta, not {delay!r:.80}")
        super().__init__(f"retry in {delay}")
        self.delay = delay


class Reject(HandlerOutcome):
    """Move the message to the dead letters now, with this reason."""

    def __init__(self, reason: str = "rejected", description: str = "") -> None:
        if not isinstance(reason, str) or not 0 < len(reason) <= 255 or not reason.isprintable():
            raise InvalidParameterError(f"Reject's reason is a short text in one line, not {reason!r:.80}")
        if not isinstance(description, str):
            raise InvalidParameterError(f"Reject's description is a str, not {type(description).__name__}")
        super().__init__(reason)
        self.reason = reason
        self.description = description


class Discard(HandlerOutcome):
    """Acknowledge the message without a reply."""
