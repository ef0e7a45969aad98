-- Stores access tokens and revocations that the store has lost. It may be called again, and by several nodes.
--
-- KEYS: tokens (hash), revoked (sorted set), state (hash)
-- ARGV: 1 the channel; 2 the new version; 3 the most revocations; 4 the number of lost revocations; then for each the id
--       and its time, in milliseconds; then for each lost token its id and the token
-- Returns the number of changes.

local changes, first_token = 0, 5 + 2 * tonumber(ARGV[4])
for index = 5, first_token - 1, 2 do
  changes = changes + redis.call('ZADD', KEYS[2], 'NX', ARGV[index + 1], ARGV[index])
  changes = changes + redis.call('HDEL', KEYS[1], ARGV[index])
end
for index = first_token, #ARGV, 2 do
  local id = ARGV[index]
  if not redis.call('ZSCORE', KEYS[2], id) and not redis.call('HGET', KEYS[1], id) then
    redis.call('HSET', KEYS[1], id, ARGV[index + 1])
    changes = changes + 1
  end
end
if changes == 0 then return 0 end
while redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[3]) do
  redis.call('ZREM', KEYS[2], redis.call('ZRANGE', KEYS[2], 0, 0)[1])
end
redis.call('HSET', KEYS[3], 'tokens', ARGV[2])
redis.pcall('PUBLISH', ARGV[1], 'tokens')
return changes
