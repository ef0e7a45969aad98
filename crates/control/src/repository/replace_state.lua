-- Replaces the control state if it has the expected version.
--
-- KEYS: state (hash)
-- ARGV: 1 the expected version; 2 the new version; 3 the document; 4 the channel
-- Returns 1 if it was replaced, else 0.

if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'document', ARGV[3])
redis.pcall('PUBLISH', ARGV[4], 'state')
return 1
