-- Several claims in one step, in the usual case. ARGV 6 1 for a retry, 7 lease in seconds (empty: the queue's), 8... claim id and
-- how many, for each. Answers as claim_plain.lua, the messages of the first claim before those of the second; whoever got
-- none asks alone. Or that each must, and nothing was done: '', 'each', or, of a retry: '', 'again'.

if ARGV[6] == '1' then
  return { '', 'again' }
end
local fences, owners = {}, {}
for i = 8, #ARGV, 2 do
  fences[#fences + 1] = 'f:' .. ARGV[i]
  for _ = 1, tonumber(ARGV[i + 1]) do
    owners[#owners + 1] = ARGV[i]
  end
end
local usual = STATUS ~= 'disabled' and STATUS ~= 'receive_disabled' and STATUS ~= 'deleting'
for _, fenced in ipairs(call('HMGET', MEMO, unpack(fences))) do
  usual = usual and not fenced
end
local reply = usual and lend(#owners, tonumber(ARGV[7]) or rules.lease, '', nil, owners)
if reply then
  finish()
  return reply
end
return { '', 'each' }
