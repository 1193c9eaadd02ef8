-- ARGV 6 claim id, 7 seconds it is fenced. What it took goes back, uncounted; the last first, so that a session's
-- head is shown once.

call('HDEL', MEMO, 'f:' .. ARGV[6]) -- first: a full server refuses a script that begins with a HSET
call('HSET', MEMO, 'f:' .. ARGV[6], '1')
call('ZADD', TIMERS, NOW + tonumber(ARGV[7]), 'f:' .. ARGV[6])
local held = held_by(ARGV[6])
for i = #held, 1, -1 do
  local m = load(q, held[i])
  uncount(m)
  give_back(q, held[i], m, 0)
end
if call('ZCARD', q.pending) > 0 then
  ring(q, 1) -- a waiter that was torn away may have taken a token along
end
finish()
return { '' }
