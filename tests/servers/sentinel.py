"""`Sentinels`: a primary, its replica and three who watch them, so that killing the one makes the other the primary.

    with Sentinels() as watched:
        box = RedisMailbox("orders", url=watched.url)
        watched.fail_over()

A sentinel is the same binary in another mode. As in a cluster, each is told in its file what it would find out itself.
"""

from __future__ import annotations

import secrets
from typing import Self

from tests.servers.processes import PATIENCE, ServerFailedError, server_binary, wait_until
from tests.servers.valkey import HOST, Option, Server

# The first sentinel is the quickest to hold somebody for dead and, with a quorum of one, asks for the others' votes at
# once. Three who are equally quick vote for themselves now and then, and wait twice the failover timeout to try again.
QUORUM = 1
# In ms. As they come, an old primary that is back stays a second one for 11 s, and a busy machine that lets a sentinel
# wait for 2 s makes it trust nobody for 30 (tilt).
TIMING = {
    "info-period": 500,
    "publish-period": 300,
    "ask-period": 200,
    "ping-period": 400,  # five of it is how old the news of a replica may be, and in a failover they come each second
    "tilt-trigger": 10_000,
    "tilt-period": 1_000,
}


class Sentinel(Server):
    """One who watches."""

    def __init__(self) -> None:
        super().__init__()
        self.id = secrets.token_hex(20)

    def command(self) -> list[str]:
        file = self.directory / "sentinel.conf"
        return [server_binary(), str(file), "--sentinel", "--port", str(self.port), "--dir", str(self.directory)]

    def wait_ready(self, *, timeout: float = PATIENCE) -> None:
        super().wait_ready(timeout=timeout)
        for name, value in TIMING.items():  # no setting that its file could have
            self.call("SENTINEL", "DEBUG", name, value)

    def primary_port(self, service: str) -> int:
        """Where it sends clients."""
        _, port = self.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        return int(port)

    def view(self, service: str) -> dict[str, str]:
        return dict(self.call("SENTINEL", "MASTER", service))


class Sentinels:
    """Options are those of the two servers that are watched."""

    def __init__(self, service: str = "postroom", *, down_after: int = 500, **options: Option) -> None:
        """`down_after` in ms: whoever does not answer for so long is held for dead."""
        self.service, self.down_after = service, down_after
        if "requirepass" in options:
            options = {"masterauth": options["requirepass"], **options}
        self.servers = [Server(**options) for _ in range(2)]
        self.sentinels = [Sentinel() for _ in range(3)]

    def __repr__(self) -> str:
        return f"<Sentinels {self.url}>"

    @property
    def url(self) -> str:
        """The password in it is the servers'; the sentinels have none."""
        addresses = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{self.servers[0].login}{addresses}/{self.service}"

    # --- its life

    def start(self) -> Self:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_ready()
        first, second = self.servers
        second.follow(first)
        for sentinel in self.sentinels:
            (sentinel.directory / "sentinel.conf").write_text(self._config(sentinel))
            sentinel.launch()
        for sentinel in self.sentinels:
            port = sentinel.port
            sentinel.wait_ready()
            if sentinel.port != port:  # the others were told the old one
                raise ServerFailedError(f"port {port} was taken while the sentinels started; start others")
        self.wait_ready()
        return self

    def _config(self, of: Sentinel) -> str:
        first, second = self.servers
        patience = self.down_after * (1 + self.sentinels.index(of))
        lines = [
            f"bind {HOST}",
            f"sentinel myid {of.id}",
            f"sentinel monitor {self.service} {HOST} {first.port} {QUORUM}",
            f"sentinel down-after-milliseconds {self.service} {patience}",
            f"sentinel failover-timeout {self.service} 3000",
            f"sentinel known-replica {self.service} {HOST} {second.port}",
        ]
        if first.password:
            lines.append(f'sentinel auth-pass {self.service} "{first.password}"')
        lines += [
            f"sentinel known-sentinel {self.service} {HOST} {other.port} {other.id}"
            for other in self.sentinels
            if other is not of
        ]
        return "\n".join(lines) + "\n"

    def wait_ready(self, *, timeout: float = PATIENCE) -> None:
        """Until the sentinels agree on a primary that lives, and the other server follows it if it lives."""
        wait_until(lambda: not self._troubles(), lambda: f"{self!r}: {self._troubles()}", timeout=timeout, poll=0.02)

    def close(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def empty(self) -> Self:
        self.primary.empty()
        return self

    # --- who is who

    @property
    def primary(self) -> Server:
        """Whom the sentinels name."""
        return self._by_port(self._watching()[0].primary_port(self.service))

    @property
    def replica(self) -> Server:
        """The other one."""
        [other] = [server for server in self.servers if server is not self.primary]
        return other

    def fail_over(self) -> tuple[Server, Server]:
        """Kill the primary and wait until the replica is it, and known to be: (the killed, the new one).

        The killed one comes back by `start()`, at first as a second primary: until a sentinel tells it (`wait_ready`).
        """
        old, new = self.primary, self.replica
        old.kill()
        wait_until(
            lambda: {sentinel.primary_port(self.service) for sentinel in self._watching()} == {new.port},
            f"{new!r} replaces {old!r}",
            poll=0.02,
        )
        self.wait_ready()
        return old, new

    # --- inside

    def _watching(self) -> list[Sentinel]:
        watching = [sentinel for sentinel in self.sentinels if sentinel.is_able]
        if not watching:
            raise ServerFailedError(f"{self!r}: no sentinel lives")
        return watching

    def _by_port(self, port: int) -> Server:
        [server] = [server for server in self.servers if server.port == port]
        return server

    def _troubles(self) -> list[str]:
        views = {sentinel: sentinel.view(self.service) for sentinel in self._watching()}
        ports = {int(view["port"]) for view in views.values()}
        if len(ports) > 1:
            return [f"they do not agree: {ports}"]
        primary = self._by_port(ports.pop())
        troubles = []
        for sentinel, view in views.items():
            if view["flags"] != "master" or view["num-slaves"] != "1":
                troubles.append(f"{sentinel!r} says {view['flags']} with {view['num-slaves']} replicas")
            if view["num-other-sentinels"] != "2":
                troubles.append(f"{sentinel!r} knows {view['num-other-sentinels']} others")
        if not primary.is_able or primary.info("replication")["role"] != "master":
            troubles.append(f"{primary!r} is no primary")
        for server in self.servers:
            if server is not primary and server.is_able:
                info = server.info("replication")
                if info.get("master_port") != str(primary.port) or info["master_link_status"] != "up":
                    troubles.append(f"{server!r} does not follow {primary!r}")
        return troubles
