"""What the owner of a server should know: how it keeps what it accepted, on disk, in memory and on other servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import ResponseError

from postroom.core.capabilities import Finding
from postroom.drivers.redis_settings import Settings
from postroom.drivers.redis_wire import EVICTING, Wire

_OLDEST = 7  # Redis; Valkey calls itself a Redis 7.2 as well
_NEARLY = 0.8  # of its memory


async def examine(wire: Wire, settings: Settings) -> list[Finding]:
    """Each primary, asked with what any user may ask; a right that we lack leaves a finding out."""
    told = {where: _read(answer) for where, answer in await wire.tell(b"INFO")}
    syncs = dict(await wire.tell(b"CONFIG", b"GET", b"appendfsync"))
    found: list[Finding] = []
    for where, facts in told.items():
        of = f" ({where})" if len(told) > 1 else ""
        found += [
            Finding(finding.level, finding.about, finding.text + of)
            for finding in _of_one(facts, _sync_of(syncs.get(where)), settings)
        ]
    return found


def _of_one(facts: dict[str, str], sync: str | None, settings: Settings) -> Iterator[Finding]:
    if not facts:
        yield Finding("note", "server", "it does not let this user ask (INFO): what it keeps cannot be told")
        return
    yield _version(facts)
    yield _disk(facts, sync)
    yield from _memory(facts)
    yield _replicas(facts, settings)


def _version(facts: dict[str, str]) -> Finding:
    name, version = ("Valkey", facts.get("valkey_version")), facts.get("redis_version", "?")
    text = f"{name[0]} {name[1]}" if name[1] else f"Redis {version}"
    text += f", {facts.get('server_mode') or facts.get('redis_mode', 'standalone')}"
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST:
        return Finding("bad", "server", f"{text}: too old; Redis {_OLDEST} or Valkey 7.2 is needed")
    return Finding("ok", "server", text)


def _disk(facts: dict[str, str], sync: str | None) -> Finding:
    if facts.get("aof_enabled") != "1":
        return Finding(
            "note",
            "disk",
            "appendonly is no: when the server ends, what came after its last snapshot is lost. Set appendonly yes",
        )
    if facts.get("aof_last_write_status", "ok") != "ok":
        return Finding("bad", "disk", "the latest write of the append-only file failed; see the server's log")
    if sync == "always":
        return Finding("ok", "disk", "appendonly yes, appendfsync always: kept over a crash and over a power cut")
    if sync == "no":
        return Finding(
            "note", "disk", "appendfsync is no: a power cut loses what the system had not written, half a minute or so"
        )
    kept = "kept over a crash; a power cut may lose the last second"
    return Finding("ok" if sync else "note", "disk", f"appendonly yes, appendfsync {sync or 'unknown'}: {kept}")


def _memory(facts: dict[str, str]) -> Iterator[Finding]:
    policy, most, used = (
        facts.get("maxmemory_policy", "noeviction"),
        _number(facts, "maxmemory"),
        _number(facts, "used_memory"),
    )
    if policy in EVICTING:
        yield Finding("bad", "memory", f"maxmemory-policy {policy} throws messages away; set noeviction")
    elif most and used > _NEARLY * most:
        text = f"{used // 10**6:,} of {most // 10**6:,} MB are used; when all are, sends are refused"
        yield Finding("note", "memory", text)
    else:
        limit = f"{most // 10**6:,} MB at most, then sends are refused" if most else "no limit is set (maxmemory)"
        yield Finding("ok", "memory", f"maxmemory-policy {policy}; {limit}")


def _replicas(facts: dict[str, str], settings: Settings) -> Finding:
    there = _number(facts, "connected_slaves")
    if settings.replicas > there:
        text = (
            f"{there} connected, and replicas={settings.replicas} asks for more: every send will raise DurabilityError"
        )
        return Finding("bad", "replicas", text)
    if not there:
        return Finding("note", "replicas", "none is connected: what this machine loses is lost")
    hint = "" if settings.replicas else "; a failover may lose the latest sends, unless they wait (replicas=1)"
    return Finding("ok", "replicas", f"{there} connected{hint}")


def _read(answer: Any) -> dict[str, str]:
    if isinstance(answer, ResponseError):
        return {}
    lines = answer.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _sync_of(answer: Any) -> str | None:
    """CONFIG GET answers a map in the newer protocol and a list in the older one."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if not isinstance(answer, list) or not answer:
        return None
    return answer[-1].decode() if isinstance(answer[-1], bytes) else None


def _number(facts: dict[str, str], name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdigit() else 0
