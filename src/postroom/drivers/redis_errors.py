"""redis-py's exceptions and the server's refusals, as ours; and which of them are worth another try.

What the server said is repeated, what we sent is not: it may be a body or, in the handshake, a password.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from textwrap import shorten
from typing import NamedTuple

from redis import exceptions as theirs
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.sentinel import MasterNotFoundError

from postroom.errors import (
    AuthenticationError,
    ConfigurationError,
    MailboxConnectionError,
    MailboxError,
    OperationTimeoutError,
    ServiceUnavailableError,
)

FAILURES = (theirs.RedisError, theirs.RedisClusterException, OSError, EOFError)  # what redis-py raises of itself


class _Meaning(NamedTuple):
    kind: type[MailboxError]
    hint: str
    again: bool = False  # whether the same call may succeed soon


_FAILOVER = _Meaning(ServiceUnavailableError, "the server is a replica now: a failover is under way", True)
_SCRIPT = _Meaning(ServiceUnavailableError, "the server is busy with a script that does not end", True)
_NO_CLUSTER = _Meaning(ConfigurationError, "the server is no cluster's; the scheme for it is redis://")
_UNCOVERED = _Meaning(ServiceUnavailableError, "the cluster does not serve this queue for the moment", True)
_UNKNOWN = _Meaning(
    ConfigurationError, "the server lacks or forbids a command; Redis 7, Valkey 7.2 or newer is needed, with its rights"
)
_BY_CODE = {
    "WRONGPASS": _Meaning(AuthenticationError, "the server refused the user or the password"),
    "NOAUTH": _Meaning(AuthenticationError, "the server asks for a password and none was given; pass password="),
    "NOPERM": _Meaning(AuthenticationError, "the server does not let this user do that; extend its ACL"),
    "DENIED": _Meaning(AuthenticationError, "the server is in protected mode; give it a password"),
    "OOM": _Meaning(ServiceUnavailableError, "the server's memory is full (maxmemory); nothing was stored"),
    "MISCONF": _Meaning(ServiceUnavailableError, "the server cannot write to its disk and takes nothing; see its log"),
    "LOADING": _Meaning(ServiceUnavailableError, "the server is starting and still reads its data", True),
    "BUSY": _SCRIPT,
    "UNKILLABLE": _SCRIPT,
    "READONLY": _FAILOVER,
    "UNBLOCKED": _FAILOVER,
    "MASTERDOWN": _Meaning(ServiceUnavailableError, "the server has lost its primary: a failover is under way", True),
    "NOREPLICAS": _Meaning(
        ServiceUnavailableError, "too few replicas are in touch (min-replicas-to-write); nothing was stored", True
    ),
    "CLUSTERDOWN": _UNCOVERED,
    "TRYAGAIN": _Meaning(ServiceUnavailableError, "the queue is being moved to another node", True),
    "NOSCRIPT": _Meaning(ServiceUnavailableError, "the server forgot our script while we called it", True),
    "NOPROTO": _Meaning(ConfigurationError, "the server does not speak this protocol; leave protocol= out"),
    "WRONGTYPE": _Meaning(
        MailboxError,
        "something else wrote into the queue's keys, which begin with {queue:; remove what is not Postroom's",
    ),
}
# What begins with a plain ERR is told apart by its words.
_BY_WORDS = {
    "max number of clients": _Meaning(
        ServiceUnavailableError, "the server has as many clients as it takes (maxclients)", True
    ),
    "WAIT cannot be used with replica": _FAILOVER,
    "without any password configured": _Meaning(
        AuthenticationError, "the server has no password for that user; leave it out"
    ),
    "no password is set": _Meaning(AuthenticationError, "the server has no password; leave it out"),
    "cluster support disabled": _NO_CLUSTER,
    "Cluster mode is not enabled": _NO_CLUSTER,
    "DB index": _Meaning(ConfigurationError, "the server has no database of that number"),
    "SELECT is not allowed in cluster": _Meaning(ConfigurationError, "a cluster has database 0 alone"),
    "unknown command 'SENTINEL'": _Meaning(ConfigurationError, "a server that is no Sentinel was named as one"),
    "unknown command": _UNKNOWN,
    "command called from script": _UNKNOWN,
    "slots are not covered": _UNCOVERED,
    "not covered by the cluster": _UNCOVERED,
    "could not agree on a valid": _UNCOVERED,
}
# redis-py's functions, in both flavours: for one connection, for a cluster's map, for Sentinel's answer.
_CONNECTING = ("connect_check_health", "initialize", "discover_master")
_REFUSED = (
    theirs.AuthenticationError,
    theirs.AuthorizationError,
    theirs.NoPermissionError,
    theirs.AuthenticationWrongNumberOfArgsError,
)
_BROKEN = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
_NO_PRIMARY = (MasterNotFoundError, AsyncMasterNotFoundError)
_ARGUMENTS = re.compile(r",? with args beginning with.*", re.DOTALL)
_PIPELINED = re.compile(r".* of pipeline caused error: (?:\(['\"])?", re.DOTALL)
_WORD = re.compile(r"[A-Z]{3,20}\Z")


def foreign(error: BaseException) -> bool:
    """Whether the client library or the network raised it, so that `translate` is to say what it means."""
    if isinstance(error, MailboxError):  # some of ours are a TimeoutError too, and that is an OSError
        return False
    return isinstance(error, FAILURES) or (isinstance(error, Exception) and in_handshake(error))


def translate(error: Exception, where: str, queue: str = "", *, cluster: bool = False) -> MailboxError:
    """What it means to us. `where` is the store's address without secrets; raise it `from error`."""
    error = _innermost(error)
    code, said = _said(error)
    kind, hint, again = _meaning(error, code, said, cluster)
    about = f"{queue} at {where}" if queue else where
    # Where somebody else answers, another try is no use, whoever makes it.
    transient = False if kind is MailboxConnectionError and not again else None
    said = f" ({code} {shorten(said, 160, placeholder=' ...')})" if code else ""
    return kind(f"{about}: {hint}{said}", code=code, transient=transient)


