-- A session's lock: ARGV 6 'renew', 'unlock', 'get' or 'set', 7 session, 8 token; renew: 9 lease; set: 9 1 or 0, whether there is
-- a state, 10 the state, 11 the version it must have (empty: any). Answers '' and the end of the lock; '1'; or the state's
-- version and the state. 'lost' where the lock is not ours any more, an empty version where it is another than we think.

local VERB, SESSION = ARGV[6], ARGV[7]

local function state()
  local kept = call('HMGET', MEMO, 'v:' .. SESSION, 's:' .. SESSION)
  return { '', kept[1] or '0', kept[2] }
end

if VERB == 'get' then
  return state()
end
local again = replayed()
if again then
  return { '', again }
end
if not locked(SESSION) or call('HGET', MEMO, 'l:' .. SESSION) ~= ARGV[8] then
  return { 'lost', SESSION }
end
if VERB == 'renew' then
  local till = NOW + tonumber(ARGV[9])
  hold(SESSION, till)
  finish(exact(till))
  return { '', exact(till) }
end
if VERB == 'unlock' then
  call('ZREM', LOCKS, SESSION)
  call('HDEL', MEMO, 'l:' .. SESSION)
  local held = call('ZRANGEBYLEX', LINE, '[' .. place('h', SESSION, ''), '(h' .. SESSION .. '\1')
  for i = #held, 1, -1 do
    local seq = sub(held[i], -16)
    local m = load(LIVE, seq)
    uncount(m)
    give_back(LIVE, seq, m, 0)
  end
  broadcast = true
  rehead(SESSION)
  finish('1')
  return { '', '1' }
end
local version = tonumber(state()[2])
if ARGV[11] ~= '' and tonumber(ARGV[11]) ~= version then
  return { '', '' }
end
local new = format('%d', version + 1)
call('HSET', MEMO, 'v:' .. SESSION, new)
if ARGV[9] == '1' then
  call('HSET', MEMO, 's:' .. SESSION, ARGV[10])
else
  call('HDEL', MEMO, 's:' .. SESSION)
end
finish(new)
return { '', new }
