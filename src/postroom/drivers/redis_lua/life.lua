-- The life of a message: one step each, on the half of the queue it is in.
--
-- `meta` of a message that is plain (no session, no time to live, no past) and in flight for the first time, or lapsed:
--     CLAIM_ID:SIZE:PRIORITY:TOKEN:RECEIVED
-- and of any other, with the empty claim id where nobody holds it:
--     CLAIM_ID!MessagePack array, as `save` writes it and redis_rows.py reads it
-- A lapsed claim id stays until somebody else claims, so that a late acknowledge counts; in a session it goes at once.

local PARKING, MAX_RETURNS, MAX_HISTORY, MAX_NOTE = 30, 1000, 20, 1000

-- A number that we gave out; whatever else is in our keys, somebody wrote by hand.
local function ours(seq)
  return #seq == 16 and not match(seq, '%D')
end

local function packed(m)
  return cmsgpack.pack({
    m.n, m.lapsed, m.nacks, m.returns, m.token, m.received, m.priority, m.size, m.visible, m.expires, m.ttl, m.session,
    m.parked, m.blocks, m.death, m.history,
  })
end

local function save(half, seq, m)
  call('HSET', half.meta, seq, m.claim .. '!' .. packed(m))
end

local function fresh(seq, priority, size)
  return {
    claim = '', n = 0, lapsed = 0, nacks = 0, returns = 0, token = 0, received = 0, priority = priority, size = size,
    visible = (tonumber(seq) or 0) / 1000000, expires = 0, ttl = -1, session = '', parked = 0, blocks = '',
    death = false, history = {},
  }
end

local function unpacked(claim, rest)
  local ok, f = pcall(cmsgpack.unpack, rest)
  if not ok or type(f) ~= 'table' or #f ~= 16 then
    return nil
  end
  for i = 1, 11 do
    if type(f[i]) ~= 'number' or f[i] - f[i] ~= 0 then -- infinite, or no number
      return nil
    end
  end
  local death = f[15] == false or type(f[15]) == 'table'
  if type(f[12]) ~= 'string' or type(f[14]) ~= 'string' or not death or type(f[16]) ~= 'table' then
    return nil
  end
  return {
    claim = claim, n = f[1], lapsed = f[2], nacks = f[3], returns = f[4], token = f[5], received = f[6],
    priority = f[7], size = f[8], visible = f[9], expires = f[10], ttl = f[11], session = f[12], parked = f[13],
    blocks = f[14], death = f[15], history = f[16],
  }
end

