-- The usual claim.
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
if outcomes and not AGAIN and SESSION == '' and call('HEXISTS', MEMO, 'f:' .. CLAIM) == 0 then
  local reply = lend(N, LEASE, outcomes, CLAIM)
  if reply then
    finish(outcomes)
    return reply
  end
end
