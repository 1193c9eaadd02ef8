-- The queue as it is, and what one step does to its numbers and to those who wait; written by `finish`, at the end.

local found = call('HMGET', INFO, 'rules', 'status', 'last', 'waits', 'dead:waits', 'bytes', 'dead:bytes')
if not found[1] then
  return { 'missing' }
end
local rules
if found[1] == '' then -- a plain queue, the usual case
  rules = { plain = true, lease = 30, sessions = 'optional', dead_lettering = true, dedup = true, dedup_window = 300 }
else
  rules = cmsgpack.unpack(found[1])
  if rules.auto_delete_on_idle and ARGV[2] ~= 'drop' then
    local touched = tonumber(call('HGET', INFO, 'touched')) or NOW
    if NOW - touched >= rules.auto_delete_on_idle then
      return { 'idle' }
    end
    if ARGV[6] ~= 'look' then
      call('HDEL', INFO, 'touched') -- first: a full server refuses a script that begins with a HSET
      call('HSET', INFO, 'touched', exact(NOW))
    end
  end
end
local STATUS, last = found[2], tonumber(found[3]) or 0
local held = { bytes = tonumber(found[6]), ['dead:bytes'] = tonumber(found[7]) } -- what is counted most
local waits = { [LIVE] = tonumber(found[4]) or 0, [DEAD] = tonumber(found[5]) or 0 }
local bounded = rules.max_messages or rules.max_bytes

local start, changes, rung, broadcast, moves = last, {}, { [LIVE] = 0, [DEAD] = 0 }, false, {}

-- The first of n new numbers.
local function number(n)
  local first = max(last + 1, floor(NOW * 1000000))
  last = first + n - 1
  return first
end

local function key(seq)
  return format('%016.0f', seq)
end

local function bump(field, n)
  changes[field] = (changes[field] or 0) + n
end

local function ring(half, n)
  rung[half] = rung[half] + n
end

-- A lease that ends before those who wait look by themselves: one of them must know.
local SOON = 5
local function ends(half, at)
  if at < NOW + SOON then
    ring(half, 1)
  end
end

-- So many tokens: who finds the queue empty removes what is left of them.
local function push(list, n)
  while n > 0 do
    local tokens = {}
    for i = 1, min(n, 1000) do
      tokens[i] = '1'
    end
    n = n - 1000
    if call('RPUSH', list, unpack(tokens)) > 2000 then
      call('LTRIM', list, -1000, -1) -- nobody listens any more
    end
  end
end

-- The answer to this call, if it was carried out before. So is one that its caller gave up long ago and that arrives only
-- now, after a later one: nobody waits for what it is told.
local function replayed()
  local before = CALLER ~= '' and call('HGET', MEMO, 'c:' .. CALLER)
  if before then
    local n, answer = match(before, '^(%d+) %S+ (.*)$')
    if tonumber(n) >= tonumber(CALL) then
      -- A write, so that WAIT after it speaks of a time after the first.
      call('HSET', MEMO, 'c:' .. CALLER, before)
      return answer
    end
  end
end

local function finish(answer)
  local fields = {}
  if last ~= start then
    fields = { 'last', format('%.0f', last) }
  end
  for field, n in pairs(changes) do
    if n ~= 0 and held[field] then -- written together with `last`: each command that writes is written to the log
      fields[#fields + 1], fields[#fields + 2] = field, format('%.0f', held[field] + n)
    elseif n ~= 0 then
      call('HINCRBY', INFO, field, n)
    end
  end
  if #fields > 0 then
    call('HSET', INFO, unpack(fields))
  end
  for half, n in pairs(rung) do
    if n > 0 and waits[half] > NOW then
      push(half.bell, n)
    end
  end
  if broadcast then
    local n = call('ZCOUNT', WAITERS, NOW, '+inf')
    if n > 0 then
      push(ALL, n)
      call('DEL', WAITERS)
    end
  end
  if answer and CALLER ~= '' then
    if call('HSET', MEMO, 'c:' .. CALLER, CALL .. ' ' .. floor(NOW) .. ' ' .. answer) == 1 then
      call('ZADD', TIMERS, NOW + 3600, 'c:' .. CALLER)
    end
  end
end

-- What the driver must carry to other slots: empty, or a list of
-- {'bury', seq, queue, reason, description} and {'free', seq, queue, session}.
local function parcels()
  return #moves > 0 and cmsgpack.pack(moves) or ''
end
