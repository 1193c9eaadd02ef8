-- Remove everything of one half but what must outlive it: dead letters that hold up a session still do, states of sessions
-- stay, and so do fences and callers. ARGV 6 'purge'; or, with 'drop' in ARGV 2 as well, 'drop', which removes the queue: ARGV
-- 7 1 if only an empty one, 8 1 if only one that has been idle for too long; or 'free', which a drop begins with: it lets the
-- sessions go on that wait for a dead letter here, and as it can be asked twice, none of them is forgotten. Answers how many
-- messages went, or '' where the queue was left.

local again = replayed()
if again then
  return { '', again, '' }
end
local DROP, FREE = ARGV[6] == 'drop', ARGV[6] == 'free'
local halves = (DROP or FREE) and { LIVE, DEAD } or { q }
local count = 0
for _, half in ipairs(halves) do
  count = count + call('HLEN', half.data)
end
if DROP and ARGV[7] == '1' and count > 0 then
  return { '', '', '' }
end
if DROP and ARGV[8] == '1' then
  local touched = tonumber(call('HGET', INFO, 'touched')) or NOW
  if NOW - touched < (rules.auto_delete_on_idle or math.huge) then
    return { '', '', '' } -- somebody used it meanwhile
  end
end
for _, half in ipairs(halves) do
  if (tonumber(call('HGET', INFO, half.blocking)) or 0) > 0 then
    -- Sessions wait for some of these: look for them. There are few, or the queues are made to be slow.
    for _, seq in ipairs(call('HKEYS', half.meta)) do
      local m = load(half, seq)
      if m.blocks ~= '' then
        unblock(half, seq, m)
        m.blocks = ''
        save(half, seq, m)
      end
    end
  end
end
if FREE then
  finish()
  return { '', '', parcels() }
end
if DROP then
  local parting = parcels()
  broadcast = true
  ring(LIVE, 100)
  ring(DEAD, 100)
  finish()
  for i, name in ipairs(KEYS) do
    if name ~= LIVE.bell and name ~= DEAD.bell and name ~= ALL then
      call('UNLINK', name)
    else
      call('EXPIRE', name, 60) -- for those who wait there now
    end
  end
  return { '', format('%d', count), parting }
end
if q.live then
  local blocked = call('ZRANGEBYLEX', LINE, '[b', '(c')
  for _, session in ipairs(call('ZRANGE', LOCKS, 0, -1)) do
    call('HDEL', MEMO, 'l:' .. session)
  end
  for _, head in ipairs(call('ZRANGE', HEADS, 0, -1)) do
    call('HDEL', MEMO, 'h:' .. sub(head, 17))
  end
  call('UNLINK', EXPIRY, DEDUP, DEDUP_UNTIL, LINE, HEADS, LOCKS)
  for _, one in ipairs(blocked) do
    call('ZADD', LINE, 0, one)
  end
end
call('UNLINK', q.pending, q.invisible, q.later, q.data, q.meta)
call('HDEL', INFO, q.bytes, q.parked, q.blocking)
changes[q.bytes], changes[q.parked], changes[q.blocking] = nil, nil, nil
ring(q, 100)
broadcast = true
local answer = format('%d', count)
finish(answer)
return { '', answer, parcels() }
