"""A pytest plugin for CI: a test that could not run is a failure, not a skip.

`.ci/run` loads it with `-p tools.pytest_ci`. On a laptop a missing server may skip its tests; in CI that would be a
green run which proved nothing. So a skip must give one of the reasons below, which are facts about what is tested and
not about the machine; any other fails the run at its end.
"""

import pytest

ALLOWED = (
    "capability:",  # the store declares that it does not do this
    "platform:",  # the behaviour does not exist on this operating system or this Python
)

_refused: list[tuple[str, str]] = []


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The text given to pytest.skip, without the place and the prefix that pytest adds."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def note(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported as skipped too; xfail_strict watches those.
    if report.skipped and not hasattr(report, "wasxfail") and not reason_of(report).startswith(ALLOWED):
        _refused.append((report.nodeid, reason_of(report)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Only in the process that talks to the user: the workers of xdist hand their reports to it.
    if _refused and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _refused:
        terminalreporter.section("skipped, which CI does not accept", red=True)
        for nodeid, reason in _refused:
            terminalreporter.line(f"{nodeid}: {reason}")
        terminalreporter.line(f"A skip is accepted when its reason starts with one of {', '.join(ALLOWED)}")
