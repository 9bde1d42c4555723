-- Says that a replica lives. It writes: a server that is full, or a replica of another one, is of no use.
-- KEYS: replicas
-- ARGV: 1 replica
-- Returns those that have said so in the last three seconds, and those that have in the last minute but
-- not since
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 60000)
redis.call('PEXPIRE', KEYS[1], 60000)
local since = now - 3000
return {
  redis.call('ZRANGEBYSCORE', KEYS[1], since, '+inf'),
  redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', since)),
}
