"""Write the parts of the docs that the code knows better: capabilities, lifecycle, command line.

    .venv/bin/python tools/docs_gen.py            write them
    .venv/bin/python tools/docs_gen.py --check    fail if a page differs from the code (in `make docs`)

Each part stands in its page between `<!-- generated: name -->` and `<!-- end generated -->`; the rest is prose.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class NotWritten(Exception):
    """The code that a part is generated from does not exist yet."""


def declared() -> list[Any]:
    """The Capabilities of every driver, in the order of the modules' names but with the reference first."""
    import postroom
    import postroom.drivers
    from postroom.core.capabilities import Capabilities

    found: dict[str, Capabilities] = {}
    for module_info in pkgutil.iter_modules(postroom.drivers.__path__):
        module = importlib.import_module(f"postroom.drivers.{module_info.name}")
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        for value in (*vars(module).values(), *(vars(cls).get("capabilities") for cls in classes)):
            if isinstance(value, Capabilities):
                found.setdefault(value.store, value)
    # What SQLite can do depends on how it is opened: ask it, as it is by default.
    with TemporaryDirectory() as directory, postroom.connect(f"sqlite:///{directory}/asked.db") as client:
        found[client.capabilities.store] = client.capabilities
    with postroom.connect("redis://localhost") as client:  # which is not contacted
        found[client.capabilities.store] = client.capabilities
    return sorted(found.values(), key=lambda store: (store.survives_crash, store.store))


def capabilities() -> str:
    """The table of stores and what each can do, with a note under it for everything that is done in a weaker way."""
    from postroom.core.capabilities import LABELS

    stores = declared()
    if not stores:
        raise NotWritten("a driver that declares its Capabilities")
    rows = [["", *(store.store for store in stores)]]
    for field, label in LABELS.items():
        levels = (getattr(store, field) for store in stores)
        rows.append([label, *("-" if level is None else level.name.lower() for level in levels)])
    rows.append(["clock", *(store.clock for store in stores)])
    limits = {
        "max_body": ("largest body", " bytes", "as configured"),
        "max_delay": ("longest delay", " s", "no limit of its own"),
    }
    for field, (label, unit, unset) in limits.items():
        values = (getattr(store, field) for store in stores)
        rows.append([label, *(unset if value is None else f"{value:,}{unit}" for value in values)])
    notes = [
        f"- **{store.store}**, {LABELS.get(field, field)}: {note}"
        for store in stores
        for field, note in store.notes.items()
    ]
    return table(rows) + ("\n\n" + "\n".join(notes) if notes else "")


def lifecycle() -> str:
    """The moves of a message: as a table everywhere, and drawn where Mermaid is understood."""
    from postroom.core.lifecycle import TERMINAL, TRANSITIONS, diagram

    rows = [["from", "by", "to", "note"]]
    for before, event, after, note in TRANSITIONS:
        rows.append([before or "-", event, " or ".join(after), note])
    ends = ", ".join(sorted(TERMINAL))
    return (
        f"{table(rows)}\n\nA message does not come back by itself from: {ends}.\n\n"
        f"## As a diagram\n\nIn the Mermaid language, which many viewers draw:\n\n```mermaid\n{diagram()}\n```"
    )


def cli() -> str:
    """Every command's --help, the group first and its commands in their own order."""
    if not (ROOT / "src/postroom/cli/__init__.py").exists():
        raise NotWritten("postroom.cli")
    import click

    # postroom.cli.main is a plain function, so that it can say in one line that click is missing; the group is inside.
    from postroom.cli.app import cli as group

    def pages(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
        name = path.rsplit(" ", 1)[-1]
        context = click.Context(command, info_name=name, parent=parent, terminal_width=78, **command.context_settings)
        title = "## The options of every command" if parent is None else f"## {path}"
        yield f"{title}\n\n```text\n{command.get_help(context)}\n```"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                if below is not None and not below.hidden:
                    yield from pages(below, f"{path} {name}", context)

    return "\n\n".join(pages(group, "postroom", None))


def table(rows: list[list[str]]) -> str:
    """Markdown, the first row as its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


class Part(NamedTuple):
    name: str
    page: str
    generate: Callable[[], str]


PARTS = (
    Part("capabilities", "docs/reference/capabilities.md", capabilities),
    Part("lifecycle", "docs/explanation/lifecycle.md", lifecycle),
    Part("cli", "docs/reference/cli.md", cli),
)


def replaced(text: str, name: str, body: str) -> str:
    """`text` with `body` between the markers of `name`."""
    markers = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end generated -->)", re.DOTALL)
    if len(markers.findall(text)) != 1:
        raise ValueError(f"the page needs exactly one '<!-- generated: {name} -->' with its '<!-- end generated -->'")
    return markers.sub(lambda match: f"{match[1]}\n{body.strip()}\n\n{match[2]}", text)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    failures = 0
    for part in PARTS:
        page = ROOT / part.page
        before = page.read_text(encoding="utf-8")
        try:
            after = replaced(before, part.name, part.generate())
        except NotWritten as missing:
            print(f"{part.page}: left alone, there is not yet {missing}")
            continue
        if after == before:
            continue
        if arguments:
            print(f"{part.page}: differs from the code; run .venv/bin/python tools/docs_gen.py", file=sys.stderr)
            failures += 1
        else:
            page.write_text(after, encoding="utf-8")
            print(f"{part.page}: written")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
