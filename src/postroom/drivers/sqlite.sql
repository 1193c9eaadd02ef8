-- What Postroom keeps in a SQLite file. Every table begins with `postroom_`, so that an application's own database can
-- hold them; `application_id` and `user_version` stay the application's.
--
--   postroom_store    name -> value      'schema': the version of these tables; 'clock:BOOT': the store's time minus the
--                                        boot-time clock, in that boot
--   postroom_queue    one row a queue; its dead-letter queue is a row of its own, with `origin`
--   postroom_tally    the narrow row that every write touches: how many live messages and bytes a queue has. Row 0 is the
--                     store's: `counter` is the last seq or fencing token given out, neither of which may ever fall, also
--                     not when queues are deleted; `edition` rises with every change of a definition, so that what
--                     processes remember of queues is checked in the statement that reads the counter anyway;
--                     touched_at is also where the clock may not fall behind after a boot
--   postroom_message  one row a message, leased or not. `state` says where it is:
--                       0 later     scheduled, never delivered: does not hold up its session
--                       1 ready     of a free session only the head
--                       2 flight    leased until due_at
--                       3 blocked   waits for its turn in its session
--                       4 delayed   nacked or returned with a delay: holds up its session
--                       5 parked    should be dead, but the dead-letter queue refused it; tried again at due_at
--                     due_at is NULL where time changes nothing (1 and 3). claim_id is that of the last claim, and stays
--                     when a lease lapses, so that a late acknowledge counts until somebody else claims
--                     Sizes are read by CAST: SQLite keeps whatever somebody writes into a column by hand
--   postroom_body     bodies over 2 kB: a claim or nack rewrites its row, and must not rewrite the body with it
--   postroom_dedup    (queue, dedup_id) -> the id that was accepted, until when
--   postroom_session  what a session has beside messages: an explicit lock, its state
--
-- Two indexes on the hot path. `ready` gives the order of hand-out, `due` the order in time. One index on the time alone
-- cannot give the order: a claim would sort everything that is due. seq is the row id, which ends every index, so that
-- "priority" is also "priority, seq". The others are partial and cost nothing to messages
-- without a session or a TTL.

