-- Dead letters back to the queue they are the dead letters of. ARGV 6 1 if there wherever they died, 7... seqs. Answers a
-- MessagePack array of: {'s'} moved, {'g'} not there or held, {'n'} no dead letter, {'f', of what, so many, of so many}
-- full, {'o', queue} it died in another queue.

local again = replayed()
if again then
  return { '', again, '' }
end
tidy()
local outcomes = {}

local function revive(seq)
  if call('HEXISTS', DEAD.data, seq) == 0 or call('ZSCORE', DEAD.invisible, seq) then
    return { 'g' }
  end
  local m = load(DEAD, seq)
  if not m.death then
    return { 'n' }
  end
  if ARGV[6] ~= '1' and m.death[3] ~= NAME then
    return { 'o', m.death[3] }
  end
  local taken = bounded and full(m.size)
  if taken then
    return { 'f', taken[1], format('%d', taken[2]), format('%d', taken[3]) }
  end
  local data = call('HGET', DEAD.data, seq)
  remove(DEAD, seq, m)
  unblock(DEAD, seq, m)
  local ttl = m.ttl >= 0 and m.ttl or rules.ttl
  m.n, m.lapsed, m.nacks, m.returns, m.blocks = 0, 0, 0, 0, ''
  m.expires = ttl and NOW + ttl or 0
  admit(LIVE, seq, m, data)
  return { 's' }
end

for i = 7, #ARGV do
  outcomes[#outcomes + 1] = revive(ARGV[i])
end
local answer = cmsgpack.pack(outcomes)
finish(answer)
return { '', answer, parcels() }
