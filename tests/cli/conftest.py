"""The command line as tests use it: in this process where that is enough, as a process or on a terminal where not."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import postroom
from postroom.cli.app import run


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A store of the test's own, which POSTROOM_URL names."""
    url = f"sqlite:///{tmp_path}/mail.db"
    monkeypatch.setenv("POSTROOM_URL", url)
    monkeypatch.delenv("POSTROOM_DEBUG", raising=False)
    monkeypatch.delenv("POSTROOM_NAMESPACE", raising=False)
    monkeypatch.delenv("POSTROOM_MAX_BODY", raising=False)
    return url


@pytest.fixture
def cli(url, capsys, monkeypatch) -> Callable[..., Result]:
    """Carry out a command line, with nobody at a terminal."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture
def client(url):
    with postroom.connect(url) as client:
        yield client


@pytest.fixture
def orders(cli, client):
    """A queue `orders`, as `postroom create` makes it, to look at from Python."""
    assert cli("create", "orders").code == 0
    with client.mailbox("orders", bytes) as box:
        yield box


PROGRAM = (sys.executable, "-m", "postroom.cli")


class Terminal:
    """A command on a terminal, as somebody sits before it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._screen, inner = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", **environment}
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments], stdin=inner, stdout=inner, stderr=inner, env=env, start_new_session=True
        )
        os.close(inner)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in self.text:
            assert self._read(deadline), f"it ended without {text!r}: {self.text}"

    def end(self) -> int:
        """What is left to read, and the exit code."""
        deadline = time.monotonic() + 30
        while self._read(deadline):
            pass
        os.close(self._screen)
        return self.process.wait(10)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing came for too long: {self.text}"
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # Linux says so when the last one who had the terminal open is gone
            return False
        self.text += data.decode()
        return bool(data)


@pytest.fixture
def terminal(url):
    opened = []

    def start(*arguments: str, **environment: str) -> Terminal:
        opened.append(Terminal(*arguments, **environment))
        return opened[-1]

    yield start
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
