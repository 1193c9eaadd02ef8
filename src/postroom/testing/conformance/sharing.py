"""One client, one store, many users at once: threads in the sync flavour, tasks in the async one."""

from __future__ import annotations

from functools import partial

from postroom.core.definition import QueueDefinition
from postroom.errors import MailboxFullError, MessageFinalizedError
from postroom.testing.conformance.world import Box, Client, Suite, World, bodies, drain


class Sharing(Suite):
    async def test_a_hundred_users_of_one_client_lose_nothing(self, box: Box, world: World) -> None:
        await box.approximate_count()

        async def use(user: int) -> list[str]:
            ids = [await box.send([user, number]) for number in range(3)]
            done = 0
            while done < 3:
                for message in await box.receive(max_messages=3, wait_time_seconds=20):
                    await message.acknowledge()
                    done += 1
            return ids

        ids = await world.gather(*[partial(use, user) for user in range(100)])
        assert len({id for part in ids for id in part}) == 300
        assert await box.approximate_count() == 0

    async def test_each_user_gets_its_own_answer(self, client: Client, world: World) -> None:
        """Concurrent sends may share one call to the store; a refusal fails only the one it is about."""
        world.needs("capacity")
        await client.create_queue(QueueDefinition(name="q", max_messages=10))
        box = client.mailbox("q")
        await box.approximate_count()

        async def sending(number: int) -> bool:
            try:
                await box.send(number)
            except MailboxFullError:
                return False
            return True

        stored = await world.gather(*[partial(sending, number) for number in range(40)])
        assert sum(stored) == 10
        assert sorted(await bodies(box.receive(max_messages=40))) == [n for n in range(40) if stored[n]]

    async def test_of_many_who_settle_one_message_one_is_told_that_it_did(self, box: Box, world: World) -> None:
        await box.send(1)
        [message] = await box.receive()

        async def settling() -> bool:
            try:
                await message.acknowledge()
            except MessageFinalizedError:
                return False
            return True

        assert sum(await world.gather(*[settling] * 8)) == 1

    async def test_many_clients_of_one_store_deliver_each_message_once(self, world: World) -> None:
        boxes = [world.open().mailbox("box") for _ in range(8)]
        await boxes[0].send_many(range(160))
        seen = await world.gather(*[partial(drain, box) for box in boxes])
        assert sorted(body for part in seen for body in part) == list(range(160))

    async def test_senders_and_receivers_at_once_meet(self, world: World) -> None:
        here, there = world.open().mailbox("box"), world.open().mailbox("box")
        await here.approximate_count()

        async def send(start: int) -> None:
            for number in range(start, start + 20):
                await here.send(number)

        async def receive() -> list[int]:
            seen: list[int] = []
            while len(seen) < 20:
                for message in await there.receive(wait_time_seconds=20):
                    seen.append(message.body)
                    await message.acknowledge()
            return seen

        results = await world.gather(
            *[partial(send, start) for start in (0, 20, 40, 60)], receive, receive, receive, receive
        )
        assert sorted(body for part in results[4:] for body in part) == list(range(80))

    async def test_ten_thousand_in_one_call(self, box: Box, world: World) -> None:
        results = await box.send_many(range(world.store.many))
        assert all(result.ok for result in results)
        assert len({result.id for result in results}) == world.store.many
        assert await box.approximate_count() == world.store.many
        messages = await box.receive(max_messages=1_000)
        assert [message.body for message in messages] == list(range(len(messages)))
        assert all(result.ok for result in await box.acknowledge_many(messages))

    async def test_ids_are_never_given_twice(self, world: World) -> None:
        boxes = [world.open().mailbox("box") for _ in range(4)]
        await boxes[0].approximate_count()

        async def sending(box: Box) -> list[str | None]:
            return [result.id for result in await box.send_many(range(250))]

        ids = await world.gather(*[partial(sending, box) for box in boxes])
        assert len({id for part in ids for id in part}) == 1_000
