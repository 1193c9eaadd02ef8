"""What holds for every test."""

import signal

pytest_plugins = ["tests.servers.fixtures"]


def pytest_configure() -> None:
    # Whoever runs us in the background of a script has us ignore Ctrl-C, and so would every program that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
