-- A state begins with its format; the two differ in the width of the count. A state in another format is an error,
-- never a fresh one. What is lent follows, if anything is.
local WIDE_STATE, NARROW_STATE = ">BBI7I2I4I4", ">BBI7I2I2I4"
local WIDE_LENT, NARROW_LENT = ">BBI7I2I4I4I4I4I4", ">BBI7I2I2I4I4I4I4"
local MOST_FIELDS = 500

-- The state of a client under a limit: the class of its lifetime, the state, and what is lent if anything is.
local function read_state(value)
  local format = byte(value)
  local plain, lent, bytes = NARROW_STATE, NARROW_LENT, NARROW_BYTES
  if format == WIDE then
    plain, lent, bytes = WIDE_STATE, WIDE_LENT, WIDE_BYTES
  elseif format ~= NARROW then
    error("a state is in format " .. tostring(format) .. ", which is not known here", 0)
  end
  local _, class, instant_us, grain, major, minor, lent_epoch, current, previous
  if #value > bytes then
    _, class, instant_us, grain, major, minor, lent_epoch, current, previous = decode(lent, value)
    return class, instant_us, grain, major, minor, lent_epoch, current, previous
  end
  _, class, instant_us, grain, major, minor = decode(plain, value)
  return class, instant_us, grain, major, minor, nil, 0, 0
end

-- The field that all routes of a limit share, and its value, if a client has too many fields for one more.
local function overflow_field(key, field)
  if redis_call("HLEN", key) < MOST_FIELDS then return field, false end
  field = sub(field, 1, LIMIT_FIELD_BYTES)
  return field, redis_call("HGET", key, field)
end

-- Drops what was lent two epochs ago. A clock that stepped back keeps it until it has caught up.
local function roll_epoch(lent_epoch, current, previous)
  if lent_epoch < epoch_now then
    return epoch_now, 0, lent_epoch + 1 == epoch_now and current or 0, false
  end
  -- Further ahead than credit lives: the clock must have jumped.
  if lent_epoch > epoch_now + EPOCHS then return epoch_now, current, previous, true end
  return lent_epoch, current, previous, false
end

-- Writes states, and renews the expiry of their key; or leaves the key as it was if that is not permitted.
local function write_and_renew(key, ttl_ms, ...)
  local left_ms = redis_call("PTTL", key)
  if left_ms == -2 then
    redis_call("HSET", key, ...)
    -- The hash of a new client has nothing old in it.
    return set_expiry(key, ttl_ms, true)
  end
  -- It only grows: a limit per second must not drop a limit per day.
  if left_ms < ttl_ms then redis_call("PEXPIRE", key, ttl_ms) end
  redis_call("HSET", key, ...)
  local some = redis_call("HRANDFIELD", key, 2, "WITHVALUES")
  for index = 1, #some, 2 do
    local value = some[index + 1]
    local format = byte(value)
    local bytes = format == WIDE and WIDE_BYTES or NARROW_BYTES
    -- Of another format nothing is known, not even how old it is.
    if (format == NARROW or format == WIDE) and #value >= bytes then
      local _, class, instant_us = decode(">BBI7", value)
      local from_us = instant_us
      -- What is lent holds back the refill until its epochs end.
      if #value >= bytes + LENT_BYTES then
        from_us = max(from_us, (decode(">I4", value, bytes + 1) + EPOCHS) * EPOCH_US)
      end
      if from_us + 2 ^ (class / 4) < now_us then redis_call("HDEL", key, some[index]) end
    end
  end
end
