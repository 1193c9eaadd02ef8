"""The conformance suite: one suite, every store, both flavours.

Describe your store and subclass `Conformance`; pytest does the rest:

    from postroom.testing.conformance import Conformance, UrlStore

    class MyStore(UrlStore):
        def url_of(self, tmp_path):
            return f"mystore://{tmp_path}/test"

    class TestMyStore(Conformance):
        store = MyStore

The suite asks what your driver's `Capabilities` say it can do, and nothing else: what they deny must be refused, what
they grant must work, and a gap that no store may have fails.
"""

from postroom.testing.conformance.badinput import BadInput
from postroom.testing.conformance.capacity import Capacity
from postroom.testing.conformance.deadletters import DeadLetters
from postroom.testing.conformance.gaps import Gaps
from postroom.testing.conformance.holding import HeldSessions
from postroom.testing.conformance.life import Life
from postroom.testing.conformance.ordering import Ordering
from postroom.testing.conformance.queues import Queues
from postroom.testing.conformance.raw import Raw
from postroom.testing.conformance.receiving import Receiving
from postroom.testing.conformance.remembering import Deduplication, TimeToLive
from postroom.testing.conformance.replies import Replies
from postroom.testing.conformance.sessions import Sessions
from postroom.testing.conformance.settling import Settling
from postroom.testing.conformance.sharing import Sharing
from postroom.testing.conformance.unreliable import Unreliable
from postroom.testing.conformance.verbs import Verbs
from postroom.testing.conformance.workers import Workers
from postroom.testing.conformance.world import Awaited, Store, Suite, UrlStore, World


class Conformance(
    Life,
    Settling,
    Receiving,
    Ordering,
    Sessions,
    HeldSessions,
    Deduplication,
    TimeToLive,
    Capacity,
    Queues,
    DeadLetters,
    Raw,
    Replies,
    Sharing,
    BadInput,
    Verbs,
    Unreliable,
    Workers,
    Gaps,
):
    """All of the suite. Subclass it with `store = YourStore`."""


__all__ = ["Awaited", "Conformance", "Store", "Suite", "UrlStore", "World"]
