"""Real processes for the fault tests: born fast, spoken with over a socket, killed without mercy.

A `Nursery` is one small process that has imported everything and forks a child whenever asked, in 2 ms where a new
interpreter takes 200; and it has a single thread, so that its forks are clean. A child is killed when the nursery dies,
and the nursery when the test does: nothing outlives a test run.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import postroom
from postroom.errors import ReceiptHandleExpiredError
from postroom.mailbox import Mailbox, Message
from tests.faults.checker import History

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 20.0  # seconds until whoever does not answer is called hung
SOON = PATIENCE / 4
Box = Mailbox[Any, Any]
Msg = Message[Any, Any]


# --- children ---------------------------------------------------------------------------------------------------


class Line:
    """A child's side of the conversation."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def say(self, word: object) -> None:
        self._sock.send(json.dumps(word).encode())

    def hear(self) -> Any:
        data = self._sock.recv(1 << 16)
        if not data:
            raise SystemExit("nobody is there any more")
        return json.loads(data)

    def ask(self, word: object) -> Any:
        self.say(word)
        return self.hear()


class Child:
    """A process of a test."""

    def __init__(self, nursery: Nursery, pid: int, sock: socket.socket) -> None:
        self._nursery = nursery
        self._sock = sock
        self.pid = pid
        self.status: int | None = None

    def say(self, word: object) -> None:
        self._sock.send(json.dumps(word).encode())

    def hear(self) -> Any:
        """The next word; EOFError when the child is no more."""
        try:
            data = self._sock.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError(f"child {self.pid} has ended")
        word = json.loads(data)
        if isinstance(word, dict) and "traceback" in word:
            raise AssertionError(f"child {self.pid} failed:\n{word['traceback']}")
        return word

    def hear_until(self, wanted: object) -> None:
        while self.hear() != wanted:
            pass

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.wait() != -signal.SIGKILL:
            self.hear_until(EOFError)  # it had failed before: say why

    def has_work_for(self, seconds: float) -> None:
        """It is not hung before that much more than usual."""
        self._sock.settimeout(PATIENCE + seconds)

    def wait(self) -> int:
        """The exit code, as subprocess gives it: a negative number is the signal that ended it."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(self._nursery.request({"wait": self.pid}))
        return self.status

    def finish(self) -> None:
        """Wait for a good end."""
        try:
            while True:
                self.hear()
        except EOFError:
            pass
        assert self.wait() == 0


class Nursery:
    """Where children come from."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock = ours
        ours.settimeout(PATIENCE)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.rig", str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._children: list[Child] = []

    def spawn(self, role: Callable[..., object], **facts: Any) -> Child:
        """Fork a child that runs `role(line, **facts)`; a function of a module, and plain values."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(PATIENCE)
        request = {"role": f"{role.__module__}:{role.__qualname__}", "facts": facts}
        socket.send_fds(self._sock, [json.dumps(request).encode()], [theirs.fileno()])
        theirs.close()
        child = Child(self, json.loads(self._sock.recv(1 << 16)), ours)
        self._children.append(child)
        return child

    def request(self, what: object) -> int:
        self._sock.send(json.dumps(what).encode())
        answer: int = json.loads(self._sock.recv(1 << 16))
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child._sock.close()
            if child.status is None:
                try:
                    child.signal(signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self._sock.close()
        self._process.kill()
        self._process.wait()


def die_with_parent() -> None:
    """Linux only; elsewhere a child notices by the end of its line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def nurse(fd: int) -> None:
    die_with_parent()
    boss = socket.socket(fileno=fd)
    while True:
        data, fds, *_ = socket.recv_fds(boss, 1 << 16, 1)
        if not data:
            return
        request = json.loads(data)
        if "wait" in request:
            boss.send(json.dumps(os.waitpid(request["wait"], 0)[1]).encode())
            continue
        if os.path.exists(os.path.join(request["facts"].get("directory", ""), "url")):
            import postroom.drivers.redis  # noqa: F401  # here, and once: it takes longer than all that a child does
        pid = os.fork()
        if pid == 0:
            boss.close()
            _live(Line(socket.socket(fileno=fds[0])), request["role"], request["facts"])
        os.close(fds[0])
        boss.send(json.dumps(pid).encode())


def _live(line: Line, role: str, facts: dict[str, Any]) -> None:
    die_with_parent()
    code = 1
    try:
        role_of(role)(line, **facts)
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        try:
            line.say({"traceback": traceback.format_exc()[-8000:]})
        except OSError:
            traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def role_of(name: str) -> Callable[..., object]:
    module, _, path = name.partition(":")
    __import__(module)
    role: Callable[..., object] = getattr(sys.modules[module], path)
    return role


# --- under strace -----------------------------------------------------------------------------------------------


def need_strace() -> str:
    """The path of strace, if it may trace here."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("platform: no strace here")
    if subprocess.run([strace, "-qq", "-o", os.devnull, "true"], capture_output=True, check=False).returncode:
        pytest.skip("platform: strace may not trace here")
    return strace


def strace(options: list[str], role: Callable[..., object], **facts: Any) -> subprocess.CompletedProcess[str]:
    """Run a role in a process of its own under strace, to its end. The role gets no line."""
    command = [need_strace(), "-f", "-qq", *options, sys.executable, "-m", "tests.faults.rig"]
    return subprocess.run(
        [*command, f"{role.__module__}:{role.__qualname__}", json.dumps(facts)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


# --- what the roles and the tests share -----------------------------------------------------------------------------


class SharedClock:
    """One time for all processes of a test: it runs, and whoever moves it on moves it for all (the file is mapped)."""

    moved = None

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        if not os.path.exists(self.path):
            Path(self.path).write_bytes(struct.pack("d", 1_750_000_000.0 - time.monotonic()))
        with open(self.path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def now(self) -> float:
        return self._offset() + time.monotonic()

    def advance(self, seconds: float) -> None:
        self._map[:8] = struct.pack("d", self._offset() + seconds)

    def _offset(self) -> float:
        offset: float = struct.unpack("d", self._map[:8])[0]
        return offset

    def patience(self, until: float) -> float | None:
        return max(0.0, until - self.now())


class _NoClock(SharedClock):
    """By the store's own clock nobody moves the time."""

    def __init__(self) -> None:
        pass


