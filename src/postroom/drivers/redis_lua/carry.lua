-- Messages on their way between queues in different slots, which no single step can reach. The driver copies first and removes
-- then, and both steps may be repeated; what it does not finish stays parked, and is tried again. ARGV 6 says what:
--   copy    7 seq, 8 claim id of who holds it (empty: it is parked, or nobody does), 9 who carries it: the envelope, what
--           happened to it, the queue it died in, and 1 if as a dead letter it holds up its session
--   back    7 seq, 8 who carried it, 9 park, or empty: where it should have gone it cannot
--   bury    7 seq, 8 envelope, 9 past, 10 the queue it died in, 11 reason, 12 description, 13 1 if it holds up its session there
--   revive  7 seq, 8 envelope, 9 past
--   gone    7 seq, 8 claim id or who carried it, 9 1 if it goes on as a dead letter that holds up its session here, 10 1 if
--           it was a user's claim
--   free    7 seq, 8 session: a dead letter elsewhere that held up this session is gone
--   told    7 seq: the session elsewhere knows
-- Answers '', and 'stale', 'gone', 'held', 'no death', or 'full' and why, where it cannot be.

local WHAT, SEQ = ARGV[6], ARGV[7]
if replayed() then
  return { '', '', '' }
end

local function present(claim, ours)
  if call('HEXISTS', q.data, SEQ) == 0 then
    return nil, 'gone'
  end
  local m = load(q, SEQ)
  if claim ~= '' and m.claim ~= claim then
    return nil, 'stale'
  end
  if claim ~= '' and member(q, m) and tonumber(call('ZSCORE', q.invisible, SEQ) or 0) <= NOW then
    return nil, 'stale'
  end
  if claim == '' and call('ZSCORE', q.invisible, SEQ) and m.claim ~= ours then
    return nil, 'held'
  end
  return m
end

if WHAT == 'copy' then
  local m, why = present(ARGV[8], ARGV[9])
  if not m then
    return { '', why }
  end
  local holds, past = m.blocks ~= '' or (m.session ~= '' and rules.on_dead == 'block'), packed(m)
  -- Ours until it has been carried, so that nobody gets it here who could get it there as well.
  local till = max(NOW + PARKING, tonumber(call('ZSCORE', q.invisible, SEQ) or 0))
  leave(q, SEQ, m)
  if ARGV[8] == '' then
    m.claim = ARGV[9]
  end
  save(q, SEQ, m)
  call('ZADD', q.invisible, till, SEQ)
  if member(q, m) then
    call('ZADD', LINE, 0, place('h', m.session, SEQ))
    rehead(m.session)
  end
  finish()
  return { '', '', call('HGET', q.data, SEQ), past, m.death and m.death[3] or '', holds and '1' or '' }
elseif WHAT == 'back' then
  local m = present(ARGV[8])
  if m and ARGV[9] == 'park' then
    park(SEQ, m)
  elseif m then
    give_back(q, SEQ, m, 0)
  end
elseif WHAT == 'bury' or WHAT == 'revive' then
  if STATUS == 'disabled' or STATUS == 'send_disabled' or STATUS == 'deleting' then
    if WHAT == 'bury' then
      return { '', 'off' }
    end
  end
  local m = unpacked('', ARGV[9]) or fresh(SEQ, 10, #ARGV[8])
  if call('HGET', LIVE.data, SEQ) == ARGV[8] then
    local death = load(LIVE, SEQ).death
    if WHAT == 'revive' or (death and death[3] == ARGV[10]) then
      return { '', '', '' } -- it came before, with somebody who did not come back
    end
  end
  if bounded then
    tidy()
  end
  local taken = bounded and full(m.size)
  if taken then
    finish()
    return { '', 'full', taken[1], format('%d', taken[2]), format('%d', taken[3]) }
  end
  local at = SEQ
  while call('HEXISTS', LIVE.data, at) == 1 or call('HEXISTS', DEAD.data, at) == 1 do
    at = key(tonumber(at) + 1) -- another queue gave out the same number in the same microsecond
  end
  if WHAT == 'bury' then
    if ARGV[13] == '1' and m.blocks == '' and m.session ~= '' then
      m.blocks = at == SEQ and ARGV[10] or ARGV[10] .. '\n' .. SEQ -- there it has the number it came with
    end
    m.death, m.expires = { ARGV[11], ARGV[12], ARGV[10], NOW, m.n }, 0
  else
    local ttl = m.ttl >= 0 and m.ttl or rules.ttl
    m.n, m.lapsed, m.nacks, m.returns, m.blocks = 0, 0, 0, 0, ''
    m.expires = ttl and NOW + ttl or 0
  end
  q = LIVE
  admit(LIVE, at, m, ARGV[8])
  last = max(last, tonumber(at))
elseif WHAT == 'gone' then
  local m, why = present(ARGV[8])
  if not m then
    return { '', why }
  end
  if ARGV[10] == '1' then
    fail_later(q, SEQ, m)
  end
  local freed = call('HDEL', MEMO, 'n:' .. SEQ) == 1
  if ARGV[9] == '1' and member(q, m) and m.blocks == '' and not freed then
    call('ZADD', LINE, 0, place('b', m.session, SEQ))
  end
  remove(q, SEQ, m)
  if m.blocks ~= '' then
    if ARGV[9] == '1' then
      bump(q.blocking, -1) -- it goes on holding up that session, from where it is now
    else
      unblock(q, SEQ, m)
    end
  end
elseif WHAT == 'free' then
  if call('ZREM', LINE, place('b', ARGV[8], SEQ)) == 0 and call('HEXISTS', LIVE.data, SEQ) == 1 then
    -- The dead letter is gone already, and who carried it has not come back to say that it left.
    call('HSET', MEMO, 'n:' .. SEQ, '1')
    call('ZADD', TIMERS, NOW + 2 * PARKING, 'n:' .. SEQ)
  end
  broadcast = true
  rehead(ARGV[8])
elseif WHAT == 'told' then
  call('HDEL', MEMO, 'u:' .. SEQ)
  call('ZREM', TIMERS, 'u:' .. SEQ)
end
finish('')
return { '', '', parcels() }
