"""The repository itself: what is in git, what is pinned, what is shipped."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tooling.source import PACKAGE, ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK_FILES = re.compile(r"(^|/)(uv\.lock|pylock.*\.toml|poetry\.lock|Pipfile\.lock|package-lock\.json)$")
# Written so that they do not find themselves.
REGISTRIES = re.compile(
    r"pythonhosted[.]org|pypi[.]org/simple|[-]index-url|[-]find-links|registry[.]npmjs|/simple[/]\w"
)
HOMES = re.compile(r"(?<![\w.$}])/(home|Users|root)[/]\w")


def tracked() -> list[Path]:
    """What is in git or about to be: files that git neither has nor ignores count as well."""
    if not (ROOT / ".git").exists():
        pytest.skip("platform: not a git checkout")
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]
    assert ROOT / "pyproject.toml" in files
    return files


def lines_matching(*patterns: re.Pattern[str]) -> list[str]:
    hits = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if any(pattern.search(line) for pattern in patterns):
                hits.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return hits


def test_no_lock_file_is_in_git():
    assert [path.name for path in tracked() if LOCK_FILES.search(path.as_posix())] == []


def test_no_file_names_a_registry():
    assert lines_matching(REGISTRIES) == []


def test_no_file_names_a_place_on_one_machine():
    """Not a home directory, and not the directory of this very checkout."""
    checkout = [re.compile(re.escape(str(ROOT)) + r"\b")] if len(ROOT.parts) > 2 else []
    assert lines_matching(HOMES, *checkout) == []


def requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    texts = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        texts += extra
    for group in PYPROJECT["dependency-groups"].values():
        texts += [entry for entry in group if isinstance(entry, str)]
    return [req for req in map(Requirement, texts) if req.name != "postroom"]


def pins() -> dict[str, set[str]]:
    """name -> versions; a name may have one for each range of Pythons."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        req = Requirement(line)
        [only] = req.specifier
        assert only.operator == "==", f"constraints.txt: {line} is no pin"
        assert req.url is None
        found.setdefault(canonicalize_name(req.name), set()).add(only.version)
    return found


def test_every_requirement_is_pinned_to_a_version_it_allows():
    pinned = pins()
    for req in requirements():
        versions = pinned.get(canonicalize_name(req.name))
        assert versions, f"{req.name} is not in constraints.txt; CONTRIBUTING says how to renew it"
        assert all(req.specifier.contains(version) for version in versions), f"{req} is pinned to {versions}"


def test_the_library_requires_msgspec_and_typing_extensions_and_nothing_else():
    names = {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]}
    assert names == {"msgspec", "typing_extensions"}


def test_the_extra_all_asks_for_every_extra_but_never_for_both_sqs_clients():
    extras = PYPROJECT["project"]["optional-dependencies"]
    [everything] = [Requirement(text) for text in extras["all"]]
    assert everything.extras == extras.keys() - {"all", "sqs-async"}


def test_pytest_loads_our_plugin():
    """It is kept out for as long as the module is not there, since pytest would not even start."""
    kept_out = "-pno:postroom" in PYPROJECT["tool"]["pytest"]["ini_options"]["addopts"]
    assert kept_out != (PACKAGE / "testing/plugin.py").exists()


def test_the_readme_is_the_description_of_the_package():
    if (ROOT / "README.md").exists():
        assert PYPROJECT["project"].get("readme") == "README.md"


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench", "docs", "soak", "clean", "venv"])
def test_make_help_lists(target):
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
    ).stdout
    assert re.search(rf"^{target} ", shown, re.MULTILINE)


def test_the_changelog_opens_with_what_is_not_released():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_every_decision_is_listed_and_names_its_price():
    folder = ROOT / "docs/decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    pages = sorted(folder.glob("[0-9]*.md"))
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert f"({page.name})" in index, f"{page.name} is not in decisions/index.md"
        for part in ("Context", "Choice", "Price", "Revisit"):
            assert f"**{part}" in text, f"{page.name} does not say **{part}**"
        assert len(text.splitlines()) <= 60, f"{page.name} is longer than a page"


@pytest.mark.slow
def test_the_wheel_carries_what_lies_beside_the_code(tmp_path):
    """py.typed, the SQL and the Lua: without them an installed Postroom is untyped or broken."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=50)
    [wheel] = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    beside = {
        f"postroom/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert "postroom/py.typed" in beside
    assert beside <= shipped
    assert not any(name.startswith(("tests/", "bench/", "tools/", "docs/")) for name in shipped)
    if (PACKAGE / "drivers/sqlite.py").exists():
        assert any(name.endswith(".sql") for name in shipped)


@pytest.mark.slow
def test_a_python_is_found_by_what_it_says_it_is():
    """And not by its name: a pyenv shim exists for versions that do not run."""
    script = str(ROOT / "tools/python-for")
    here = "{}.{}".format(*sys.version_info[:2])
    found = subprocess.run([script, here], capture_output=True, text=True, check=False)
    if found.returncode == 0:  # this very Python may be in a place that nobody would look in
        said = subprocess.run([found.stdout.strip(), "--version"], capture_output=True, text=True, check=True).stdout
        assert said.startswith(f"Python {here}.")
    assert subprocess.run([script, "3.99"], capture_output=True, check=False).returncode == 1