def retryable(error: Exception, *, cluster: bool = False) -> bool:
    """Whether the same call may succeed soon. It may also have happened."""
    error = _innermost(error)
    return _meaning(error, *_said(error), cluster).again


def in_handshake(error: BaseException) -> bool:
    """Whether it arose while connecting. Silence is no slow answer there, and what answers may be no Redis at all."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_name in _CONNECTING:
            return True
        step = step.tb_next
    return False


def _innermost(error: Exception) -> Exception:
    """A cluster's client wraps what it met at its last node, and what that node said about its rights."""
    while isinstance(error, theirs.RedisClusterException):
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, Exception) or (isinstance(inner, theirs.ResponseError) and not _code_of(inner)):
            break
        error = inner
    return error


def _code_of(error: Exception) -> str | None:
    return _said(error)[0]


def _said(error: Exception) -> tuple[str | None, str]:
    """The server's own first word, and the rest of what it said or the client library did."""
    text = str(error.args[0]) if error.args else ""
    if clean := _ARGUMENTS.sub("", text) if "with args" in text else "":
        # The server repeats what it did not understand, in the handshake a password: not even the cause may show it.
        error.args, text = (clean, *error.args[1:]), clean
    if "caused error" in text:
        text = _PIPELINED.sub("", text)
    text = " ".join(text.split())
    code = getattr(error, "status_code", None)
    if code is None and isinstance(error, theirs.ResponseError):
        first, _, rest = text.partition(" ")
        if _WORD.match(first):
            return first, rest
    return code, text


def _meaning(error: Exception, code: str | None, said: str, cluster: bool) -> _Meaning:
    if code in _BY_CODE:
        return _BY_CODE[code]
    for words, meaning in _BY_WORDS.items():
        if words in said:
            return meaning
    if isinstance(error, _REFUSED):
        return _BY_CODE["WRONGPASS"]
    if isinstance(error, theirs.AskError):  # MOVED as well
        if cluster:
            return _Meaning(ServiceUnavailableError, "the queue keeps moving between the nodes", True)
        return _Meaning(
            ConfigurationError, "the server is one of a cluster; connect with redis+cluster:// or pass a RedisCluster"
        )
    if isinstance(error, theirs.MaxConnectionsError):
        return _Meaning(ServiceUnavailableError, "all connections are in use; raise max_connections", True)
    if isinstance(error, theirs.ClusterError):
        return _UNCOVERED
    refused = "the server refused our call" if code else f"{type(error).__name__}: {said:.200}"
    return _unreached(error, said) or _Meaning(MailboxError, refused)


def _unreached(error: Exception, said: str) -> _Meaning | None:
    """For what has no word of the server's in it: nobody is there, somebody else, or nobody answers."""
    root = error.__context__ if isinstance(error.__context__, OSError) else error  # redis-py keeps only the text
    connecting = in_handshake(error)
    if isinstance(error, _NO_PRIMARY):
        if "AuthenticationError" in said or "NoPermissionError" in said:
            return _Meaning(
                AuthenticationError, "the Sentinels refused us; see sentinel_username and sentinel_password"
            )
        if " : " in said:  # what became of each
            return _lost("no Sentinel that could be reached knows a primary of that name that is up")
        return _lost("the Sentinels know no primary of that name that is up")
    if isinstance(error, theirs.InvalidResponse) or (connecting and not isinstance(error, FAILURES)):
        return _lost("what answers there does not speak Redis's protocol", again=False)
    if connecting and isinstance(error, theirs.ResponseError):
        return _lost("what answers there is no Redis that we know", again=False)
    if isinstance(root, socket.gaierror):
        return _lost("the host's name leads nowhere (DNS)")
    if isinstance(root, ssl.SSLCertVerificationError):
        reason = getattr(root, "verify_message", None) or said
        return _lost(f"its certificate is not trusted ({reason.rstrip('.')}); see ssl_ca_certs", again=False)
    if isinstance(root, ssl.SSLError) and not isinstance(root, ssl.SSLEOFError):
        reason = getattr(root, "reason", None) or said
        return _lost(f"TLS failed ({reason}); without TLS the scheme is redis://", again=False)
    if isinstance(root, (ConnectionRefusedError, FileNotFoundError)):  # the latter of a unix socket
        return _lost(f"nobody listens there ({os.strerror(root.errno or 0)}); is the server running?")
    if isinstance(error, (theirs.TimeoutError, TimeoutError)):
        if not connecting:
            return _Meaning(OperationTimeoutError, "no answer in time; what was asked may have happened", True)
        return _lost("no answer in time; is it a Redis server, and is the way to it open?")
    if connecting and (isinstance(root, _BROKEN) or "closed" in said.lower()):
        return _lost("the connection was closed at once; is it a Redis server, and does it ask for TLS (rediss://)?")
    if isinstance(error, (theirs.ConnectionError, theirs.RedisClusterException, OSError, EOFError)):
        return _lost(f"the connection failed ({said:.200})")
    return None


def _lost(hint: str, *, again: bool = True) -> _Meaning:
    return _Meaning(MailboxConnectionError, hint, again)
