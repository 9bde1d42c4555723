-- Begins a window, unless the key has it already, or a longer one, and tells of it.
-- KEYS: cooldowns, log
-- ARGV: 1 key, 2 window, 3 time left in us, 4 time since its beginning in us, 5 class, 6 rest of the
--   value, 7 '1' if the window is of a caller, 8 '1' if it is of an account, 9 replica
-- A value: window, r (runs) or e (ended), end and beginning in us by this server, class, the rest
-- Returns the damaged key or ''
local left = tonumber(ARGV[3])
if left <= 0 then return '' end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local ends = now + left
local cooldowns, damaged = KEYS[1], ''
local stored = redis.pcall('HGET', cooldowns, ARGV[1])
if type(stored) == 'string' then
  local window, state, till, class = string.match(stored, '^(%d+) ([re]) (%d+) %d+ ([%l_]+) ')
  if window == ARGV[2] then return '' end
  local hides = ARGV[8] == '1' and class == 'rate_limit' and ARGV[5] ~= 'rate_limit'
  if state == 'r' and tonumber(till) >= ends and not hides then return '' end
end
local value = string.format('%s r %.0f %.0f %s %s', ARGV[2], ends, now - tonumber(ARGV[4]), ARGV[5],
  ARGV[6])
if type(stored) == 'table' then
  damaged = cooldowns
else
  if not stored and redis.call('HLEN', cooldowns) >= 1024 then
    -- Those that are over make room, else the one that ends first, a caller's before all others.
    local all = redis.call('HGETALL', cooldowns)
    local first, worth
    for at = 1, #all, 2 do
      local till, callers = string.match(all[at + 1], '^%d+ [re] (%d+) %d+ [%l_]+ %d+ ([01]) ')
      till = tonumber(till or 0)
      if till <= now then
        redis.call('HDEL', cooldowns, all[at])
      else
        if callers ~= '1' then till = till + 1e17 end
        if not worth or till < worth then first, worth = all[at], till end
      end
    end
    if first and redis.call('HLEN', cooldowns) >= 1024 then
      redis.call('HDEL', cooldowns, first)
    end
  end
  redis.call('HSET', cooldowns, ARGV[1], value)
  local ttl = math.ceil(left / 1000)
  if redis.call('PTTL', cooldowns) < ttl then redis.call('PEXPIRE', cooldowns, ttl) end
end
local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*',
  'k', 'cool', 'r', ARGV[9], 'd', ARGV[1], 'v', value)
if type(told) == 'table' and told.err then damaged = KEYS[2] end
return damaged
