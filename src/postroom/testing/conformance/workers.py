"""Workers: what a handler does decides what becomes of its message, and its lease is kept meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from postroom.aio import AsyncMessage
from postroom.core.capabilities import YES
from postroom.core.definition import QueueDefinition
from postroom.core.policy import Backoff
from postroom.dispatcher import Dispatcher
from postroom.errors import Discard, InvalidParameterError, MailboxConnectionError, Reject, Retry
from postroom.flows.events import HandlerFailed, LeaseLost, StaleAcknowledge, StoreAway
from postroom.mailbox import Message
from postroom.testing.conformance.world import PATIENCE, Awaited, Box, Client, Suite, World, bodies
from postroom.worker import Worker

AT_ONCE = Backoff(max_attempts=3, base=0, jitter=0)


class Heard:
    """A dispatcher that keeps what it was told."""

    def __init__(self, *kinds: type) -> None:
        self.events: list[Any] = []
        self.dispatcher = Dispatcher()
        for kind in kinds:
            self.dispatcher.subscribe(kind, self.events.append)


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


class Workers(Suite):
    async def test_what_is_handled_is_acknowledged(self, box: Box, world: World) -> None:
        await box.send_many([1, 2, 3])
        seen: list[Any] = []
        worker = world.worker(box, seen.append)
        assert [await worker.run_once() for _ in range(4)] == [1, 1, 1, 0]
        assert seen == [1, 2, 3]
        assert await box.approximate_count() == 0

    async def test_a_worker_makes_the_queue_it_works_on(self, box: Box, world: World) -> None:
        assert await world.worker(box, print).run_once() == 0

    @pytest.mark.parametrize("annotated", [Message, AsyncMessage, "Message[int, int]"])
    async def test_a_handler_that_asks_for_the_message_gets_it(self, box: Box, world: World, annotated: Any) -> None:
        id = await box.send(7, attributes={"k": "v"})
        seen: list[Any] = []

        def handle(message: Any) -> None:
            seen.append((message.id, message.body, dict(message.attributes), message.delivery_count))

        handle.__annotations__["message"] = annotated
        await world.worker(box, handle).run_once()
        assert seen == [(id, 7, {"k": "v"}, 1)]

    async def test_what_it_returns_is_the_reply(self, client: Client, world: World) -> None:
        box, answers = client.mailbox("box"), client.mailbox("answers")
        await answers.approximate_count()
        request = await box.send(20, reply_to=answers, correlation_id="c")
        await world.worker(box, lambda body: body + 1).run_once()
        [reply] = await answers.receive(max_messages=5)
        assert (reply.body, reply.id, reply.correlation_id) == (21, f"{request}/final", "c")
        assert await box.approximate_count() == 0

    async def test_without_a_reply_to_what_it_returns_is_nobodys(self, box: Box, world: World) -> None:
        await box.send(1)
        assert await world.worker(box, lambda body: object()).run_once() == 1
        assert await box.approximate_count() == 0

    async def test_a_failure_is_tried_again_until_the_dead_letters(self, box: Box, world: World) -> None:
        await box.send("bad")
        heard = Heard(HandlerFailed)

        def fail(body: Any) -> None:
            raise ValueError(body)

        worker = world.worker(box, fail, retry=AT_ONCE, dispatcher=heard.dispatcher)
        assert [await worker.run_once() for _ in range(4)] == [1, 1, 1, 0]
        [dead] = await box.dead_letters.peek()
        assert (dead.body, dead.reason, dead.delivery_count) == ("bad", "max_deliveries", 3)
        assert "ValueError: bad" in dead.death.description
        assert [attempt.number for attempt in dead.history] == [1, 2]
        assert [(event.delivery_count, event.dead) for event in heard.events] == [(1, False), (2, False), (3, True)]

    async def test_a_failure_waits_for_its_backoff(self, box: Box, world: World, second: float) -> None:
        world.needs("delayed_nack", level=YES)
        await box.send(1)
        worker = world.worker(box, lambda body: 1 / 0, retry=Backoff(base=2 * second, jitter=0))
        assert [await worker.run_once() for _ in range(2)] == [1, 0]
        await world.advance(2.5 * second)
        assert await worker.run_once() == 1

    async def test_retry_gives_it_back_uncounted(self, box: Box, world: World) -> None:
        world.needs("uncounted_return", level=YES)
        await box.send(1)

        def later(body: Any) -> None:
            raise Retry()

        worker = world.worker(box, later, retry=AT_ONCE)
        assert [await worker.run_once() for _ in range(6)] == [1] * 6
        [message] = await box.receive()
        assert message.delivery_count == 1

    async def test_reject_is_for_the_dead_letters_at_once(self, box: Box, world: World) -> None:
        await box.send(1)

        def refuse(body: Any) -> None:
            raise Reject("too small", "it has to be two")

        await world.worker(box, refuse).run_once()
        [dead] = await box.dead_letters.peek()
        assert (dead.reason, dead.death.description) == ("too small", "it has to be two")

    async def test_discard_is_done_without_a_reply(self, client: Client, world: World) -> None:
        box, answers = client.mailbox("box"), client.mailbox("answers")
        await answers.approximate_count()
        await box.send(1, reply_to=answers)

        def drop(body: Any) -> None:
            raise Discard()

        await world.worker(box, drop).run_once()
        assert await box.approximate_count() == 0
        assert await answers.approximate_count() == 0

    async def test_a_message_nobody_could_handle_in_time_is_dead_at_the_claim(
        self, box: Box, world: World, second: float
    ) -> None:
        """What kills its process every time never comes to an except clause."""
        await box.send(1)
        for _ in range(3):
            assert len(await box.receive(visibility_timeout=second)) == 1
            await world.advance(1.5 * second)
        seen: list[Any] = []
        await world.worker(box, seen.append, retry=AT_ONCE).run_once()
        assert seen == []
        assert len(await box.dead_letters.peek()) == 1

    async def test_messages_of_one_session_are_handled_one_after_the_other(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for n in range(4):
            await box.send(n, session_id="s")
        await box.send("other")
        lock, log = threading.Lock(), []

        def handle(body: Any) -> None:
            with lock:
                log.append(("start", body))
            time.sleep(0.02 * (4 - body) if body != "other" else 0)
            with lock:
                log.append(("end", body))

        worker = world.worker(box, handle, concurrency=5)
        while await worker.run_once():
            pass
        mine = [(step, body) for step, body in log if body != "other"]
        assert mine == [(step, n) for n in range(4) for step in ("start", "end")]
        assert await box.approximate_count() == 0

    async def test_what_follows_a_failed_one_in_its_session_waits_for_it(self, box: Box, world: World) -> None:
        world.needs("sessions")
        for n in range(3):
            await box.send(n, session_id="s")
        seen: list[Any] = []

        def handle(message: Any) -> None:
            seen.append((message.body, message.delivery_count))
            if len(seen) == 1:
                raise ValueError("once")

        handle.__annotations__["message"] = Message
        worker = world.worker(box, handle, concurrency=4, retry=AT_ONCE)
        while await worker.run_once():
            pass
        assert [body for body, _ in seen] == [0, 0, 1, 2]
        if world.capabilities.uncounted_return is YES:
            assert [count for _, count in seen] == [1, 2, 1, 1]

    @pytest.mark.parametrize("verb", ["acknowledge", "nack", "dead_letter"])
    async def test_a_handler_that_settles_its_message_has_the_last_word(self, world: World, verb: str) -> None:
        client = world.open(flavour="sync")
        box = client.mailbox("box")
        await box.send(1)
        heard = Heard(StaleAcknowledge, LeaseLost)

        def handle(message: Any) -> None:
            getattr(message, verb)(*(("why",) if verb == "dead_letter" else ()))
            time.sleep(0.15)  # long enough for the keeper to look

        handle.__annotations__["message"] = Message
        worker = Awaited(Worker(cast("Any", box)._inner, handle, visibility_timeout=0.15, dispatcher=heard.dispatcher))
        await worker.run_once()
        assert heard.events == []
        stats = await box.info()
        assert (stats.total, stats.ready, stats.dead) == {
            "acknowledge": (0, 0, 0), "nack": (1, 1, 0), "dead_letter": (1, 0, 1),
        }[verb]  # fmt: skip

    async def test_the_queues_own_limit_is_known_to_be_the_last_chance(self, client: Client, world: World) -> None:
        await client.create_queue(QueueDefinition(name="q", max_delivery_count=2))
        box = client.mailbox("q")
        await box.send(1)
        heard = Heard(HandlerFailed)
        backoff = Backoff(max_attempts=5, base=0, jitter=0)
        worker = world.worker(box, lambda body: 1 / 0, retry=backoff, dispatcher=heard.dispatcher)
        assert [await worker.run_once() for _ in range(3)] == [1, 1, 0]
        assert [event.dead for event in heard.events] == [False, True]
        assert len(await box.dead_letters.peek()) == 1

    async def test_a_queue_that_was_deleted_is_made_anew(self, client: Client, world: World) -> None:
        box = client.mailbox("q")
        await box.send(1)
        heard = Heard(StoreAway)
        seen: list[Any] = []
        worker = world.worker(box, seen.append, dispatcher=heard.dispatcher)
        assert await worker.run_once() == 1
        await client.delete_queue("q", force=True)
        await worker.run(max_iterations=1)
        assert len(heard.events) == 1
        assert await worker.run_once() == 0
        assert await client.list_queues() == ["q"]

    async def test_so_many_work_at_once_and_no_more(self, box: Box, world: World) -> None:
        await box.send_many(range(20))
        lock, at_work, most = threading.Lock(), 0, 0

        def handle(body: Any) -> None:
            nonlocal at_work, most
            with lock:
                at_work += 1
                most = max(most, at_work)
            time.sleep(0.01)
            with lock:
                at_work -= 1

        worker = world.worker(box, handle, concurrency=4)
        assert await worker.run_once() == 4
        while await worker.run_once():
            pass
        assert most == 4
        assert await box.approximate_count() == 0

    async def test_a_lease_is_kept_while_the_handler_works(self, box: Box, world: World) -> None:
        await box.send("long")
        counts: list[int] = []

        def work(message: Any) -> None:
            counts.append(message.delivery_count)
            for _ in range(3):
                before = message.lease_expires_at
                if world.store.moves_time:
                    world.store.advance(0.1)
                until(lambda before=before: message.lease_expires_at > before)

        work.__annotations__["message"] = Message
        await world.worker(box, work, visibility_timeout=0.3).run_once()
        assert counts == [1]
        assert await box.approximate_count() == 0

    async def test_a_lost_lease_is_told_and_ends_no_worker(self, box: Box, world: World) -> None:
        await box.send_many([1, 2])
        heard = Heard(LeaseLost, StaleAcknowledge)
        lost: list[tuple[int, bool]] = []

        def work(message: Any) -> None:
            if message.body == 1:
                until(lambda: message.lease.lost)
            lost.append((message.body, message.lease.lost))

        work.__annotations__["message"] = Message
        worker = world.worker(box, work, visibility_timeout=0.2, dispatcher=heard.dispatcher)
        running = world.spawn(worker.run_once)
        while not worker_busy(worker):
            await world.pause(0.005)
        await box.purge()
        await running
        assert any(isinstance(event, LeaseLost) for event in heard.events)
        await box.send(3)
        assert await worker.run_once() == 1
        assert (3, False) in lost

    async def test_a_hung_handler_does_not_hold_its_message_for_ever(self, box: Box, world: World) -> None:
        world.needs_real_time()
        await box.send(1)
        heard = Heard(LeaseLost)

        def hang(message: Any) -> None:
            until(lambda: message.lease.lost)

        hang.__annotations__["message"] = Message
        worker = world.worker(
            box, hang, visibility_timeout=0.15, max_processing=0.2, dispatcher=heard.dispatcher, retry=AT_ONCE
        )
        await worker.run_once()
        [event] = heard.events
        assert event.why == "max_processing"
        [again] = await box.receive(wait_time_seconds=5)
        assert again.delivery_count == 2

    async def test_a_shutdown_before_run_holds(self, box: Box, world: World) -> None:
        await box.send(1)
        worker = world.worker(box, print)
        assert await worker.shutdown()
        await worker.run()
        [message] = await box.receive()
        assert message.delivery_count == 1

    async def test_a_shutdown_lets_handlers_end_and_takes_no_more(self, box: Box, world: World) -> None:
        await box.send_many(range(10))
        begun, go = threading.Semaphore(0), threading.Event()

        def handle(body: Any) -> None:
            begun.release()
            go.wait(PATIENCE)

        worker = world.worker(box, handle, concurrency=3)
        running = world.spawn(worker.run)
        for _ in range(3):
            while not begun.acquire(blocking=False):
                await world.pause(0.005)
        ending = world.spawn(worker.shutdown)
        await world.pause()
        go.set()
        assert await ending
        await running
        left = await box.receive(max_messages=20)
        assert sorted(message.body for message in left) == list(range(3, 10))
        assert {message.delivery_count for message in left} == {1}

    async def test_a_worker_that_waits_is_woken_by_a_send_and_by_its_end(self, box: Box, world: World) -> None:
        await box.approximate_count()
        seen: list[Any] = []
        worker = world.worker(box, seen.append)
        running = world.spawn(worker.run)
        await world.pause()
        await box.send("x")
        for _ in range(1000):
            if seen:
                break
            await world.pause(0.005)
        assert seen == ["x"]
        assert await worker.shutdown()
        await running
        assert await box.approximate_count() == 0

    async def test_a_store_that_is_away_for_a_while_ends_no_worker(self, world: World) -> None:
        faults = world.break_at_will(world.open())
        box = world.client_of(faults).mailbox("box")
        await box.send(1)
        heard = Heard(StoreAway)
        fault = faults.fail("receive", MailboxConnectionError("the connection broke"), times=2)
        seen: list[Any] = []
        worker = world.worker(box, seen.append, dispatcher=heard.dispatcher)
        await worker.run(max_iterations=3)
        assert fault.struck == 2
        assert seen == [1]
        assert len(heard.events) == 2
        assert await box.approximate_count() == 0

    async def test_an_acknowledge_whose_answer_was_lost_is_told_again(self, world: World) -> None:
        faults = world.break_at_will(world.open())
        box = world.client_of(faults).mailbox("box")
        await box.send(1)
        fault = faults.fail("acknowledge", MailboxConnectionError("the connection broke"), after=True)
        heard = Heard(StaleAcknowledge)
        seen: list[Any] = []
        await world.worker(box, seen.append, dispatcher=heard.dispatcher).run_once()
        assert fault.struck == 1
        assert seen == [1]
        assert heard.events == []
        assert await box.approximate_count() == 0

    async def test_a_failing_subscriber_harms_nobody(self, box: Box, world: World) -> None:
        def fail(event: Any) -> None:
            raise RuntimeError("in a subscriber")

        dispatcher = Dispatcher()
        dispatcher.subscribe(HandlerFailed, fail)
        await box.send(1)
        worker = world.worker(box, lambda body: 1 / 0, retry=AT_ONCE, dispatcher=dispatcher)
        assert [await worker.run_once() for _ in range(4)] == [1, 1, 1, 0]

    @pytest.mark.parametrize(
        "handler",
        [lambda: None, lambda a, b: None, lambda *, body: None, None, 7],
        ids=["none", "two", "keyword", "None", "number"],
    )
    async def test_a_handler_that_cannot_be_called_with_a_message_is_refused(
        self, box: Box, world: World, handler: Any
    ) -> None:
        with pytest.raises(InvalidParameterError):
            world.worker(box, handler)

    @pytest.mark.parametrize(
        "options",
        [
            {"concurrency": 0},
            {"concurrency": True},
            {"visibility_timeout": 0},
            {"max_processing": float("nan")},
            {"retry": 5},
        ],
        ids=str,
    )
    async def test_what_no_worker_can_be_told_is_refused(self, box: Box, world: World, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidParameterError):
            world.worker(box, print, **options)

    async def test_one_worker_runs_once_at_a_time(self, box: Box, world: World) -> None:
        await box.approximate_count()
        worker = world.worker(box, print)
        running = world.spawn(worker.run)
        while not worker.running:
            await world.pause(0.005)
        with pytest.raises(InvalidParameterError, match="running already"):
            await worker.run_once()
        assert await worker.shutdown()
        await running
        assert await bodies(box.receive()) == []


def worker_busy(worker: Any) -> bool:
    return bool(getattr(worker, "_inner", worker)._engine.busy)
