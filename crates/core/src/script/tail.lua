-- How much of what is available one token is.
local function unit_of(algorithm, period, span)
  if algorithm < 3 then return period end
  return algorithm == 5 and span or 1
end

-- One limit that a client is charged against, as asked; the rest is filled in from its state.
local function read_charge(ask, at)
  local algorithm, flags, class, ttl, want, share, capacity, amount, period, tick, grain, span, field
  algorithm, flags, class, ttl, want, share, capacity, amount, period, tick, grain, span, field, at =
    decode(">BBBI5I4I4I4I4I4I4I2I7Bc0", ask, at)
  local unit = unit_of(algorithm, period, span)
  local c = {
    algorithm = algorithm, shadow = flags % 2 == 1, class = class, ttl = ttl, want = want, share = share,
    capacity = capacity, amount = amount, period = period, tick = tick, grain = grain, span = span,
    asked_field = field, reports = false, unit = unit, full = capacity * unit,
    -- The expiry is looked after four times in the life of a state: so none goes while it still limits.
    quarter = ttl * 250,
    field = field, list = false, known = false, kept_class = 0, jumped = false,
    instant = 0, mark = 0, major = 0, minor = 0, epoch = 0, current = 0, previous = 0,
    available = 0, taken = 0, lends = 0, at = 0, start = 0, count = 0, before = 0,
    was_lent = false, settled = false, value = "",
  }
  if flags >= 2 then
    local reports
    reports, at = decode("B", ask, at)
    c.reports = {}
    for index = 1, reports do
      local epoch, spent, returned, refunded
      epoch, spent, returned, refunded, at = decode(">I4I4I4I4", ask, at)
      c.reports[index] = { epoch, spent, returned, refunded }
    end
  end
  return c, at
end

-- What clients ask, by how it is written: many ask for the same, and nothing in it speaks of the client.
local known_asks = {}

local function read_ask(ask)
  local limits, runs, at = decode("BB", ask)
  local asked = { costs = {}, charges = {}, fields = {} }
  for index = 1, 2 * runs do asked.costs[index], at = decode(">I4", ask, at) end
  for index = 1, limits do
    local c
    c, at = read_charge(ask, at)
    asked.charges[index], asked.fields[index] = c, c.asked_field
  end
  known_asks[ask] = asked
  return asked
end

-- What is kept of a client under a limit, or nothing: a fresh state.
local function read_state(c, value)
  c.jumped, c.was_lent, c.settled, c.taken, c.lends, c.value = false, false, false, 0, 0, ""
  c.epoch, c.current, c.previous = second_now, 0, 0
  if not value then
    c.known = false
    return
  end
  local format
  format, c.kept_class, c.instant, c.mark, c.major, c.minor = decode(">BBI7I2I4I4", value)
  if format ~= FORMAT then error("a state is in format " .. format .. ", which is not known here", 0) end
  c.known = true
  if #value > 19 then
    c.epoch, c.current, c.previous = decode(">I4I4I4", value, 20)
    c.was_lent = true
  end
end

-- Lets go of what was lent two seconds ago. A clock that stepped back keeps it until it has caught up.
local function roll_epoch(c)
  if c.epoch < second_now then
    c.previous = c.epoch == second_now - 1 and c.current or 0
    c.current, c.epoch = 0, second_now
  elseif c.epoch > second_now + 2 then
    c.epoch = second_now
  end
end

-- What a node tells of tokens that it has taken: spent, brought back, or taken for a request that came to
-- nothing (those were never lent).
local function settle(c, epoch, spent, returned, refunded)
  if c.algorithm >= 3 then
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
  c.settled = true
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

-- Serves requests of one cost, as many of `repeats` as every limit has room for. Tells how many pass, and
-- what is answered.
local function serve(charges, repeats, cost)
  local passing = repeats
  for index = 1, #charges do
    local c = charges[index]
    if not c.shadow and c.available < passing * cost * c.unit then passing = times(c, cost) end
  end
  local answer = encode(">I4", passing)
  for index = 1, #charges do
    local c, taken = charges[index], passing
    if c.shadow then
      taken = min(passing, times(c, cost))
      answer = answer .. encode(">I4", taken)
    end
    take(c, taken * cost)
    if c.algorithm == 4 then answer = answer .. encode(">I4I7I7", log_standing(c, cost)) end
  end
  return passing, answer
