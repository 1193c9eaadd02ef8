"""How commands end: exit codes, one line for an error, nothing slow at the start."""

import os
import subprocess
import sys

import pytest

import postroom
from postroom.cli import exits
from tests.cli.conftest import PROGRAM


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (postroom.MailboxError("x"), 1),
        (postroom.QueueNotFoundError("x"), 1),
        (postroom.AuthenticationError("x"), 1),
        (postroom.InvalidParameterError("x"), 2),
        (postroom.ConfigurationError("x"), 2),
        (postroom.ReceiptHandleExpiredError("x"), 4),
        (postroom.MailboxConnectionError("x"), 69),
        (postroom.ServiceUnavailableError("x"), 69),
        (postroom.OperationTimeoutError("x"), 124),
        (postroom.NoReplyError("x"), 124),
        (RuntimeError("x"), 1),
    ],
)
def test_each_kind_of_failure_has_its_code_and_one_line(error, code, capsys, monkeypatch):
    monkeypatch.delenv("POSTROOM_DEBUG", raising=False)
    assert exits.explain(error) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("postroom: ")


def test_debugging_shows_the_traceback(cli, monkeypatch, orders):
    monkeypatch.setenv("POSTROOM_DEBUG", "1")
    assert "Traceback" in cli("peek", "nope").err


def test_what_an_error_quotes_is_made_safe(cli, orders):
    refused = cli("peek", "evil\x1b]0;title\x07")
    assert refused.code == 2
    assert "\x1b" not in refused.err


def test_a_file_that_is_not_there_is_not_made(cli, tmp_path):
    for command in (("ls",), ("info", "q"), ("send", "q", "x"), ("dlq", "ls", "q"), ("create", "q", "--update")):
        assert cli(*command).code == 69
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_not_there_is_unreachable(cli, tmp_path):
    assert cli("--url", f"sqlite:///{tmp_path}/no/mail.db", "create", "q").code == 69


def test_a_foreign_file_is_refused_untouched(cli, tmp_path):
    (tmp_path / "mail.db").write_bytes(b"this is a shopping list" * 100)
    refused = cli("ls")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert (tmp_path / "mail.db").read_bytes() == b"this is a shopping list" * 100


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("command", [("ls",), ("info", "orders"), ("send", "orders", "x"), ("ls", "--json")])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(orders, command):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*PROGRAM, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("postroom: cannot write the output: No space left on device")
    assert ("; the message was sent, as " in done.stderr) == (command[0] == "send"), "or a script sends it again"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("how", [(), ("--json",)], ids=repr)
@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_lines_whose_ids_cannot_be_written_are_told_to_be_sent(orders, tmp_path, how, buffered):
    (tmp_path / "three").write_text("1\n2\n3\n")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "send", "orders", "--lines", f"@{tmp_path}/three", *how],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": buffered},
        )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot write the output: No space left on device; 3 messages sent before it" in done.stderr
    assert orders.approximate_count() == 3


def test_no_store_is_a_usage_error(cli, monkeypatch):
    monkeypatch.delenv("POSTROOM_URL")
    refused = cli("ls")
    assert (refused.code, "POSTROOM_URL" in refused.err) == (2, True)
    assert cli("--url", "nosuch://x", "ls").code == 2
    assert cli("--url", "sqlite://[x", "ls").code == 2


@pytest.mark.parametrize("arguments", [("frob",), ("ls", "--frob"), ("info",), ("dlq", "frob"), ()])
def test_a_wrong_command_line_is_exit_code_2(cli, arguments):
    refused = cli(*arguments)
    assert (refused.code, refused.out) == (2, "")


def test_global_options_stand_before_or_after_the_command(cli, orders, url, monkeypatch):
    orders.send(b"1")
    monkeypatch.delenv("POSTROOM_URL")
    before = cli("--json", "--url", url, "ls").json
    assert cli("ls", "--url", url, "--json").json[0]["name"] == before[0]["name"] == "orders"
    assert cli("dlq", "ls", "orders", "--url", url).code == 3


def test_a_namespace_is_a_world_of_its_own(cli, orders):
    assert cli("--namespace", "tenant", "create", "theirs").code == 0
    assert [queue["name"] for queue in cli("--json", "ls").json] == ["orders"]
    assert [queue["name"] for queue in cli("--json", "--namespace", "tenant", "ls").json] == ["theirs"]


@pytest.mark.parametrize("where", [(), ("--url",)], ids=["url from the environment", "url given"])
def test_the_environment_chooses_the_namespace_whatever_names_the_store(cli, orders, url, monkeypatch, where):
    """A purge that went to another tenant's queue could not be undone."""
    given = (*where, url) if where else ()
    assert cli("--namespace", "tenant", "create", "theirs").code == 0
    monkeypatch.setenv("POSTROOM_NAMESPACE", "tenant")
    assert [queue["name"] for queue in cli(*given, "--json", "ls").json] == ["theirs"]
    assert cli(*given, "--namespace", "other", "--json", "ls").json == []
    assert cli("--url", f"{url}?namespace=other", "--json", "ls").json == [], "what is said on the spot counts"


def test_the_environment_raises_the_limit_of_bodies(cli, orders, monkeypatch):
    large = b"x" * (2 << 20)
    assert cli("send", "orders", stdin=large).code == 1
    monkeypatch.setenv("POSTROOM_MAX_BODY", str(4 << 20))
    assert cli("send", "orders", stdin=large).code == 0
    monkeypatch.setenv("POSTROOM_MAX_BODY", "huge")
    assert cli("ls").code == 2


def test_a_store_that_keeps_nothing_says_so(cli):
    listed = cli("--url", "memory://", "ls")
    assert (listed.code, "only while this command runs" in listed.err) == (0, True)


def test_version_and_help(cli):
    assert cli("--version").out == f"postroom {postroom.__version__}\n"
    for command in ((), ("dlq",), ("send",), ("dlq", "redrive")):
        shown = cli(*command, "--help")
        assert (shown.code, shown.out.startswith("Usage: postroom")) == (0, True)


def test_without_click_one_line_says_what_to_install():
    for missing in ("click", "rich"):
        code = f"import sys; sys.modules[{missing!r}] = None; sys.stdout.isatty = lambda: True\n"
        code += "sys.argv = ['postroom', '--url', 'memory://', 'doctor']; import postroom.cli; postroom.cli.main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert (
            done.stderr.splitlines()[-1] == f"postroom: the command line needs {missing}: pip install 'postroom[cli]'"
        )


def test_the_start_is_not_slowed_by_what_is_not_needed():
    """Times differ by machine; what is imported does not."""
    code = "import sys; from postroom.cli.app import run; run(['--version']); run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint({"rich", "asyncio", "sqlite3", "subprocess", "postroom.aio", "postroom.cli.demo_play"})


def test_it_runs_as_a_module_too():
    done = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"postroom {postroom.__version__}\n"
