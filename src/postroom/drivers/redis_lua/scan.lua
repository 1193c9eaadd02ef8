-- Which messages wait for their time or their turn, piece by piece, for queues where they are too many for one step. ARGV 6
-- where we are ('1 0' at first). Answers where to go on ('' at the end), and seqs.

local which, cursor = match(ARGV[6], '^(%d) (%d+)$')
local zsets = q.live and { q.invisible, q.later, LINE } or { q.invisible, q.later }
which = tonumber(which)
local found = call('ZSCAN', zsets[which], cursor, 'COUNT', 1000)
local reply = { '', which .. ' ' .. found[1] }
if found[1] == '0' then
  reply[2] = zsets[which + 1] and (which + 1) .. ' 0' or ''
end
for i = 1, #found[2], 2 do
  local member = found[2][i]
  if zsets[which] ~= LINE or byte(member) == 109 then -- m
    reply[#reply + 1] = sub(member, -16)
  end
end
return reply
