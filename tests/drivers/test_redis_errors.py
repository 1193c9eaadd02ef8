"""What goes wrong with a Redis, said in our errors: the server's words, and the network's. Never with a password."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import exceptions as theirs
from redis._parsers.base import BaseParser
from redis.sentinel import MasterNotFoundError

import postroom
from postroom import aio
from postroom.core.address import parse_url
from postroom.drivers.redis_clients import open_client
from postroom.drivers.redis_errors import foreign, retryable, translate
from postroom.drivers.redis_settings import Settings
from postroom.errors import (
    AuthenticationError,
    ConfigurationError,
    MailboxConnectionError,
    MailboxError,
    OperationTimeoutError,
    ServiceUnavailableError,
)
from tests.servers.tls import TlsProxy

pytestmark = pytest.mark.slow  # sockets, and servers of all kinds

WHERE = "redis://shop:6379"


def answer(line: str) -> Exception:
    """What redis-py makes of a server's refusal."""
    return BaseParser.parse_error(line)


# --- the server's words


@pytest.mark.parametrize(
    ("line", "kind", "again"),
    [
        ("WRONGPASS invalid username-password pair or user is disabled.", AuthenticationError, False),
        ("NOAUTH Authentication required.", AuthenticationError, False),
        ("NOPERM this user has no permissions to run the 'evalsha' command", AuthenticationError, False),
        ("DENIED Redis is running in protected mode because ...", AuthenticationError, False),
        ("ERR Client sent AUTH, but no password is set", AuthenticationError, False),
        ("ERR invalid password", AuthenticationError, False),
        ("ERR wrong number of arguments for 'auth' command", AuthenticationError, False),
        ("ERR AUTH <password> called without any password configured ...", AuthenticationError, False),
        ("OOM command not allowed when used memory > 'maxmemory'.", ServiceUnavailableError, False),
        ("MISCONF Errors writing to the AOF file: No space left on device", ServiceUnavailableError, False),
        ("LOADING Redis is loading the dataset in memory", ServiceUnavailableError, True),
        ("BUSY Redis is busy running a script.", ServiceUnavailableError, True),
        ("READONLY You can't write against a read only replica.", ServiceUnavailableError, True),
        ("UNBLOCKED force unblock from blocking operation", ServiceUnavailableError, True),
        ("MASTERDOWN Link with MASTER is down", ServiceUnavailableError, True),
        ("NOREPLICAS Not enough good replicas to write.", ServiceUnavailableError, True),
        ("CLUSTERDOWN Hash slot not served", ServiceUnavailableError, True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ServiceUnavailableError, True),
        ("NOSCRIPT No matching script.", ServiceUnavailableError, True),
        ("ERR max number of clients reached", ServiceUnavailableError, True),
        ("ERR WAIT cannot be used with replica instances.", ServiceUnavailableError, True),
        ("ERR DB index is out of range", ConfigurationError, False),
        ("ERR SELECT is not allowed in cluster mode", ConfigurationError, False),
        ("ERR This instance has cluster support disabled", ConfigurationError, False),
        ("ERR unknown command 'EVALSHA'", ConfigurationError, False),
        ("ERR Unknown Redis command called from script script: f_1, on @user_script:1.", ConfigurationError, False),
        ("NOPROTO unsupported protocol version", ConfigurationError, False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", MailboxError, False),
        ("CROSSSLOT Keys in request don't hash to the same slot", MailboxError, False),
        ("ERR user_script:5: boom script: f_1, on @user_script:5.", MailboxError, False),
        ("SOMETHING new", MailboxError, False),
    ],
)
def test_a_refusal_is_one_of_our_errors_with_the_servers_own_word_as_its_code(line, kind, again):
    error = answer(line)
    ours = translate(error, WHERE, "orders")
    assert type(ours) is kind
    assert ours.code == line.split()[0]
    assert str(ours).startswith("orders at redis://shop:6379: ")
    assert retryable(error) is again
    assert ours.transient is kind.default_transient


def test_a_wrong_type_names_the_queue_and_where_to_look():
    said = str(translate(answer("WRONGTYPE Operation against a key"), WHERE, "orders"))
    assert said.startswith("orders at ")
    assert "something else wrote into the queue's keys, which begin with {queue:" in said


@pytest.mark.parametrize("line", ["MOVED 3999 10.0.0.1:6381", "ASK 3999 10.0.0.1:6381"])
def test_a_node_of_a_cluster_says_so_to_a_client_that_expects_a_server(line):
    error = answer(line)
    ours = translate(error, WHERE)
    assert isinstance(ours, ConfigurationError)
    assert "redis+cluster://" in str(ours)
    assert not retryable(error)
    assert isinstance(translate(error, WHERE, cluster=True), ServiceUnavailableError)
    assert retryable(error, cluster=True)


def test_what_we_sent_is_not_repeated_not_even_by_the_cause():
    error = answer("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 's3cret' ")
    ours = translate(error, WHERE)
    assert "s3cret" not in f"{ours}{error}{error!r}{error.args}"
    assert "HELLO" in str(ours)


@pytest.mark.parametrize("text", ["{}", "('{}',)"])  # the sync client's way, and the async one's
def test_what_a_pipeline_says_about_its_command_is_not_repeated(text):
    error = answer("WRONGTYPE Operation against a key")
    error.args = (f"Command # 1 (EVALSHA a 1 k s3cret) of pipeline caused error: {text.format(error.args[0])}",)
    ours = translate(error, WHERE)
    assert ours.code == "WRONGTYPE"
    assert "s3cret" not in str(ours)


def test_a_long_answer_is_shortened_to_a_line():
    said = str(translate(answer("ERR " + "words\nand more " * 500), WHERE))
    assert len(said) < 400
    assert "\n" not in said


# --- what redis-py raises by itself


@pytest.mark.parametrize(
    ("error", "kind", "again"),
    [
        (theirs.TimeoutError("Timeout reading from socket"), OperationTimeoutError, True),
        (TimeoutError("timed out"), OperationTimeoutError, True),
        (theirs.ConnectionError("Connection closed by server."), MailboxConnectionError, True),
        (ConnectionResetError(104, "Connection reset by peer"), MailboxConnectionError, True),
        (BrokenPipeError(32, "Broken pipe"), MailboxConnectionError, True),
        (ConnectionRefusedError(111, "Connection refused"), MailboxConnectionError, True),
        (socket.gaierror(-2, "Name or service not known"), MailboxConnectionError, True),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), MailboxConnectionError, False),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), MailboxConnectionError, False),
        (asyncio.IncompleteReadError(b"", 3), MailboxConnectionError, True),
        (theirs.InvalidResponse("Protocol error, got 'H'"), MailboxConnectionError, False),
        (theirs.MaxConnectionsError("Too many connections"), ServiceUnavailableError, True),
        (theirs.SlotNotCoveredError('Slot "1" is not covered by the cluster.'), ServiceUnavailableError, True),
        (theirs.ClusterError("TTL exhausted."), ServiceUnavailableError, True),
        (theirs.RedisClusterException("All slots are not covered after query"), ServiceUnavailableError, True),
        (theirs.RedisClusterException("Cluster mode is not enabled on this node"), ConfigurationError, False),
        (theirs.AuthenticationError("Invalid Username or Password"), AuthenticationError, False),
        (theirs.AuthorizationError("no"), AuthenticationError, False),
        (MasterNotFoundError("No master found for 'main'"), MailboxConnectionError, True),
        (MasterNotFoundError("No master found for 'main' : a - auth:AuthenticationError"), AuthenticationError, False),
        (theirs.DataError("Invalid input of type: 'list'"), MailboxError, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_client_librarys_exceptions_are_ours(error, kind, again):
    ours = translate(error, WHERE, "orders")
    assert type(ours) is kind
    assert WHERE in str(ours)
    assert ours.code is None
    assert foreign(error)
    assert retryable(error) is again
    assert ours.transient is (again if kind is MailboxConnectionError else kind.default_transient)


def test_a_timeout_says_that_it_may_have_happened():
    assert "may have happened" in str(translate(theirs.TimeoutError("Timeout reading from socket"), WHERE))


def test_our_own_errors_and_our_own_bugs_are_nobody_elses():
    for error in (OperationTimeoutError("late"), MailboxError("x"), KeyError("bug"), AttributeError("bug")):
        assert not foreign(error)


# --- real sockets


def answering(listener: socket.socket, what: bytes | None) -> None:
    """Say this to whoever comes, and nothing more; None: hang up."""
    held = []
    with contextlib.suppress(OSError):
        while True:
            peer, _ = listener.accept()
            if what is None:
                peer.close()
                continue
            held.append(peer)
            peer.sendall(what)
    for peer in held:
        peer.close()


@pytest.fixture
def port_that_says() -> Iterator[Callable[[bytes | None], int]]:
    with contextlib.ExitStack() as stack:

        def start(what: bytes | None) -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            thread = threading.Thread(target=answering, args=(listener, what))
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return int(listener.getsockname()[1])

        yield start


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def failure(url: str, flavour: str, *, timeout: float = 2, **options: Any) -> MailboxError:
    """What a user sees who sends to a store at this URL."""
    with pytest.raises(MailboxError) as raised:
        if flavour == "sync":
            with postroom.connect(url, timeout=timeout, **options) as client:
                client.mailbox("orders").send(1)
        else:

            async def send() -> None:
                async with aio.connect(url, timeout=timeout, **options) as client:
                    await client.mailbox("orders").send(1)

            asyncio.run(send())
    shown, error = "", raised.value
    seen: BaseException | None = error
    while seen is not None:
        shown, seen = shown + f"{seen}{seen!r}", seen.__cause__ or seen.__context__
    assert "s3cret" not in shown
    return error


def succeeds(url: str, flavour: str, **options: Any) -> bool:
    """Whether a message goes there and back."""
    if flavour == "sync":
        with postroom.connect(url, **options) as client:
            client.mailbox("orders").send(1)
            return client.mailbox("orders").receive()[0].body == 1

    async def send() -> bool:
        async with aio.connect(url, **options) as client:
            await client.mailbox("orders").send(1)
            return (await client.mailbox("orders").receive())[0].body == 1

    return asyncio.run(send())


FLAVOURS = pytest.mark.parametrize("flavour", ["sync", "async"])
SCHEMES = pytest.mark.parametrize(
    ("scheme", "rest"), [("redis", ""), ("redis+cluster", ""), ("redis+sentinel", "/main"), ("rediss", "")]
)


@FLAVOURS
@SCHEMES
def test_a_port_where_nobody_listens(flavour, scheme, rest):
    port = closed_port()
    error = failure(f"{scheme}://app:s3cret@127.0.0.1:{port}{rest}", flavour, timeout=0.1)
    assert type(error) is MailboxConnectionError
    assert error.transient
    assert f"{scheme}://127.0.0.1:{port}" in str(error)
    assert ("no Sentinel" if rest else "nobody listens there") in str(error)


@FLAVOURS
@SCHEMES
def test_a_host_that_does_not_exist(flavour, scheme, rest, monkeypatch):
    def unknown(*_: object, **__: object) -> None:  # as the resolver says, which takes seconds on some machines
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = failure(f"{scheme}://app:s3cret@no-such-host.invalid{rest}", flavour, timeout=0.1)
    assert type(error) is MailboxConnectionError
    assert "no-such-host.invalid" in str(error)
    assert ("no Sentinel" if rest else "DNS") in str(error)


@FLAVOURS
@SCHEMES
@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"+OK POP3 ready\r\n",
        b"-ERR whatever\r\n",
        b"",
        None,
    ],
    ids=["http", "ssh", "pop3", "error", "nothing", "hangs-up"],
)
def test_a_port_where_something_else_answers(flavour, scheme, rest, says, port_that_says):
    port = port_that_says(says)
    error = failure(f"{scheme}://app:s3cret@127.0.0.1:{port}{rest}", flavour, timeout=0.1)
    assert type(error) is MailboxConnectionError
    assert f"127.0.0.1:{port}" in str(error)


