"""`make bench`: the speed of Postroom as ratios to hand-written code doing the same work in the same run.

Two baselines. (a) is the driver's own SQL or scripts, called by hand in the same order with the same durability, on
what the driver made: what is left is our Python. (b) is a fixed minimal script of `bench/raw`: what one could have
instead.
CPU is the process's own time, with the server's where it says "of both"; wall is the clock's. Times in µs are the best
round; ratios are medians over rounds of the pair's ratio (of the medians, where a disk sync decides). Only ratios carry
over to other machines.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import idle, imports, memory, redis, sqlite
from bench.figures import Table, heading
from bench.machine import facts

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run of under a minute: its values mean little")
    parser.add_argument("--only", choices=["memory", "sqlite", "redis", "idle", "import"], help="one part of it")
    parser.add_argument("--dir", type=Path, help="where the SQLite files go (a temporary directory)")
    parser.add_argument("--json", type=Path, help="where the figures are kept (bench/results, of a whole run)")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    given = parser.parse_args(arguments)

    table, start = Table(), time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="postroom-bench-", dir=given.dir))
    machine = facts(directory)
    print("  ".join(f"{name}: {value}" for name, value in machine.items()))
    print(heading())
    parts: dict[str, Callable[[], None]] = {
        "import": lambda: imports.run(table, quick=given.quick),
        "memory": lambda: memory.run(table, quick=given.quick),
        "sqlite": lambda: sqlite.run(table, directory, quick=given.quick),
        "redis": lambda: redis.run(table, quick=given.quick),
        "idle": lambda: idle.run(table, directory, quick=given.quick),
    }
    try:
        for name, part in parts.items():
            if given.only in (None, name):
                part()
    finally:
        shutil.rmtree(directory, ignore_errors=True)

    missed = table.missed()
    # A part or a smoke run must not pass for the figures of the library.
    whole = None if given.quick or given.only else RESULTS / "latest.json"
    if (path := given.json or whole) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"machine": machine, "quick": given.quick, "figures": {f.key: f.as_json() for f in table}}
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aimed = sum(figure.target is not None for figure in table)
    print(f"\n{aimed - len(missed)} of {aimed} targets met in {time.monotonic() - start:.0f} s")
    for figure in missed:
        print(f"  missed: {figure.what}: {figure.value:.2f} {figure.unit}, target {figure.sense} {figure.target:g}")
    return 1 if missed and given.strict else 0


if __name__ == "__main__":
    sys.exit(main())
