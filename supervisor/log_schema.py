"""The tables of events.db, its marks in the file header, and the statements that use them."""

DATABASE_NAME = "events.db"
APPLICATION_ID = 0x506C616E  # "Plan", at offset 68 of the file: `file` and we tell ours by it
FORMAT_VERSION = 1  # user_version; a database of a higher one is refused, never guessed at
PAGE_BYTES = 8_192  # measured faster than 4 KiB for rows of some hundred bytes

# Triggers stop whoever opens the file with another tool, too. INSERT OR REPLACE deletes without
# firing delete triggers unless the connection has recursive_triggers on, so the guard stands in
# front of the insert itself: a new row is always behind the last one, in the log and in its run.
CREATE_TABLES = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events(
    position INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    session_id TEXT,
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    hash BLOB NOT NULL,
    UNIQUE(run_id, sequence)
);
CREATE TRIGGER events_not_updated BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER events_not_deleted BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
CREATE TRIGGER events_not_replaced BEFORE INSERT ON events
    WHEN new.position <= (SELECT max(position) FROM events)
    OR EXISTS(SELECT 1 FROM events WHERE run_id = new.run_id AND sequence >= new.sequence)
    BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;
"""

# A projection: dropped and rebuilt at will. The partial index makes "which runs are open" cost
# nothing for the finished ones.
CREATE_RUNS = """
CREATE TABLE runs(
    run_id TEXT NOT NULL PRIMARY KEY,
    status TEXT NOT NULL,
    workflow_id TEXT,
    admitted_at INTEGER,
    ended_at INTEGER
);
CREATE INDEX runs_open ON runs(run_id) WHERE ended_at IS NULL;
"""
DROP_RUNS = "DROP TABLE IF EXISTS runs"

INSERT_META = "INSERT INTO meta(name, value) VALUES(?, ?)"
SELECT_META = "SELECT value FROM meta WHERE name = ?"

INSERT_EVENT = (
    "INSERT INTO events(position, run_id, sequence, session_id, type, body, hash) "
    "VALUES(?, ?, ?, ?, ?, ?, ?)"
)
SELECT_LAST_POSITION = "SELECT max(position) FROM events"
SELECT_LAST_BODY = "SELECT body FROM events ORDER BY position DESC LIMIT 1"
SELECT_TAIL = (
    "SELECT sequence, body, hash FROM events WHERE run_id = ? ORDER BY sequence DESC LIMIT ?"
)
SELECT_HASH = "SELECT hash FROM events WHERE run_id = ? AND sequence = ?"
SELECT_RUN = (
    "SELECT position, sequence, body, hash FROM events "
    "WHERE run_id = ? AND sequence > ? ORDER BY sequence LIMIT ?"
)
SELECT_SESSION = (
    "SELECT sequence, body FROM events "
    "WHERE run_id = ? AND sequence > ? AND session_id = ? ORDER BY sequence LIMIT ?"
)
SELECT_ALL = "SELECT position, body FROM events WHERE position > ? ORDER BY position LIMIT ?"
SELECT_RUN_EXISTS = "SELECT 1 FROM events WHERE run_id = ? LIMIT 1"
SELECT_NEXT_RUN = "SELECT min(run_id) FROM events WHERE run_id > ?"

SELECT_RUNS_TABLE = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'runs'"
SELECT_OPEN_RUNS = "SELECT run_id FROM runs WHERE ended_at IS NULL ORDER BY run_id"
SELECT_RUN_ROWS = (
    "SELECT run_id, status, workflow_id, admitted_at, ended_at FROM runs "
    "WHERE ?1 IS NULL OR status = ?1 ORDER BY rowid DESC LIMIT ?2"
)
SELECT_RUN_COUNTS = "SELECT status, count(*) FROM runs GROUP BY status ORDER BY status"
UPSERT_RUN = (
    "INSERT INTO runs(run_id, status, workflow_id, admitted_at, ended_at) VALUES(?, ?, ?, ?, ?) "
    "ON CONFLICT(run_id) DO UPDATE SET status = excluded.status, "
    "workflow_id = coalesce(excluded.workflow_id, workflow_id), "
    "admitted_at = coalesce(excluded.admitted_at, admitted_at), ended_at = excluded.ended_at"
)
