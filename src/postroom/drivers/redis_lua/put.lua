-- Any put. ARGV 6 'full', 7 who waits for room (empty: nobody), 8... five a message: envelope, delay, time to live (-1: the
-- queue's), session, dedup id; or what `put_plain` is given. Answers: O and the status, where sending is off; A and the first seq where all were accepted and are
-- numbered in a row, else a MessagePack array with one of these for each message:
--   {'a', seq, displaced}   {'d', id of the first}   {'n'} dropped, as the newest   {'r', why} refused
--   {'r', 'full', messages or bytes, so many are there, of so many, seconds that a sender may wait for room, seconds until
--    something expires}

local STEP = ARGV[6] == 'plain' and 1 or 5

-- What waits for its time or its turn, the oldest first. It is not in order of seq where it lies: it is looked through once, and
-- there is at most as much as the queue may hold.
local hidden
local function hide()
  hidden = { at = 1 }
  for _, seq in ipairs(call('ZRANGE', LIVE.later, 0, -1)) do
    hidden[#hidden + 1] = seq
  end
  for _, waiting in ipairs(call('ZRANGEBYLEX', LINE, '[m', '(n')) do
    hidden[#hidden + 1] = sub(waiting, -16)
  end
  table.sort(hidden)
end

local function oldest_hidden()
  while hidden[hidden.at] do
    local seq = hidden[hidden.at]
    if call('HEXISTS', LIVE.data, seq) == 1 and not call('ZSCORE', LIVE.invisible, seq) then
      return seq
    end
    hidden.at = hidden.at + 1
  end
end

-- Drop the oldest that nobody holds until there is room; how many.
local function make_room(size)
  if rules.max_bytes and size > rules.max_bytes then
    return 0 -- never: dropping everything would not make room
  end
  if not hidden then
    hide()
  end
  local dropped = 0
  while full(size) do
    local oldest = oldest_hidden()
    for _, head in ipairs(priorities(LIVE.pending)) do
      if not oldest or head[2] < oldest then
        oldest = head[2]
      end
    end
    if not oldest then
      break
    end
    local m = load(LIVE, oldest)
    remove(LIVE, oldest, m)
    unblock(LIVE, oldest, m)
    dropped = dropped + 1
  end
  bump('dropped', dropped)
  return dropped
end

local function room_at()
  local head = call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')
  return head[2] and max(0, tonumber(head[2]) - NOW) or 3600
end

local heads, waiting = {}, false

local function put(envelope, delay, ttl, session, dedup_id)
  if session == '' and rules.sessions == 'required' then
    return { 'r', 'needs session' }
  end
  if session ~= '' and rules.sessions == 'off' then
    return { 'r', 'sessions off' }
  end
  if dedup_id ~= '' then
    if not rules.dedup then
      return { 'r', 'dedup off' }
    end
    local till = call('ZSCORE', DEDUP_UNTIL, dedup_id)
    local known = till and tonumber(till) > NOW and call('HGET', DEDUP, dedup_id)
    if known then
      return { 'd', known }
    end
  end
  local _, priority, size, id_length = struct.unpack('>BBI4H', envelope)
  local displaced, taken = 0, bounded and full(size)
  if taken then
    if rules.overflow == 'drop_newest' then
      bump('dropped', 1)
      return { 'n' }
    end
    if rules.overflow == 'drop_oldest' then
      displaced = make_room(size)
      taken = full(size)
    elseif rules.overflow == 'wait' then
      waiting = true
    end
    if taken then
      return { 'r', 'full', taken[1], taken[2], taken[3], waiting and rules.overflow_timeout or 0, room_at() }
    end
  end
  local at = number(1)
  local seq = key(at)
  call('HSET', LIVE.data, seq, envelope)
  bump('bytes', size)
  local m
  if delay > 0 or ttl >= 0 or session ~= '' or rules.ttl then
    m = fresh(seq, priority, size)
    m.visible, m.session, m.ttl = NOW + delay, session, ttl
    local life = ttl >= 0 and ttl or rules.ttl
    if life then
      m.expires = m.visible + life
      call('ZADD', EXPIRY, m.expires, seq)
    end
    save(LIVE, seq, m)
  end
  if delay > 0 then
    call('ZADD', LIVE.later, NOW + delay, seq) -- never delivered: it does not hold up its session
    if hidden then
      hidden[#hidden + 1] = seq
    end
    ring(LIVE, 1) -- who waits must learn until when
  elseif session ~= '' then
    join(session, seq)
    heads[session] = true
    if hidden then
      hidden[#hidden + 1] = seq
    end
  else
    call('ZADD', LIVE.pending, priority, seq)
    ring(LIVE, 1)
  end
  if dedup_id ~= '' then
    call('HSET', DEDUP, dedup_id, sub(envelope, 9, 8 + id_length))
    call('ZADD', DEDUP_UNTIL, NOW + rules.dedup_window, dedup_id)
  end
  return { 'a', at, displaced }
end

if bounded then
  tidy()
elseif call('ZCARD', DEDUP_UNTIL) > 0 then
  forget()
end
local results, in_a_row, before = {}, true, nil
for i = 8, #ARGV, STEP do
  local result
  if STEP == 1 then
    result = put(ARGV[i], 0, -1, '', '')
  else
    result = put(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4])
  end
  in_a_row = in_a_row and result[1] == 'a' and result[3] == 0 and (not before or result[2] == before + 1)
  before = result[2]
  results[#results + 1] = result
end
for session in pairs(heads) do
  rehead(session)
end
if waiting and STEP ~= 1 and ARGV[7] ~= '' then
  call('ZADD', WAITERS, NOW + 60, ARGV[7])
end
local answer = in_a_row and #results > 0 and 'A' .. key(results[1][2]) or cmsgpack.pack(results)
finish(answer)
return { '', answer, parcels() }
