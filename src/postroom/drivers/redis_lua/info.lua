-- A queue in numbers, after a bounded tidy. Answers the rules, the status, and
-- 'ready scheduled in_flight dead bytes dropped expired', then created, updated, the time, and since when the first-sent
-- ready message waits (empty: there is none).

tidy()
finish()
local function numbers(half)
  local parked = tonumber(call('HGET', INFO, half.parked)) or 0
  local scheduled, flight = call('ZCARD', half.later) - parked, call('ZCARD', half.invisible)
  return call('HLEN', half.data) - scheduled - flight, scheduled, flight
end
local since, oldest
for _, head in ipairs(priorities(q.pending)) do
  if not oldest or head[2] < oldest then
    oldest = head[2]
  end
end
if oldest then
  local m = load(q, oldest)
  since = m.token > 0 and (tonumber(oldest) or 0) / 1000000 or m.visible
end
local kept = call('HMGET', INFO, 'created', 'updated', 'dropped', 'expired', q.bytes)
local ready, scheduled, flight = numbers(q)
return {
  '', found[1], STATUS,
  format(
    '%d %d %d %d %d %d %d', ready, scheduled, flight, q.live and call('HLEN', DEAD.data) or 0, tonumber(kept[5]) or 0,
    q.live and tonumber(kept[3]) or 0, q.live and tonumber(kept[4]) or 0
  ),
  kept[1], kept[2], exact(NOW), since and exact(since) or '', parcels(),
}
