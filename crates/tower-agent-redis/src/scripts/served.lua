-- Stores the candidate of a session, and tells of it.
-- KEYS: candidates of the session, log
-- ARGV: 1 digest of the session with its model, 2 candidate, 3 ttl in ms, 4 replica
-- Returns the damaged key or ''
local damaged = ''
local kept = redis.pcall('HLEN', KEYS[1])
if type(kept) == 'table' then
  damaged = KEYS[1]
else
  -- Callers decide which models a session asks for.
  if kept >= 16 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then redis.call('DEL', KEYS[1]) end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*',
  'k', 'sti', 'r', ARGV[4], 'd', ARGV[1], 'c', ARGV[2])
if type(told) == 'table' and told.err then damaged = KEYS[2] end
return damaged
