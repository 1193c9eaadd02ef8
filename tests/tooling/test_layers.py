"""The arrows only point down: core, flows and drivers, shells, edge (the house is drawn in CONTRIBUTING)."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.tooling.source import PACKAGE, code_without_prose, imports, is_under, modules, name_of

CORE = ("postroom.errors", "postroom.core")
WAIST = ("postroom.drivers.api", "postroom.drivers.io")
EDGES = ("postroom.cli", "postroom.server", "postroom.contrib")
PUBLIC = ("postroom", "postroom.aio", "postroom.testing")
EVENT_LOOPS = ("asyncio", "anyio", "trio", "curio", "threading", "concurrent", "selectors", "multiprocessing")
OUTSIDE_WORLD = (*EVENT_LOOPS, "time", "socket", "select", "subprocess", "sqlite3", "logging", "signal", "queue")
STORE_NAMES = re.compile(r"sqlite|redis|valkey|postgres|psycopg|sqs|boto|service_?bus|memory(?!view|error)", re.I)

# Modules over 500 lines, each with why it is one idea and not two.
LONG_MODULES: dict[str, str] = {}

LIBRARY_EXISTS = (PACKAGE / "__init__.py").exists()


def found(*globs: str) -> list[Path]:
    """The modules a rule is about. None at all would make the rule say nothing, so that fails."""
    files = modules(*globs)
    assert files or not LIBRARY_EXISTS, f"no module matches {globs}: has it moved? This test must move with it"
    return files


def own_package(name: str) -> str:
    """A driver that outgrew one file may import its own rooms: postroom.drivers.redis or postroom.drivers.redis_*."""
    return ".".join(name.split(".")[:3]).split("_")[0]


def arrows_up(files: list[Path], allowed: tuple[str, ...], *, own: bool = False) -> list[str]:
    """Imports of ours that lead elsewhere than `allowed`, as `file:line imports module`."""
    wrong = []
    for path in files:
        name = name_of(path)
        for imported in imports(path):
            if imported.module.split(".")[0] != "postroom" or is_under(imported.module, allowed):
                continue
            if own and imported.module.startswith(own_package(name)):
                continue
            wrong.append(f"{path.relative_to(PACKAGE)}:{imported.line} imports {imported.module}")
    return wrong


def test_core_imports_nothing_of_ours_but_errors_and_core():
    assert arrows_up(found("core/**/*.py", "errors.py"), CORE) == []


def test_core_touches_neither_clock_nor_lock_nor_the_outside_world():
    wrong = []
    for path in found("core/**/*.py"):
        wrong += [
            f"{path.name}:{i.line} imports {i.module}" for i in imports(path) if is_under(i.module, OUTSIDE_WORLD)
        ]
        wrong += [
            f"{path.name}:{node.lineno} is async"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
        ]
    assert wrong == []


def test_flows_import_core_and_the_waist():
    assert arrows_up(found("flows/**/*.py"), (*CORE, "postroom.flows", *WAIST)) == []


def test_flows_import_no_event_loop():
    wrong = [
        f"{path.name}:{imported.line} imports {imported.module}"
        for path in found("flows/**/*.py")
        for imported in imports(path)
        if is_under(imported.module, EVENT_LOOPS)
    ]
    assert wrong == []


def test_a_driver_imports_core_the_waist_and_its_client_library():
    drivers = [
        path for path in found("drivers/**/*.py") if path.parent != PACKAGE / "drivers" or path.stem != "__init__"
    ]
    # The clock is what a store without a server counts by, and what tests hand in: shared, and no store's own.
    assert arrows_up(drivers, (*CORE, *WAIST, "postroom.drivers.clock"), own=True) == []


def test_the_edge_is_imported_by_nobody_below_it():
    """And the library never imports its own test tools."""
    below = [path for path in found("**/*.py") if not is_under(name_of(path), (*EDGES, "postroom.testing"))]
    wrong = [
        f"{path.relative_to(PACKAGE)}:{imported.line} imports {imported.module}"
        for path in below
        for imported in imports(path)
        if is_under(imported.module, (*EDGES, "postroom.testing"))
    ]
    assert wrong == []


def test_the_command_line_imports_public_names_only():
    wrong = []
    for path in found("cli/**/*.py"):
        for imported in imports(path):
            ours = imported.module.split(".")[0] == "postroom"
            if ours and imported.module not in PUBLIC and not is_under(imported.module, ("postroom.cli",)):
                wrong.append(f"{path.relative_to(PACKAGE)}:{imported.line} imports {imported.module}")
    assert wrong == []


@pytest.mark.parametrize("where", ["flows/**/*.py", "mailbox.py", "aio/mailbox.py", "aio/client.py"])
def test_flows_and_shells_never_name_a_store(where):
    """What a store cannot do is asked of its capabilities. (concrete.py holds the constructors with stores' names.)"""
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} says {token[:60]}"
        for path in found(where)
        for line, token in code_without_prose(path.read_text(encoding="utf-8"))
        if STORE_NAMES.search(token)
    ]
    assert wrong == []


def test_importing_the_library_needs_only_msgspec_and_typing_extensions():
    """Client libraries are imported on first use, except in the modules that are themselves imported on first use."""
    allowed = {*sys.stdlib_module_names, "postroom", "msgspec", "typing_extensions"}
    lazy_rooms = ("postroom.drivers", "postroom.testing", *EDGES)
    wrong = [
        f"{path.relative_to(PACKAGE)}:{imported.line} imports {imported.module}"
        for path in found("**/*.py")
        if not is_under(name_of(path), lazy_rooms) or is_under(name_of(path), WAIST)
        for imported in imports(path)
        if not imported.lazy and imported.module.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_a_module_over_500_lines_has_a_reason():
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in found("**/*.py")
    }
    long = {name: length for name, length in lengths.items() if length > 500}
    assert long.keys() - LONG_MODULES.keys() == set(), "look for the second idea in the file, or give the reason here"
    assert LONG_MODULES.keys() - long.keys() == set(), "no longer long: take the reason out"
