-- Takes back the turns that a part was granted and has no use for.
-- KEYS: run
-- ARGV: 1 part, 2 number among the questions of the part, 3 turns for which it has use
-- Returns 1 if the news are the latest of the part
local run = KEYS[1]
local known = redis.call('HMGET', run, 'inc', 'end', 't:' .. ARGV[1], 'n:' .. ARGV[1])
if not known[1] or known[2] then return 0 end
local turns, number = tonumber(known[3] or 0), tonumber(known[4] or 0)
if not turns or not number then return redis.error_reply('DAMAGED turns of a part') end
if tonumber(ARGV[2]) <= number then return 0 end
redis.call('HSET', run, 'n:' .. ARGV[1], ARGV[2])
if tonumber(ARGV[3]) < turns then redis.call('HSET', run, 't:' .. ARGV[1], ARGV[3]) end
return 1
