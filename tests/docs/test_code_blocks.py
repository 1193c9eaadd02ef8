"""The code in README and docs runs as it is printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.run_page import blocks

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
PAGES = sorted({path for pattern in ("README.md", "docs/**/*.md") for path in ROOT.glob(pattern)})


def with_code(page: Path) -> bool:
    """A page that cannot be read counts, so that its own test says why."""
    try:
        return any(block.runs for block in blocks(page.read_text(encoding="utf-8")))
    except ValueError:
        return True


def run(page: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """The page's program in a process of its own, with nothing set from outside and `postroom` on the PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "PYTEST_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(page)],
        cwd=directory,
        env={**kept, "PATH": path, "HOME": str(directory), "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.slow  # a process a page, and some pages wait for leases
@pytest.mark.parametrize("page", [p for p in PAGES if with_code(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path):
    ran = run(page, tmp_path)
    assert ran.returncode == 0, f"{page.relative_to(ROOT)}\n{ran.stdout}{ran.stderr}"


def test_there_are_pages():
    assert ROOT / "docs/index.md" in PAGES


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_failing_block_names_its_line_of_the_page(tmp_path):
    ran = run(page(tmp_path, "# Title\n\n```python\nfine = 1\nassert fine == 2\n```\n"), tmp_path)
    assert ran.returncode != 0
    assert 'page.md", line 5' in ran.stderr


def test_the_blocks_of_a_page_share_names_an_event_loop_and_a_directory(tmp_path):
    text = """
```python
import asyncio, dataclasses, pathlib, typing
@dataclasses.dataclass
class Order:
    sku: "str"
async def running(): return asyncio.get_running_loop()
first = await running()
```

<!-- file: app.py -->
```python
answer = 42
```

<!-- run -->
```sh
python -c 'import app; print(app.answer)' > out.txt
```

1. in a list

    ```python
    assert typing.get_type_hints(Order) == {"sku": str}
    assert await running() is first
    assert pathlib.Path("out.txt").read_text() == "42\\n"
    ```
"""
    ran = run(
        page(tmp_path, text),
        tmp_path,
    )
    assert ran.returncode == 0, ran.stderr


def test_what_is_only_shown_is_not_run(tmp_path):
    text = "<!-- no-run: needs a server -->\n```python\n1 / 0\n```\n\n```sh\nexit 3\n```\n"
    assert not with_code(page(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx = 1\n",
        "<!-- no-run -->\n```python\nx = 1\n```\n",
        "<!-- no-run: why -->\nprose\n\n```python\nx = 1\n```\n",
        "<!-- run -->\n",
    ],
    ids=["open fence", "no reason", "comment far away", "comment without a block"],
)
def test_a_page_that_hides_its_code_by_mistake_is_refused(text):
    with pytest.raises(ValueError, match=r"line|comment"):
        blocks(text)
