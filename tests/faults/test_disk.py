"""A disk that is full, a sync that fails, a power cut: an error for what is not stored, and nothing else is lost.

Three ways to fill a disk: a file size limit, which the process can lift again; a small file system, where one may be
mounted; and a kernel that refuses single writes (strace). A failing sync and a power cut need strace: nothing else
shows which bytes a crash would have kept.
"""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import postroom
from postroom.drivers.sqlite_clock import StoreClock
from postroom.errors import DurabilityError, MailboxError, ServiceUnavailableError
from tests.faults.checker import History, prove
from tests.faults.rig import Box, Line, Nursery, Place, acknowledge, need_strace, receive, send, strace

pytestmark = [pytest.mark.faults, pytest.mark.skipif(sys.platform != "linux", reason="platform: Linux faults")]


def try_to_send(log: History, box: Box, key: str, body: str) -> bool:
    """Whether it was refused, noted as what the error says: surely not stored, or not known."""
    log.note("sending", key=key)
    try:
        box.send(body, id=key)
    except DurabilityError:
        log.note("struck", fault="unsure", unseen_claims=0)
        return True
    except ServiceUnavailableError as error:
        if not (error.transient and error.__cause__):
            raise
        log.note("refused", key=key)
        log.note("struck", fault="refused", unseen_claims=0)
        return True
    log.note("sent", key=key)
    return False


def fill(log: History, box: Box, name: str, size: int, most: int = 10_000) -> int:
    """Send until it is refused three times; how many were accepted."""
    refused = 0
    for n in range(most):
        refused += try_to_send(log, box, f"{name}-{n}", "x" * size)
        if refused == 3:
            return n - 2
    return most


def drain(place: Place, box: Box) -> None:
    """These bodies are large: the messages go by their ids."""
    while messages := list(box.receive(max_messages=100)):
        for message in messages:
            place.log.note(
                "received",
                key=message.id,
                seq=message.sequence_number,
                token=message.lease.token,
                count=message.delivery_count,
                at=message.received_at.timestamp(),
                until=message.lease_expires_at.timestamp(),
            )
            place.log.note("acking", key=message.id, token=message.lease.token)
            message.acknowledge()
            place.log.note("acked", key=message.id, token=message.lease.token)


# --- no room --------------------------------------------------------------------------------------------------------


def sender_with_a_limit(line: Line, directory: str, by: str) -> None:
    with Place(directory, by, sync=False) as place:
        box = place.box()
        box.approximate_count()
        # Files may not grow beyond this: as good as a full disk, but the history must still fit.
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = max(os.path.getsize(place.path), os.path.getsize(f"{place.path}-wal"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300_000, hard))
        fill(place.log, box, "big", 1500)
        for n in range(20):  # what is full stays full, and says so each time
            try_to_send(place.log, box, f"full-{n}", "y" * 100_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        for n in range(20):
            assert not try_to_send(place.log, box, f"room-{n}", "z" * 1500)
        line.say("done")


def test_a_file_that_may_not_grow_refuses_honestly_and_works_again_with_room(place: Place, nursery: Nursery) -> None:
    child = nursery.spawn(sender_with_a_limit, directory=str(place.directory), by="sender")
    child.hear_until("done")
    child.finish()
    place.is_sound()
    drain(place, place.box())
    report = prove(place.log)
    assert report.struck["refused"] + report.struck["unsure"] >= 20
    assert report.sent > 40
    place.is_sound()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("platform: this user may not mount a small file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_full_disk_refuses_honestly_and_works_again_with_room(small: Path, tmp_path: Path) -> None:
    with Place(tmp_path, sync=False) as place:
        ballast = small / "ballast"
        ballast.write_bytes(b"b" * 6_500_000)
        place.path = small / "mail.db"
        place.url = f"sqlite:///{place.path}"
        box = place.box()
        before = fill(place.log, box, "before", 4000)
        assert before > 20
        # Still readable while it is full. Whether a claim or an acknowledge fits is luck; it is honest either way.
        assert box.peek(1)
        try:
            taken = list(box.receive())
        except ServiceUnavailableError:
            taken = []
        assert len(taken) <= 1
        ballast.unlink()
        for n in range(10):
            assert not try_to_send(place.log, box, f"after-{n}", "x" * 4000)
        if taken:
            place.log.note("left", key=taken[0].id)
        drain(place, box)
        report = prove(place.log)
        assert report.struck["refused"] + report.struck["unsure"] >= 3
        place.is_sound()


# --- single calls that fail ---------------------------------------------------------------------------------------


def send_through_faults(line: None, directory: str, count: int) -> None:
    with Place(directory, "sender", sync=False) as place:
        box = place.box()
        for n in range(count):
            try:
                try_to_send(place.log, box, f"m{n}", "x" * 800)
            except MailboxError as error:
                raise SystemExit(f"m{n}: {error!r}") from error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "when"),
    [
        ("fdatasync", "EIO", "9+7"),
        ("fdatasync", "ENOSPC", "9+7"),
        ("pwrite64", "EIO", "30+97"),  # a commit makes about a dozen of them
        ("pwrite64", "ENOSPC", "30+97"),
    ],
)
def test_single_calls_that_fail_refuse_single_sends(place: Place, call: str, error: str, when: str) -> None:
    """Every seventh sync of the log, or a write now and then. What was refused never appears, all else is there."""
    place.box().approximate_count()
    place._clients.pop().close()  # the faults come to a file that is there already
    wal = f"{place.path}-wal"
    ran = strace(
        ["-o", os.devnull, "-P", wal, "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"],
        send_through_faults,
        directory=str(place.directory),
        count=60,
    )
    assert ran.returncode == 0, ran.stderr
    place.is_sound()
    box = place.box()
    send(place.log, box, "after")
    drain(place, box)
    report = prove(place.log)
    assert report.struck["refused"] + report.struck["unsure"] >= 3, report
    assert report.sent > 20


