-- Stores an access token, or revokes it.
--
-- KEYS: tokens (hash), revoked (sorted set), state (hash)
-- ARGV: 1 the id; 2 the token, or "" to revoke it; 3 the most tokens; 4 the channel; 5 the new version; 6 the time, in
--       milliseconds; 7 the most revocations
-- Returns 1 if it was stored or revoked, 0 if there was none to revoke, -1 if there are too many.

if ARGV[2] == '' then
  if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
  redis.call('ZADD', KEYS[2], ARGV[6], ARGV[1])
  if redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[7]) then
    redis.call('ZREM', KEYS[2], redis.call('ZRANGE', KEYS[2], 0, 0)[1])
  end
elseif redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) and not redis.call('HGET', KEYS[1], ARGV[1]) then
  return -1
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
redis.call('HSET', KEYS[3], 'tokens', ARGV[5])
redis.pcall('PUBLISH', ARGV[4], 'tokens')
return 1
