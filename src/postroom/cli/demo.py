"""`postroom demo`: the main job, worth watching. What it plays is imported on call: no other command needs it.

Orders go into a SQLite file, three processes work on them, one is killed in the middle of a message, one order is
poison; at the end nothing is missing.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import quote

import click

import postroom
from postroom.cli import exits, show
from postroom.cli.exits import Failure
from postroom.cli.store import Command, Settings, pass_settings


@click.command(cls=Command)
@click.option("--path", type=click.Path(dir_okay=False), help="The SQLite file, kept.  [default: a temporary one]")
@pass_settings
def demo(settings: Settings, path: str | None) -> int:
    """Watch it work: workers, a kill -9, a redelivery, a poison message, and nothing lost.

    Takes some seconds and needs nothing set up. The exit code is 1 if a single order is missing.
    """
    import shutil
    import tempfile

    from postroom.cli.demo_play import Teller, play
    from postroom.cli.demo_stage import Stage, refuse_given_url

    refuse_given_url()
    directory = Path(tempfile.mkdtemp(prefix="postroom-demo-"))
    file = directory / "orders.db" if path is None else Path(path).absolute()
    # In a file that is kept there may be the queue of another demo, even one that runs right now.
    queue = "orders" if path is None else f"orders-{os.urandom(3).hex()}"
    # The workers are told by the URL: what the shell happens to have set must not part them from the demo.
    url = f"sqlite:///{quote(str(file))}" + (f"?namespace={quote(settings.namespace)}" if settings.namespace else "")
    teller = Teller(quiet=settings.json)
    stage = Stage(directory, url, queue)
    stage.on_entry = teller.entry
    keep = False
    try:
        with postroom.connect(url) as client:
            tally = play(client, stage, teller)
        keep = bool(tally.wrong)
    except Failure:
        keep = True
        raise
    finally:
        stage.close()
        if not keep:  # the ledger and what the workers said tell what went wrong
            shutil.rmtree(directory, ignore_errors=True)
    if settings.json:
        show.document(tally)
    else:
        teller.tally(tally)
        if path is not None:
            teller.say(f"The file is kept. Look around: postroom --url {shlex.quote(url)} info {queue}")
    if tally.wrong:
        raise Failure(f"demo: {'; '.join(tally.wrong)}; see {directory}")
    return exits.OK