@pytest.mark.slow
def test_a_disk_that_fails_for_good_accepts_nothing(place: Place) -> None:
    """Every sync fails from the tenth on: each send is refused, and none of them is there after a restart."""
    place.box().approximate_count()
    place._clients.pop().close()
    wal = f"{place.path}-wal"
    ran = strace(
        ["-o", os.devnull, "-P", wal, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=10+"],
        send_through_faults,
        directory=str(place.directory),
        count=30,
    )
    assert ran.returncode == 0, ran.stderr
    drain(place, place.box())
    report = prove(place.log)
    assert report.struck["refused"] + report.struck["unsure"] >= 15
    place.is_sound()


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 4, 7, 12, 20])
def test_killed_at_the_nth_write_to_the_log(place: Place, at: int) -> None:
    """Not at a random moment but inside of a commit, between two of its writes."""
    place.box().approximate_count()
    place._clients.pop().close()
    ran = strace(
        [
            "-o",
            os.devnull,
            "-P",
            f"{place.path}-wal",
            "-e",
            "trace=pwrite64",
            "-e",
            f"inject=pwrite64:signal=KILL:when={at}",
        ],
        send_through_faults,
        directory=str(place.directory),
        count=60,
    )
    assert ran.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (ran.returncode, ran.stderr)
    place.log.note("struck", fault="kill", unseen_claims=0)
    drain(place, place.box())
    prove(place.log, "kill")
    place.is_sound()


# --- power loss -------------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """What a file is after a power cut: what was synced, and of what was written since, as much as the dice say."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data), or a cut to that length

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.synced, change)
        self.pending.clear()

    def after_a_cut(self, dice: random.Random | None) -> bytes:
        content = bytearray(self.synced)
        if dice is not None:
            keep = dice.choice(["prefix", "some"])
            chosen = self.pending[: dice.randint(0, len(self.pending))]
            if keep == "some":  # a disk may write in any order
                chosen = [change for change in self.pending if dice.random() < 0.5]
            for change in chosen:
                _apply(content, change)
        return bytes(content)


def _apply(content: bytearray, change: tuple[int, bytes | None]) -> None:
    offset, data = change
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


_CALL = re.compile(
    rb"^\d+ +(?P<name>pwrite64|write|ftruncate|fdatasync|fsync)"
    rb"\(\d+<(?P<path>[^>]*)>(?:, (?P<rest>.*))?\) += (?P<result>-?\d+)"
)
_WRITE = re.compile(rb'^"(?P<data>(?:\\x[0-9a-f]{2})*)", \d+(?:, (?P<offset>\d+))?$')