class Place:
    """Where a test happens: a store, its history, perhaps a clock. Roles make their own from the same directory."""

    def __init__(
        self,
        directory: Path | str,
        by: str = "test",
        *,
        clock: bool = False,
        sync: bool = True,
        url: str | None = None,
    ) -> None:
        """`url` of a store that is no file of this directory; said once, and all who come here know it."""
        self.directory = Path(directory)
        self.path = self.directory / "mail.db"
        said = self.directory / "url"
        if url is not None:
            said.write_text(url)
        self.url = said.read_text() if said.exists() else f"sqlite:///{self.path}"
        self.log = History(self.directory / "history", by, sync=sync)
        self.clock = SharedClock(self.directory / "clock") if clock else _NoClock()
        self._timed = clock
        self._clients: list[postroom.QueueClient] = []

    def connect(self, **options: Any) -> postroom.QueueClient:
        if self._timed:
            options.setdefault("clock", self.clock)
        client = postroom.connect(self.url, **options)
        self._clients.append(client)
        return client

    def box(self, name: str = "box", **options: Any) -> Box:
        return self.connect(**options).mailbox(name)

    def drain(self, box: Box, *, lapse: float = 0.0, batch: int = 100) -> None:
        """Receive and acknowledge all there is, and note what is left and what is dead: the end of a history."""
        if lapse:
            self.clock.advance(lapse)
        while messages := receive(self.log, box, batch, 1000):
            for message in messages:
                acknowledge(self.log, message)
        for which, event in ((box, "left"), (box.dead_letters, "dead")):
            after = 0
            while seen := which.peek(1000, after=after):
                after = seen[-1].sequence_number
                for peeked in seen:
                    self.log.note(event, key=name_of(peeked), seq=peeked.sequence_number, state=peeked.state)

    def is_sound(self) -> None:
        """The store finds no damage, and what the queues count is what is in them."""
        if not self.url.startswith("sqlite:"):
            from tests.faults.redis_rig import is_sound

            is_sound(self.url)
            return
        connection = sqlite3.connect(self.path)
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            counted = connection.execute(
                "SELECT queue, live FROM postroom_tally WHERE queue IN (SELECT id FROM postroom_queue) AND live <> "
                "(SELECT count(*) FROM postroom_message m WHERE m.queue = postroom_tally.queue)"
            ).fetchall()
            assert counted == [], f"queues that count wrongly: {counted}"
        finally:
            connection.close()

    def is_unlocked(self) -> None:
        """Nobody holds on to the database: a stranger may write, if need be after the moment that a fold takes."""
        if not self.url.startswith("sqlite:"):
            return  # nobody can: there every step is one call
        connection = sqlite3.connect(self.path, timeout=SOON, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        self.log.close()


def send(log: History, box: Box, key: str, **options: Any) -> None:
    """Send under a name, with a note before and after."""
    log.note("sending", key=key)
    box.send(key, id=key, **options)
    log.note("sent", key=key)


def send_many(log: History, box: Box, keys: list[str]) -> None:
    """One batch. Every message must have its name, and send_many gives one id to all: so the body is the name."""
    for key in keys:
        log.note("sending", key=key)
    for key, result in zip(keys, box.send_many(keys), strict=True):
        log.note("sent" if result.ok else "refused", key=key)


def name_of(message: Any) -> str:
    """What a message is called in the history: its body, which is the same whether it was sent alone or in a batch."""
    return message.body if isinstance(message.body, str) else message.id


def note_received(log: History, message: Any) -> None:
    log.note(
        "received",
        key=name_of(message),
        seq=message.sequence_number,
        token=message.lease.token,
        count=message.delivery_count,
        at=message.received_at.timestamp(),
        until=message.lease_expires_at.timestamp(),
        session=message.session_id,
    )


def receive(log: History, box: Any, n: int, lease: float | None, wait: float = 0) -> list[Msg]:
    messages = list(box.receive(max_messages=n, visibility_timeout=lease, wait_time_seconds=wait))
    for message in messages:
        note_received(log, message)
    return messages


def acknowledge(log: History, message: Msg) -> bool:
    return settle(log, message, "acking", "acked", message.acknowledge)


def nack(log: History, message: Msg, delay: float = 0.0) -> bool:
    return settle(log, message, "nacking", "nacked", lambda: message.nack(visibility_timeout=delay))


def settle(log: History, message: Msg, before: str, after: str, act: Callable[[], object]) -> bool:
    """With a note before and after; whether the lease still was ours."""
    facts = {"key": name_of(message), "token": message.lease.token}
    log.note(before, **facts)
    try:
        act()
    except ReceiptHandleExpiredError:
        log.note("stale", **facts)
        return False
    log.note(after, **facts)
    return True


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """For what no event tells us of, such as another process that has gone to sleep."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.001)


def forever() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        from tests.faults import rig  # the children import this module by its name, not as __main__

        rig.nurse(int(sys.argv[1]))
    else:
        from tests.faults.rig import role_of as find

        find(sys.argv[1])(None, **json.loads(sys.argv[2]))
