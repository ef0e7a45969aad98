-- Lets the states of one client start fresh.
--
-- KEYS[1]     the hash of the client
-- KEYS[2…]    the lists of its logs (`script::log_keys`)
-- ARGV[1]     the time (`script::CallTime`)
-- ARGV[2…]    the limits, in calls without requests (`script::ScriptCall`)
--
-- Returns the time, and how many states there were; or the time alone if the clock is not where it is expected.
--
-- Nodes may still hold tokens of a bucket. Those count as lent until they are spent, returned, or expire: the bucket is
-- filled up to what is lent, so that level and lent tokens are the capacity, as in a bucket that was never used. Nothing
-- is on top of it. Windows note nothing of the sort: their states are removed, and nodes drop what they hold.

local key, found = KEYS[1], 0

local function reset_state(c, field)
  local value = redis_call("HGET", key, field)
  if not value then return end
  found = found + 1
  -- A state that cannot be read is removed: that is what a reset is for.
  local is_read, available, at, count, before, lent_epoch, current, previous, _, class, instant_us =
    pcall(open_state, c, value)
  if not is_read or count or not lent_epoch or current + previous == 0 then
    redis_call("HDEL", key, field)
    return
  end
  available = max(0, c.capacity - current - previous) * c.unit
  value = close_state(
    c, value, 0, 0, available, at, count, before, lent_epoch, current, previous, true, class, instant_us
  )
  write_and_renew(key, c.ttl_ms, field, value)
end

for number = 2, #ARGV do
  local call = ARGV[number]
  local at, field = 3, nil
  for index = 1, byte(call, 1) do
    local c = find_limit(sub(call, at, at + LIMIT_BYTES - 1), index)
    field, at = decode("Bc0", call, at + LIMIT_BYTES)
    if c.is_log then
      found = found + redis_call("DEL", key .. ":" .. field)
    else
      reset_state(c, field)
    end
  end
end
return { encode(">I7", now_us), found }
