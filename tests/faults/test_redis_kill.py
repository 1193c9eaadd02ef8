"""kill -9 of those who send and receive, on Redis: the tests that SQLite passes, over a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rig import Place
from tests.faults.test_kill import (  # noqa: F401  # collected here too, over the fixtures below
    test_a_consumer_killed_in_its_handler_loses_nothing,
    test_a_message_that_kills_its_process_every_time_is_dead_after_n,
    test_a_producer_killed_mid_batch_loses_nothing_it_was_told_is_stored,
    test_killed_at_any_point_of_any_verb,
    test_killed_at_any_point_of_any_verb_for_long,
)
from tests.faults.test_processes import (  # noqa: F401
    test_a_child_that_outlives_its_parents_connection_loses_nothing,
    test_a_fork_while_other_threads_are_sending,
    test_a_fork_while_other_threads_wait_and_a_child_with_threads,
    test_a_waiter_of_another_process_is_woken,
    test_multiprocessing_with_fork_shares_no_connection,
    test_parent_and_child_both_go_on_after_a_fork,
    test_the_waiter_that_was_rung_is_killed_and_the_next_gets_the_message,
)
from tests.servers.valkey import Server

pytestmark = pytest.mark.faults


@pytest.fixture
def place(tmp_path: Path, valkey: Server) -> Iterator[Place]:
    with Place(tmp_path, url=valkey.url) as place:
        yield place


@pytest.fixture
def timed(tmp_path: Path, valkey: Server) -> Iterator[Place]:
    with Place(tmp_path, clock=True, url=valkey.url) as place:
        yield place
