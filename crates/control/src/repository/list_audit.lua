-- Lists entries of the audit log, newest first.
--
-- KEYS: audit (sorted set, by id)
-- ARGV: 1 the id below which to list, or "+inf"; 2 the most entries
-- Returns the entries, each behind its id and a space.

local below = ARGV[1] == '+inf' and ARGV[1] or '(' .. ARGV[1]
return redis.call('ZRANGE', KEYS[1], below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2])
