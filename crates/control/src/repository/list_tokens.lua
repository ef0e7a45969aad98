-- Lists the access tokens and the revocations.
--
-- KEYS: tokens (hash), revoked (sorted set), state (hash)
-- ARGV: 1 the version that the reader has, or ""
-- Returns {version} if the reader has it, else {version, tokens, ids of revoked tokens each followed by its time}.

local version = redis.call('HGET', KEYS[3], 'tokens') or ''
if version ~= '' and version == ARGV[1] then return { version } end
return { version, redis.call('HVALS', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES') }
