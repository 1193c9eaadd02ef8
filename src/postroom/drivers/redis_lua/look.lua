-- Look at messages without taking them, in order of seq. ARGV 6 'page', 7 how many, 8 above which seq: answers the page, or, where
-- too many wait for their time or their turn to look through them in one step, 'scan', and the page of those that are
-- ready. ARGV 6 'these', 7... seqs: answers them. For each: seq, envelope, past, state, and the time that goes with it.

local FEW = 5000
tidy()
local wanted = {}

-- The first members of one priority above a seq, found by halving: members of equal score are in order of seq.
local function page(priority, above, n)
  local low = call('ZCOUNT', q.pending, '-inf', '(' .. priority)
  local top = call('ZCOUNT', q.pending, '-inf', priority)
  local a, b = low, top
  while a < b do
    local middle = floor((a + b) / 2)
    if call('ZRANGE', q.pending, middle, middle)[1] <= above then
      a = middle + 1
    else
      b = middle
    end
  end
  if a < top then
    for _, seq in ipairs(call('ZRANGE', q.pending, a, min(a + n, top) - 1)) do
      wanted[#wanted + 1] = seq
    end
  end
end

local status = ''
if ARGV[6] == 'these' then
  for i = 7, #ARGV do
    wanted[#wanted + 1] = ARGV[i]
  end
else
  local n, above = tonumber(ARGV[7]), ARGV[8]
  for _, head in ipairs(priorities(q.pending)) do
    page(head[1], above, n)
  end
  local others = { q.invisible, q.later }
  if call('ZCARD', q.invisible) + call('ZCARD', q.later) + (q.live and call('ZCARD', LINE) or 0) > FEW then
    status = 'scan'
  else
    for _, zset in ipairs(others) do
      for _, seq in ipairs(call('ZRANGE', zset, 0, -1)) do
        wanted[#wanted + 1] = seq
      end
    end
    if q.live then
      for _, one in ipairs(call('ZRANGEBYLEX', LINE, '[m', '(n')) do
        wanted[#wanted + 1] = sub(one, -16)
      end
    end
  end
  local chosen, seen = {}, {}
  for _, seq in ipairs(wanted) do
    if seq > above and not seen[seq] and ours(seq) then
      seen[seq] = true
      chosen[#chosen + 1] = seq
    end
  end
  table.sort(chosen)
  wanted = {}
  for i = 1, min(n, #chosen) do
    wanted[i] = chosen[i]
  end
end
finish()
local reply = { '', status, parcels() }
for _, seq in ipairs(wanted) do
  local data, m = call('HGET', q.data, seq), load(q, seq)
  local till, later = call('ZSCORE', q.invisible, seq), call('ZSCORE', q.later, seq)
  if data or till or call('ZSCORE', q.pending, seq) then
    local state, at = 'ready', m.visible
    if till then
      state, at = tonumber(till) > NOW and 'in_flight' or 'lapsed', tonumber(till)
    elseif later then
      state, at = m.parked == 1 and 'ready' or 'scheduled', tonumber(later)
    end
    for _, part in ipairs({ seq, data or '', packed(m), state, exact(at) }) do
      reply[#reply + 1] = part
    end
  end
end
return reply
