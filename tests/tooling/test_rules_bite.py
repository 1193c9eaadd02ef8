"""The rules about the source find what they look for: a rule that cannot fail protects nothing."""

import textwrap

from tests.tooling import source, test_layers


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_an_arrow_that_points_up_is_found_even_in_a_function(tmp_path, monkeypatch):
    for module in (source, test_layers):
        monkeypatch.setattr(module, "PACKAGE", tmp_path / "postroom")
    monkeypatch.setattr(source, "SRC", tmp_path)
    write(tmp_path / "postroom/mailbox.py", "")
    path = write(
        tmp_path / "postroom/core/codec.py",
        """
        from postroom.errors import PostroomError
        def late():
            from postroom import mailbox
        """,
    )
    assert test_layers.arrows_up([path], test_layers.CORE) == ["core/codec.py:4 imports postroom.mailbox"]


def test_a_store_named_in_code_is_found_and_one_in_prose_is_not():
    text = textwrap.dedent('''
        """Works on SQLite."""
        limit = 3  # Redis takes 4
        def fast(driver: object) -> bool:
            """Never on redis."""
            return type(driver).__name__ == "SqliteDriver" and isinstance(b"", memoryview)
    ''')
    hits = [token for _, token in source.code_without_prose(text) if test_layers.STORE_NAMES.search(token)]
    assert hits == ['"SqliteDriver"']


def test_a_driver_may_import_its_own_rooms_and_not_its_neighbours(tmp_path, monkeypatch):
    for module in (source, test_layers):
        monkeypatch.setattr(module, "PACKAGE", tmp_path / "postroom")
    monkeypatch.setattr(source, "SRC", tmp_path)
    write(tmp_path / "postroom/drivers/sqlite_wal.py", "")
    write(tmp_path / "postroom/drivers/memory.py", "")
    path = write(
        tmp_path / "postroom/drivers/sqlite.py",
        """
        import sqlite3
        from postroom.drivers import sqlite_wal
        from postroom.drivers.memory import MemoryDriver
        """,
    )
    wrong = test_layers.arrows_up([path], (*test_layers.CORE, *test_layers.WAIST), own=True)
    assert wrong == ["drivers/sqlite.py:4 imports postroom.drivers.memory"]
