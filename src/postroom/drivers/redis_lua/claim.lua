-- Any claim; the arguments and the answer are those of claim_plain.lua.

outcomes = outcomes or settle_all(15)
local LOCK, LIMIT, WAIT, WHO = ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
if STATUS == 'disabled' or STATUS == 'receive_disabled' or STATUS == 'deleting' then
  finish(outcomes)
  return { 'off', STATUS }
end
if SESSION ~= '' and not q.live then
  finish(outcomes)
  return { 'dead session' }
end

local buried, expired, till, token = 0, 0, NOW + LEASE, 0
local taken, put_away = {}, 0

local function give(seq, m)
  local until_ = m.until_ and exact(m.until_) or ''
  taken[#taken + 1] = { seq, call('HGET', q.data, seq) or '', packed(m), until_ }
end

local function lend(seq, m)
  m.n, m.claim, m.token, m.received = m.n + 1, CLAIM, token, NOW
  call('ZREM', q.pending, seq)
  if member(q, m) then
    call('ZREM', LINE, place('m', m.session, seq))
    call('ZADD', LINE, 0, place('h', m.session, seq))
  end
  call('ZADD', q.invisible, till, seq)
  save(q, seq, m)
  give(seq, m)
end

-- What nobody may have any more is put away instead of being taken.
local function put_aside(seq, m)
  if overdue(m) and q.live then
    expired = expired + expire(seq, m)
  elseif used_up(m, LIMIT) then
    buried = buried + bury(seq, m, 'max_deliveries', '')
  else
    return false
  end
  put_away = put_away + 1
  return true
end

-- A session's next messages in order of seq, up to the first that nobody may overtake.
local function take_session(session)
  while #taken < N and put_away <= TIDY and not first('b', session) do
    local from = '[' .. place('m', session, '')
    local line = call('ZRANGEBYLEX', LINE, from, '(m' .. session .. '\1', 'LIMIT', 0, N - #taken)
    local before = put_away
    for _, waiting in ipairs(line) do
      local seq = sub(waiting, -16)
      if not ours(seq) then
        call('ZREM', LINE, waiting)
        put_away = put_away + 1
      elseif call('ZSCORE', LIVE.later, seq) then
        rehead(session)
        return
      else
        local m = load(LIVE, seq)
        if not put_aside(seq, m) then
          lend(seq, m)
        elseif first('b', session) or put_away > TIDY then
          break
        end
      end
    end
    if put_away == before then
      break -- else the line has moved up: look again
    end
  end
  rehead(session)
end

-- Somebody wrote this into the queue by hand: under a number of its own it can be received, and reported.
local function refile(seq)
  local data = call('HGET', q.data, seq) or seq
  call('ZREM', q.pending, seq)
  call('HDEL', q.data, seq)
  call('HDEL', q.meta, seq)
  local new = key(number(1))
  call('HSET', q.data, new, data)
  bump(q.bytes, #data)
  call('ZADD', q.pending, 10, new)
end

local function take_next()
  while #taken < N and put_away <= TIDY do
    local seqs = call('ZRANGE', q.pending, 0, N - #taken - 1)
    if #seqs == 0 then
      return
    end
    for _, seq in ipairs(seqs) do
      if #taken >= N then
        return
      end
      if not ours(seq) then
        refile(seq)
      else
        local m = load(q, seq)
        if member(q, m) then
          take_session(m.session)
          call('ZREM', q.pending, seq) -- shown and not taken: nothing of ours puts it there
        elseif not put_aside(seq, m) then
          lend(seq, m)
        end
      end
    end
  end
end

-- A claim that was given up takes nothing any more; nor does one that arrives after its own repetition was answered.
local fenced = call('HGET', MEMO, 'f:' .. CLAIM)
local repeated = fenced == 'again'
if fenced and AGAIN and repeated then
  fenced = false
elseif fenced then
  local fence = tonumber(call('ZSCORE', TIMERS, 'f:' .. CLAIM) or 0)
  fenced = fence > NOW
end
if fenced then
  finish(outcomes)
  return { '', outcomes, '', exact(NOW) .. ' 0 ' .. exact(NOW) .. ' 0 0 0 inf' } -- not even to wait
end
buried, expired = tidy(LIMIT)
if AGAIN then
  for _, seq in ipairs(held_by(CLAIM)) do
    local m = load(q, seq)
    m.until_ = tonumber(call('ZSCORE', q.invisible, seq))
    give(seq, m)
  end
end
if #taken == 0 then
  token = number(1)
  if SESSION == '' then
    take_next()
  elseif LOCK ~= '' then
    local own = tonumber(call('ZSCORE', LOCKS, SESSION) or 0)
    if own <= NOW or call('HGET', MEMO, 'l:' .. SESSION) ~= LOCK then
      finish(outcomes)
      return { 'lost', SESSION }
    end
    till = own
    take_session(SESSION)
  elseif not locked(SESSION) and not first('h', SESSION) then
    take_session(SESSION)
  end
  if #taken == 0 then
    last = last - 1 -- the number was not used
  end
end

local at = math.huge
local more = buried + expired + #moves > 0
if #taken == 0 then
  at = next_due()
  more = more or at <= NOW
  if WAIT > 0 and not more then
    if SESSION == '' then
      call('DEL', q.bell) -- nothing is ready: whatever tokens are left there are old
      call('HSET', INFO, q.waits, exact(max(waits[q], NOW + WAIT + 1)))
    else
      call('ZADD', WAITERS, NOW + WAIT + 1, WHO)
    end
  end
elseif SESSION == '' then
  rung[q] = max(0, rung[q] - #taken) -- what was shown on the way and is taken already is no news
  ends(q, till)
end
if AGAIN and #taken > 0 and not repeated then
  call('HSET', MEMO, 'f:' .. CLAIM, 'again')
  call('ZADD', TIMERS, NOW + 60, 'f:' .. CLAIM)
end
finish(outcomes)
local reply = {
  '', outcomes, parcels(),
  exact(NOW) .. format(' %.0f ', token) .. exact(till) .. format(' %d %d %d ', buried, expired, more and 1 or 0) .. exact(at),
}
for _, one in ipairs(taken) do
  for _, part in ipairs(one) do
    reply[#reply + 1] = part
  end
end
return reply
