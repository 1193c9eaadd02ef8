"""The reference mentions every public name, and every method and field of what users hold."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import postroom
import postroom.aio
from postroom.testing import FakeMailbox

REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"
CODE = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"[A-Za-z_]\w*")
MODULES = ("postroom", "postroom.aio", "postroom.testing", "postroom.drivers.api")
HELD = (
    postroom.Attempt, postroom.Backoff, postroom.DeadLetters, postroom.Death, postroom.Dispatcher,
    postroom.DispatchResult, postroom.Lease, postroom.Mailbox, postroom.MailboxError, postroom.Message,
    postroom.MessageReceipt, postroom.Overflowed, postroom.Peeked, postroom.QueueClient, postroom.QueueClientFactory,
    postroom.QueueConfig, postroom.QueueDefinition, postroom.QueueInfo, postroom.QueueMessage, postroom.ReceivedMessage,
    postroom.ReceiveOptions, postroom.Redriven, postroom.ReplyDropped, postroom.SendOptions, postroom.SendResult,
    postroom.Session, postroom.SettleResult, postroom.Undecodable, FakeMailbox,
)  # fmt: skip
FOR_DRIVERS = {"rules", "of"}  # of a QueueDefinition: how stores read it


def words(page: Path) -> set[str]:
    """Every identifier that stands in code on a page."""
    return {word for code in CODE.findall(page.read_text(encoding="utf-8")) for word in WORD.findall(code)}


MENTIONED = set[str]().union(*(words(page) for page in REFERENCE.glob("*.md") if page.name != "cli.md"))


def public(module: ModuleType) -> list[str]:
    """What a module lists; where it lists nothing, the classes and functions it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module):
    missing = [name for name in public(importlib.import_module(module)) if name not in MENTIONED]
    assert missing == []


@pytest.mark.parametrize("kind", HELD, ids=lambda kind: kind.__name__)
def test_every_method_and_field_of_what_users_hold_is_in_the_reference(kind):
    members = {name for base in kind.__mro__[:-1] if base.__module__.startswith("postroom") for name in vars(base)}
    fields = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    missing = sorted(
        name for name in members | fields if not name.startswith("_") and name not in MENTIONED | FOR_DRIVERS
    )
    assert missing == []


def test_every_error_has_its_row():
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    errors = [
        value for name in postroom.__all__
        if inspect.isclass(value := getattr(postroom, name)) and issubclass(value, postroom.MailboxError)
    ]  # fmt: skip
    for error in errors:
        if error is postroom.MailboxError:
            continue
        row = next((line for line in page.splitlines() if line.startswith(f"| `{error.__name__}`")), None)
        assert row is not None, error.__name__
        assert row.rstrip(" |").endswith("yes" if error.default_transient else "no"), row
