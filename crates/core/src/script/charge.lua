-- A limit with its numbers, as `script::ChargeCall` encodes it in LIMIT_BYTES.
local function read_limit(encoded)
  local algorithm, flags, class, ttl_ms, capacity, amount, unit, tick_us, grain, span =
    decode(">BBBI5I4I4I7I4I2I7", encoded)
  return {
    algorithm = algorithm, is_plain = flags == 0, shadow = flags % 2 == 1, wants = flags % 4 >= 2,
    reports = flags % 8 >= 4, as_lent = flags % 16 >= 8, is_log = flags >= 16, class = class, ttl_ms = ttl_ms,
    capacity = capacity, amount = amount, unit = unit, tick_us = tick_us, grain = grain, span = span,
    full = capacity * unit, present = tick_of(now_us, tick_us),
  }
end

-- The limits of this script call by their position in the call of a client and by their encoding: most clients have the
-- same limits.
local known_limits = {}

local function find_limit(encoded, position)
  local limits = known_limits[position]
  if not limits then
    limits = {}
    known_limits[position] = limits
  end
  local c = limits[encoded]
  if not c then
    c = read_limit(encoded)
    limits[encoded] = c
  end
  return c
end

-- Brings a state to the present and applies the reports, which begin at `reports_at` in the call. Returns what is
-- available, the tick of the state, its counts, what is lent, whether the state has to be written, the class of its
-- lifetime and its instant before.
local function open_state(c, value, call, reports_at)
  local class, instant_us, grain, major, minor, lent_epoch, current, previous = nil, nil, 0, 0, 0, nil, 0, 0
  if value then class, instant_us, grain, major, minor, lent_epoch, current, previous = read_state(value) end
  local algorithm = c.algorithm
  local available, at, writes, count, before =
    open[algorithm](c, instant_us, grain, major, minor, lent_epoch, current, previous)
  if lent_epoch then
    local jumped
    lent_epoch, current, previous, jumped = roll_epoch(lent_epoch, current, previous)
    writes = writes or jumped
  end
  if c.reports then
    local apply = apply_report[algorithm]
    local reports, epoch, spent, returned
    reports, reports_at = decode("B", call, reports_at)
    for _ = 1, reports do
      epoch, spent, returned, reports_at = decode(">I4I4I4", call, reports_at)
      available, count, current, previous =
        apply(c, available, at, count, before, lent_epoch or epoch_now, current, previous, epoch, spent, returned)
    end
    writes = writes or reports > 0
  end
  return available, at, count, before, lent_epoch, current, previous, writes, class, instant_us
end

-- How many of `repeats` requests of `cost` there is room for.
local function room(c, available, repeats, cost)
  local whole = cost * c.unit
  if available >= repeats * whole then return repeats end
  if available < whole then return 0 end
  return (available - available % whole) / whole
end

-- How many tokens are lent of what is available: at most `want`, one in `share` of them, and no more than keep all that
-- is lent at or below `lent_limit`.
local function lendable(c, available, want, share, lent_limit, lent)
  if available < c.unit or lent >= lent_limit then return 0 end
  return min(want, floor(floor(available / c.unit) / share), lent_limit - lent)
end

-- The value of a state after `taken` tokens were taken from it, `lent` of them as lent; whether it has to be written, and
-- whether the expiry has to be renewed. `available` is what is left.
local function close_state(
  c, value, taken, lent, available, at, count, before, lent_epoch, current, previous, writes, kept_class, from_us
)
  writes = writes or taken ~= 0
  if not writes and not lent_epoch then return value or "", false, false end
  if count then count = count + taken end
  local class = c.class
  local instant_us, grain, major, minor = close[c.algorithm](c, available, at, count, before)
  current = current + lent
  -- A window counts lent tokens as taken, and keeps no number of them.
  if not count and current + previous > 0 then
    local format, layout = NARROW, NARROW_LENT
    if major >= 65536 then format, layout = WIDE, WIDE_LENT end
    value = encode(layout, format, class, instant_us, grain, major, minor, lent_epoch or epoch_now, current, previous)
  elseif major < 65536 then
    value = encode(NARROW_STATE, NARROW, class, instant_us, grain, major, minor)
  else
    value = encode(WIDE_STATE, WIDE, class, instant_us, grain, major, minor)
  end
  if not writes then return value, false, false end
  if kept_class ~= class then return value, true, true end
  -- The expiry is checked four times in the life of a state: none expires while it still limits.
  local quarter = c.ttl_ms * 250
  return value, true, from_us - from_us % quarter ~= instant_us - instant_us % quarter
end

