"""The file of a campaign: one SQLite database, in which a unit's whole outcome is one transaction.

SQLite and not DuckDB: another process reads it while the campaign writes, and it is Python's own.
A process that is killed at any moment leaves the outcomes that it had entered.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from typing_extensions import Self

from verify_norm.campaign.model import Outcome, Unit
from verify_norm.campaign.tables import MAGIC, OF_OUTCOME, SCHEMA, VERSION, counts, rows, unpacked
from verify_norm.core.errors import UsageError
from verify_norm.core.files import writable
from verify_norm.core.results import Report


@contextmanager
def said(path: str, hint: str = "") -> Iterator[None]:
    """Raise UsageError, one line, for what SQLite or the system says of the file in this block."""
    try:
        yield
    except sqlite3.Error as error:
        raise UsageError(f"{path}: {error}{hint}") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


class Store:
    """An open file of a campaign. It closes as a context manager."""

    def __init__(self, path: str, database: sqlite3.Connection, lock: IO[str] | None = None) -> None:
        self.path, self.database, self._lock = path, database, lock

    @classmethod
    def reading(cls, path: str) -> Self:
        """Return the store in a file, to read it alone, perhaps while a campaign writes it. Raises UsageError."""
        if not os.path.isfile(path):
            raise UsageError(f"there is no store {path}")
        with said(path):
            database = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True)
            _refuse_foreign(database, path)
        return cls(path, database)

    @classmethod
    def writing(cls, path: str, units: tuple[Unit, ...], facts: Mapping[str, Any]) -> Self:
        """Return the store of a campaign, new or with what it has done; only one process writes into it.

        Raises UsageError if the file is not ours, of another plan or of other versions, in use, or not writable.
        """
        writable(path, ours=("SQLite format 3",))
        lock, database = _locked(path), None
        try:
            with said(path):
                database = sqlite3.connect(f"file:{_quoted(path)}", uri=True, isolation_level=None)
                store = cls(path, database, lock)
                store._begin(units, {name: json.dumps(value, sort_keys=True) for name, value in facts.items()})
        except BaseException:
            if database is not None:
                database.close()
            _unlock(path, lock)
            raise
        return store

    def _begin(self, units: tuple[Unit, ...], facts: Mapping[str, str]) -> None:
        """Enter the plan into a new file; in another one, refuse another plan."""
        new = not self.database.execute("PRAGMA schema_version").fetchone()[0]
        if not new:
            _refuse_foreign(self.database, self.path)
            refuse_other(facts, self.facts(), self.path)
        self.database.execute("PRAGMA journal_mode = WAL")  # others read while this process writes
        self.database.execute("PRAGMA synchronous = NORMAL")
        if new:
            with self.transaction():
                for statement in filter(str.strip, SCHEMA.split(";")):
                    self.database.execute(statement)
                self._insert("facts", facts.items())
                self._insert("units", (tuple(getattr(unit, name) for name in Unit.__slots__) for unit in units))
                self.database.execute(f"PRAGMA application_id = {MAGIC}")
                self.database.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Enter all that this block writes, or nothing."""
        with said(self.path, "; what was entered before is kept, and the same command goes on"):
            self.database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.database.execute("ROLLBACK")
                raise

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Enter rows, each with a value for every column."""
        for row in rows:
            self.database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def facts(self) -> dict[str, str]:
        """Return what holds for all units: the plan, its digest, the versions; each as JSON."""
        return dict(self.query("SELECT name, value FROM facts ORDER BY rowid"))

    def query(self, text: str, *values: Any) -> list[Any]:
        """Return the rows of a question; raises UsageError for one that SQLite does not take."""
        with said(self.path):
            return self.database.execute(text, values).fetchall()

    def units(self) -> tuple[Unit, ...]:
        """Return all units of the plan, in their order."""
        return tuple(Unit(*row) for row in self.query("SELECT * FROM units ORDER BY number"))

    def pending(self) -> list[Unit]:
        """Return the units that have no report and no finding, in their order."""
        rows = self.query(
            "SELECT units.* FROM units LEFT JOIN outcomes ON unit = id "
            "WHERE unit IS NULL OR problem != '' ORDER BY number"
        )
        return [Unit(*row) for row in rows]

    def enter(self, unit: Unit, outcome: Outcome, replay: str = "") -> None:
        """Enter the outcome of a unit, in place of a problem that it had; one that has another outcome keeps it.

        `replay` is the command that runs a unit again that ended its process.
        """
        report = outcome.report
        with self.transaction():
            self.database.execute("DELETE FROM outcomes WHERE unit = ? AND problem != ''", (unit.id,))
            if self.database.execute("SELECT 1 FROM outcomes WHERE unit = ?", (unit.id,)).fetchone():
                return
            if outcome.ended:
                self._insert("findings", [(unit.id, "crash", None, 1, outcome.ended, replay)])
            if report is not None:
                self._insert("traits", ((unit.id, *trait) for trait in outcome.traits.items()))
                for table, found in rows(report).items():
                    self._insert(table, ((unit.id, *row) for row in found))
            course = (outcome.worker, outcome.started, outcome.finished, outcome.problem)
            self._insert("outcomes", [(unit.id, outcome.verdict.name, *course, *counts(report))])

    def lose(self, outcome: Outcome) -> int:
        """Note that a unit has ended the process of a worker, and return how often it has."""
        with self.transaction():
            self._insert("losses", [(outcome.unit, outcome.worker, outcome.ended)])
        return int(self.query("SELECT count(*) FROM losses WHERE unit = ?", outcome.unit)[0][0])

    def take(self, path: str) -> None:
        """Enter the outcomes in another file of the same campaign, of units that have none here; all or nothing."""
        with said(self.path):
            self.database.execute("ATTACH ? AS other", (f"file:{_quoted(path)}?mode=ro",))
        theirs = "unit IN (SELECT unit FROM other.outcomes WHERE problem = '')"
        new = f"{theirs} AND unit NOT IN (SELECT unit FROM main.outcomes)"
        try:
            with self.transaction():
                self.database.execute(f"DELETE FROM main.outcomes WHERE problem != '' AND {theirs}")
                for table in OF_OUTCOME:
                    self.database.execute(f"INSERT INTO main.{table} SELECT * FROM other.{table} WHERE {new}")
        finally:
            self.database.execute("DETACH other")

    def reports(self, kernel: str, op: str) -> list[Report]:
        """Return the reports of a kernel's units, in their order."""
        rows = self.query(
            "SELECT report FROM outcomes JOIN units ON unit = id WHERE kernel = ? AND op = ? AND report IS NOT NULL "
            "ORDER BY number",
            kernel,
            op,
        )
        return [unpacked(data) for (data,) in rows]

    def close(self) -> None:
        """Close the file; what was written is in this one file then, if nobody reads it."""
        if self._lock is not None:
            with suppress(sqlite3.Error):
                self.database.execute("PRAGMA journal_mode = DELETE")
        self.database.close()
        _unlock(self.path, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_other(facts: Mapping[str, str], stored: Mapping[str, str], path: str) -> None:
    """Raise UsageError where the facts of a campaign are not those of the store in a file."""
    for name, value in facts.items():
        if stored.get(name) == value:
            continue
        mine, its = json.loads(value), json.loads(stored.get(name, "null"))
        if isinstance(mine, dict) and isinstance(its, dict):
            name = next(key for key in (*mine, *its) if mine.get(key) != its.get(key))
            mine, its = mine.get(name), its.get(name)
        if name == "units":
            raise UsageError(f"{path} has other units: a kernel or its file has changed since; name another file")
        raise UsageError(f"{path} is of another campaign: it has {name} = {its}, here it is {mine}; name another file")


def _refuse_foreign(database: sqlite3.Connection, path: str) -> None:
    """Raise UsageError where a file is no store of a campaign, or one of another version of its tables."""
    try:
        (magic,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError:
        magic = version = 0
    if magic != MAGIC:
        raise UsageError(f"{path} is no store of a campaign")
    if version != VERSION:
        hint = "a newer verify-norm wrote it" if version > VERSION else "an older verify-norm wrote it"
        raise UsageError(f"{path} has tables of version {version}; this verify-norm has version {VERSION}; {hint}")


def _quoted(path: str) -> str:
    """Return a path as a part of a URI."""
    return os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _locked(path: str) -> IO[str]:
    """Return an open file beside a store that says that this process writes into it; raises UsageError."""
    with said(f"{path}.lock"):
        lock = open(f"{path}.lock", "w")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise UsageError(f"{path} is in use: another campaign writes into it") from None
    return lock


def in_use(path: str) -> bool:
    """Return whether a campaign writes into the store now."""
    try:
        with open(f"{path}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _unlock(path: str, lock: IO[str] | None) -> None:
    """Remove and close the file of `_locked`, if there is one."""
    if lock is not None:
        with suppress(OSError):
            os.unlink(f"{path}.lock")
        lock.close()