@FLAVOURS
def test_a_unix_socket_that_is_not_there(flavour, tmp_path):
    error = failure(f"redis+unix://{tmp_path}/redis.sock", flavour, timeout=0.1)
    assert type(error) is MailboxConnectionError
    assert "nobody listens there (No such file or directory)" in str(error)


# --- real servers


@FLAVOURS
def test_a_wrong_password_and_none_at_all(flavour, new_valkey):
    server = new_valkey(requirepass="s3cret/@:#")
    for url, code, says in (
        (f"redis://:wrong-s3cret@{server.address}", "WRONGPASS", "refused the user or the password"),
        (f"redis://nobody:s3cret@{server.address}", "WRONGPASS", "refused the user or the password"),
        (f"redis://:s3cret@{server.address}?protocol=2", "WRONGPASS", "refused the user or the password"),
        (f"redis://{server.address}", "NOAUTH", "password="),
    ):
        error = failure(url, flavour)
        assert (type(error), error.code, error.transient) == (AuthenticationError, code, False)
        assert server.address in str(error)
        assert says in str(error)
    with postroom.connect(f"redis://{server.address}", password="s3cret/@:#") as client:
        client.mailbox("orders").send(1)
    with postroom.connect(server.url) as client:
        assert client.mailbox("orders").approximate_count() == 1


