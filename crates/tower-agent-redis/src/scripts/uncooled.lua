-- Ends one window before its time, and tells of it.
-- KEYS: cooldowns, log
-- ARGV: 1 key, 2 window, 3 replica
-- Returns the damaged key or ''
local damaged = ''
local stored = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(stored) == 'table' then
  damaged = KEYS[1]
elseif stored then
  local window, state, rest = string.match(stored, '^(%d+) ([re]) (.*)$')
  if window and (window ~= ARGV[2] or state == 'e') then return '' end
  -- It stays known until its end, so that nobody begins it again.
  if window then redis.call('HSET', KEYS[1], ARGV[1], window .. ' e ' .. rest) end
end
local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*',
  'k', 'unc', 'r', ARGV[3], 'd', ARGV[1], 'n', ARGV[2])
if type(told) == 'table' and told.err then damaged = KEYS[2] end
return damaged
