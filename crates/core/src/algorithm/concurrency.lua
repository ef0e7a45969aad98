-- The slots of one key that are held, as a sorted set: the holder (node and number), and the expiry by the store's
-- clock. See concurrency.rs.
--
-- KEYS[1]  the set
-- ARGV[1]  "take": takes a slot, if fewer than the limit are held
--          "keep": extends slots that are held, and takes them again if they are lost
--          "drop": releases slots
--          "look": counts the slots that are held
-- ARGV[2]  by how many microseconds the server's clock is corrected
-- take: ARGV[3] the limit, [4] whose, [5] for how many microseconds, [6] whose to give back first; and so on
-- keep: ARGV[3], [4] whose, for how many microseconds; and so on
-- drop: ARGV[3] whose; and so on
local key = KEYS[1]
if ARGV[1] == 'drop' then
  local gone = 0
  for index = 3, #ARGV do gone = gone + redis.call('ZREM', key, ARGV[index]) end
  return gone
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] + tonumber(ARGV[2])
if ARGV[1] == 'look' then return redis.call('ZCOUNT', key, string.format('(%.0f', now), '+inf') end
redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))

-- The set lives as long as its last place.
local function outlive(longest)
  local left = redis.call('PTTL', key)
  local ms = math.ceil(longest / 1000) + 1
  if left < ms then redis.call('PEXPIRE', key, ms) end
end

if ARGV[1] == 'keep' then
  local longest = 0
  for index = 3, #ARGV, 2 do
    local us = tonumber(ARGV[index + 1])
    longest = math.max(longest, us)
    redis.call('ZADD', key, string.format('%.0f', now + us), ARGV[index])
  end
  outlive(longest)
  return #ARGV
end

for index = 6, #ARGV do redis.call('ZREM', key, ARGV[index]) end
local taken = redis.call('ZCARD', key)
local admitted = 0
if taken < tonumber(ARGV[3]) then
  local us = tonumber(ARGV[5])
  redis.call('ZADD', key, string.format('%.0f', now + us), ARGV[4])
  outlive(us)
  admitted = 1
  taken = taken + 1
end
return { admitted, taken }
