-- Lists revisions, newest first.
--
-- KEYS: numbers (sorted set), summaries (hash)
-- ARGV: 1 the number below which to list, or "+inf"; 2 the most revisions
-- Returns the summaries.

local below = ARGV[1] == '+inf' and ARGV[1] or '(' .. ARGV[1]
local numbers = redis.call('ZRANGE', KEYS[1], below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2])
if #numbers == 0 then return {} end
return redis.call('HMGET', KEYS[2], unpack(numbers))
