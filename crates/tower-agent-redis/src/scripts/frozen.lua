-- Refuses new runs of an owner or of all, or admits them, and tells of it.
-- KEYS: freezes, log
-- ARGV: 1 owner or 'all', 2 '1' if they are refused, 3 highest version that the replica knows, 4 replica
-- Returns the damaged key or ''
local version = redis.pcall('HGET', KEYS[1], 'version')
if type(version) == 'table' and version.err then return KEYS[1] end
version = math.max(tonumber(version or 0) or 0, tonumber(ARGV[3])) + 1
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], ARGV[1], '1')
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'k', 'frz', 'r', ARGV[4],
  'o', ARGV[1], 'f', ARGV[2], 'v', string.format('%.0f', version))
if type(told) == 'table' and told.err then return KEYS[2] end
return ''
