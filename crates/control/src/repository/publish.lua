-- Stores a revision if the newest one is the expected one: of two writers one wins, and the other is told.
--
-- KEYS: numbers (sorted set), summaries (hash), texts (hash)
-- ARGV: 1 the expected newest number, or "" for none; 2 the number; 3 the summary; 4 the text; 5 the digest;
--       6 the origin; 7 "publish", or "restore" for a revision that a failover has lost; 8 the channel;
--       9 the most revisions; 10 the most bytes of texts
-- Returns {"published", summary} or {"stale", summary of the newest, or false}.

local expected, number, summary, text, digest, origin = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local mode, channel, most, most_bytes = ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])

local newest = redis.call('ZRANGE', KEYS[1], -1, -1)[1]
local newest_summary = newest and redis.call('HGET', KEYS[2], newest)
if newest_summary then
  local known = cjson.decode(newest_summary)
  if known.origin == 'published' then
    if origin ~= 'published' then return { 'stale', newest_summary } end
    -- Publishing the same text again changes nothing.
    if known.digest == digest and mode == 'publish' then return { 'published', newest_summary } end
  end
end
if (newest or '') ~= expected or (newest and tonumber(number) <= tonumber(newest)) then
  return { 'stale', newest_summary }
end

redis.call('ZADD', KEYS[1], number, number)
redis.call('HSET', KEYS[2], number, summary)
redis.call('HSET', KEYS[3], number, text)
local bytes = tonumber(redis.call('HGET', KEYS[2], 'bytes') or '0') + #text
local count = redis.call('ZCARD', KEYS[1])
while count > 1 and (count > most or bytes > most_bytes) do
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  -- An error here would leave a revision that is stored and not acknowledged.
  local length = redis.pcall('HSTRLEN', KEYS[3], oldest)
  if type(length) ~= 'number' then length = #(redis.call('HGET', KEYS[3], oldest) or '') end
  bytes = bytes - length
  redis.call('HDEL', KEYS[3], oldest)
  redis.call('HDEL', KEYS[2], oldest)
  redis.call('ZREM', KEYS[1], oldest)
  count = count - 1
end
redis.call('HSET', KEYS[2], 'bytes', string.format('%.0f', bytes))
-- A user without this permission still publishes: the nodes poll.
redis.pcall('PUBLISH', channel, number)
return { 'published', summary }
