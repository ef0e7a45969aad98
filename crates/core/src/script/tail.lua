-- How much of what is available one token is.
local function unit_of(algorithm, period, span)
  if algorithm < 3 then return period end
  return algorithm == 5 and span or 1
end

-- A limit and its numbers, as written in LIMIT_BYTES. The rest is filled in from what a client asks and from
-- its state. A table grows by doubling: with no more than 32 names this one never has to.
local LIMIT_BYTES = 33

local function read_limit(written)
  local algorithm, flags, class, ttl, capacity, amount, period, tick, grain, span =
    decode(">BBBI5I4I4I4I4I2I7", written)
  local unit = unit_of(algorithm, period, span)
  return {
    algorithm = algorithm, shadow = flags % 2 == 1, wants = flags % 4 >= 2, tells = flags >= 4,
    class = class, ttl = ttl, capacity = capacity, amount = amount, period = period, tick = tick,
    grain = grain, span = span, unit = unit, full = capacity * unit, present = tick_of(now, tick),
    field = "", known = false, kept_class = 0, instant = 0, mark = 0, major = 0, minor = 0,
    epoch = 0, current = 0, previous = 0, was_lent = false, at = 0, available = 0, taken = 0, lends = 0,
    changed = false,
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
  if c.wants then c.want, c.share, at = decode(">I4I4", ask, at) end
  if c.tells then
    local count
    count, at = decode("B", ask, at)
    c.reports = {}
    for index = 1, count do
      local epoch, spent, returned, refunded
      epoch, spent, returned, refunded, at = decode(">I4I4I4I4", ask, at)
      c.reports[index] = { epoch, spent, returned, refunded }
    end
  end
  return c, at
end

-- Requests of one cost against one limit, which are most of all that is asked, by how they are written: many
-- clients ask for the same.
local known_asks = {}

-- What is kept of a client under a limit, or nothing: a fresh state.
local function read_state(c, value)
  c.taken, c.lends, c.changed = 0, 0, false
  c.was_lent, c.epoch, c.current, c.previous = false, second_now, 0, 0
  if not value then
    c.known = false
    return
  end
  local format, _ = byte(value)
  local bytes = NARROW_BYTES
  if format == NARROW then
    _, c.kept_class, c.instant, c.mark, c.major, c.minor = decode(NARROW_STATE, value)
  elseif format == WIDE then
    _, c.kept_class, c.instant, c.mark, c.major, c.minor = decode(WIDE_STATE, value)
    bytes = WIDE_BYTES
  else
    error("a state is in format " .. tostring(format) .. ", which is not known here", 0)
  end
  c.known = true
  if #value > bytes then
    c.was_lent = true
    c.epoch, c.current, c.previous = decode(">I4I4I4", value, bytes + 1)
  end
end

-- The state under one limit, whose value under the field that was asked for is `value`.
local function find_state(key, c, value)
  if c.algorithm == 4 then
    c.list = key .. ":" .. c.field
  elseif not value and #c.field > 5 and call("HLEN", key) >= MOST_FIELDS then
    -- Too many for one client: from here on they count together, each limit by itself.
    c.field = sub(c.field, 1, 5)
    value = call("HGET", key, c.field)
  end
  read_state(c, value)
end

-- Lets go of what was lent two seconds ago. A clock that stepped back keeps it until it has caught up.
local function roll_epoch(c)
  if c.epoch < second_now then
    c.previous = c.epoch == second_now - 1 and c.current or 0
    c.current, c.epoch = 0, second_now
  elseif c.epoch > second_now + 2 then
    -- So far ahead that the clock must have jumped.
    c.epoch, c.changed = second_now, true
  end
end

-- What a node tells of tokens that it has taken: spent, brought back, or taken for a request that came to
-- nothing (those were never lent).
local function settle(c, epoch, spent, returned, refunded)
  if c.algorithm == 4 then
    take_off(c, epoch, refunded)
  elseif c.algorithm >= 3 then
    -- Only within the window in which they were taken, and never more than it counts.
    local window = (c.start / c.span) % 4294967296
    local back = window == epoch and min(c.count + c.taken, returned + refunded) or 0
    c.taken, c.available = c.taken - back, c.available + back * c.unit
  else
    local lent = epoch == c.epoch and "current" or epoch == c.epoch - 1 and "previous"
    if lent then
      returned = min(returned, c[lent])
      c[lent] = c[lent] - min(c[lent], spent + returned)
      local back = min(refunded + returned, c.capacity)
      local most = max(0, c.capacity - c.current - c.previous) * c.period
      c.available = max(c.available, min(most, c.available + back * c.period))
    end
    -- What comes back later than that would come on top of what was refilled in its stead.
  end
  c.changed = true
end

-- How often `cost` is available.
local function times(c, cost)
  local whole = cost * c.unit
  if c.available < whole then return 0 end
  return (c.available - c.available % whole) / whole
end

local function take(c, tokens)
  c.taken, c.available = c.taken + tokens, c.available - tokens * c.unit
end

-- How many of `repeats` requests of `cost` a limit has room for.
local function room(c, repeats, cost)
  if c.available >= repeats * cost * c.unit then return repeats end
  return times(c, cost)
end

-- Serves requests of one cost, as many of `repeats` as every limit has room for. Tells whether all passed.
local function serve(charges, repeats, cost, answer)
  local passing = repeats
  for index = 1, #charges do
    local c = charges[index]
    if not c.shadow then passing = room(c, passing, cost) end
  end
  answer[#answer + 1] = encode(">I4", passing)
  for index = 1, #charges do
    local c, taken = charges[index], passing
    if c.shadow then
      taken = room(c, passing, cost)
      answer[#answer + 1] = encode(">I4", taken)
    end
    take(c, taken * cost)
    if c.algorithm == 4 then answer[#answer + 1] = encode(">I4I7I7", log_standing(c, cost)) end
  end
  return passing == repeats
end

-- The state after all is served; whether it has to be written, and whether its expiry has to be looked after.
local function next_state(c)
  local writes = c.taken ~= 0 or c.changed
  local instant, mark, major, minor = c.instant, c.mark, c.major, c.minor
  if writes or c.was_lent then instant, mark, major, minor = close[c.algorithm](c) end
  if not (writes or c.known) then return "", false, false end
  local value
  if major < 65536 then
    value = encode(NARROW_STATE, NARROW, c.class, instant, mark, major, minor)
  else
    value = encode(WIDE_STATE, WIDE, c.class, instant, mark, major, minor)
  end
  local current = c.algorithm < 3 and c.current + c.lends or 0
  if current + c.previous > 0 then value = value .. encode(">I4I4I4", c.epoch, current, c.previous) end
  if not writes then return value, false, false end
  -- The expiry is looked after four times in the life of a state: so none goes while it still limits.
  local before, quarter = c.instant, c.ttl * 250
  local same_quarter = before - before % quarter == instant - instant % quarter
  return value, true, not (c.known and c.kept_class == c.class and same_quarter)
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
    -- Of another format nothing is known, not even how old it is.
    if (format == NARROW or format == WIDE) and #value >= NARROW_BYTES then
      local _, class, instant = decode(">BBI7", value)
      if instant + 2 ^ (class / 4) < now then call("HDEL", key, some[index]) end
    end
  end
end

local function write(key, charges)
  local fields, due, ttl = {}, false, 0
  for index = 1, #charges do
    local c = charges[index]
    if c.algorithm == 4 then
      close[4](c)
    else
      local writes, is_due
      c.value, writes, is_due = next_state(c)
      if writes then
        fields[#fields + 1], fields[#fields + 2] = c.field, c.value
        due, ttl = due or is_due, max(ttl, c.ttl)
      end
    end
  end
  if #fields > 0 then call("HSET", key, unpack(fields)) end
  if due then look_after_expiry(key, ttl) end
end

-- Requests of one cost, or none but reports, against one limit that is neither a log nor in the shadow: nearly all
-- that is ever asked. `at` is where the ask says what to take ahead and what became of what was taken, if it does.
local function charge_one(key, c, field, repeats, cost, ask, at)
  c.field = field
  find_state(key, c, call("HGET", key, field))
  open[c.algorithm](c)
  if c.was_lent then roll_epoch(c) end
  local want, share, reports = 0, 1, 0
  if c.wants then want, share, at = decode(">I4I4", ask, at) end
  if c.tells then reports, at = decode("B", ask, at) end
  for _ = 1, reports do
    local epoch, spent, returned, refunded
    epoch, spent, returned, refunded, at = decode(">I4I4I4I4", ask, at)
    settle(c, epoch, spent, returned, refunded)
  end
  local passing, lends = nil, 0
  if repeats then
    passing = room(c, repeats, cost)
    take(c, passing * cost)
  end
  if want > 0 and passing == repeats then
    lends = min(want, floor(times(c, 1) / share))
    c.lends = lends
    take(c, lends)
  end
  local value, writes, due = next_state(c)
  if writes then call("HSET", key, c.field, value) end
  if due then look_after_expiry(key, c.ttl) end
  if not repeats then return encode(">c1I4Bc0", "+", lends, #value, value) end
  return encode(">c1I4I4Bc0", "+", passing, lends, #value, value)
end

-- Everything that one client asks for: runs of equal requests, each request whole or not at all.
local function charge_client(key, ask)
  local known = known_asks[ask]
  if known then return charge_one(key, known[1], known[2], known[3], known[4]) end
  local limits, runs = byte(ask, 1, 2)
  if limits == 1 and runs <= 1 then
    local repeats, cost, at = nil, nil, 3
    if runs == 1 then repeats, cost, at = decode(">I4I4", ask, 3) end
    local algorithm, flags = byte(ask, at, at + 1)
    if algorithm ~= 4 and flags % 2 == 0 then
      local c = find_limit(sub(ask, at, at + LIMIT_BYTES - 1), 1)
      local field
      field, at = decode("Bc0", ask, at + LIMIT_BYTES)
      if flags == 0 then known_asks[ask] = { c, field, repeats, cost } end
      return charge_one(key, c, field, repeats, cost, ask, at)
    end
  end
  local costs, charges, fields, at = {}, {}, {}, 3
  for index = 1, 2 * runs do costs[index], at = decode(">I4", ask, at) end
  for index = 1, limits do
    local c
    c, at = read_charge(ask, at, index)
    charges[index], fields[index] = c, c.field
  end
  local values = call("HMGET", key, unpack(fields))
  for index = 1, limits do find_state(key, charges[index], values[index]) end
  -- Only now, for here a log may be written, and a state that cannot be read must leave everything as it is.
  for index = 1, limits do
    local c = charges[index]
    open[c.algorithm](c)
    if c.was_lent then roll_epoch(c) end
    if c.tells then
      for _, report in ipairs(c.reports) do settle(c, unpack(report)) end
    end
  end

  local answer, all_served = { "+" }, true
  for index = 1, 2 * runs, 2 do
    all_served = serve(charges, costs[index], costs[index + 1], answer) and all_served
  end
  for index = 1, limits do
    local c = charges[index]
    if all_served and c.wants then
      c.lends = min(c.want, floor(times(c, 1) / c.share))
      take(c, c.lends)
    end
  end
  write(key, charges)
  for index = 1, limits do
    local c = charges[index]
    if c.algorithm ~= 4 then answer[#answer + 1] = encode(">I4Bc0", c.lends, #c.value, c.value) end
  end
  return table.concat(answer)
end

local given, repeats_names = decode(">I7B", ARGV[1])
if given > 0 then
  now = given
else
  local time = call("TIME")
  now = time[1] * SECOND + time[2]
end
second_now = floor(now / SECOND)
local names, before, clients = KEYS, 0, #ARGV - 1
if repeats_names == 1 then
  clients = clients / 2
  names, before = ARGV, 1 + clients
end
local answers = { encode(">I7", now) }
for index = 1, clients do
  local done, answer = pcall(charge_client, names[before + index], ARGV[1 + index])
  if not done then answer = "-" .. (type(answer) == "table" and answer.err or tostring(answer)) end
  answers[1 + index] = answer
end
return answers
