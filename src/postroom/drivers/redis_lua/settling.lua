-- Verdicts, one by one. As text: a letter and the handle (the seq in 16 digits, a dot, the claim id); what else it needs
-- follows a newline.
--   A acknowledge          R release: delay \n 1 or 0, whether there is a note \n the note      T return: delay
--   E extend: lease \n 1 if it may shorten      B bury: reason \n description
--   V would an acknowledge count? Changes nothing
-- Outcomes: s settled (with the end of the lease after an extend), t stale, g gone, u a dead letter cannot die,
-- o dead-lettering is off, m the driver must carry it to its dead-letter queue first, and that one's name.

local function note(m, text)
  m.nacks = m.nacks + 1
  if text then
    while #m.history >= MAX_HISTORY do
      table.remove(m.history, 1)
    end
    m.history[#m.history + 1] = { m.n, NOW, text }
  end
end

local function settle(verdict)
  local kind, seq = sub(verdict, 1, 1), sub(verdict, 2, 17)
  local claim, rest = match(sub(verdict, 19), '^(%w*)\n?(.*)$')
  local m = call('HEXISTS', q.meta, seq) == 1 and load(q, seq)
  if not m or m.claim == '' or m.claim ~= claim then
    return call('HEXISTS', q.data, seq) == 1 and 't' or 'g'
  end
  local till = tonumber(call('ZSCORE', q.invisible, seq) or 0)
  if till <= NOW and (kind == 'E' or member(q, m)) then
    return 't'
  end
  if kind == 'V' then
    return 's'
  end
  if kind == 'A' then
    remove(q, seq, m)
    unblock(q, seq, m)
    return 's'
  end
  if kind == 'E' then
    local lease, shorten = match(rest, '^(%S+)\n(%d)$')
    local at = NOW + tonumber(lease)
    if shorten == '0' then
      at = max(at, till)
    end
    if member(q, m) and locked(m.session) then
      if tonumber(call('ZSCORE', LOCKS, m.session)) ~= at then -- once for all that is held under it
        hold(m.session, at)
      end
    else
      call('ZREM', q.invisible, seq) -- first: a server whose memory is full refuses a script that begins with a ZADD
      call('ZADD', q.invisible, at, seq)
    end
    ends(q, at)
    return 's' .. exact(at)
  end
  if kind == 'B' then
    if not q.live then
      return 'u'
    elseif not rules.dead_lettering then
      return 'o'
    elseif rules.dead_letter_queue then
      if call('ZSCORE', q.invisible, seq) then
        call('ZADD', q.invisible, max(till, NOW + PARKING), seq) -- ours until it has been carried
      end
      return 'm' .. rules.dead_letter_queue
    end
    local reason, description = match(rest, '^([^\n]*)\n(.*)$')
    fail_later(q, seq, m)
    bury(seq, m, reason, description)
    return 's'
  end
  fail_later(q, seq, m)
  if kind == 'T' then
    uncount(m)
    give_back(q, seq, m, tonumber(rest))
    return 's'
  end
  local delay, noted, text = match(rest, '^(%S+)\n(%d)\n(.*)$')
  note(m, noted == '1' and sub(text, 1, 4 * MAX_NOTE) or nil)
  if overdue(m) then
    save(q, seq, m)
    expire(seq, m)
  elseif used_up(m) then
    save(q, seq, m)
    bury(seq, m, 'max_deliveries', noted == '1' and text or '')
  else
    give_back(q, seq, m, tonumber(delay))
  end
  return 's'
end

local function settle_all(from)
  local outcomes = {}
  for i = from, #ARGV do
    outcomes[#outcomes + 1] = settle(ARGV[i])
  end
  return table.concat(outcomes, ',')
end
