"""The benchmark runs, and measures every figure it promises. What the figures are is for a quiet machine to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROMISED = {
    *("import", "memory_send_us", "memory_send_ratio", "memory_take_us", "memory_take_ratio", "memory_async_to_sync"),
    *(f"memory_{what}_batch_{size}_ratio" for what in ("send", "take") for size in (10, 100)),
    *("memory_threads_ratio", "memory_round_trip_p50", "memory_round_trip_p99", "memory_bytes", "memory_rss"),
    *(
        f"sqlite_{what}_{size}_{clock}_{raw}"
        for what in ("send", "take")
        for size in (1, 10, 100)
        for clock in ("cpu", "wall")
        for raw in ("a", "b")
    ),
    *(f"sqlite_async_{what}_{size}" for what in ("send", "take") for size in (10, 100)),
    *("sqlite_threads", "sqlite_round_trip_p50", "sqlite_round_trip_p99", "sqlite_claim_sessions_cpu"),
    *(
        f"redis_{what}_{size}_{clock}_{raw}"
        for what in ("send", "take")
        for size in (1, 10, 100)
        for clock in ("wall", "work", "cpu")
        for raw in ("a", "b")
    ),
    *("redis_same_commands", "redis_riding_wall_a", "redis_bytes", "import_redis"),
    *(f"redis_callers_{what}_{clock}_a" for what in ("send", "take") for clock in ("wall", "work", "cpu")),
    *(f"redis_round_trip_{between}_p50" for between in ("threads", "processes")),
    *(f"idle_redis_{flavour}{what}" for flavour in ("sync", "async") for what in ("", "_commands")),
    *(f"idle_{store}_{flavour}" for store in ("memory", "sqlite") for flavour in ("sync", "async")),
}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_run_measures_every_figure(tmp_path: Path) -> None:
    kept = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench", "--quick", "--dir", str(tmp_path), "--json", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    figures = json.loads(kept.read_text())["figures"]
    assert figures.keys() >= PROMISED
    assert any(key.startswith("memory_depth_") for key in figures)
    assert any(key.startswith("sqlite_claim_") for key in figures)
    assert any(key.startswith("redis_depth_") for key in figures)
    assert all(figure["value"] == figure["value"] for figure in figures.values()), "a figure is not a number"
    assert all(figure["what"] in done.stdout for figure in figures.values()), "a figure was not printed"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_hand_written_statements_are_those_of_the_driver(tmp_path: Path) -> None:
    """Baseline (a) means nothing once the driver says something else."""
    from bench.figures import Table
    from bench.sqlite import same_statements

    table = Table()
    same_statements(table, tmp_path)
    [figure] = table
    assert figure.met


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_hand_made_calls_are_those_of_the_driver() -> None:
    """Baseline (a) means nothing once the driver gives its scripts something else."""
    from bench.figures import Table
    from bench.redis import same_commands
    from tests.servers.valkey import Server

    table = Table()
    with Server() as server:
        same_commands(table, server)
    [figure] = table
    assert figure.met
