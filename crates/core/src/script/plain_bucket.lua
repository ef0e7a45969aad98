-- A short way for the most frequent call: one token bucket in ticks of a microsecond that can refuse, without leases and
-- reports. It takes two thirds of the time of `charge_one`. It is a function that has the numbers of the limit as locals,
-- and it knows the most frequent state, of which nothing is lent and which has room for all requests. All others are
-- left to `charge_one`.
local function charge_plain_bucket(call, c, field, repeats, cost)
  local capacity, amount, unit, grain, class = c.capacity, c.amount, c.unit, c.grain, c.class
  local full, span, quarter, need = c.full, c.span, c.ttl_ms * 250, repeats * cost * c.unit
  local this_quarter = now_us - now_us % quarter
  return function(key)
    local value = redis_call("HGET", key, field)
    if not value then return charge_one(key, call, c, field, repeats, cost, nil, value) end
    local format, kept_class, instant_us, kept_grain, major, minor
    if #value == NARROW_BYTES then
      format, kept_class, instant_us, kept_grain, major, minor = decode(NARROW_STATE, value)
    elseif #value == WIDE_BYTES then
      format, kept_class, instant_us, kept_grain, major, minor = decode(WIDE_STATE, value)
      if format ~= WIDE then format = nil end
    end
    if
      not format or format > NARROW or kept_class ~= class or kept_grain ~= grain
      or instant_us > now_us or major >= capacity or minor >= unit
    then
      return charge_one(key, call, c, field, repeats, cost, nil, value)
    end
    local elapsed, available = now_us - instant_us, full
    if elapsed <= span then
      available = major * unit + minor + elapsed * amount
      if available > full then available = full end
    end
    if available < need then return charge_one(key, call, c, field, repeats, cost, nil, value) end
    available = available - need
    local rest = available % unit
    local whole = (available - rest) / unit
    if whole < 65536 then
      value = encode(NARROW_STATE, NARROW, class, now_us, grain, whole, rest)
    else
      value = encode(WIDE_STATE, WIDE, class, now_us, grain, whole, rest)
    end
    if instant_us - instant_us % quarter ~= this_quarter then
      write_and_renew(key, c.ttl_ms, field, value)
    else
      redis_call("HSET", key, field, value)
    end
    return "=" .. value
  end
end

-- Functions that charge a client for a call, by the call: many clients have the same.
local known_calls = {}

local function charge_client(key, call)
  local limits, runs = byte(call, 1, 2)
  if limits ~= 1 or runs > 1 then return charge_several(key, call) end
  local repeats, cost, at = nil, nil, 3
  if runs == 1 then repeats, cost, at = decode(">I4I4", call, 3) end
  local c = find_limit(sub(call, at, at + LIMIT_BYTES - 1), 1)
  if c.is_log or c.shadow then return charge_several(key, call) end
  local field
  field, at = decode("Bc0", call, at + LIMIT_BYTES)
  if not c.is_plain then return charge_one(key, call, c, field, repeats, cost, at) end
  local charge
  if c.algorithm == TOKEN_BUCKET and c.tick_us == 1 and repeats and repeats > 0 then
    charge = charge_plain_bucket(call, c, field, repeats, cost)
  else
    charge = function(client) return charge_one(client, call, c, field, repeats, cost) end
  end
  known_calls[call] = charge
  return charge(key)
end
