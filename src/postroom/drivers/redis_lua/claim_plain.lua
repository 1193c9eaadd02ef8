-- The usual claim: nothing is due, and what is first in line is delivered for the first time.
-- ARGV 6 how many, 7 lease in seconds (empty: the queue's), 8 claim id, 9 1 for a retry, 10 session, 11 token of its lock,
-- 12 limit of deliveries, 13 seconds that we shall wait if there is nothing, 14 who we are in `waiters`,
-- 15... verdicts that ride along, as for settle.lua.
-- Answers: '', outcomes, parcels, 'now token until buried expired more due', then for each message its seq, envelope,
-- past (empty at the first delivery) and the end of its lease (empty: `until`).

if STATUS == 'disabled' or STATUS == 'receive_disabled' or STATUS == 'deleting' then
  if #ARGV < 15 then
    return { 'off', STATUS }
  end
end
local N, LEASE, CLAIM, AGAIN = tonumber(ARGV[6]), tonumber(ARGV[7]) or rules.lease, ARGV[8], ARGV[9] == '1'
local SESSION = ARGV[10]
local outcomes = replayed()
AGAIN = AGAIN or outcomes ~= nil
if not outcomes then
  outcomes = #ARGV < 15 and '' or acknowledge(15)
end

local function waits_for(zset)
  return call('ZRANGEBYSCORE', zset, '-inf', NOW, 'LIMIT', 0, 1)[1]
end

if
  not AGAIN
  and SESSION == ''
  and outcomes
  and not waits_for(q.invisible)
  and not waits_for(q.later)
  and not (q.live and (waits_for(EXPIRY) or waits_for(LOCKS) or waits_for(TIMERS)))
  and call('HEXISTS', MEMO, 'f:' .. CLAIM) == 0
then
  local seqs = call('ZRANGE', q.pending, 0, N - 1)
  local n = #seqs
  if n > 0 then
    local pasts, envelopes = call('HMGET', q.meta, unpack(seqs)), call('HMGET', q.data, unpack(seqs))
    local plain = true
    for i = 1, n do
      if pasts[i] or not envelopes[i] or #envelopes[i] < 9 or #seqs[i] ~= 16 then
        plain = false
        break
      end
    end
    if plain then
      local token, till, received = number(1), NOW + LEASE, exact(NOW)
      local leases, metas = {}, {}
      local mark = format(':%.0f:%s', token, received)
      local reply = { '', outcomes, '', received .. format(' %.0f ', token) .. exact(till) .. ' 0 0 0 inf' }
      for i = 1, n do
        local seq, envelope = seqs[i], envelopes[i]
        local _, priority, size = struct.unpack('>BBI4', envelope)
        leases[2 * i - 1], leases[2 * i] = till, seq
        metas[2 * i - 1], metas[2 * i] = seq, CLAIM .. ':' .. size .. ':' .. priority .. mark
        local at = 4 * i
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = seq, envelope, '', ''
      end
      call('ZREMRANGEBYRANK', q.pending, 0, n - 1)
      call('ZADD', q.invisible, unpack(leases))
      call('HSET', q.meta, unpack(metas))
      ends(q, till)
      finish(outcomes)
      return reply
    end
  end
end
