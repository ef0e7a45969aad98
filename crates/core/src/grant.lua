-- Draws tokens from the pools of grants, from all of them or from none. See grant.rs.
--
-- KEYS     the pools: how many tokens were drawn of each; absent before the first draw
-- ARGV[1]  by how many microseconds the server's clock is corrected
-- ARGV[2]  how many tokens are drawn; negative if they are returned
-- ARGV[3], [4]  the tokens of the first pool, and when it expires, in microseconds; and so on
--
-- Returns 0, or the number of a pool that has too few tokens or has expired.
local amount = tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] + tonumber(ARGV[1])
local drawn = {}
for index, key in ipairs(KEYS) do
  local tokens, expires = tonumber(ARGV[2 * index + 1]), tonumber(ARGV[2 * index + 2])
  drawn[index] = tonumber(redis.call('GET', key) or 0) + amount
  if now >= expires or drawn[index] > tokens then return index end
end
for index, key in ipairs(KEYS) do
  -- A second longer than the grant: that it has expired follows from the time, and not from the key.
  local ms = math.ceil((tonumber(ARGV[2 * index + 2]) - now) / 1000) + 1000
  redis.call('SET', key, string.format('%.0f', math.max(0, drawn[index])), 'PX', string.format('%.0f', ms))
end
return 0
