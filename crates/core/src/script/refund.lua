-- Gives tokens back to the states of one client.
--
-- KEYS[1]     the hash of the client
-- KEYS[2…]    the lists of its logs (`script::log_keys`)
-- ARGV[1]     the time (`script::CallTime`)
-- ARGV[2…]    for each state a call (`script::ScriptCall`) with one limit, and one request whose cost is given back
--
-- Returns the time, and for each state its value, or how one more request of a log stands; or the time alone if the
-- clock is not where it is expected.
--
-- A bucket rises to its capacity less what is lent, at most: level and lent tokens never exceed the capacity. A window
-- counts down to nothing, and a log loses its newest requests.

local key = KEYS[1]

local function refund_state(c, field, tokens)
  local value = redis_call("HGET", key, field)
  if not value and #field > LIMIT_FIELD_BYTES then field, value = overflow_field(key, field) end
  if not value then return "" end
  local available, at, count, before, lent_epoch, current, previous, _, class, instant_us = open_state(c, value)
  if count then
    local epoch = floor(c.present / c.span) % 4294967296
    available, count = apply_report[c.algorithm](c, available, at, count, before, 0, 0, 0, epoch, 0, tokens)
  else
    local most = max(0, c.capacity - current - previous) * c.unit
    available = max(available, min(most, available + min(tokens, c.capacity) * c.unit))
  end
  local is_due
  value, _, is_due = close_state(
    c, value, 0, 0, available, at, count, before, lent_epoch, current, previous, true, class, instant_us
  )
  if is_due then
    write_and_renew(key, c.ttl_ms, field, value)
  else
    redis_call("HSET", key, field, value)
  end
  return value
end

local function refund_log(c, field, tokens)
  c.list, c.taken = key .. ":" .. field, 0
  while tokens > 0 do
    local newest = redis_call("LINDEX", c.list, -1)
    if not newest then break end
    local instant, before, cost = decode(ENTRY, newest)
    if instant + c.span * c.tick_us <= now_us then break end
    local part = min(cost, tokens)
    if part < cost then
      redis_call("LSET", c.list, -1, encode(ENTRY, instant, before, cost - part))
    else
      redis_call("LTRIM", c.list, 0, -2)
    end
    tokens = tokens - part
  end
  open[c.algorithm](c)
  return encode(">I4I7I7", log_status[c.algorithm](c, 1))
end

local replies = { encode(">I7", now_us) }
for number = 2, #ARGV do
  local call = ARGV[number]
  local _, tokens, at = decode(">I4I4", call, 3)
  local c = find_limit(sub(call, at, at + LIMIT_BYTES - 1), 1)
  local field = decode("Bc0", call, at + LIMIT_BYTES)
  replies[number] = (c.is_log and refund_log or refund_state)(c, field, tokens)
end
return replies
