-- Records what was added to the limits of a run, the greater of each sum, and whether it is suspended, if
-- the replica says so.
-- KEYS: run
-- ARGV: 1 incarnation or '', 2 turns, 3 output tokens, 4 all tokens, 5 cost, 6 time in us, 7 1 if the
--   run is suspended, 0 if not, or ''
local run = KEYS[1]
local stored = redis.call('HMGET', run, 'inc', 'end', 'ext')
local incarnation, ended, before = stored[1], stored[2], stored[3]
if not incarnation or ended then return 0 end
if ARGV[1] ~= '' and ARGV[1] ~= incarnation then return 0 end
local sums = {}
for of = 1, 5 do sums[of] = tonumber(ARGV[1 + of]) end
if before then
  local numbers = {string.match(before, '^(%d+) (%d+) (%d+) (%d+%.?%d*) (%d+)$')}
  if #numbers == 0 then return redis.error_reply('DAMAGED ext') end
  for of = 1, 5 do sums[of] = math.max(sums[of], tonumber(numbers[of])) end
end
redis.call('HSET', run, 'ext', string.format('%.0f %.0f %.0f %.12f %.0f', unpack(sums)))
if ARGV[7] ~= '' then redis.call('HSET', run, 'held', ARGV[7]) end
return 1
