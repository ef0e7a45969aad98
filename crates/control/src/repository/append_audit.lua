-- Appends an entry to the audit log, and removes the oldest beyond the bound.
--
-- KEYS: audit (sorted set, by id)
-- ARGV: 1 the entry; 2 the most entries
-- Returns the id of the entry. Each member begins with it, so that equal entries stay apart.

local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local id = string.format('%.0f', tonumber(last[2] or '0') + 1)
redis.call('ZADD', KEYS[1], id, id .. ' ' .. ARGV[1])
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
if excess > 0 then
  for _, oldest in ipairs(redis.call('ZRANGE', KEYS[1], 0, math.min(excess, 100) - 1)) do
    redis.call('ZREM', KEYS[1], oldest)
  end
end
return id
