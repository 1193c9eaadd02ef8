-- The usual put: messages with neither session, delay, time to live nor dedup id, to a queue that asks for nothing.
-- ARGV 6 'plain', 7 bytes in all, 8... envelopes.

if not q.live then
  return { 'dead' }
end
local again = replayed()
if again then
  return { '', again, '' }
end
if STATUS == 'disabled' or STATUS == 'send_disabled' or STATUS == 'deleting' then
  return { '', 'O' .. STATUS, '' }
end
if ARGV[6] == 'plain' and not bounded and not rules.ttl and rules.sessions ~= 'required' then
  local n = #ARGV - 7
  local seq, rows, places = number(n), {}, {}
  for i = 1, n do
    local at, envelope = key(seq + i - 1), ARGV[7 + i]
    rows[2 * i - 1], rows[2 * i] = at, envelope
    places[2 * i - 1], places[2 * i] = byte(envelope, 2), at
  end
  call('HSET', LIVE.data, unpack(rows))
  call('ZADD', LIVE.pending, unpack(places))
  bump('bytes', tonumber(ARGV[7]))
  ring(LIVE, n)
  local answer = 'A' .. key(seq)
  finish(answer)
  return { '', answer, '' }
end