end

-- The state after all is served; whether it has to be written, and whether its expiry has to be looked after.
local function next_state(c)
  local writes = c.taken ~= 0 or c.settled or c.jumped
  local instant, mark, major, minor = c.instant, c.mark, c.major, c.minor
  if writes or c.was_lent then instant, mark, major, minor = close[c.algorithm](c) end
  if c.algorithm < 3 then c.current = c.current + c.lends end
  if writes or c.known then
    c.value = encode(">BBI7I2I4I4", FORMAT, c.class, instant, mark, major, minor)
    if c.current + c.previous > 0 then
      c.value = c.value .. encode(">I4I4I4", c.epoch, c.current, c.previous)
    end
  end
  if not writes then return false, false end
  local before, quarter = c.instant, c.quarter
  local same_quarter = before - before % quarter == instant - instant % quarter
  return true, not (c.known and c.kept_class == c.class and same_quarter)
end

local function look_after_expiry(key, ttl)
  -- It only grows: a limit per second must not drop a limit per day.
  if call("PTTL", key) < ttl then call("PEXPIRE", key, ttl) end
  local some = call("HRANDFIELD", key, 2, "WITHVALUES")
  for index = 1, #some, 2 do
    local value = some[index + 1]
    -- Of another format nothing is known, not even how old it is.
    if value:byte() == FORMAT and #value >= 19 then
      local _, class, instant = decode(">BBI7", value)
      if instant + 2 ^ (class / 4) < now then call("HDEL", key, some[index]) end
    end
  end
end

local function write(key, charges)
  local fields, due, ttl = nil, false, 0
  for index = 1, #charges do
    local c = charges[index]
    if c.algorithm == 4 then
      close[4](c)
    else
      local writes, is_due = next_state(c)
      if writes then
        due, ttl = due or is_due, max(ttl, c.ttl)
        if #charges == 1 then
          call("HSET", key, c.field, c.value)
        else
          fields = fields or {}
          fields[#fields + 1], fields[#fields + 2] = c.field, c.value
        end
      end
    end
  end
  if fields then call("HSET", key, unpack(fields)) end
  if due then look_after_expiry(key, ttl) end
end

local function read_states(key, asked)
  local charges = asked.charges
  local values = #charges > 1 and call("HMGET", key, unpack(asked.fields))
  for index = 1, #charges do
    local c = charges[index]
    local field = c.asked_field
    local value
    if values then value = values[index] else value = call("HGET", key, field) end
    if c.algorithm == 4 then
      c.list = key .. ":" .. field
    elseif not value and #field > 5 and call("HLEN", key) >= MOST_FIELDS then
      -- Too many for one client: from here on they count together, each limit by itself.
      field = field:sub(1, 5)
      value = call("HGET", key, field)
    end
    c.field = field
    read_state(c, value)
  end
end

-- Everything that one client asks for: runs of equal requests, each request whole or not at all.
local function charge_client(key, ask)
  local asked = known_asks[ask] or read_ask(ask)
  local charges, costs = asked.charges, asked.costs
  read_states(key, asked)
  -- Only now, for here a log may be written, and a state that cannot be read must leave everything as it is.
  for index = 1, #charges do
    local c = charges[index]
    open[c.algorithm](c)
    if c.was_lent then roll_epoch(c) end
    if c.reports then
      for _, report in ipairs(c.reports) do settle(c, unpack(report)) end
    end
  end

  local answer, all_served = "+", true
  for index = 1, #costs, 2 do
    local passing, served = serve(charges, costs[index], costs[index + 1])
    answer, all_served = answer .. served, all_served and passing == costs[index]
  end
  for index = 1, #charges do
    local c = charges[index]
    if all_served and c.want > 0 then
      c.lends = min(c.want, floor(times(c, 1) / c.share))
      take(c, c.lends)
    end
  end
  write(key, charges)
  for index = 1, #charges do
    local c = charges[index]
    if c.algorithm ~= 4 then answer = answer .. encode(">I4Bc0", c.lends, #c.value, c.value) end
  end
  return answer
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
