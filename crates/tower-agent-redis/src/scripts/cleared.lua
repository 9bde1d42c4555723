-- Ends the windows of a candidate that began before this was told, and tells of each.
-- KEYS: cooldowns, log
-- ARGV: 1 label of the candidate, 2 time since then in us, 3 replica, 4 and on: keys
-- Returns the damaged key or ''
local time = redis.call('TIME')
local at = tonumber(time[1]) * 1000000 + tonumber(time[2]) - tonumber(ARGV[2])
local keys = {}
for number = 4, #ARGV do keys[ARGV[number]] = true end
local all = redis.pcall('HGETALL', KEYS[1])
if all.err then return KEYS[1] end
local damaged = ''
for number = 1, #all, 2 do
  local key, value = all[number], all[number + 1]
  local window, rest, began, label =
    string.match(value, '^(%d+) r (%d+ (%d+) [%l_]+ %d+ [01] %x+ %x+ %x+ (.*))$')
  if window and tonumber(began) <= at and (keys[key] or label == ARGV[1]) then
    redis.call('HSET', KEYS[1], key, window .. ' e ' .. rest)
    local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*',
      'k', 'unc', 'r', ARGV[3], 'd', key, 'n', window)
    if type(told) == 'table' and told.err then damaged = KEYS[2] end
  end
end
return damaged
