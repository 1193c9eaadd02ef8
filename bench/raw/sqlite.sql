-- A queue by hand: one table, two indexes.
--
--   ready  the order of hand-out, (priority, seq)
--   due    the order in time: delayed messages and leases. One index on the time alone cannot give the order.
--
-- state: 0 later, 1 ready, 2 in flight. due_at is NULL where time changes nothing.

CREATE TABLE message (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  due_at REAL,
  token TEXT,
  deliveries INTEGER NOT NULL DEFAULT 0,
  enqueued_at REAL NOT NULL,
  id TEXT NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX message_ready ON message (queue, priority, seq) WHERE state = 1;
CREATE INDEX message_due ON message (queue, due_at) WHERE due_at IS NOT NULL;
