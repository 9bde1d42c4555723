-- Says that a replica lives. It writes: a server that is full, or a replica of another one, is of no use.
-- KEYS: replicas
-- ARGV: 1 replica
-- Returns how many others have said so in the last three seconds
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 60000)
redis.call('PEXPIRE', KEYS[1], 60000)
return redis.call('ZCOUNT', KEYS[1], now - 3000, '+inf') - 1
