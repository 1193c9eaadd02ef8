"""The library's source as the repository tests see it: modules, their imports, their code without prose."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "postroom"


class Import(NamedTuple):
    module: str
    """Dotted, as far as it is a module of ours: `from postroom.core import message` is postroom.core.message."""
    line: int
    lazy: bool
    """Inside a function: paid for on first use."""


def modules(*globs: str) -> list[Path]:
    """The .py files of the package that match; the test must find some once the library is there."""
    return sorted({path for glob in globs for path in PACKAGE.glob(glob) if path.is_file()})


def name_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exists(module: str) -> bool:
    path = SRC.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file, those under TYPE_CHECKING and in functions too: an arrow is an arrow."""
    return _imports(ast.parse(path.read_text(encoding="utf-8"), str(path)), lazy=False)


def _imports(node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, lazy)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"line {child.lineno}: relative imports hide which way an arrow points"
            assert child.module is not None
            for alias in child.names:
                below = f"{child.module}.{alias.name}"
                ours = child.module.split(".")[0] == "postroom"
                yield Import(below if ours and exists(below) else child.module, child.lineno, lazy)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, lazy=lazy or function or _is_type_checking(child))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def code_without_prose(text: str) -> Iterator[tuple[int, str]]:
    """(line, token) of everything that is neither a comment nor a docstring."""
    prose = set()
    for node in ast.walk(ast.parse(text)):
        # Docstrings, and strings under an attribute that document it: an expression that is only a string.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.start[0] not in prose:
            yield token.start[0], token.string


def is_under(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)
