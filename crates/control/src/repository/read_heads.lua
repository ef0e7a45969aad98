-- What a poll compares: the newest revision, and the versions of what is beside it.
--
-- KEYS: numbers (sorted set), summaries (hash), state (hash)
-- Returns {summary of the newest revision or false, version of the control state, version of the tokens}.

local newest = redis.call('ZRANGE', KEYS[1], -1, -1)[1]
local versions = redis.call('HMGET', KEYS[3], 'version', 'tokens')
return { newest and redis.call('HGET', KEYS[2], newest) or false, versions[1] or '0', versions[2] or '0' }
