-- Lock a session. ARGV 6 session (empty: the free one whose head is first in line), 7 lease, 8 token, 9 seconds that we shall
-- wait if there is none, 10 who we are in `waiters`. Answers: '', session and until; or '', '', parcels, 'more due'.

if STATUS == 'disabled' or STATUS == 'receive_disabled' or STATUS == 'deleting' then
  return { 'off', STATUS }
end
if not q.live or rules.sessions == 'off' then
  return { 'no sessions' }
end
local buried, expired = tidy()
local session = ARGV[6]
if session == '' then
  session = call('HGET', MEMO, 't:' .. ARGV[8]) or '' -- asked again: the one it got, while it has it
  if not locked(session) then
    session = ''
  end
end
if session ~= '' and call('HGET', MEMO, 'l:' .. session) == ARGV[8] and locked(session) then
  finish() -- asked again: the answer was lost
  return { '', session, parcels(), call('ZSCORE', LOCKS, session) }
end
if session == '' then
  local head = call('ZRANGE', HEADS, 0, 0)[1]
  while head and not (#head > 16 and ours(sub(head, 1, 16))) do
    call('ZREM', HEADS, head)
    head = call('ZRANGE', HEADS, 0, 0)[1]
  end
  session = head and sub(head, 17)
elseif locked(session) or first('h', session) then
  session = nil
end
if session then
  local till = NOW + tonumber(ARGV[7])
  call('HSET', MEMO, 'l:' .. session, ARGV[8], 't:' .. ARGV[8], session)
  call('ZADD', TIMERS, NOW + 60, 't:' .. ARGV[8])
  call('ZADD', LOCKS, till, session)
  rehead(session)
  finish()
  return { '', session, parcels(), exact(till) }
end
local at = next_due()
local more = buried + expired + #moves > 0 or at <= NOW
if tonumber(ARGV[9]) > 0 and not more then
  call('ZADD', WAITERS, NOW + tonumber(ARGV[9]) + 1, ARGV[10])
end
finish()
return { '', false, parcels(), exact(NOW) .. format(' %d ', more and 1 or 0) .. exact(at) }
