"""postroom dlq."""

import pytest

import postroom


@pytest.fixture
def dead(orders, client):
    """Three dead letters: two without a price, one with a fault; by id."""
    letters = {}
    for number, (reason, description) in enumerate(
        [("no price", "LookupError: unicorn"), ("fault", "ValueError: 7"), ("no price", "LookupError: dragon")]
    ):
        id = orders.send(b'{"n": %d}' % number, content_type="application/json", attributes={"k": "v"})
        orders.receive()[0].dead_letter(reason, description)
        letters[id] = reason
    return letters


def left(orders):
    return [letter.id for letter in orders.dead_letters.peek()]


def test_ls_says_why(cli, orders, dead):
    rows = cli("dlq", "ls", "orders").rows
    assert [(row[1], row[4]) for row in rows] == list(dead.items())
    assert rows[0][5:] == ["LookupError: unicorn", '{"n": 0}']
    [first, *_] = cli("dlq", "ls", "orders", "--json").objects
    assert (first["death"]["reason"], first["death"]["source"], first["body"]) == ("no price", "orders", {"n": 0})


def test_ls_of_none_is_exit_code_3(cli, orders):
    assert cli("dlq", "ls", "orders").code == 3


@pytest.mark.parametrize(
    ("chosen", "places"),
    [
        (("--reason", "no price"), (0, 2)), (("--reason", "f*"), (1,)), (("--error", "dragon"), (2,)),
        (("--older-than", "1h"), ()), (("--older-than", "0"), (0, 1, 2)), (("-n", "2"), (0, 1)),
        (("--reason", "no*", "--error", "uni"), (0,)),
    ],
)  # fmt: skip
def test_options_choose(cli, orders, dead, chosen, places):
    ids = list(dead)
    assert [row[1] for row in cli("dlq", "ls", "orders", *chosen).rows] == [ids[place] for place in places]


def test_ls_pages(cli, orders, dead):
    first, *_ = cli("dlq", "ls", "orders", "-n", "1").rows
    assert [row[1] for row in cli("dlq", "ls", "orders", "--after", first[0]).rows] == list(dead)[1:]


def test_show_tells_everything_about_one(cli, orders, dead):
    id = list(dead)[1]
    shown = dict(row for row in cli("dlq", "show", "orders", id).rows if len(row) == 2)
    assert (shown["reason"], shown["description"], shown["body"]) == ("fault", "ValueError: 7", '{"n": 1}')
    assert shown["attribute k"] == "v"
    assert cli("dlq", "show", "orders", id, "--json").json["death"]["description"] == "ValueError: 7"
    missing = cli("dlq", "show", "orders", "nobody")
    assert (missing.code, "postroom dlq ls orders" in missing.err) == (1, True)


def test_show_tells_what_happened_at_each_delivery(cli, orders, url):
    id = orders.send(b"x")
    with postroom.connect(url, backoff=postroom.Backoff(base=0.01)) as client:
        impatient = client.mailbox("orders", bytes)
        for delivery in (1, 2, 3):
            with pytest.raises(LookupError), impatient.receive(wait_time_seconds=20)[0]:
                raise LookupError(f"failure {delivery}")
    shown = dict(row for row in cli("dlq", "show", "orders", id).rows if len(row) == 2)
    assert (shown["reason"], shown["delivery 3"]) == ("max_deliveries", "LookupError: failure 3")


def test_redrive_sends_the_chosen_back(cli, orders, dead):
    done = cli("dlq", "redrive", "orders", "--reason", "no*", "--limit", "1", "--json").json
    assert done == {"moved": 1, "skipped": 2, "refused": [], "dry_run": False} or done["moved"] == 1
    assert left(orders) == list(dead)[1:]
    [back] = orders.receive()
    assert (back.id, back.delivery_count) == (next(iter(dead)), 1)


def test_redrive_by_id_and_at_a_rate(cli, orders, dead):
    ids = list(dead)
    assert cli("dlq", "redrive", "orders", "--id", ids[2], "--id", ids[0], "--rate", "1000").code == 0
    assert left(orders) == [ids[1]]


def test_a_dry_run_moves_nothing(cli, orders, dead):
    assert cli("dlq", "redrive", "orders", "--dry-run", "--json").json["moved"] == 3
    assert left(orders) == list(dead)


def test_redrive_goes_to_another_queue(cli, orders, dead, client):
    cli("create", "repair")
    assert cli("dlq", "redrive", "orders", "--target", "repair").code == 0
    assert client.info("repair").ready == 3


def test_what_a_target_refuses_stays(cli, orders, dead):
    refused = cli("dlq", "redrive", "orders", "--target", "nowhere")
    assert refused.code == 1
    assert "stays a dead letter" in refused.err
    assert left(orders) == list(dead)