-- name: create
CREATE TABLE postroom_store (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE postroom_queue (
  id INTEGER PRIMARY KEY,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  origin INTEGER,
  rules BLOB NOT NULL,
  status TEXT NOT NULL,
  sessions INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  UNIQUE (namespace, name)
);
CREATE INDEX postroom_queue_origin ON postroom_queue (origin) WHERE origin IS NOT NULL;
CREATE TABLE postroom_tally (
  queue INTEGER PRIMARY KEY,
  live INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL DEFAULT 0,
  dropped INTEGER NOT NULL DEFAULT 0,
  expired INTEGER NOT NULL DEFAULT 0,
  touched_at REAL NOT NULL DEFAULT 0,
  counter INTEGER NOT NULL DEFAULT 0,
  edition INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE postroom_message (
  seq INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  due_at REAL,
  claim_id TEXT,
  token INTEGER NOT NULL DEFAULT 0,
  deliveries INTEGER NOT NULL DEFAULT 0,
  lapsed INTEGER NOT NULL DEFAULT 0,
  nacks INTEGER NOT NULL DEFAULT 0,
  returns INTEGER NOT NULL DEFAULT 0,
  received_at REAL,
  visible_at REAL NOT NULL,
  enqueued_at REAL NOT NULL,
  expires_at REAL,
  ttl REAL,
  session TEXT,
  blocks INTEGER,
  size INTEGER NOT NULL,
  id TEXT NOT NULL,
  head BLOB,
  record BLOB,
  body BLOB,
  body_ref INTEGER
);
CREATE INDEX postroom_message_ready ON postroom_message (queue, priority) WHERE state = 1;
CREATE INDEX postroom_message_due ON postroom_message (queue, due_at, state) WHERE due_at IS NOT NULL;
CREATE INDEX postroom_message_expiry ON postroom_message (queue, expires_at) WHERE expires_at IS NOT NULL AND state <> 2 AND state <> 5;
CREATE INDEX postroom_message_session ON postroom_message (queue, session, state) WHERE session IS NOT NULL;
CREATE INDEX postroom_message_heads ON postroom_message (queue, priority) WHERE state = 1 AND session IS NOT NULL;
CREATE INDEX postroom_message_blocks ON postroom_message (blocks, session) WHERE blocks IS NOT NULL;
CREATE TABLE postroom_body (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE postroom_dedup (
  queue INTEGER NOT NULL,
  dedup_id TEXT NOT NULL,
  id TEXT NOT NULL,
  until REAL NOT NULL,
  PRIMARY KEY (queue, dedup_id)
) WITHOUT ROWID;
CREATE INDEX postroom_dedup_until ON postroom_dedup (queue, until);
CREATE TABLE postroom_session (
  queue INTEGER NOT NULL,
  session TEXT NOT NULL,
  lock_token TEXT,
  lock_until REAL,
  state BLOB,
  version INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, session)
) WITHOUT ROWID;
CREATE INDEX postroom_session_lock ON postroom_session (queue, lock_until) WHERE lock_until IS NOT NULL;
INSERT INTO postroom_store VALUES ('schema', 1);
INSERT INTO postroom_tally (queue) VALUES (0);

-- name: look
-- The first statement of almost every step: is what we know of the queues still true, the last number given out, and
-- when does time change something here by itself: a due message or ended lease, a TTL; and, where there are sessions,
-- the end of a lock.
SELECT edition, counter,
  (SELECT min(due_at) FROM postroom_message WHERE queue = ? AND due_at IS NOT NULL),
  (SELECT min(expires_at) FROM postroom_message WHERE queue = ? AND expires_at IS NOT NULL AND state <> 2 AND state <> 5)
FROM postroom_tally WHERE queue = 0

-- name: first_lock
SELECT min(lock_until) FROM postroom_session WHERE queue = ? AND lock_until IS NOT NULL

-- name: glance
-- All of that, and whether anything is ready: the only statement of whoever begins to wait, so it needs no transaction.
SELECT edition, counter,
  (SELECT min(due_at) FROM postroom_message WHERE queue = ? AND due_at IS NOT NULL),
  (SELECT min(expires_at) FROM postroom_message WHERE queue = ? AND expires_at IS NOT NULL AND state <> 2 AND state <> 5),
  (SELECT min(lock_until) FROM postroom_session WHERE queue = ? AND lock_until IS NOT NULL),
  EXISTS (SELECT 1 FROM postroom_message WHERE queue = ? AND state = 1)
FROM postroom_tally WHERE queue = 0

-- name: edition
SELECT edition, counter FROM postroom_tally WHERE queue = 0

-- name: new_edition
UPDATE postroom_tally SET edition = edition + 1 WHERE queue = 0 RETURNING edition

-- name: find_queue
SELECT q.id, q.name, q.origin, q.rules, q.status, q.sessions, q.created_at, q.updated_at, d.id
FROM postroom_queue q LEFT JOIN postroom_queue d ON d.origin = q.id
WHERE q.namespace = ? AND q.name = ?

-- name: find_queue_by_id
SELECT q.id, q.name, q.origin, q.rules, q.status, q.sessions, q.created_at, q.updated_at, d.id
FROM postroom_queue q LEFT JOIN postroom_queue d ON d.origin = q.id
WHERE q.id = ?

-- name: list_queues
SELECT name FROM postroom_queue WHERE namespace = ? AND origin IS NULL ORDER BY name

-- name: make_queue
INSERT INTO postroom_queue (id, namespace, name, origin, rules, status, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: define_queue
UPDATE postroom_queue SET rules = ?, status = ?, updated_at = ? WHERE id = ?

-- name: mark_sessions
UPDATE postroom_queue SET sessions = 1 WHERE id = ?

-- name: drop_queue
DELETE FROM postroom_queue WHERE id = ?

-- name: make_tally
INSERT INTO postroom_tally (queue, touched_at) VALUES (?, ?)

-- name: drop_tally
DELETE FROM postroom_tally WHERE queue = ?

-- name: tally
SELECT live, bytes, dropped, expired, touched_at FROM postroom_tally WHERE queue = ?

-- name: count
UPDATE postroom_tally SET live = live + ?, bytes = bytes + ?, touched_at = ? WHERE queue = ?

-- name: numbered
-- Not one statement with `count`: after an ANALYZE of a young store SQLite would scan the table for two of its rows.
UPDATE postroom_tally SET counter = ?, touched_at = ? WHERE queue = 0

-- name: count_odd
UPDATE postroom_tally SET dropped = dropped + ?, expired = expired + ? WHERE queue = ?

-- name: put
INSERT INTO postroom_message
  (seq, queue, state, priority, due_at, visible_at, enqueued_at, expires_at, ttl, session, size, id, head, body, body_ref)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_plain
-- A message that is ready at once and has none of the rest: to bind six NULLs costs as much as a third of the insert.
INSERT INTO postroom_message (seq, queue, state, priority, visible_at, enqueued_at, size, id, body)
VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?)

-- name: put_body
INSERT INTO postroom_body (id, body) VALUES (?, ?)

-- name: body
SELECT body FROM postroom_body WHERE id = ?

-- name: drop_body
DELETE FROM postroom_body WHERE id = ?

-- name: dedup_find
SELECT id, until FROM postroom_dedup WHERE queue = ? AND dedup_id = ?

-- name: dedup_put
INSERT OR REPLACE INTO postroom_dedup (queue, dedup_id, id, until) VALUES (?, ?, ?, ?)

-- name: dedup_tidy
DELETE FROM postroom_dedup WHERE queue = ? AND dedup_id IN
  (SELECT dedup_id FROM postroom_dedup WHERE queue = ? AND until <= ? ORDER BY until LIMIT 20)

-- name: dedup_clear
DELETE FROM postroom_dedup WHERE queue = ?

-- name: due
SELECT seq, state, due_at FROM postroom_message WHERE queue = ? AND due_at <= ? ORDER BY due_at, state, seq LIMIT ?

-- name: overdue
SELECT seq FROM postroom_message
WHERE queue = ? AND expires_at <= ? AND state <> 2 AND state <> 5 ORDER BY expires_at LIMIT ?

-- name: lapsed_locks
SELECT session FROM postroom_session WHERE queue = ? AND lock_until <= ? ORDER BY lock_until LIMIT ?

-- name: ready
SELECT seq, id, priority, session, deliveries, lapsed, nacks, returns, visible_at, enqueued_at, expires_at, ttl, CAST(size AS INTEGER), head, record, body, body_ref
FROM postroom_message WHERE queue = ? AND state = 1 ORDER BY priority, seq LIMIT ?

-- name: ready_rows
-- The same with all that is needed to judge them.
SELECT seq, id, priority, session, deliveries, lapsed, nacks, returns, visible_at, enqueued_at, expires_at, ttl, CAST(size AS INTEGER), head, record, body, body_ref,
  queue, state, due_at, claim_id, token, received_at, blocks
FROM postroom_message WHERE queue = ? AND state = 1 ORDER BY priority, seq LIMIT ?

-- name: session_line
-- The members of a session that wait for their turn, up to the first that nobody may overtake.
SELECT seq, id, priority, session, deliveries, lapsed, nacks, returns, visible_at, enqueued_at, expires_at, ttl, CAST(size AS INTEGER), head, record, body, body_ref,
  queue, state, due_at, claim_id, token, received_at, blocks
FROM postroom_message WHERE queue = ? AND session = ? AND state = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT ?

-- name: row
SELECT seq, id, priority, session, deliveries, lapsed, nacks, returns, visible_at, enqueued_at, expires_at, ttl, CAST(size AS INTEGER), head, record, body, body_ref,
  queue, state, due_at, claim_id, token, received_at, blocks
FROM postroom_message WHERE seq = ?

-- name: lend
UPDATE postroom_message
SET state = 2, due_at = ?, claim_id = ?, token = ?, deliveries = deliveries + 1, received_at = ? WHERE seq = ?

-- name: lend_many
UPDATE postroom_message
SET state = 2, due_at = ?, claim_id = ?, token = ?, deliveries = deliveries + 1, received_at = ?
WHERE seq IN (SELECT value FROM json_each(?))

-- name: acknowledge
-- The whole of an acknowledge where no session looks on: the claim's id proves the lease, late or not.
DELETE FROM postroom_message
WHERE seq = ? AND queue = ? AND claim_id = ? AND session IS NULL AND blocks IS NULL RETURNING CAST(size AS INTEGER), body_ref

-- name: acknowledge_many
DELETE FROM postroom_message
WHERE seq IN (SELECT value FROM json_each(?)) AND queue = ? AND claim_id = ? AND session IS NULL AND blocks IS NULL
RETURNING seq, CAST(size AS INTEGER), body_ref

-- name: remove
DELETE FROM postroom_message WHERE seq = ?

-- name: place
UPDATE postroom_message SET state = ?, due_at = ?, visible_at = ? WHERE seq = ?

-- name: lapse
UPDATE postroom_message SET state = ?, due_at = NULL, visible_at = ?, lapsed = lapsed + 1,
  claim_id = CASE ? WHEN 1 THEN claim_id END
WHERE seq = ?

-- name: give_back
UPDATE postroom_message
SET state = ?, due_at = ?, visible_at = ?, claim_id = NULL, deliveries = ?, nacks = ?, returns = ?, record = ?
WHERE seq = ?

-- name: extend
UPDATE postroom_message SET due_at = ? WHERE seq = ?

-- name: bury
UPDATE postroom_message
SET queue = ?, state = ?, due_at = NULL, visible_at = ?, expires_at = NULL, claim_id = NULL, token = 0, record = ?, blocks = ?,
  nacks = ?
WHERE seq = ?

-- name: revive
UPDATE postroom_message
SET queue = ?, state = ?, due_at = NULL, visible_at = ?, expires_at = ?, claim_id = NULL, token = 0,
  deliveries = 0, lapsed = 0, nacks = 0, returns = 0, blocks = NULL
WHERE seq = ?

-- name: show
UPDATE postroom_message SET state = ? WHERE seq = ?

-- name: held_by
-- Asked by a retried or abandoned claim only, and only when this process does not know what the claim took.
SELECT seq FROM postroom_message WHERE queue = ? AND due_at > ? AND state = 2 AND claim_id = ? ORDER BY seq

-- name: session_places
SELECT
  EXISTS (SELECT 1 FROM postroom_session WHERE queue = ? AND session = ? AND lock_until > ?),
  EXISTS (SELECT 1 FROM postroom_message WHERE blocks = ? AND session = ?),
  (SELECT min(seq) FROM postroom_message WHERE queue = ? AND session = ? AND state = 1),
  (SELECT min(seq) FROM postroom_message WHERE queue = ? AND session = ? AND state = 2),
  (SELECT min(seq) FROM postroom_message WHERE queue = ? AND session = ? AND state = 3),
  (SELECT min(seq) FROM postroom_message WHERE queue = ? AND session = ? AND state = 4),
  (SELECT min(seq) FROM postroom_message WHERE queue = ? AND session = ? AND state = 5)

-- name: session_held_after
SELECT seq FROM postroom_message WHERE queue = ? AND session = ? AND state = 2 AND seq > ? ORDER BY seq

-- name: session_extend
UPDATE postroom_message SET due_at = ? WHERE queue = ? AND session = ? AND state = 2

-- name: first_session
SELECT session FROM postroom_message
WHERE queue = ? AND state = 1 AND session IS NOT NULL ORDER BY priority, seq LIMIT 1

-- name: session
SELECT lock_token, lock_until, state, version FROM postroom_session WHERE queue = ? AND session = ?

-- name: session_lock
INSERT INTO postroom_session (queue, session, lock_token, lock_until) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, session) DO UPDATE SET lock_token = excluded.lock_token, lock_until = excluded.lock_until

-- name: session_renew
UPDATE postroom_session SET lock_until = ? WHERE queue = ? AND session = ?

-- name: session_unlock
UPDATE postroom_session SET lock_token = NULL, lock_until = NULL WHERE queue = ? AND session = ?

-- name: session_forget
DELETE FROM postroom_session WHERE queue = ? AND session = ? AND version = 0 AND lock_until IS NULL

-- name: session_write
UPDATE postroom_session SET state = ?, version = ? WHERE queue = ? AND session = ?

-- name: purge_locks
UPDATE postroom_session SET lock_token = NULL, lock_until = NULL WHERE queue = ?

-- name: purge_sessions
DELETE FROM postroom_session WHERE queue = ? AND version = 0

-- name: sessions_of
SELECT DISTINCT session FROM postroom_message WHERE queue = ? AND session IS NOT NULL

-- name: drop_sessions
DELETE FROM postroom_session WHERE queue = ?

-- name: unblock_all
UPDATE postroom_message SET blocks = NULL WHERE blocks = ?

-- name: some_ready
SELECT seq, CAST(size AS INTEGER), body_ref, blocks, session FROM postroom_message WHERE queue = ? AND state = 1 AND seq <= ? LIMIT ?

-- name: some_due
SELECT seq, CAST(size AS INTEGER), body_ref, blocks, session FROM postroom_message WHERE queue = ? AND due_at IS NOT NULL AND seq <= ? LIMIT ?

-- name: some_blocked
SELECT seq, CAST(size AS INTEGER), body_ref, blocks, session FROM postroom_message WHERE queue = ? AND session IS NOT NULL AND seq <= ? LIMIT ?

-- name: priorities
WITH RECURSIVE p (priority) AS (
  SELECT (SELECT min(priority) FROM postroom_message WHERE queue = ? AND state = 1)
  UNION ALL
  SELECT (SELECT min(priority) FROM postroom_message WHERE queue = ? AND state = 1 AND priority > p.priority)
  FROM p WHERE p.priority IS NOT NULL
)
SELECT priority FROM p WHERE priority IS NOT NULL

-- name: first_of_priority
-- With the time since when it waits: since it was due, or of one that came back since it was sent.
SELECT seq, CASE WHEN token > 0 THEN enqueued_at ELSE visible_at END FROM postroom_message WHERE queue = ? AND state = 1 AND priority = ? ORDER BY seq LIMIT 1

-- name: first_placed
-- What a full queue may drop beside the ready ones: scheduled, delayed and parked, the lowest seq.
SELECT min(seq) FROM postroom_message WHERE queue = ? AND due_at IS NOT NULL AND state <> 2

-- name: first_blocked
SELECT min(seq) FROM postroom_message WHERE queue = ? AND session IS NOT NULL AND state = 3

-- name: in_time
-- Of what time will move: how many are in flight, how many scheduled. Read from the index alone.
SELECT count(*) FILTER (WHERE state = 2), count(*) FILTER (WHERE state IN (0, 4)) FROM postroom_message
WHERE queue = ? AND due_at IS NOT NULL

-- name: peek_ready
SELECT seq FROM postroom_message WHERE queue = ? AND state = 1 AND priority = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: peek_due
SELECT seq FROM postroom_message WHERE queue = ? AND due_at IS NOT NULL AND seq > ? ORDER BY seq LIMIT ?

-- name: peek_blocked
SELECT seq FROM postroom_message WHERE queue = ? AND session IS NOT NULL AND state = 3 AND seq > ? ORDER BY seq LIMIT ?
