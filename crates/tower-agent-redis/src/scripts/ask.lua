-- Answers a question about a run, makes the run known, and grants turns.
-- KEYS: run, session index (or the run again), owners of the id, owners of the session (or the run
--   again)
-- ARGV: 1 incarnation if the run is new, 2 age in us if it is new, 3 part, 4 turns the part is known
--   to have, 5 incarnation of those turns or '', 6 want or '', 7 cap, 8 ttl in ms, 9 ttl of an end
--   in ms, 10 session or '', 11 parent or '', 12 id, 13 what the part is known to have spent or '',
--   14 owner, 15 number of the question about turns, 16 turns that the part has taken, 17 turns that
--   the other parts are known to have, 18 how much of the cap was added to it by this part or ''
-- Returns {{incarnation, age in us, end or '', granted, elsewhere, parent or '', damaged key or '',
--   what the other parts have spent, 1 if another part has not left}, what was added to the run's
--   limits or '', 1 if the run is suspended}
local run = KEYS[1]
local stored = redis.call('HGETALL', run)
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local incarnation, opened, over, ended, parent, session, mine, untold, alive
local added, added_turns, suspended = '', 0, 0
local number = 0
local elsewhere, held = 0, 0
local sums = {0, 0, 0, 0, 0, 0}
local name = 't:' .. ARGV[3]
local spent = 's:' .. ARGV[3]
for at = 1, #stored, 2 do
  local field, value = stored[at], stored[at + 1]
  if field == 'inc' then incarnation = value
  elseif field == 'opened' then opened = tonumber(value)
  elseif field == 'over' then over = tonumber(value)
  elseif field == 'end' then ended = value
  elseif field == 'parent' then parent = value
  elseif field == 'session' then session = value
  elseif field == 'held' then suspended = value == '1' and 1 or 0
  elseif field == 'ext' then
    added_turns = tonumber(string.match(value, '^(%d+) %d+ %d+ %d+%.?%d* %d+$'))
    if not added_turns then return redis.error_reply('DAMAGED ext') end
    added = value
  elseif field == 'a:' .. ARGV[3] then alive = true
  elseif field == 'n:' .. ARGV[3] then
    number = tonumber(value)
    if not number then return redis.error_reply('DAMAGED ' .. field) end
  elseif string.sub(field, 1, 2) == 'a:' then held = 1
  elseif string.sub(field, 1, 2) == 't:' then
    local turns = tonumber(value)
    if not turns or turns < 0 or turns ~= math.floor(turns) or turns > 4294967295 then
      return redis.error_reply('DAMAGED ' .. field)
    end
    if field == name then mine = turns else elsewhere = elsewhere + turns end
    if field == 't:?' then untold = turns end
  elseif string.sub(field, 1, 2) == 's:' and field ~= spent then
    local numbers = {string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+%.?%d*)$')}
    if #numbers == 0 then return redis.error_reply('DAMAGED ' .. field) end
    for of = 1, 6 do sums[of] = sums[of] + tonumber(numbers[of]) end
  end
end
if #stored > 0 and not (incarnation and string.match(incarnation, '^%d+$') and opened) then
  return redis.error_reply('DAMAGED inc or opened')
end
if ended then
  redis.call('PEXPIRE', run, ARGV[9], 'GT')
  local age = math.max((over or now) - opened, 0)
  return {{incarnation, age, ended, 0, 0, parent or '', '', '', 0}, '', 0}
end
local fields = {}
if not incarnation then
  incarnation = ARGV[1]
  opened = now - tonumber(ARGV[2])
  fields = {'inc', incarnation, 'opened', string.format('%.0f', opened)}
  -- No replica that asked knew the run. If the store has lost it, another one may know it yet.
  if ARGV[5] == '' then
    fields[5] = 'fresh'
    fields[6] = '1'
  -- The store has lost the run. Until the other parts tell of their turns, they count together.
  elseif tonumber(ARGV[17]) > 0 then
    elsewhere = tonumber(ARGV[17])
    fields[5] = 't:?'
    fields[6] = ARGV[17]
  end
end
if not session and ARGV[10] ~= '' then
  session = ARGV[10]
  fields[#fields + 1] = 'session'
  fields[#fields + 1] = session
end
if not parent and ARGV[11] ~= '' then
  parent = ARGV[11]
  fields[#fields + 1] = 'parent'
  fields[#fields + 1] = parent
end
if untold and not alive and ARGV[5] == incarnation then
  local told = math.min(untold, tonumber(ARGV[4]))
  elsewhere = elsewhere - told
  redis.call('HSET', run, 't:?', string.format('%.0f', untold - told))
end
local granted = mine or 0
if ARGV[5] == incarnation then granted = math.max(granted, tonumber(ARGV[4])) end
if ARGV[6] ~= '' and tonumber(ARGV[15]) > number then
  local cap = tonumber(ARGV[7]) + math.max(added_turns - tonumber(ARGV[18]), 0)
  local left = math.max(cap - elsewhere, 0)
  granted = math.max(tonumber(ARGV[16]), math.min(tonumber(ARGV[6]), left))
  fields[#fields + 1] = 'n:' .. ARGV[3]
  fields[#fields + 1] = ARGV[15]
end
if granted ~= (mine or 0) then
  fields[#fields + 1] = name
  fields[#fields + 1] = string.format('%.0f', granted)
end
if ARGV[5] == incarnation and ARGV[13] ~= '' then
  fields[#fields + 1] = spent
  fields[#fields + 1] = ARGV[13]
end
if not alive then
  fields[#fields + 1] = 'a:' .. ARGV[3]
  fields[#fields + 1] = '1'
end
local damaged = ''
if #fields > 0 then redis.call('HSET', run, unpack(fields)) end
-- `GT` does nothing to a key without a time of its own.
local function keep(key)
  if redis.call('PTTL', key) < 0 then
    redis.call('PEXPIRE', key, ARGV[8])
  else
    redis.call('PEXPIRE', key, ARGV[8], 'GT')
  end
end
keep(run)
if session and session == ARGV[10] then
  -- By the time at which the entry expires, so that the index sheds runs that are gone.
  local expires = now / 1000 + tonumber(ARGV[8])
  local index = KEYS[2]
  local added = redis.pcall('ZADD', index, 'GT', expires, incarnation .. ':' .. ARGV[12])
  if type(added) == 'table' and added.err then
    damaged = index
  else
    redis.call('ZREMRANGEBYSCORE', index, '-inf', now / 1000)
    keep(index)
  end
end
-- A part that asks for a turn is listed already, and is listed again each third of its time.
if not alive or ARGV[6] == '' then
  local owners = {KEYS[3]}
  if ARGV[10] ~= '' then owners[2] = KEYS[4] end
  for _, set in ipairs(owners) do
    local added = redis.pcall('SADD', set, ARGV[14])
    if type(added) == 'table' and added.err then
      damaged = set
    else
      keep(set)
    end
  end
end
local told = {incarnation, math.max(now - opened, 0), '', granted, elsewhere, parent or '', damaged,
  string.format('%.0f %.0f %.0f %.0f %.0f %.12f', unpack(sums)), held}
return {told, added, suspended}
