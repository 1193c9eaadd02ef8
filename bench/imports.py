"""What `import postroom` costs: CPU of a Python that does nothing else, over one that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Table


def run(table: Table, *, quick: bool) -> None:
    programs = {
        "bare": "pass",
        "postroom": "import postroom",
        "memory": "import postroom; postroom.connect('memory://').mailbox('orders').send(1)",
        "aio": "import postroom.aio",
        "asyncio": "import asyncio",
        "redis": "import postroom; import postroom.drivers.redis",
        "redis_py": "import redis, redis.asyncio",
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    with TemporaryDirectory() as compiled:
        for turn in range(-1, 5 if quick else 25):  # one round to fill the caches
            for name, code in programs.items():
                spent = _cpu(code, compiled)
                if turn >= 0:
                    times[name].append(spent)
    bare = min(times["bare"])
    over = {name: 1e3 * (min(found) - bare) for name, found in times.items()}
    typical = 1e3 * (median(times["postroom"]) - median(times["bare"]))
    table.add("import", "import postroom, CPU over bare Python, best", over["postroom"], "ms", at_most=60)
    table.add("import_median", "import postroom, CPU over bare Python, median", typical, "ms", at_most=60)
    table.add("import_and_send", "import postroom and one send in memory, best", over["memory"], "ms")
    table.add("import_aio", "import postroom.aio over bare Python, best", over["aio"], "ms")
    table.add("import_asyncio", "import asyncio alone, to compare, best", over["asyncio"], "ms")
    table.add("import_redis", "import postroom and its Redis store, best", over["redis"], "ms")
    table.add("import_redis_py", "import redis-py alone, to compare, best", over["redis_py"], "ms")


def _cpu(code: str, compiled: str) -> float:
    # As after an installation: with the bytecode compiled once. Where it may not be written beside the source, each
    # import would compile everything anew, and that is not what is measured.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    child = subprocess.Popen([sys.executable, "-c", code], env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{code!r} failed")
    return usage.ru_utime + usage.ru_stime
