-- The usual claim: nothing is due, and what is first in line is delivered for the first time. Lends up to `most` messages to one
-- claim, or the first to owners[1], the second to owners[2] and so on. The answer, as claim_plain.lua describes it; or
-- nil, and nothing was done, where there is anything else to do or nothing is ready.

local received = exact(NOW)

local function waits_for(zset)
  return call('ZCOUNT', zset, '-inf', received) > 0
end

local function lend(most, lease, outcomes, claim, owners)
  if
    waits_for(q.invisible)
    or waits_for(q.later)
    or (q.live and (waits_for(EXPIRY) or waits_for(LOCKS) or waits_for(TIMERS)))
  then
    return nil
  end
  local seqs = call('ZRANGE', q.pending, 0, most - 1)
  local n = #seqs
  if n == 0 then
    return nil
  end
  local pasts, envelopes = call('HMGET', q.meta, unpack(seqs)), call('HMGET', q.data, unpack(seqs))
  for i = 1, n do
    if pasts[i] or not envelopes[i] or #envelopes[i] < 9 or #seqs[i] ~= 16 or match(seqs[i], '%D') then
      return nil
    end
  end
  local token, till = number(1), NOW + lease
  local leases, metas = {}, {}
  local mark = format(':%.0f:%s', token, received)
  local reply = { '', outcomes, '', received .. format(' %.0f ', token) .. exact(till) .. ' 0 0 0 inf' }
  for i = 1, n do
    local seq, envelope = seqs[i], envelopes[i]
    local _, priority, size = struct.unpack('>BBI4', envelope)
    leases[2 * i - 1], leases[2 * i] = till, seq
    metas[2 * i - 1], metas[2 * i] = seq, (claim or owners[i]) .. ':' .. size .. ':' .. priority .. mark
    local at = 4 * i
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = seq, envelope, '', ''
  end
  call('ZREMRANGEBYRANK', q.pending, 0, n - 1)
  call('ZADD', q.invisible, unpack(leases))
  call('HSET', q.meta, unpack(metas))
  ends(q, till)
  return reply
end
