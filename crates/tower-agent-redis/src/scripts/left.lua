-- Takes a part away from a run, and the run if its last part has completed.
-- KEYS: run, session index (or the run again)
-- ARGV: 1 part, 2 session or '', 3 id, 4 whether the part completed: 1 or 0, 5 the turns that it
--   has taken
local run = KEYS[1]
if redis.call('HDEL', run, 'a:' .. ARGV[1]) == 0 then return 0 end
redis.call('HSET', run, 't:' .. ARGV[1], ARGV[5])
if ARGV[4] ~= '1' then return 0 end
local stored = redis.call('HGETALL', run)
local incarnation
for at = 1, #stored, 2 do
  local field = stored[at]
  if field == 'end' or string.sub(field, 1, 2) == 'a:' then return 0 end
  if field == 'inc' then incarnation = stored[at + 1] end
end
redis.call('DEL', run)
if ARGV[2] ~= '' and incarnation then
  redis.pcall('ZREM', KEYS[2], incarnation .. ':' .. ARGV[3])
end
return 1
