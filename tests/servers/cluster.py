"""`Cluster`: three primaries with a replica each, whose primaries can be killed and whose slots can be moved.

    with Cluster() as cluster:
        box = RedisMailbox("orders", url=cluster.url)
        cluster.fail_over("{queue:default/orders}")

The nodes are told about each other by the file they would have written themselves (nodes.conf), so that nobody has to
meet and nothing is tried until it works; the two seconds a start takes are a constant in the server (a primary serves
no earlier, lest it be an old one).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, cast

from tests.servers.processes import PATIENCE, Port, ServerFailedError, wait_until
from tests.servers.valkey import HOST, Option, Server

SLOTS = 16384
Step = Literal["marked", "half", "moved", "done"]


class Node(Server):
    """A member of a cluster."""

    scheme = "redis+cluster"

    def __init__(self, **options: Option) -> None:
        self._bus = Port()
        self.id = secrets.token_hex(20)
        super().__init__(
            cluster_enabled=True, cluster_config_file="nodes.conf", cluster_port=self._bus.number, **options
        )

    def close(self) -> None:
        super().close()
        self._bus.release()

    def state(self) -> dict[str, str]:
        """CLUSTER INFO and INFO REPLICATION."""
        text = self.call("CLUSTER", "INFO")
        return dict(line.split(":", 1) for line in text.splitlines()) | self.info("replication")

    def view(self) -> list[list[str]]:
        """CLUSTER NODES in words: id, address, flags, primary, ping, pong, epoch, link, slots..."""
        return [line.split() for line in self.call("CLUSTER", "NODES").splitlines()]

    def served(self) -> list[tuple[Any, ...]]:
        """CLUSTER SLOTS: first slot, last slot, the id of the primary, those of its replicas."""
        return [(first, last, *(node[2] for node in nodes)) for first, last, *nodes in self.call("CLUSTER", "SLOTS")]

    def me(self) -> list[str]:
        [line] = [line for line in self.view() if "myself" in line[2]]
        return line

    def owns(self, slot: int) -> bool:
        """It believes that it is the primary of this slot."""
        line = self.me()
        return "master" in line[2] and any(_covers(text, slot) for text in line[8:])


class Cluster:
    """Three primaries, `nodes[:3]`, and their replicas in the same order. Options are those of the servers."""

    def __init__(self, *, node_timeout: int = 1000, **options: Option) -> None:
        """`node_timeout` in ms: a dead primary is replaced after about one and a half of it."""
        self.node_timeout = node_timeout
        self.nodes = [
            Node(
                cluster_node_timeout=node_timeout,
                cluster_replica_validity_factor=0,
                cluster_allow_replica_migration=False,
                repl_ping_replica_period=1,
                **options,
            )
            for _ in range(6)
        ]

    def __repr__(self) -> str:
        return f"<Cluster {self.url}>"

    @property
    def url(self) -> str:
        """Of the three that were the primaries at first."""
        return f"{Node.scheme}://{self.nodes[0].login}{','.join(node.address for node in self.nodes[:3])}"

    # --- its life

    def start(self) -> Self:
        for node in self.nodes:
            (node.directory / "nodes.conf").write_text(self._config(node))
            node.launch()
        for node in self.nodes:
            port = node.port
            node.wait_ready()
            if node.port != port:  # the others were told the old one
                raise ServerFailedError(f"port {port} was taken while the cluster started; start another")
        self.wait_ready()
        return self

    def _config(self, of: Node) -> str:
        lines = []
        for index, node in enumerate(self.nodes):
            shard = index % 3
            slots = f" {_first(shard)}-{_first(shard + 1) - 1}" if index < 3 else ""
            role = "master -" if index < 3 else f"slave {self.nodes[shard].id}"
            myself = "myself," if node is of else ""
            address = f"{HOST}:{node.port}@{node._bus.number}"
            lines.append(f"{node.id} {address} {myself}{role} 0 0 {shard + 1} connected{slots}\n")
        return "".join(lines) + "vars currentEpoch 3 lastVoteEpoch 0\n"

    def wait_ready(self, *, timeout: float = PATIENCE) -> None:
        """Until those who are alive serve every slot, agree on who is who, and the replicas follow."""
        wait_until(lambda: not self._troubles(), lambda: f"{self!r}: {self._troubles()}", timeout=timeout, poll=0.02)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def empty(self) -> Self:
        """Every primary of it."""
        for node in self.primaries():
            node.call("FLUSHALL", "SYNC")
        return self

    def configure(self, **options: Option) -> None:
        """CONFIG SET on every node that can be asked."""
        for node in self._able():
            for name, value in options.items():
                node.call("CONFIG", "SET", name.replace("_", "-"), str(value))

    # --- who is who

    def slot_of(self, key: str | bytes) -> int:
        from redis.crc import key_slot

        return key_slot(key.encode() if isinstance(key, str) else key)

    def primaries(self) -> list[Node]:
        return [node for node in self._able() if "master" in (line := node.me())[2] and line[8:]]

    def primary_of(self, key: str | bytes | int) -> Node:
        """The one that serves this key, or this slot, as it says itself: the newest when two say so."""
        slot = key if isinstance(key, int) else self.slot_of(key)
        owners = [node for node in self._able() if node.owns(slot)]
        if not owners:
            raise ServerFailedError(f"{self!r}: nobody serves slot {slot}")
        return max(owners, key=lambda node: int(node.me()[6]))

    def replica_of(self, key: str | bytes | int | Server) -> Node:
        """A living replica of this node, or of whoever serves this key or slot."""
        primary = key if isinstance(key, Server) else self.primary_of(key)
        for node in self._able():
            if node.me()[3] == cast(Node, primary).id:
                return node
        raise ServerFailedError(f"{primary!r} has no replica that lives")

    def fail_over(self, key: str | bytes | int) -> tuple[Node, Node]:
        """Kill who serves this key and wait until its replica does: (the killed, the new one).

        The killed one comes back as a replica by `start()` and `wait_ready()`.
        """
        old = self.primary_of(key)
        new = self.replica_of(old)
        old.kill()
        slot = key if isinstance(key, int) else self.slot_of(key)
        wait_until(lambda: new.owns(slot), f"{new!r} takes over slot {slot} from {old!r}", poll=0.02)
        self.wait_ready()
        return old, new

    # --- moving slots

    def move(self, slot: int, to: Server) -> Move:
        """The migration of a slot, step by step."""
        return Move(self, slot, cast(Node, to))

    def move_slot(self, slot: int, to: Server, between: Callable[[Step], object] = lambda step: None) -> int:
        """Migrate a slot with what is in it, and say how many keys that were.

        `between` is called when the slot is marked as moving, when half of its keys are away (a script that needs
        keys from both halves is told TRYAGAIN, one whose keys are all away ASK), when all are, and when all nodes know.
        """
        move = self.move(slot, to)
        move.begin()
        between("marked")
        moved = move.keys((len(move.left()) + 1) // 2)
        between("half")
        moved += move.keys()
        between("moved")
        move.finish()
        between("done")
        return moved

    # --- inside

    def _able(self) -> list[Node]:
        return [node for node in self.nodes if node.is_able]

    def _troubles(self) -> list[str]:
        able = self._able()
        troubles, maps, following = [], {}, set()
        for node in able:
            state = node.state()
            if state["cluster_state"] != "ok" or state["cluster_slots_ok"] != str(SLOTS):
                troubles.append(f"{node!r} says {state['cluster_state']} with {state['cluster_slots_ok']} slots")
            if state["role"] == "slave":
                following.add((node.me()[3], node.id))
                if state["master_link_status"] != "up":
                    troubles.append(f"{node!r} is a replica without a primary")
            maps[node] = sorted(node.served())
        # What clients are told. A replica is kept from them by each node that has not yet heard how far it is.
        alive = {node.id for node in able}
        for node, ranges in maps.items():
            if [found[:3] for found in ranges] != [found[:3] for found in maps[able[0]]]:
                troubles.append(f"{node!r} and {able[0]!r} do not agree: {maps}")
            told = {(primary, replica) for _, _, primary, *replicas in ranges for replica in replicas}
            if {(primary, replica) for primary, replica in told if replica in alive} != following:
                troubles.append(f"{node!r} does not tell who the replicas are")
        return troubles


class Move:
    """A slot on its way: `begin`, `keys` as often as you like, `finish`. Traffic may run all the time."""

    def __init__(self, cluster: Cluster, slot: int, to: Node) -> None:
        self.cluster, self.slot, self.to = cluster, slot, to
        self.source = cluster.primary_of(slot)

    def begin(self) -> None:
        """From now on the source says ASK for what it does not have, and the target serves those who were ASKed."""
        self.to.call("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.call("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.to.id)

    def left(self) -> list[str]:
        """Keys that are still at the source."""
        return list(self.source.call("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000_000))

    def keys(self, count: int | None = None, *, only: Iterable[str] | None = None) -> int:
        """Take this many keys over, or these, or all that are left; how many went."""
        moved = 0
        while keys := list(only if only is not None else self.left())[: None if count is None else count - moved]:
            login: list[Any] = ["AUTH", self.to.password] if self.to.password else []
            self.source.call("MIGRATE", HOST, self.to.port, "", 0, 5000, *login, "KEYS", *keys)
            moved += len(keys)
            if only is not None:
                break
        return moved

    def finish(self) -> None:
        """The slot is the target's, and every primary knows: MOVED."""
        for node in sorted(self.cluster.primaries(), key=lambda node: (node is not self.to, node is not self.source)):
            node.call("CLUSTER", "SETSLOT", self.slot, "NODE", self.to.id)
        self.cluster.wait_ready()

    def cancel(self) -> None:
        """Back to where it was. Keys that went are not fetched back: only for a move that took none."""
        for node in (self.source, self.to):
            node.call("CLUSTER", "SETSLOT", self.slot, "STABLE")


def _first(shard: int) -> int:
    return -(-SLOTS * shard // 3)


def _covers(text: str, slot: int) -> bool:
    """A word of CLUSTER NODES: 7, 0-5460, or [7->-id] for a slot on its way."""
    if text.startswith("["):
        return False
    first, _, last = text.partition("-")
    return int(first) <= slot <= int(last or first)