@FLAVOURS
def test_a_user_who_may_not(flavour, new_valkey):
    server = new_valkey()
    server.call("ACL", "SETUSER", "reader", "on", ">s3cret", "~*", "+@read", "+@connection")
    error = failure(f"redis://reader:s3cret@{server.address}", flavour)
    assert (type(error), error.code) == (AuthenticationError, "NOPERM")


@FLAVOURS
def test_a_server_that_is_no_cluster_and_one_that_is_no_sentinel(flavour, valkey):
    error = failure(f"redis+cluster://{valkey.address}", flavour)
    assert type(error) is ConfigurationError
    assert "the server is no cluster's" in str(error)
    error = failure(f"redis+sentinel://{valkey.address}/main", flavour)
    assert type(error) is ConfigurationError
    assert "no Sentinel" in str(error)


@FLAVOURS
def test_a_database_that_does_not_exist(flavour, valkey):
    error = failure(f"{valkey.url}/6000", flavour)
    assert type(error) is ConfigurationError
    assert "database" in str(error)


@FLAVOURS
def test_a_server_without_a_place_for_another_client(flavour, new_valkey):
    server = new_valkey()
    with server.client() as one:
        one.ping()
        one.config_set("maxclients", 1)
        error = failure(server.url, flavour, timeout=0.3)
    assert type(error) is ServiceUnavailableError
    assert "maxclients" in str(error)


