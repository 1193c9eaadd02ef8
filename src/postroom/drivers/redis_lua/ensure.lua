-- Make the queue, or let it take over rules. ARGV 6 rules as MessagePack, empty for those of a plain queue; 7 1 if an existing
-- queue takes them over. Answers whether it was made, and the time.

local kept = call('HMGET', INFO, 'rules', 'touched', 'last')
if kept[1] and kept[1] ~= '' then
  local idle = cmsgpack.unpack(kept[1]).auto_delete_on_idle
  if idle then
    if NOW - (tonumber(kept[2]) or NOW) >= idle then
      return { 'idle' }
    end
    call('HSET', INFO, 'touched', exact(NOW))
  end
end
if kept[1] and ARGV[7] ~= '1' then
  return { '', '0', exact(NOW) }
end
if kept[1] then
  if q == DEAD then
    return { 'dead rules' }
  end
  call('HSET', INFO, 'rules', ARGV[6], 'updated', exact(NOW), 'touched', exact(NOW))
  for _, list in ipairs({ LIVE.bell, ALL }) do -- limits may have moved: whoever waits must look
    call('RPUSH', list, '1', '1', '1', '1')
    call('LTRIM', list, 0, 99)
  end
  return { '', '0', exact(NOW) }
end
if q == DEAD then
  return { 'missing' }
end
call(
  'HSET', INFO, 'rules', ARGV[6], 'status', 'active', 'created', exact(NOW), 'updated', exact(NOW),
  'touched', exact(NOW)
)
return { '', '1', exact(NOW) }
