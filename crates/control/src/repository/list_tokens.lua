-- Lists the access tokens.
--
-- KEYS: tokens (hash)

return redis.call('HVALS', KEYS[1])
