-- How much of what is available one token is.
local function unit_of(algorithm, period, span)
  if algorithm < 3 then return period end
  return algorithm == 5 and span or 1
end

-- A limit and its numbers, as written in LIMIT_BYTES.
local LIMIT_BYTES = 33

local function read_limit(written)
  local algorithm, flags, class, ttl, capacity, amount, period, tick, grain, span =
    decode(">BBBI5I4I4I4I4I2I7", written)
  local unit = unit_of(algorithm, period, span)
  return {
    algorithm = algorithm, shadow = flags % 2 == 1, wants = flags % 4 >= 2, tells = flags % 8 >= 4,
    holds = flags >= 8,
    class = class, ttl = ttl, capacity = capacity, amount = amount, period = period, tick = tick,
    grain = grain, span = span, unit = unit, full = capacity * unit, present = tick_of(now, tick),
  }
end

-- The limits of this call by their place in an ask and by how they are written. Clients come one after the
-- other, and most have the same limits: each finds them here and overwrites what was left by the one before.
local known_limits = {}

local function find_limit(written, place)
  local limits = known_limits[place]
  if not limits then
    limits = {}
    known_limits[place] = limits
  end
  local c = limits[written]
  if not c then
    c = read_limit(written)
    limits[written] = c
  end
  return c
end

-- One limit that a client is charged against, and where the next begins.
local function read_charge(ask, at, place)
  local c = find_limit(sub(ask, at, at + LIMIT_BYTES - 1), place)
  c.field, at = decode("Bc0", ask, at + LIMIT_BYTES)
  if c.wants then c.want, c.share, c.lent_limit, at = decode(">I4I4I4", ask, at) end
  if c.tells then
    local count
    count, at = decode("B", ask, at)
    c.reports = {}
    for index = 1, count do
      local epoch, spent, returned
      epoch, spent, returned, at = decode(">I4I4I4", ask, at)
      c.reports[index] = { epoch, spent, returned }
    end
  end
  return c, at
end

-- Requests of one cost against one limit, which are most of all that is asked, by how they are written: many
-- clients ask for the same. Each is a function of the client's key.
local known_asks = {}

-- What is kept of a client under a limit: the class of its lifetime, the state, and what is lent if anything is.
local function read_state(value)
  local format = byte(value)
  local plain, lent, bytes = NARROW_STATE, NARROW_LENT, NARROW_BYTES
  if format == WIDE then
    plain, lent, bytes = WIDE_STATE, WIDE_LENT, WIDE_BYTES
  elseif format ~= NARROW then
    error("a state is in format " .. tostring(format) .. ", which is not known here", 0)
  end
  local _, kept_class, instant, mark, major, minor, epoch, current, previous
  if #value > bytes then
    _, kept_class, instant, mark, major, minor, epoch, current, previous = decode(lent, value)
    return kept_class, instant, mark, major, minor, epoch, current, previous
  end
  _, kept_class, instant, mark, major, minor = decode(plain, value)
  return kept_class, instant, mark, major, minor, nil, 0, 0
end

-- The field under which a limit really stands, and its value; `value` is what stands under the field asked for.
local function find_state(key, field, value)
  if not value and #field > 5 and call("HLEN", key) >= MOST_FIELDS then
    -- Too many for one client: from here on they count together, each limit by itself.
    field = sub(field, 1, 5)
    value = call("HGET", key, field)
  end
  return field, value
end

-- Forgets what was lent two epochs ago. A clock that stepped back keeps it until it has caught up.
local function roll_epoch(epoch, current, previous)
  if epoch < epoch_now then return epoch_now, 0, epoch + 1 == epoch_now and current or 0, false end
  -- Further ahead than credit lives: the clock must have jumped.
  if epoch > epoch_now + EPOCHS then return epoch_now, current, previous, true end
  return epoch, current, previous, false
end

