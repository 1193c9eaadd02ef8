"""Run the code of one Markdown page: `python run_page.py PAGE`, in the directory where its files may go.

The blocks of a page are one program: they share a namespace, an event loop and a directory, from top to bottom.
`await` works at the top level. A comment right before a block says otherwise:

    <!-- no-run: reason -->   shown, not run
    <!-- file: app.py -->     written to that file, not run
    <!-- run -->              before a `sh` block, which without it is only shown
"""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)(?P<info>.*)$")
MARK = re.compile(r"^\s*<!--\s*(?P<word>run|no-run|file)\b\s*:?\s*(?P<rest>.*?)\s*-->\s*$")


class Block(NamedTuple):
    language: str
    code: str
    line: int
    """The page's line on which the code begins."""
    mark: str
    """run, no-run, file or nothing."""
    rest: str
    """The reason, or the file's name."""

    @property
    def runs(self) -> bool:
        if self.mark == "file":
            return True
        return self.mark != "no-run" and (self.language == "python" or (self.language == "sh" and self.mark == "run"))


def blocks(text: str) -> list[Block]:
    """Every fenced block of a page. A fence that never closes, or a mark that says too little, is an error."""
    found: list[Block] = []
    mark = rest = ""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if comment := MARK.match(line):
            mark, rest = comment["word"], comment["rest"]
            if (mark == "run") == bool(rest):
                raise ValueError(f"line {number}: write <!-- run -->, <!-- no-run: reason --> or <!-- file: name -->")
        elif fence := FENCE.match(line):
            code: list[str] = []
            for _, inner in lines:
                if inner.strip() == fence["fence"]:
                    break
                code.append(inner)
            else:
                raise ValueError(f"line {number}: this fence is never closed")
            found.append(Block(fence["language"], textwrap.dedent("\n".join(code)) + "\n", number + 1, mark, rest))
            mark = rest = ""
        elif line.strip() and mark:
            raise ValueError(f"line {number}: the comment before it must stand right before a block")
    if mark:
        raise ValueError("the last comment stands before no block")
    return found


def main(page: Path) -> None:
    # A real module, so that dataclasses and type hints of the page find their names again.
    module = types.ModuleType("page")
    sys.modules["page"] = module
    with asyncio.Runner() as runner:
        for block in blocks(page.read_text(encoding="utf-8")):
            if not block.runs:
                continue
            if block.mark == "file":
                Path(block.rest).write_text(block.code, encoding="utf-8")
            elif block.language == "sh":
                print(f"{page.name}:{block.line}: sh", flush=True)
                subprocess.run(["sh", "-eu", "-c", block.code], check=True)
            else:
                # Blank lines in front make the traceback name the page's own line.
                source = "\n" * (block.line - 1) + block.code
                code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, module.__dict__)
                if inspect.iscoroutine(result):
                    runner.run(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
