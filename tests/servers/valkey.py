"""`Server`: a real valkey-server of its own, which a test may kill, pause and start again.

    with Server(appendonly=True, appendfsync="always") as server:
        client = redis.Redis.from_url(server.url)
        server.kill()
        server.start()  # same port, same data

It is up in 50 ms, and needs no client library to start: `call` and `client` do.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from tests.servers.processes import (
    PATIENCE,
    Port,
    ServerFailedError,
    end,
    new_directory,
    server_binary,
    spawn,
    wait_until,
)

if TYPE_CHECKING:
    import redis

    from tests.servers.proxy import Proxy

HOST = "127.0.0.1"
ATTEMPTS = 5  # at a port that nobody else took in the moment between our look and the server's

Option = str | int | bool  # bool is yes or no

# Nothing on disk unless asked, and nothing that only pays in a server that lives long.
DEFAULTS: dict[str, Option] = {
    "bind": HOST,
    "daemonize": False,
    "save": "",
    "appendonly": False,
    "databases": 64,
    "enable_debug_command": "local",
    "repl_diskless_sync_delay": 0,
}

_open: set[Server] = set()


class Server:
    """A standalone server on 127.0.0.1. Options are those of its configuration, with underscores for dashes.

    Made stopped: `with`, or `start`. Whoever does not use `with` calls `close`; what nobody closed is closed when the
    process ends.
    """

    scheme = "redis"

    def __init__(self, **options: Option) -> None:
        self.options = DEFAULTS | options
        self.directory = new_directory("valkey")
        self._log = self.directory / "log"
        self._port = Port()
        self._process: subprocess.Popen[bytes] | None = None
        self._was_up = False
        self.is_paused = False
        self._owner = os.getpid()
        _open.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} {'up' if self.is_up else 'down'}>"

    # --- what it is

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def password(self) -> str | None:
        password = self.options.get("requirepass")
        return None if password is None else str(password)

    @property
    def login(self) -> str:
        """The part of a URL before the address."""
        return f":{quote(self.password, safe='')}@" if self.password else ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.login}{self.address}"

    @property
    def pid(self) -> int:
        if not self.is_up:
            raise ServerFailedError(f"{self!r} has no process")
        assert self._process is not None
        return self._process.pid

    @property
    def is_up(self) -> bool:
        """There is a process; it may be paused, or loading still."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_able(self) -> bool:
        """To be asked: it neither lies dead nor is paused."""
        return self.is_up and not self.is_paused

    @property
    def log(self) -> str:
        """What it printed, in all its lives."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    # --- its life

    def start(self) -> Self:
        """Until it answers. Again after `kill` or `stop`: on the same port, with the data that is on disk."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Without waiting: several servers start faster side by side."""
        if self.is_up:
            raise ServerFailedError(f"{self!r} is running already")
        self._process = spawn(self.command(), log=self._log)

    def wait_ready(self, *, timeout: float = PATIENCE) -> None:
        """Until PING is answered, which is after it has loaded its data."""
        for attempt in range(1, ATTEMPTS + 1):
            wait_until(lambda: not self.is_up or self.answers(), lambda: f"PONG; {self._story()}", timeout=timeout)
            if self.is_up:
                self._was_up = True
                return
            if attempt == ATTEMPTS or not self._lost_its_port():
                raise ServerFailedError(f"{self!r} ended at once; {self._story()}")
            if not self._was_up:  # else somebody knows the port by now, and it becomes free again or never
                self._port.release()
                self._port = Port()
            self._log.unlink()
            self.launch()

    def kill(self) -> None:
        """SIGKILL: what it did not write is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it writes what it is configured to write."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: the system still accepts connections for it and takes requests in, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def close(self) -> None:
        """Kill it if it runs, remove its data and give its port back."""
        if os.getpid() == self._owner:  # a forked child of a test does not end its parent's servers
            if self.is_up:
                self.kill()
            shutil.rmtree(self.directory, ignore_errors=True)
        self._port.release()
        _open.discard(self)

    def __enter__(self) -> Self:
        try:
            return self if self.is_up else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- talking to it

    def client(self, **options: Any) -> redis.Redis:
        """A new client of redis-py, for whoever closes it."""
        library = redis_py()
        made: redis.Redis = library.Redis(host=HOST, port=self.port, password=self.password, **options)
        return made

    def call(self, *words: str | int | bytes) -> Any:
        """One command on a connection of its own, in the words of the protocol: `call("CONFIG", "GET", "save")`.

        The answer is as the protocol (RESP3) has it, texts as str: no client makes True of an OK or tries twice.
        """
        connection = redis_py().Connection(
            host=HOST,
            port=self.port,
            password=self.password,
            protocol=3,
            decode_responses=True,
            encoding_errors="surrogateescape",  # keys that are no text make the way back
            driver_info=None,
            socket_timeout=PATIENCE,
        )
        try:
            connection.connect()
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()

    def empty(self) -> Self:
        """Every database of it."""
        self.call("FLUSHALL", "SYNC")
        return self

    def follow(self, primary: Server | Proxy) -> Self:
        """Become a replica of this server, perhaps through a proxy that can make us lag, and wait for its data."""
        if primary.password:
            self.call("CONFIG", "SET", "masterauth", primary.password)
        self.call("REPLICAOF", HOST, primary.port)
        wait_until(lambda: self.info("replication")["master_link_status"] == "up", f"{self!r} follows {primary!r}")
        return self

    def info(self, section: str = "default") -> dict[str, str]:
        return dict(line.split(":", 1) for line in self.call("INFO", section).splitlines() if ":" in line)

    # --- for servers of other kinds

    def command(self) -> list[str]:
        arguments = [server_binary(), "--port", str(self.port), "--dir", str(self.directory)]
        for name, value in self.options.items():
            arguments.append("--" + name.replace("_", "-"))
            arguments.append(("yes" if value else "no") if isinstance(value, bool) else str(value))
        return arguments

    def answers(self) -> bool:
        """Whether it says anything to PING but that it is loading. To be asked for a password is an answer."""
        try:
            with socket.create_connection((HOST, self.port), timeout=0.3) as sock:
                sock.sendall(b"PING\r\n")
                answer = sock.recv(64)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def _end(self, number: int) -> None:
        assert self.pid
        assert self._process
        end(self._process, number)
        self.is_paused = False

    def _lost_its_port(self) -> bool:
        return "Address already in use" in self.log or "Failed listening" in self.log

    def _story(self) -> str:
        return "it says:\n" + "\n".join(self.log.splitlines()[-15:])


def redis_py() -> Any:
    """Imported on first use: pytest loads our fixtures in every run, most of which have no need of it."""
    import redis

    return redis


@atexit.register
def close_all() -> None:
    """What is still open in this process; `Server.close` one by one is better manners."""
    for server in list(_open):
        server.close()