local function load(half, seq)
  local kept, m = call('HGET', half.meta, seq), nil
  if kept then
    local claim, kind, rest = match(kept, '^(%w*)([!:])(.*)$')
    if kind == '!' then
      m = unpacked(claim, rest)
    elseif kind == ':' then
      local size, priority, token, received = match(rest, '^(%d+):(%d+):(%d+):(.+)$')
      if size then
        m = fresh(seq, tonumber(priority), tonumber(size))
        m.claim, m.n, m.token, m.received = claim, 1, tonumber(token), tonumber(received) or NOW
      end
    end
  end
  if not m then -- never delivered; or somebody wrote garbage there, and then the envelope decides
    local data = call('HGET', half.data, seq) or ''
    m = fresh(seq, 10, #data)
    if #data > 8 then
      local _, priority, size = struct.unpack('>BBI4', data)
      m.priority, m.size = priority, size
    end
  end
  return m
end

-- --- sessions ----------------------------------------------------------------------------------------------------

local function member(half, m)
  return half.live and m.session ~= ''
end

local function place(kind, session, seq)
  return kind .. session .. '\0' .. seq
end

local function first(kind, session)
  local found = call('ZRANGEBYLEX', LINE, '[' .. place(kind, session, ''), '(' .. kind .. session .. '\1', 'LIMIT', 0, 1)
  return found[1] and sub(found[1], -16)
end

local function join(session, seq)
  call('ZADD', LINE, 0, place('m', session, seq))
  broadcast = true -- whoever holds the session, or waits for it, wants to know of arrivals
end

local function locked(session)
  local till = call('ZSCORE', LOCKS, session)
  return till and tonumber(till) > NOW
end

-- Show a session's head to claims if the session is free, and only its head.
local function rehead(session)
  local shown, head = call('HGET', MEMO, 'h:' .. session), nil
  if not locked(session) and not first('h', session) and not first('b', session) then
    head = first('m', session)
    if head and call('ZSCORE', LIVE.later, head) then
      head = nil -- delayed after a delivery, or parked: the others wait for it
    end
  end
  if shown and shown ~= head then
    call('ZREM', LIVE.pending, shown)
    call('ZREM', HEADS, shown .. session)
    call('HDEL', MEMO, 'h:' .. session)
  end
  if head and shown ~= head then
    local priority = load(LIVE, head).priority
    call('ZADD', LIVE.pending, priority, head)
    call('ZADD', HEADS, priority, head .. session)
    call('HSET', MEMO, 'h:' .. session, head)
    ring(LIVE, 1)
  end
end

-- An explicit lock, and every lease under it, now end at `at`.
local function hold(session, at)
  call('ZREM', LOCKS, session) -- first: a server whose memory is full refuses a script that begins with a ZADD
  call('ZADD', LOCKS, at, session)
  for _, held in ipairs(call('ZRANGEBYLEX', LINE, '[' .. place('h', session, ''), '(h' .. session .. '\1')) do
    call('ZADD', LIVE.invisible, at, sub(held, -16))
  end
end

-- --- coming back, and leaving --------------------------------------------------------------------------------------

-- Off the place it has; its session, if any, must be looked at afterwards.
local function leave(half, seq, m)
  if call('ZREM', half.invisible, seq) == 0 and call('ZREM', half.later, seq) == 0 then
    call('ZREM', half.pending, seq)
  end
  if m.parked == 1 then
    m.parked = 0
    bump(half.parked, -1)
  end
  if member(half, m) then
    call('ZREM', LINE, place('m', m.session, seq), place('h', m.session, seq))
    broadcast = true
  end
end

-- Ready again, in its original place.
local function back(half, seq, m)
  if member(half, m) then
    join(m.session, seq)
    rehead(m.session)
  else
    call('ZADD', half.pending, m.priority, seq)
    ring(half, 1)
  end
end

-- Ready only at `due`; in a session everything behind it waits, as it was delivered before.
local function postpone(half, seq, m, due)
  call('ZADD', half.later, due, seq)
  if member(half, m) then
    join(m.session, seq)
    rehead(m.session)
  end
end

-- Out of its holder's hands, and visible again after `delay`.
local function give_back(half, seq, m, delay)
  leave(half, seq, m)
  m.claim = ''
  m.visible = NOW + max(delay, 0)
  if m.expires > 0 and m.expires <= NOW then
    call('ZADD', EXPIRY, m.expires, seq) -- its time ran out while it was in flight and protected
  end
  save(half, seq, m)
  if delay > 0 then
    postpone(half, seq, m, m.visible)
    ring(half, 1) -- who waits must learn until when
  else
    back(half, seq, m)
  end
end

local function uncount(m)
  m.returns = m.returns + 1
  if m.returns <= MAX_RETURNS then
    m.n = m.n - 1
  end
end

-- Return, uncounted, what its holder took of the session behind this message: order would be broken else.
local function fail_later(half, seq, m)
  if not member(half, m) then
    return
  end
  local from, to = '(' .. place('h', m.session, seq), '(h' .. m.session .. '\1'
  for _, held in ipairs(call('ZRANGEBYLEX', LINE, from, to)) do
    local other = sub(held, -16)
    local its = load(half, other)
    uncount(its)
    give_back(half, other, its, 0)
  end
end

-- A dead letter that held up a session is gone: the session goes on. Where that is a session of another queue the
-- driver tells it, and until it has we remember.
local function unblock(half, seq, m)
  if m.blocks == '' then
    return
  end
  bump(half.blocking, -1)
  if m.blocks == NAME then
    call('ZREM', LINE, place('b', m.session, seq))
    broadcast = true
    rehead(m.session)
  else
    call('HSET', MEMO, 'u:' .. seq, cmsgpack.pack({ m.blocks, m.session }))
    call('ZADD', TIMERS, NOW + PARKING, 'u:' .. seq)
    moves[#moves + 1] = { 'free', seq, m.blocks, m.session }
  end
end

-- Terminal, or on its way to another queue.
local function remove(half, seq, m)
  leave(half, seq, m)
  call('HDEL', half.data, seq)
  call('HDEL', half.meta, seq)
  if m.expires > 0 then
    call('ZREM', EXPIRY, seq)
  end
  bump(half.bytes, -m.size)
  if member(half, m) then
    rehead(m.session)
  end
  if rules.overflow == 'wait' then
    broadcast = true
  end
end

local function park(seq, m)
  leave(LIVE, seq, m)
  m.claim, m.parked, m.visible = '', 1, NOW + PARKING
  bump(LIVE.parked, 1)
  save(LIVE, seq, m)
  postpone(LIVE, seq, m, m.visible)
end

-- Into a half, with what is known of it: from the other one, or from another queue.
local function admit(half, seq, m, data)
  call('HSET', half.data, seq, data)
  bump(half.bytes, m.size)
  if m.blocks ~= '' then
    bump(half.blocking, 1)
  end
  m.claim, m.token, m.parked, m.visible = '', 0, 0, NOW
  if m.expires > 0 then
    call('ZADD', EXPIRY, m.expires, seq)
  end
  save(half, seq, m)
  back(half, seq, m)
end

local function dies(m, reason, description)
  if m.blocks == '' and m.session ~= '' and rules.on_dead == 'block' then
    m.blocks = NAME
  end
  m.death = { reason, description, NAME, NOW, m.n }
end

-- To the dead letters: 1; or 0 when that is a queue elsewhere. Then it is parked, out of everybody's reach, and the
-- driver carries it there; if it cannot, the message is tried again when its parking is over.
local function bury(seq, m, reason, description)
  if not rules.dead_lettering then
    remove(LIVE, seq, m)
    unblock(LIVE, seq, m)
    bump('dropped', 1)
    return 1
  end
  if rules.dead_letter_queue then
    park(seq, m)
    moves[#moves + 1] = { 'bury', seq, rules.dead_letter_queue, reason, description }
    return 0
  end
  local data, blocked = call('HGET', LIVE.data, seq) or '', m.blocks
  dies(m, reason, description)
  if blocked == '' and m.blocks ~= '' then
    call('ZADD', LINE, 0, place('b', m.session, seq))
  end
  remove(LIVE, seq, m)
  if blocked ~= '' then
    bump(LIVE.blocking, -1) -- `admit` counts it where it goes
  end
  m.expires = 0
  admit(DEAD, seq, m, data)
  return 1
end

local function expire(seq, m)
  if rules.expired_to_dead_letters then
    return bury(seq, m, 'expired', '')
  end
  remove(LIVE, seq, m)
  unblock(LIVE, seq, m)
  bump('expired', 1)
  return 1
end

local function overdue(m)
  return m.expires > 0 and m.expires <= NOW
end

-- No deliveries left; dead letters are never used up.
local function used_up(m, limit)
  local most = rules.max_deliveries
  if limit and (not most or limit < most) then
    most = limit
  end
  return q.live and most and m.n >= most
end

-- What a claim holds still. There is no index for it: this is asked for only when an answer was lost or nobody wanted it.
local function held_by(claim_id)
  local found, seqs = {}, call('ZRANGEBYSCORE', q.invisible, '(' .. exact(NOW), '+inf')
  for from = 1, #seqs, 1000 do
    local to = min(from + 999, #seqs)
    for i, past in ipairs(call('HMGET', q.meta, unpack(seqs, from, to))) do
      if past and match(past, '^%w*') == claim_id then
        found[#found + 1] = seqs[from + i - 1]
      end
    end
  end
  table.sort(found)
  return found
end

-- --- time ----------------------------------------------------------------------------------------------------------

local function due(zset)
  return call('ZRANGEBYSCORE', zset, '-inf', NOW, 'LIMIT', 0, TIDY)
end

local function forget()
  for _, what in ipairs(due(TIMERS)) do
    local kind, kept = sub(what, 1, 2), call('HGET', MEMO, what)
    local at = kind == 'c:' and kept and tonumber(match(kept, '^%d+ (%S+) '))
    if at and at + 3600 > NOW then
      call('ZADD', TIMERS, at + 3601, what) -- it called again since
    elseif kind == 'u:' and kept then
      local ok, where = pcall(cmsgpack.unpack, kept)
      if ok and type(where) == 'table' and type(where[1]) == 'string' and type(where[2]) == 'string' then
        moves[#moves + 1] = { 'free', sub(what, 3), where[1], where[2] } -- who was to tell it has not
        call('ZADD', TIMERS, NOW + PARKING, what)
      else
        call('ZREM', TIMERS, what)
      end
    else
      call('HDEL', MEMO, what)
      call('ZREM', TIMERS, what)
    end
  end
  local old = due(DEDUP_UNTIL)
  if #old > 0 then
    call('HDEL', DEDUP, unpack(old))
    call('ZREM', DEDUP_UNTIL, unpack(old))
  end
end

-- Let time do its work, on at most TIDY messages of a kind: how many were buried, and how many expired.
local function tidy(limit)
  local buried, expired, judged = 0, 0, {}
  for _, seq in ipairs(due(q.invisible)) do
    if call('ZREM', q.invisible, seq) == 1 then -- an earlier one of its session may have taken it along
      local m = load(q, seq)
      m.lapsed, m.visible = m.lapsed + 1, NOW
      if member(q, m) then
        call('ZREM', LINE, place('h', m.session, seq))
        m.claim = ''
        save(q, seq, m)
        fail_later(q, seq, m)
      else
        save(q, seq, m)
      end
      back(q, seq, m)
      judged[#judged + 1] = seq
    end
  end
  for _, seq in ipairs(due(q.later)) do
    local m = load(q, seq)
    call('ZREM', q.later, seq)
    if m.parked == 1 then
      m.parked = 0
      bump(q.parked, -1)
      save(q, seq, m)
      judged[#judged + 1] = seq
    end
    back(q, seq, m)
  end
  if q.live then
    for _, session in ipairs(due(LOCKS)) do
      call('ZREM', LOCKS, session)
      call('HDEL', MEMO, 'l:' .. session)
      broadcast = true
      rehead(session)
    end
    for _, seq in ipairs(judged) do
      if call('HEXISTS', LIVE.data, seq) == 1 and not call('ZSCORE', LIVE.later, seq) then
        local m = load(LIVE, seq)
        if overdue(m) then
          expired = expired + expire(seq, m)
        elseif used_up(m, limit) then
          buried = buried + bury(seq, m, 'max_deliveries', '')
        end
      end
    end
    for _, seq in ipairs(due(EXPIRY)) do
      call('ZREM', EXPIRY, seq)
      if not call('ZSCORE', LIVE.invisible, seq) and call('HEXISTS', LIVE.data, seq) == 1 then
        local m = load(LIVE, seq)
        if m.parked == 0 and overdue(m) then
          expired = expired + expire(seq, m)
        end
      end
    end
    forget()
  end
  return buried, expired
end

-- When something may happen by itself, or infinity.
local function next_due()
  local at = math.huge
  for _, zset in ipairs(q.live and { q.invisible, q.later, LOCKS } or { q.invisible, q.later }) do
    local head = call('ZRANGE', zset, 0, 0, 'WITHSCORES')
    if head[2] then
      at = min(at, tonumber(head[2]))
    end
  end
  return at
end

-- --- room ----------------------------------------------------------------------------------------------------------

-- Why there is no room for so many bytes more: what is taken and the limit; or nil.
local function full(size)
  local held = call('HLEN', LIVE.data)
  if rules.max_messages and held >= rules.max_messages then
    return { 'messages', held, rules.max_messages }
  end
  if rules.max_bytes then
    local bytes = (tonumber(call('HGET', INFO, 'bytes')) or 0) + (changes.bytes or 0)
    if bytes + size > rules.max_bytes then
      return { 'bytes', bytes, rules.max_bytes }
    end
  end
end

-- The priorities that `pending` holds, ascending.
local function priorities(zset)
  local found, low = {}, '-inf'
  while true do
    local head = call('ZRANGEBYSCORE', zset, low, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not head[1] then
      return found
    end
    found[#found + 1] = { tonumber(head[2]), head[1] }
    low = '(' .. head[2]
  end
end
