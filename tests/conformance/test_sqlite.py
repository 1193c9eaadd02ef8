"""The conformance suite over the SQLite store."""

from pathlib import Path

from postroom.testing.conformance import Conformance, UrlStore


class Sqlite(UrlStore):
    def url_of(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/test.db"


class TestSqlite(Conformance):
    store = Sqlite