-- Charges a client for requests of one cost, or for reports alone, against one limit that is neither a log nor in shadow:
-- nearly all calls. The state is in locals, which takes half the time of tables. `after` is the position in the call
-- after the field.
local function charge_one(key, call, c, field, repeats, cost, after, value)
  if value == nil then value = redis_call("HGET", key, field) end
  if not value and #field > LIMIT_FIELD_BYTES then field, value = overflow_field(key, field) end
  local want, share, lent_limit = 0, 1, 0
  if c.wants then want, share, lent_limit, after = decode(">I4I4I4", call, after) end
  local available, at, count, before, lent_epoch, current, previous, writes, class, instant_us =
    open_state(c, value, call, after)
  local admitted, taken, lent, lends = nil, 0, 0, 0
  if repeats then
    admitted = room(c, available, repeats, cost)
    taken = admitted * cost
    available = available - taken * c.unit
    if c.as_lent then lent = taken end
  end
  if want > 0 and admitted == repeats then
    lends = lendable(c, available, want, share, lent_limit, current + previous + lent)
    taken, lent, available = taken + lends, lent + lends, available - lends * c.unit
  end
  local is_due
  value, writes, is_due = close_state(
    c, value, taken, lent, available, at, count, before, lent_epoch, current, previous, writes, class, instant_us
  )
  if is_due then
    write_and_renew(key, c.ttl_ms, field, value)
  elseif writes then
    redis_call("HSET", key, field, value)
  end
  if not repeats then return encode(">c1I4Bc0", "+", lends, #value, value) end
  return encode(">c1I4I4Bc0", "+", admitted, lends, #value, value)
end

-- Charges as many of `repeats` requests of `cost` as every limit has room for. Returns the reply for it, and whether all
-- were admitted.
local function charge_run(charges, repeats, cost)
  local admitted = repeats
  for index = 1, #charges do
    local c = charges[index]
    if not c.shadow then admitted = room(c, c.available, admitted, cost) end
  end
  local reply = encode(">I4", admitted)
  for index = 1, #charges do
    local c, counted = charges[index], admitted
    if c.shadow then
      counted = room(c, c.available, admitted, cost)
      reply = reply .. encode(">I4", counted)
    end
    local tokens = counted * cost
    c.taken, c.available = c.taken + tokens, c.available - tokens * c.unit
    if c.as_lent then c.lent = c.lent + tokens end
    if c.is_log then reply = reply .. encode(">I4I7I7", log_status[c.algorithm](c, cost)) end
  end
  return reply, admitted == repeats
end

-- The same as `open_state`, with the results in the table of the limit.
local function open_charge(c, value, call)
  c.value, c.taken, c.lent = value, 0, 0
  c.available, c.at, c.count, c.before, c.lent_epoch, c.current, c.previous, c.writes, c.kept_class, c.instant_us =
    open_state(c, value, call, c.reports_at)
end

-- Charges a client for any call: runs of equal requests, each request against all limits or none.
local function charge_several(key, call)
  local limits, runs = byte(call, 1, 2)
  local charges, fields, at, has_log = {}, {}, 3 + 8 * runs, false
  for index = 1, limits do
    local c = find_limit(sub(call, at, at + LIMIT_BYTES - 1), index)
    charges[index] = c
    fields[index], at = decode("Bc0", call, at + LIMIT_BYTES)
    if c.wants then c.want, c.share, c.lent_limit, at = decode(">I4I4I4", call, at) end
    if c.reports then
      c.reports_at = at
      at = at + 1 + 12 * byte(call, at)
    end
    has_log = has_log or c.is_log
  end
  local values = redis_call("HMGET", key, unpack(fields))
  for index = 1, limits do
    local c, field, value = charges[index], fields[index], values[index]
    if not c.is_log then
      if not value and #field > LIMIT_FIELD_BYTES then field, value = overflow_field(key, field) end
      c.field = field
      open_charge(c, value, call)
    end
  end
  if has_log then
    -- After all others: here a log may be written, and a state that cannot be read must leave everything as it is.
    for index = 1, limits do
      local c = charges[index]
      if c.is_log then
        c.list = key .. ":" .. fields[index]
        open_charge(c, false, call)
      end
    end
  end

  local reply, all_admitted = "+", true
  for run = 1, runs do
    local repeats, cost = decode(">I4I4", call, 8 * run - 5)
    local run_reply, all = charge_run(charges, repeats, cost)
    reply, all_admitted = reply .. run_reply, all_admitted and all
  end

  local written, renews, ttl_ms = {}, false, 0
  for index = 1, limits do
    local c = charges[index]
    if c.is_log then
      close[c.algorithm](c)
    else
      local lends = 0
      if c.wants and all_admitted then
        lends = lendable(c, c.available, c.want, c.share, c.lent_limit, c.current + c.previous + c.lent)
        c.taken, c.lent, c.available = c.taken + lends, c.lent + lends, c.available - lends * c.unit
      end
      local value, writes, is_due = close_state(
        c, c.value, c.taken, c.lent, c.available, c.at, c.count, c.before, c.lent_epoch, c.current, c.previous,
        c.writes, c.kept_class, c.instant_us
      )
      if writes then
        written[#written + 1], written[#written + 2] = c.field, value
        renews, ttl_ms = renews or is_due, max(ttl_ms, c.ttl_ms)
      end
      reply = reply .. encode(">I4Bc0", lends, #value, value)
    end
  end
  if renews then
    write_and_renew(key, ttl_ms, unpack(written))
  elseif #written > 0 then
    redis_call("HSET", key, unpack(written))
  end
  return reply
end
