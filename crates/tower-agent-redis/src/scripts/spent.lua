-- Records what a part of a run has spent, in all.
-- KEYS: run
-- ARGV: 1 part, 2 incarnation or '', 3 what the part has spent, 4 ttl in ms
-- Returns {incarnation or '', what the other parts have spent or ''}
local run = KEYS[1]
local stored = redis.call('HGETALL', run)
if #stored == 0 then return {'', ''} end
local name = 's:' .. ARGV[1]
local sums = {0, 0, 0, 0, 0, 0}
local incarnation, ended
for at = 1, #stored, 2 do
  local field, value = stored[at], stored[at + 1]
  if field == 'inc' then incarnation = value
  elseif field == 'end' then ended = true
  elseif string.sub(field, 1, 2) == 's:' and field ~= name then
    local numbers = {string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+%.?%d*)$')}
    if #numbers == 0 then return redis.error_reply('DAMAGED ' .. field) end
    for of = 1, 6 do sums[of] = sums[of] + tonumber(numbers[of]) end
  end
end
if not incarnation then return redis.error_reply('DAMAGED inc') end
if ended or (ARGV[2] ~= '' and ARGV[2] ~= incarnation) then return {incarnation, ''} end
redis.call('HSET', run, name, ARGV[3])
redis.call('PEXPIRE', run, ARGV[4], 'GT')
return {incarnation, string.format('%.0f %.0f %.0f %.0f %.0f %.12f', unpack(sums))}
