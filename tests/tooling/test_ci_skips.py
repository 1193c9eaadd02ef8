"""In CI a test that could not run fails the run (tools/pytest_ci.py)."""

import subprocess
import sys

import pytest

from tests.tooling.source import ROOT

pytestmark = pytest.mark.slow  # a pytest within a pytest each


def run_in_ci(tmp_path, body, *options):
    (tmp_path / "test_it.py").write_text(f"import pytest\n{body}\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tools.pytest_ci", "-p", "no:cacheprovider", "-p", "no:postroom"]
    return subprocess.run(
        [*command, "-c", str(tmp_path / "pytest.ini"), *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_a_missing_server_fails_the_run_and_is_named(tmp_path, options):
    ran = run_in_ci(tmp_path, "def test_a(): pytest.skip('no server here')", *options)
    assert ran.returncode == 1
    assert "test_it.py::test_a: no server here" in ran.stdout


def test_a_whole_module_that_cannot_be_imported_fails_the_run(tmp_path):
    ran = run_in_ci(tmp_path, "pytest.importorskip('no_such_module')\ndef test_a(): pass\n")
    assert ran.returncode == 1
    assert "no_such_module" in ran.stdout


def test_a_fact_about_the_store_may_skip_and_an_expected_failure_is_no_skip(tmp_path):
    body = """
@pytest.mark.skip(reason="capability: no priorities")
def test_a(): pass
@pytest.mark.xfail
def test_b(): assert False
"""
    ran = run_in_ci(tmp_path, body)
    assert ran.returncode == 0, ran.stdout
    assert "1 skipped, 1 xfailed" in ran.stdout
