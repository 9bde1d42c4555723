-- Stores the end of a run, unless it has one, and tells of it. The end of a run that is not known is
-- told alone: a replica may have the run without an id of its own.
-- KEYS: run, log, session index (or the run again)
-- ARGV: 1 incarnation or '', 2 incarnation if the run is new, 3 '1' if only a known run ends, 4 end,
--   5 ttl of an end in ms, 6 replica, 7 owner, 8 id, 9 session or ''
-- Returns {1 if the end was stored, incarnation or '', damaged key or ''}
local run = KEYS[1]
local known = redis.call('HMGET', run, 'inc', 'end', 'opened', 'parent', 'fresh')
local incarnation = known[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local opened = known[3] or string.format('%.0f', now)
if not incarnation then
  if redis.call('EXISTS', run) == 1 then return redis.error_reply('DAMAGED inc') end
  if ARGV[3] == '1' then
    if ARGV[1] ~= '' then return {0, '', ''} end
    local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*',
      'k', 'end', 'r', ARGV[6], 'o', ARGV[7], 'i', ARGV[8], 'n', '0', 'e', ARGV[4])
    if type(told) == 'table' and told.err then return {0, '', KEYS[2]} end
    return {0, '', ''}
  end
  incarnation = ARGV[2]
end
-- A store that had lost the run may have opened it anew: the end that a replica tells of its own run then
-- ends the fresh one. What an index lists of another incarnation is over.
local is_anew = known[5] and ARGV[3] ~= '1'
if ARGV[1] ~= '' and ARGV[1] ~= incarnation and not is_anew then return {0, incarnation, ''} end
if known[2] then return {0, incarnation, ''} end
-- What the parts have is of no use any more.
redis.call('DEL', run)
redis.call('HSET', run, 'inc', incarnation, 'opened', opened, 'over', string.format('%.0f', now),
  'end', ARGV[4])
if known[4] then redis.call('HSET', run, 'parent', known[4]) end
redis.call('PEXPIRE', run, ARGV[5])
local damaged = ''
local told = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*',
  'k', 'end', 'r', ARGV[6], 'o', ARGV[7], 'i', ARGV[8], 'n', incarnation, 'e', ARGV[4])
if type(told) == 'table' and told.err then damaged = KEYS[2] end
if ARGV[9] ~= '' then
  local removed = redis.pcall('ZREM', KEYS[3], incarnation .. ':' .. ARGV[8])
  if type(removed) == 'table' and removed.err then damaged = KEYS[3] end
end
return {1, incarnation, damaged}
