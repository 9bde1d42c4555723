-- Takes over what a replica has counted for an owner, and grants what it asks for.
-- KEYS: owner, then one for each period of the calendar
-- ARGV: 1 replica, 2 number of the counts, 3 open runs, 4 open runs asked for, 5 cap on them or '',
--   6 turns asked for, 7 cap on turns in an hour or '', 8 the present minute, 9 how long a minute
--   counts in ms, 10 how long open runs count without a sign of life in ms, 11 how many
--   periods, then for each period: how long to keep it in ms, turns asked for, cap on turns or '',
--   turns, and six numbers of what was spent; then for each minute: number, ms since it began, turns,
--   and six numbers of what was spent
-- A replica's field holds {number, last sign of life in ms, open runs, and for each minute: its number,
--   when it began in ms, turns, six of spending}, packed: a text of an hour takes too long to read.
-- A period's key holds for each replica {number, turns, six of spending}, and in `all` the sums, packed:
--   replicas come and go in a month, and no request reads what each of them has counted.
-- Returns {open runs elsewhere, turns elsewhere, what was spent elsewhere, then for each period: turns
--   elsewhere, what was spent elsewhere}
local key, hour, alive = KEYS[1], tonumber(ARGV[9]), tonumber(ARGV[10])
local stored = redis.call('HGETALL', key)
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local open, turns, input, cached, output, estimated, estimated_input, cost = 0, 0, 0, 0, 0, 0, 0, 0
local mine = {0, now, 0}
local silent = {}
for at = 1, #stored, 2 do
  local name = stored[at]
  local read, record = pcall(cmsgpack.unpack, stored[at + 1])
  if not read or type(record) ~= 'table' or #record % 9 ~= 3 then
    return redis.error_reply('DAMAGED ' .. name)
  end
  if name == ARGV[1] then
    mine = record
  else
    if not (record[3] >= 0) then return redis.error_reply('DAMAGED ' .. name) end
    local counts = now - record[2] < alive and record[3] > 0
    if counts then open = open + record[3] end
    for of = 4, #record, 9 do
      if now - record[of + 1] < hour then
        counts = true
        turns = turns + record[of + 2]
        input = input + record[of + 3]
        cached = cached + record[of + 4]
        output = output + record[of + 5]
        estimated = estimated + record[of + 6]
        estimated_input = estimated_input + record[of + 7]
        cost = cost + record[of + 8]
      end
    end
    if not counts then silent[#silent + 1] = name end
  end
end
for _, sum in ipairs({open, turns, input, cached, output, estimated, estimated_input, cost, mine[3]}) do
  if not (sum >= 0 and sum < 1e15) then return redis.error_reply('DAMAGED counts') end
end
local number = tonumber(ARGV[2])
local is_newer = number > mine[1]
local present = tonumber(ARGV[8])
local kept = mine
for of = 4, #mine, 9 do
  if now - mine[of + 1] >= hour then
    -- Only then is the record made anew.
    kept = {mine[1], mine[2], mine[3]}
    for from = 4, #mine, 9 do
      if now - mine[from + 1] < hour then
        for more = from, from + 8 do kept[#kept + 1] = mine[more] end
      end
    end
    break
  end
end
-- The place of a minute in the record: mostly one of the last.
local function place_of(minute)
  for of = #kept - 8, 4, -9 do
    if kept[of] == minute then return of end
  end
end
local place = place_of(present)
local before = place and kept[place + 2] or 0
local have
for of = 12 + 10 * tonumber(ARGV[11]), #ARGV, 9 do
  local minute = tonumber(ARGV[of])
  if minute == present then have = tonumber(ARGV[of + 2]) end
  place = place_of(minute)
  if is_newer or not place then
    if not place then
      place = #kept + 1
      kept[place] = minute
      kept[place + 1] = now - tonumber(ARGV[of + 1])
    end
    for more = 2, 8 do kept[place + more] = tonumber(ARGV[of + more]) end
  end
end
if have then
  place = place_of(present)
  local rest = -kept[place + 2]
  for of = 6, #kept, 9 do rest = rest + kept[of] end
  local left = before
  if ARGV[7] ~= '' then left = tonumber(ARGV[7]) - turns - rest end
  local granted = math.min(have + tonumber(ARGV[6]), math.max(left, have))
  if not is_newer then granted = math.max(granted, before) end
  kept[place + 2] = granted
end
local left = mine[3]
if ARGV[5] ~= '' then left = tonumber(ARGV[5]) - open end
have = tonumber(ARGV[3])
local granted = math.min(have + tonumber(ARGV[4]), math.max(left, have))
if not is_newer then granted = math.max(granted, mine[3]) end
-- A sign of life says nothing new.
if number == 0 and mine[1] > 0 then granted = mine[3] end
kept[1], kept[2], kept[3] = math.max(number, mine[1]), now, granted
redis.call('HSET', key, ARGV[1], cmsgpack.pack(kept))
if #silent > 0 then redis.call('HDEL', key, unpack(silent)) end
redis.call('PEXPIRE', key, hour + 60000)
local answer = {open, turns, string.format('%.0f %.0f %.0f %.0f %.0f %.12f', input, cached, output,
  estimated, estimated_input, cost)}

local function unpacked(value, size, name)
  if not value then
    local nothing = {}
    for of = 1, size do nothing[of] = 0 end
    return nothing
  end
  local read, record = pcall(cmsgpack.unpack, value)
  if not read or type(record) ~= 'table' or #record ~= size then return nil, name end
  for of = 1, size do
    local count = record[of]
    if type(count) ~= 'number' or not (count >= 0 and count < 1e15) then return nil, name end
  end
  return record
end

for period = 1, tonumber(ARGV[11]) do
  local counts, first = KEYS[1 + period], 12 + 10 * (period - 1)
  local known = redis.call('HMGET', counts, ARGV[1], 'all')
  local ours, damaged = unpacked(known[1], 8, ARGV[1])
  local all
  if ours then all, damaged = unpacked(known[2], 7, 'all') end
  if damaged then return redis.error_reply('DAMAGED ' .. damaged .. ' of ' .. counts) end
  local others = {}
  for of = 1, 7 do others[of] = math.max(all[of] - ours[of + 1], 0) end
  have = tonumber(ARGV[first + 3])
  left = ours[2]
  if ARGV[first + 2] ~= '' then left = tonumber(ARGV[first + 2]) - others[1] end
  granted = math.min(have + tonumber(ARGV[first + 1]), math.max(left, have))
  if number > ours[1] then
    ours = {number, granted}
    for of = 3, 8 do ours[of] = tonumber(ARGV[first + 1 + of]) end
  else
    ours[2] = math.max(ours[2], granted)
  end
  for of = 1, 7 do all[of] = others[of] + ours[of + 1] end
  redis.call('HSET', counts, ARGV[1], cmsgpack.pack(ours), 'all', cmsgpack.pack(all))
  redis.call('PEXPIRE', counts, ARGV[first])
  answer[#answer + 1] = others[1]
  answer[#answer + 1] = string.format('%.0f %.0f %.0f %.0f %.0f %.12f', unpack(others, 2))
end
return answer
