-- Makes an ended id a new run, once for each new incarnation.
-- KEYS: run
-- ARGV: 1 incarnation, 2 ttl in ms
local run = KEYS[1]
if redis.call('TYPE', run).ok == 'hash' and redis.call('HGET', run, 'inc') == ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('DEL', run)
redis.call('HSET', run, 'inc', ARGV[1], 'opened', string.format('%.0f', now))
redis.call('PEXPIRE', run, ARGV[2])
return 1