@FLAVOURS
def test_a_server_whose_memory_is_full_stores_nothing(flavour, new_valkey):
    server = new_valkey()
    server.call("CONFIG", "SET", "maxmemory", "1")
    error = failure(server.url, flavour)
    assert (type(error), error.code) == (ServiceUnavailableError, "OOM")


@FLAVOURS
def test_a_certificate_nobody_vouches_for(flavour, valkey, new_tls_proxy):
    proxy = new_tls_proxy(valkey)
    error = failure(proxy.url, flavour)
    assert type(error) is MailboxConnectionError
    assert not error.transient
    assert "certificate is not trusted" in str(error)
    assert "ssl_ca_certs" in str(error)
    assert succeeds(proxy.url, flavour, ssl_ca_certs=proxy.ca)


@FLAVOURS
def test_a_certificate_for_somebody_else_is_taken_only_from_who_says_so(flavour, valkey):
    with TlsProxy(valkey, host="10.1.2.3") as proxy:
        error = failure(proxy.url, flavour, ssl_ca_certs=proxy.ca)
        assert type(error) is MailboxConnectionError
        assert "IP address mismatch" in str(error)
        assert succeeds(proxy.url, flavour, ssl_ca_certs=proxy.ca, ssl_check_hostname=False)
    with TlsProxy(valkey, days=-1) as proxy:  # and whoever gives the name up still looks at the rest
        error = failure(proxy.url, flavour, ssl_ca_certs=proxy.ca, ssl_check_hostname=False)
        assert "certificate has expired" in str(error)


@FLAVOURS
def test_a_server_that_wants_to_see_our_certificate(flavour, valkey):
    with TlsProxy(valkey, verify_clients=True) as proxy:
        ours = str(proxy.files.certificate)
        assert succeeds(proxy.url, flavour, ssl_ca_certs=proxy.ca, ssl_certfile=ours, ssl_keyfile=ours)
        error = failure(proxy.url, flavour, timeout=0.3, ssl_ca_certs=proxy.ca)
        assert type(error) is MailboxConnectionError


@FLAVOURS
def test_a_server_that_speaks_tls_to_one_who_does_not(flavour, valkey, new_tls_proxy):
    proxy = new_tls_proxy(valkey)
    error = failure(proxy.url.replace("rediss:", "redis:"), flavour, timeout=0.3)
    assert type(error) is MailboxConnectionError
    error = failure(valkey.url.replace("redis:", "rediss:"), flavour, timeout=0.3)
    assert type(error) is MailboxConnectionError


def test_an_error_in_the_middle_is_no_handshake(valkey):
    """Silence after the connection stood may hide success; while connecting it cannot."""
    address = parse_url(valkey.url)
    client = open_client(address, "sync", Settings.of(address, {"timeout": 0.1}))()
    with client, pytest.raises(theirs.TimeoutError) as silent:
        client.ping()
        client.blpop(["nothing"], timeout=0.5)
    assert isinstance(translate(silent.value, WHERE), OperationTimeoutError)
