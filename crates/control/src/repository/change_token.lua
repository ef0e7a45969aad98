-- Stores an access token, or removes it.
--
-- KEYS: tokens (hash), state (hash)
-- ARGV: 1 the id; 2 the token, or "" to remove it; 3 the most tokens; 4 the channel
-- Returns 1 if it was stored or removed, 0 if there was none to remove, -1 if there are too many.

local changed
if ARGV[2] == '' then
  changed = redis.call('HDEL', KEYS[1], ARGV[1])
elseif redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) and not redis.call('HGET', KEYS[1], ARGV[1]) then
  return -1
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  changed = 1
end
local version = tonumber(redis.call('HGET', KEYS[2], 'tokens') or '0') + 1
redis.call('HSET', KEYS[2], 'tokens', string.format('%.0f', version))
redis.pcall('PUBLISH', ARGV[4], 'tokens')
return changed