-- Applies a report of a node: tokens that it has spent, or returns. Answers what is available, taken and lent then.
local function settle(c, available, taken, at, count, epoch, current, previous, told, spent, returned)
  if c.algorithm >= 3 then
    -- Only within the window in which they were taken, and never more than it counts.
    local window = (at / c.span) % 4294967296
    local counted = count + taken
    local back = window == told and min(counted, returned) or 0
    -- Of a sliding window counter, what is above a lowered limit weighs nothing, and neither does its return.
    local freed = back
    if c.algorithm == 5 then freed = min(counted, c.capacity) - min(counted - back, c.capacity) end
    return available + freed * c.unit, taken - back, current, previous
  end
  -- Tokens of an older epoch count as spent: they have been refilled since.
  if told ~= epoch and told ~= epoch - 1 then return available, taken, current, previous end
  local lent = told == epoch and current or previous
  returned = min(returned, lent)
  lent = lent - min(lent, spent + returned)
  if told == epoch then current = lent else previous = lent end
  local most = max(0, c.capacity - current - previous) * c.period
  return max(available, min(most, available + min(returned, c.capacity) * c.period)), taken, current, previous
end

-- How many of `repeats` requests of `cost` there is room for.
local function room(c, available, repeats, cost)
  local whole = cost * c.unit
  if available >= repeats * whole then return repeats end
  if available < whole then return 0 end
  return (available - available % whole) / whole
end

-- How many tokens are lent of what is available: at most `want`, one in `share` of them, and no more than keep all
-- that is lent at or below `lent_limit`.
local function lendable(c, available, want, share, lent_limit, lent)
  if available < c.unit or lent >= lent_limit then return 0 end
  return min(want, floor(floor(available / c.unit) / share), lent_limit - lent)
end

-- Serves requests of one cost, as many of `repeats` as every limit has room for. Tells whether all passed.
local function serve(charges, repeats, cost, answer)
  local passing = repeats
  for index = 1, #charges do
    local c = charges[index]
    if not c.shadow then passing = room(c, c.available, passing, cost) end
  end
  answer[#answer + 1] = encode(">I4", passing)
  for index = 1, #charges do
    local c, taken = charges[index], passing
    if c.shadow then
      taken = room(c, c.available, passing, cost)
      answer[#answer + 1] = encode(">I4", taken)
    end
    c.taken, c.available = c.taken + taken * cost, c.available - taken * cost * c.unit
    if c.holds then c.held = c.held + taken * cost end
    if c.algorithm == 4 then answer[#answer + 1] = encode(">I4I7I7", log_standing(c, cost)) end
  end
  return passing == repeats
end

-- The state after all is served, where it was `value`; whether it has to be written, and whether its expiry has
-- to be renewed. `lends` is what this call has lent, held takes included.
local function next_state(
  c, value, kept_class, instant, available, at, count, before, taken, moved, lends, epoch, current, previous
)
  local writes = moved or taken ~= 0
  if not writes and not epoch then return value or "", false, false end
  local from = instant
  local mark, major, minor
  if count then count = count + taken end
  instant, mark, major, minor = close[c.algorithm](c, available, at, count, before)
  if c.algorithm < 3 and current + lends + previous > 0 then
    local format, layout = NARROW, NARROW_LENT
    if major >= 65536 then format, layout = WIDE, WIDE_LENT end
    value =
      encode(layout, format, c.class, instant, mark, major, minor, epoch or epoch_now, current + lends, previous)
  elseif major < 65536 then
    value = encode(NARROW_STATE, NARROW, c.class, instant, mark, major, minor)
  else
    value = encode(WIDE_STATE, WIDE, c.class, instant, mark, major, minor)
  end
  if not writes then return value, false, false end
  if kept_class ~= c.class then return value, true, true end
  -- The expiry is looked after four times in the life of a state: so none goes while it still limits.
  local quarter = c.ttl * 250
  return value, true, from - from % quarter ~= instant - instant % quarter
end

local function look_after_expiry(key, ttl)
  -- It only grows: a limit per second must not drop a limit per day.
  local left = call("PTTL", key)
  if left < ttl then call("PEXPIRE", key, ttl) end
  -- A client that is new has nothing old.
  if left < 0 then return end
  local some = call("HRANDFIELD", key, 2, "WITHVALUES")
  for index = 1, #some, 2 do
    local value = some[index + 1]
    local format = byte(value)
    local bytes = format == WIDE and WIDE_BYTES or NARROW_BYTES
    -- Of another format nothing is known, not even how old it is.
    if (format == NARROW or format == WIDE) and #value >= bytes then
      local _, class, instant = decode(">BBI7", value)
      local fresh = instant + 2 ^ (class / 4)
      if #value > bytes then fresh = max(fresh, (decode(">I4", value, bytes + 1) + EPOCHS) * EPOCH) end
      if fresh < now then call("HDEL", key, some[index]) end
    end
  end
end

