-- The usual verdicts: acknowledges of plain messages in their first delivery. ARGV[from]... all of them, as text (settling.lua
-- says how). Their outcomes; or nil, and nothing was done, where there is anything else among them.

local function acknowledge(from)
  local n, seqs = #ARGV - from + 1, {}
  if n < 1 or n > 3000 or rules.overflow == 'wait' then
    return nil
  end
  for i = 1, n do
    local verdict = ARGV[from - 1 + i]
    if byte(verdict) ~= 65 then -- A
      return nil
    end
    seqs[i] = sub(verdict, 2, 17)
  end
  local pasts, bytes, once = call('HMGET', q.meta, unpack(seqs)), 0, {}
  for i = 1, n do
    local claim, size = match(pasts[i] or '', '^(%w*):(%d+):')
    if not claim or claim ~= sub(ARGV[from - 1 + i], 19) or once[seqs[i]] then
      return nil
    end
    once[seqs[i]] = true
    bytes = bytes + tonumber(size)
  end
  if call('ZREM', q.invisible, unpack(seqs)) < n then
    call('ZREM', q.pending, unpack(seqs)) -- late, and some of them are offered again already
  end
  call('HDEL', q.data, unpack(seqs))
  call('HDEL', q.meta, unpack(seqs))
  bump(q.bytes, -bytes)
  return 's' .. string.rep(',s', n - 1)
end
