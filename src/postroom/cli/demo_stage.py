"""The demo's stage: its directory, its workers, its ledger, and the loop that waits for what must happen."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from postroom.cli.demo_ledger import Entry, Reader
from postroom.cli.exits import Failure

PATIENCE = 45.0  # for each scene; a loaded machine is slow, a broken demo must still end


class Stage:
    """Workers come and go; what they write is told to `on_entry` while we wait."""

    def __init__(self, directory: Path, url: str, queue: str) -> None:
        self.directory = directory
        self.url = url
        self.queue = queue
        self.prices = directory / "prices.json"
        self.ledger = Reader(directory / "ledger.jsonl")
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: set[str] = set()
        self.on_entry: Callable[[Entry], None] = lambda entry: None

    def set_prices(self, prices: dict[str, float]) -> None:
        fresh = self.prices.with_suffix(".new")
        fresh.write_text(json.dumps(prices))
        fresh.replace(self.prices)  # in one step: a worker reads the old list or the new one

    def start(self, name: str) -> int:
        arguments = (name, self.url, self.queue, str(self.directory / "ledger.jsonl"), str(self.prices))
        with (self.directory / f"{name}.log").open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", "postroom.cli._demo_worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        return self.workers[name].pid

    def kill(self, name: str) -> None:
        """kill -9: no handler runs, nothing is flushed, nothing is given back."""
        worker = self.workers[name]
        self.killed.add(name)
        worker.kill()
        if worker.wait(PATIENCE) != -signal.SIGKILL:
            raise Failure(f"demo: {name} ended by itself ({worker.returncode}) before the kill: it proves nothing")

    def until(self, what: str, happened: Callable[[], object]) -> None:
        """Tell the ledger's news until something has happened."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for entry in self.ledger.news():
                self.on_entry(entry)
            if happened():
                return
            for name, worker in self.workers.items():
                if name not in self.killed and worker.poll() is not None:
                    said = (self.directory / f"{name}.log").read_text(errors="replace").strip()
                    last = said.splitlines()[-1] if said else "it said nothing"
                    raise Failure(f"demo: worker {name} ended with code {worker.returncode}: {last}")
            if time.monotonic() > deadline:
                raise Failure(f"demo: waited {PATIENCE:.0f} s in vain until {what}; see {self.directory}")
            time.sleep(0.01)

    def close(self) -> None:
        """End of stdin sends the workers home; those who do not go are made to."""
        for worker in self.workers.values():
            if worker.stdin is not None:
                try:
                    worker.stdin.close()
                except OSError:
                    pass  # it is gone already
        for worker in self.workers.values():
            try:
                worker.wait(5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self.ledger.close()


def refuse_given_url() -> None:
    """The demo has a file of its own, so a --url would do nothing. POSTROOM_URL is set for others, and no mistake."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        if context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("the demo runs on a SQLite file of its own; name one with --path")
        context = context.parent
