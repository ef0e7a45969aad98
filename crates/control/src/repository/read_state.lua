-- Reads the control state.
--
-- KEYS: state (hash)
-- Returns the document, or false.

return redis.call('HGET', KEYS[1], 'document')
