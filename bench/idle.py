"""What a process costs that waits for messages and gets none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.figures import Table


def run(table: Table, directory: Path, *, quick: bool) -> None:
    seconds = 2 if quick else 20
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{directory / 'idle.db'}"}
    for store, url in urls.items():
        for flavour in ("sync", "async"):
            table.add(
                f"idle_{store}_{flavour}",
                f"{store} idle, CPU of a process that waits ({flavour})",
                100 * share(url, flavour, seconds),
                "%",
                at_most=0.1,
            )


def share(url: str, flavour: str, seconds: int) -> float:
    code = _SYNC if flavour == "sync" else _ASYNC
    done = subprocess.run([sys.executable, "-c", code, url, str(seconds)], check=True, capture_output=True, text=True)
    return float(done.stdout)


# The clock starts in the middle of the wait, when what a receive does at its beginning is over.
_SYNC = """
import sys, threading, time, postroom
box = postroom.connect(sys.argv[1]).mailbox("orders")
thread = threading.Thread(target=box.receive, kwargs={"wait_time_seconds": 3600}, daemon=True)
thread.start()
time.sleep(0.5)
spent = time.process_time()
time.sleep(float(sys.argv[2]))
print((time.process_time() - spent) / float(sys.argv[2]), flush=True)
box.close()
thread.join()
"""
_ASYNC = """
import asyncio, sys, time, postroom.aio
async def main():
    client = postroom.aio.connect(sys.argv[1])
    box = client.mailbox("orders")
    waits = asyncio.create_task(box.receive(wait_time_seconds=3600))
    await asyncio.sleep(0.5)
    spent = time.process_time()
    await asyncio.sleep(float(sys.argv[2]))
    print((time.process_time() - spent) / float(sys.argv[2]), flush=True)
    await box.close()
    await waits
    await client.close()
asyncio.run(main())
"""
