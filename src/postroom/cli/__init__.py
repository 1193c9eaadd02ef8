"""The command line: Postroom at the edge, through public names only.

`main` is the entry point. It imports click on call, so that a plain `pip install postroom` answers in one line what is
missing instead of with a traceback.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRA = ("click", "rich")


def main() -> None:
    """Run `postroom` and leave with its exit code."""
    try:
        from postroom.cli.app import run

        code = run(sys.argv[1:])
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in _EXTRA:
            raise
        print(f"postroom: the command line needs {missing}: pip install 'postroom[cli]'", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:  # while it starts; later, `run` sees it
        code = 130
    sys.exit(code)