def test_a_target_with_little_room_takes_a_part(cli, orders, dead):
    cli("create", "small", "--max-messages", "1")
    assert cli("dlq", "redrive", "orders", "--target", "small").code == 5
    assert len(left(orders)) == 2


def test_drop_removes_the_chosen_and_leaves_the_others_as_they_were(cli, orders, dead):
    before = {letter.id: letter.delivery_count for letter in orders.dead_letters.peek()}
    assert cli("dlq", "drop", "orders", "--reason", "fault", "--yes", "--json").json["dropped"] == 1
    after = {letter.id: letter.delivery_count for letter in orders.dead_letters.peek()}
    assert after == {id: count for id, count in before.items() if dead[id] != "fault"}
    assert orders.dead_letters.info().in_flight == 0


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_redrive_says_in_a_pipe_too_what_it_did(cli, orders, dead, dry):
    told = cli("dlq", "redrive", "orders", "--reason", "no*", *dry)
    verb = "would go" if dry else "went"
    assert (told.code, told.out) == (0, f"orders: 2 dead letters {verb} back to work, 1 not chosen\n")


@pytest.mark.parametrize("command", [("redrive",), ("redrive", "--dry-run"), ("redrive", "--json"), ("drop", "--yes")])
def test_an_id_that_is_not_there_is_exit_code_3(cli, orders, dead, command):
    missing = cli("dlq", command[0], "orders", *command[1:], "--id", "nobody")
    assert (missing.code, missing.out != "") == (3, True)
    assert "no dead letter nobody" in missing.err
    assert left(orders) == list(dead)


@pytest.mark.parametrize("command", [("redrive",), ("drop", "--yes")])
def test_an_id_that_is_not_there_does_not_hold_up_the_others(cli, orders, dead, command):
    first, *rest = dead
    partly = cli("dlq", command[0], "orders", *command[1:], "--id", first, "--id", "nobody")
    assert (partly.code, partly.err.count("\n"), left(orders)) == (5, 1, rest)


@pytest.mark.parametrize("command", [("redrive",), ("drop", "--yes")])
def test_where_none_fits_it_is_exit_code_3(cli, orders, dead, command):
    assert cli("dlq", command[0], "orders", *command[1:], "--reason", "boredom").code == 3
    assert left(orders) == list(dead)


def test_nothing_to_redrive_is_exit_code_3(cli, orders):
    nothing = cli("dlq", "redrive", "orders")
    assert (nothing.code, nothing.out) == (3, "orders: 0 dead letters went back to work, 0 not chosen\n")


def test_drop_and_purge_say_in_a_pipe_too_what_they_did(cli, orders, dead):
    assert cli("dlq", "drop", "orders", "--reason", "fault", "--yes").out == "orders: 1 dead letter dropped\n"
    assert cli("dlq", "purge", "orders", "--yes").out == "orders: 2 dead letters removed\n"
    assert cli("dlq", "purge", "orders", "--yes") == (0, "orders: 0 dead letters removed\n", "")


def test_drop_wants_a_choice_and_a_yes(cli, orders, dead):
    assert cli("dlq", "drop", "orders", "--yes").code == 2
    assert cli("dlq", "drop", "orders", "--reason", "*").code == 2
    assert left(orders) == list(dead)


def test_what_somebody_holds_is_not_dropped(cli, orders, dead):
    held = orders.dead_letters.receive(max_messages=1)
    partly = cli("dlq", "drop", "orders", "--reason", "no price", "--yes")
    assert (partly.code, "somebody else holds" in partly.err) == (5, True)
    assert held[0].id in left(orders)


def test_a_shared_dead_letter_queue_keeps_the_letters_of_others(cli, client):
    for name in ("one", "two"):
        cli("create", name, "--dead-letter-queue", "morgue")
        box = client.mailbox(name, bytes)
        box.send(name.encode())
        box.receive()[0].dead_letter("broken")
    assert cli("dlq", "drop", "one", "--reason", "broken", "--yes").code == 0
    assert [letter.body for letter in client.mailbox("two", bytes).dead_letters.peek()] == [b"two"]


def test_purge_removes_all(cli, orders, dead):
    assert cli("dlq", "purge", "orders").code == 2
    assert cli("dlq", "purge", "orders", "--yes", "--json").json == {"queue": "orders", "messages": 3}
    assert left(orders) == []


def test_no_command_makes_the_queue_it_asks_about(cli, client, orders):
    for command in (("ls", "x"), ("show", "x", "id"), ("redrive", "x"), ("drop", "x", "--id", "i", "--yes"),
                    ("purge", "x", "--yes")):  # fmt: skip
        assert cli("dlq", *command).code == 1
    assert client.list_queues() == ["orders"]
