-- Refuses new runs of an owner or of all, or admits them, and tells of it.
-- KEYS: freezes, log
-- ARGV: 1 owner or 'all', 2 '1' if they are refused, 3 epoch if there is none yet, 4 replica
-- Returns the damaged key or ''
local begun = redis.pcall('HSETNX', KEYS[1], 'epoch', ARGV[3])
if type(begun) == 'table' and begun.err then return KEYS[1] end
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not string.match(epoch, '^%d+$') then
  epoch = ARGV[3]
  redis.call('HSET', KEYS[1], 'epoch', epoch)
end
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], ARGV[1], '1')
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'k', 'frz', 'r', ARGV[4],
  'o', ARGV[1], 'f', ARGV[2], 'e', epoch)
if type(told) == 'table' and told.err then return KEYS[2] end
return ''
