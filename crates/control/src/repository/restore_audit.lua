-- Appends entries of the audit log that the store has lost, in their order.
--
-- KEYS: audit (sorted set, by id)
-- ARGV: 1 the most entries; then for each entry the id that it had, or 0 if it was never stored, and the entry
-- Returns for each entry the id that it has now; empty if it was removed as one of the oldest.

local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local lowest, highest = tonumber(first[2] or '0'), tonumber(last[2] or '0')
local ids = {}
for index = 2, #ARGV, 2 do
  local id, entry = ARGV[index], ARGV[index + 1]
  if not redis.call('ZSCORE', KEYS[1], id .. ' ' .. entry) then
    if id ~= '0' and tonumber(id) < lowest then
      id = ''
    else
      highest = highest + 1
      id = string.format('%.0f', highest)
      redis.call('ZADD', KEYS[1], id, id .. ' ' .. entry)
    end
  end
  ids[#ids + 1] = id
end
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[1])
if excess > 0 then
  for _, oldest in ipairs(redis.call('ZRANGE', KEYS[1], 0, excess - 1)) do
    redis.call('ZREM', KEYS[1], oldest)
  end
end
return ids
