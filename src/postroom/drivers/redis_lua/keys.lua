-- What Postroom keeps in Redis. All keys of a queue begin with {queue:NAMESPACE/NAME}: (the default namespace adds no
-- prefix), so they lie in one slot, and every operation is one of these scripts.
--
--   pending      zset  seq -> priority    ready, in order of hand-out: seqs have a fixed width, and equal scores are
--                                         ordered by them. Of a session only the head of a free one is here
--   invisible    zset  seq -> lease end   in flight
--   later        zset  seq -> due time    scheduled; nacked or returned with a delay; parked (below)
--   data         hash  seq -> envelope    as the sender packed it (redis_rows.py); never changed
--   meta         hash  seq -> what happened to it so far, `life.lua` says how; a plain message has none before its
--                                         first delivery
--   bell         list  tokens             for those who wait at the queue, pushed only while somebody does
--   info         hash  rules, status, created, updated, touched; last: the highest seq or fencing token given out;
--                      bytes, dropped, expired, parked, blocking: counters; waits: until when somebody waits
--   memo         hash  c:CALLER -> number, time and answer of its latest call; f:CLAIM_ID -> why it takes nothing; h:SESSION -> the
--                      seq it shows; l:SESSION -> token of its lock; s:SESSION, v:SESSION -> its state and the version;
--                      u:SEQ -> a session elsewhere that must still be told that this dead letter is gone
--   timers       zset  c:CALLER, f:CLAIM_ID -> until when it is remembered
--   expiry       zset  seq -> end of its time to live
--   dedup        hash  dedup_id -> the id that was accepted          dedup:until  zset  dedup_id -> until when
--   line         zset  all scores 0: mSESSION\0seq its messages in line, hSESSION\0seq those in flight,
--                      bSESSION\0seq its dead letters that hold it up (on_dead=block)
--   heads        zset  seq .. SESSION -> priority    what `pending` shows of sessions
--   locks        zset  SESSION -> until              explicit locks
--   waiters      zset  who waits for a session or for room -> until; they listen to
--   all          list  tokens, one for each of them
--   dead:pending, dead:invisible, dead:later, dead:data, dead:meta, dead:bell: the same of its dead letters
--
-- A seq is microseconds since the epoch, or one more than the last: it rises also when a queue is deleted and made
-- anew, needs no counter shared between slots, and says when the message was sent.
--
-- Who calls: ARGV 1 the time (empty: the server's), 2 'dead' for the dead-letter queue, 'drop' for a queue that is to be
-- deleted, 3 the caller, 4 the number of its call, 5 the queue's name; then what the verb needs. A call that comes again with the same number is answered as
-- before: a client that lost an answer may ask again, and nothing happens twice.

local call, sub, byte, match, format = redis.call, string.sub, string.byte, string.match, string.format
local floor, max, min = math.floor, math.max, math.min

local NOW = tonumber(ARGV[1])
if not NOW then
  local clock = call('TIME')
  NOW = clock[1] + clock[2] / 1000000
end
local CALLER, CALL, NAME = ARGV[3], ARGV[4], ARGV[5]
local TIDY = 1000

local LIVE = {
  pending = KEYS[1], invisible = KEYS[2], later = KEYS[3], data = KEYS[4], meta = KEYS[5], bell = KEYS[6],
  bytes = 'bytes', parked = 'parked', blocking = 'blocking', waits = 'waits', live = true,
}
local INFO, MEMO, TIMERS, EXPIRY, DEDUP, DEDUP_UNTIL = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local LINE, HEADS, LOCKS, WAITERS, ALL = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local DEAD = {
  pending = KEYS[18], invisible = KEYS[19], later = KEYS[20], data = KEYS[21], meta = KEYS[22], bell = KEYS[23],
  bytes = 'dead:bytes', parked = 'dead:parked', blocking = 'dead:blocking', waits = 'dead:waits', live = false,
}
local q = ARGV[2] == 'dead' and DEAD or LIVE

local function exact(time)
  return format('%.17g', time)
end
