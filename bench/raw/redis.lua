-- A queue by hand, of three scripts; each is what follows its name, after the keys that all of them are given.
--
--   ready  zset  seq -> priority   the order of hand-out: seqs have a fixed width, equal scores are ordered by them
--   due    zset  seq -> time       the order in time: leases and delays
--   data   hash  seq -> message    as its sender packed it; the first byte is the priority
--   lease  hash  seq -> TOKEN DELIVERIES
--   last   the last seq given out

local ready, due, data, lease, last = unpack(KEYS)
local call = redis.call

-- put: ARGV messages. The seq of the first.
local first, rows, places = call('INCRBY', last, #ARGV) - #ARGV + 1, {}, {}
for i, message in ipairs(ARGV) do
  local seq = string.format('%016d', first + i - 1)
  rows[2 * i - 1], rows[2 * i] = seq, message
  places[2 * i - 1], places[2 * i] = message:byte(), seq
end
call('HSET', data, unpack(rows))
call('ZADD', ready, unpack(places))
return first

-- claim: ARGV how many, seconds, token. Seqs and messages.
local clock = call('TIME')
local now = clock[1] + clock[2] / 1000000
local back = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1000)
for _, seq in ipairs(back) do
  call('ZREM', due, seq)
  call('ZADD', ready, (call('HGET', data, seq) or '\0'):byte(), seq)
end
local seqs = call('ZRANGE', ready, 0, ARGV[1] - 1)
if #seqs == 0 then
  return { {}, {} }
end
local messages, before = call('HMGET', data, unpack(seqs)), call('HMGET', lease, unpack(seqs))
local till, ends, leases = now + ARGV[2], {}, {}
for i, seq in ipairs(seqs) do
  local deliveries = before[i] and tonumber(before[i]:match(' (%d+)$')) or 0
  ends[2 * i - 1], ends[2 * i] = till, seq
  leases[2 * i - 1], leases[2 * i] = seq, ARGV[3] .. ' ' .. deliveries + 1
end
call('ZREMRANGEBYRANK', ready, 0, #seqs - 1)
call('ZADD', due, unpack(ends))
call('HSET', lease, unpack(leases))
return { seqs, messages }

-- acknowledge: ARGV token, seqs. How many of them were still held under it.
local token, held, seqs = ARGV[1] .. ' ', {}, { unpack(ARGV, 2) }
for i, kept in ipairs(call('HMGET', lease, unpack(seqs))) do
  if kept and kept:sub(1, #token) == token then
    held[#held + 1] = seqs[i]
  end
end
if #held == 0 then
  return 0
end
call('ZREM', due, unpack(held))
call('HDEL', lease, unpack(held))
call('HDEL', data, unpack(held))
return #held
