"""The command `postroom` itself: its global options, its commands, and how it ends."""

from __future__ import annotations

import os
import sys

import click

import postroom
from postroom.cli import deadletters, demo, doctor, queues, receive, send, show
from postroom.cli.exits import BROKEN_PIPE, INTERRUPTED, MEANINGS, OK, USAGE, complain, explain
from postroom.cli.store import Group, ReaderGone, Settings, global_options


@click.group(
    cls=Group,
    params=global_options(hidden=False),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"""The options above may also stand after the command. Tables are for terminals; in a pipe they are lines
    with tabs and without a head. Durations are seconds, or 500ms, 30s, 5m, 1h30m, 7d.

    {MEANINGS} POSTROOM_DEBUG=1 shows tracebacks.""",
)
@click.version_option(postroom.__version__, prog_name="postroom", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable mailboxes: send, receive and look after messages.

    \b
    postroom demo                                   see it work, nothing to set up
    export POSTROOM_URL=sqlite:///shop.db
    postroom create orders
    postroom send orders '{"sku": "A-1", "qty": 3}'
    postroom receive orders --ack
    """
    ctx.ensure_object(Settings)


for command in (
    demo.demo, send.send, receive.receive, receive.peek,
    queues.ls, queues.info, queues.create, queues.purge, queues.delete,
    deadletters.dlq, doctor.doctor,
):  # fmt: skip
    cli.add_command(command)


# Newer clicks report a group without a command as an error, whose text is the help; older ones just print it.
_NO_COMMAND: tuple[type[Exception], ...] = (
    (click.exceptions.NoArgsIsHelpError,) if hasattr(click.exceptions, "NoArgsIsHelpError") else ()
)


def run(arguments: list[str]) -> int:
    """Carry out a command line; its exit code."""
    try:
        result = cli.main(arguments, prog_name="postroom", standalone_mode=False)
        show.flush()
        return result if isinstance(result, int) else OK
    except click.UsageError as error:
        if isinstance(error, _NO_COMMAND):
            print(error.format_message(), file=sys.stderr)
            return USAGE
        where = error.ctx.command_path if error.ctx is not None else "postroom"
        complain(f"{error.format_message().rstrip('.')}. See '{where} --help'")
        return USAGE
    except (click.Abort, KeyboardInterrupt):  # click turns Ctrl-C, and an end of input at a question, into Abort
        return INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        _abandon_output()  # `postroom ls | head`: the reader has seen enough
        return BROKEN_PIPE
    except show.Unwritable as error:
        _abandon_output()
        return explain(error)
    except ModuleNotFoundError:
        raise  # for main: it knows what to install
    except Exception as error:
        return explain(error)


def _abandon_output() -> None:
    """Python would complain once more when it flushes at exit what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