def unhex(text: bytes) -> bytes:
    """What strace shows as hexadecimal escapes, names of files included."""
    return bytes.fromhex(text.decode().replace("\\x", "")) if text.startswith(b"\\x") else text


def replay(log: Path, place: Place) -> Iterator[tuple[dict[str, Disk], bytes]]:
    """The files of the store as they come about, call by call, with the history as far as it had been written then."""
    files = {str(place.path): Disk(), f"{place.path}-wal": Disk()}
    history = b""
    with log.open("rb") as lines:
        for line in lines:
            called = _CALL.match(line.rstrip())
            if called is None or int(called["result"]) < 0:
                continue
            path, name = unhex(called["path"]).decode(), called["name"]
            if path == place.log.path and name == b"write":
                written = _WRITE.match(called["rest"])
                assert written is not None
                history += unhex(written["data"])
            elif path in files:
                disk = files[path]
                if name in (b"fdatasync", b"fsync"):
                    disk.sync()
                elif name == b"ftruncate":
                    disk.pending.append((int(called["rest"]), None))
                else:
                    written = _WRITE.match(called["rest"])
                    assert written is not None, line[:200]
                    disk.pending.append((int(written["offset"]), unhex(written["data"])))
            else:
                continue
            yield files, history


def work(line: None, directory: str, durability: str) -> None:
    """Sends and acknowledges, mixed; a fold of the log in the middle."""
    with Place(directory, "worker", sync=False) as place:
        box = place.box(durability=durability)
        for n in range(40):
            send(place.log, box, f"m{n}")
            if n % 3 == 2:
                for message in receive(place.log, box, 2, 600):
                    acknowledge(place.log, message)
            if n == 20:
                import sqlite3

                other = sqlite3.connect(place.path)
                other.execute("PRAGMA wal_checkpoint(RESTART)")
                other.close()


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sends", "strict"])
def test_a_power_cut_at_any_time_keeps_every_send_that_had_returned(
    tmp_path: Path, place: Place, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sends` may forget the latest claims and acknowledges, which means a redelivery; `strict` nothing at all."""
    need_strace()
    trace = tmp_path / "trace"
    ran = strace(
        ["-o", str(trace), "-y", "-xx", "-s", "70000", "-e", "trace=pwrite64,write,ftruncate,fdatasync,fsync"],
        work,
        directory=str(place.directory),
        durability=durability,
    )
    assert ran.returncode == 0, ran.stderr
    # After a power cut the machine boots: an hour later, by when whatever was held has lapsed.
    booted = partial(StoreClock, boot="the next boot", wall=lambda: time.time() + 3600)
    monkeypatch.setattr("postroom.drivers.sqlite_store.StoreClock", booted)
    dice = random.Random(5)
    calls = sum(1 for _ in replay(trace, place))
    assert calls > 200
    cuts, redelivered = 0, 0
    chosen = set(dice.sample(range(calls), 60))
    for number, (files, history) in enumerate(replay(trace, place)):
        if number not in chosen or b'"sent"' not in history:
            continue
        for luck in (None, dice):
            cuts += 1
            after = tmp_path / f"cut-{number}-{luck is None}"
            after.mkdir()
            for path, disk in files.items():
                (after / Path(path).name).write_bytes(disk.after_a_cut(luck))
            (after / "history").write_bytes(history[: history.rfind(b"\n") + 1])
            with Place(after, "after", sync=False) as restored:
                restored.log.note("struck", fault="power cut", unseen_claims=2)
                restored.is_sound()
                box = restored.box()
                restored.drain(box)
                report = prove(restored.log, "power cut", acks_may_be_undone=durability == "sends")
                redelivered += report.redelivered
            shutil.rmtree(after)
    assert cuts > 60
    if durability == "sends":
        assert redelivered > 0, "no acknowledge was ever undone, so nothing shows that these were power cuts"


def test_relaxed_durability_is_declared_weaker(place: Place) -> None:
    from postroom.core.capabilities import WEAKER, YES

    assert place.connect().capabilities.survives_power_loss is YES
    assert postroom.connect(place.url, durability="relaxed").capabilities.survives_power_loss is WEAKER
