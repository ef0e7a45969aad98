-- How much of what is available one token is.
local function unit_of(algorithm, period, span)
  if algorithm < 3 then return period end
  return algorithm == 5 and span or 1
end

-- How many seconds an epoch has under a limit of this class: an eighth of its lifetime, or nearly so.
local function epoch_length(class)
  return class < 96 and 1 or class < 100 and 2 or class < 104 and 4 or LONGEST_EPOCH
end

-- A limit and its numbers, as written in LIMIT_BYTES.
local LIMIT_BYTES = 33

local function read_limit(written)
  local algorithm, flags, class, ttl, capacity, amount, period, tick, grain, span =
    decode(">BBBI5I4I4I4I4I2I7", written)
  local unit, length = unit_of(algorithm, period, span), epoch_length(class)
  return {
    algorithm = algorithm, shadow = flags % 2 == 1, wants = flags % 4 >= 2, tells = flags >= 4,
    class = class, ttl = ttl, capacity = capacity, amount = amount, period = period, tick = tick,
    grain = grain, span = span, unit = unit, full = capacity * unit, present = tick_of(now, tick),
    length = length, epoch_now = second_now - second_now % length,
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

-- What is lent in epochs of the class `kept_class`, in those of `c`: remembered at least as long as before, and no
-- longer than tokens can live that were taken just now. A quarter of the capacity stays free.
local function fit_epoch(c, kept_class, epoch, current, previous)
  local kept, length = epoch_length(kept_class), c.length
  if kept == length or epoch > second_now + 2 * LONGEST_EPOCH then return epoch, current, previous end
  if kept < length then
    epoch, current, previous = epoch - epoch % length, current + previous, 0
  else
    -- An epoch that lies ahead, so that it ends when the longer one would have.
    epoch = min(c.epoch_now + 2 * LONGEST_EPOCH, epoch + 2 * (kept - length))
  end
  local most = c.capacity - floor(c.capacity / 4)
  previous = min(previous, most)
  return epoch, min(current, most - previous), previous
end

-- Lets go of what was lent two epochs ago. A clock that stepped back keeps it until it has caught up.
local function roll_epoch(c, epoch, current, previous)
  local epoch_now = c.epoch_now
  if epoch < epoch_now then
    return epoch_now, 0, epoch + c.length >= epoch_now and current or 0, false
  end
  -- So far ahead that the clock must have jumped.
  if epoch > second_now + 2 * LONGEST_EPOCH then return epoch_now, current, previous, true end
  return epoch, current, previous, false
end

-- What a node tells of tokens that it has taken: spent, brought back, or taken for a request that came to
-- nothing (those were never lent). Answers what is available, taken and lent then.
local function settle(c, available, taken, at, count, epoch, current, previous, told, spent, returned, refunded)
  if c.algorithm >= 3 then
    -- Only within the window in which they were taken, and never more than it counts.
    local window = (at / c.span) % 4294967296
    local back = window == told and min(count + taken, returned + refunded) or 0
    return available + back * c.unit, taken - back, current, previous
  end
  -- What comes back later than that would come on top of what was refilled in its stead.
  if told ~= epoch and told ~= epoch - c.length then return available, taken, current, previous end
  local lent = told == epoch and current or previous
  returned = min(returned, lent)
  lent = lent - min(lent, spent + returned)
  if told == epoch then current = lent else previous = lent end
  local back = min(refunded + returned, c.capacity)
  local most = max(0, c.capacity - current - previous) * c.period
  return max(available, min(most, available + back * c.period)), taken, current, previous
end

-- How many of `repeats` requests of `cost` there is room for.
local function room(c, available, repeats, cost)
  local whole = cost * c.unit
  if available >= repeats * whole then return repeats end
  if available < whole then return 0 end
  return (available - available % whole) / whole
end

-- How many tokens are lent of what is available: at most `want`, and one in `share` of them.
local function lendable(c, available, want, share)
  if available < c.unit then return 0 end
  return min(want, floor(floor(available / c.unit) / share))
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
    if c.algorithm == 4 then answer[#answer + 1] = encode(">I4I7I7", log_standing(c, cost)) end
  end
  return passing == repeats
end

-- The state after all is served, where it was `value`; whether it has to be written, and whether its expiry has
-- to be looked after.
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
      encode(layout, format, c.class, instant, mark, major, minor, epoch or c.epoch_now, current + lends, previous)
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
      -- What is lent under a longer epoch than that of its class is remembered longer.
      if #value > bytes then fresh = max(fresh, (decode(">I4", value, bytes + 1) + 2 * LONGEST_EPOCH) * SECOND) end
      if fresh < now then call("HDEL", key, some[index]) end
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
      c.value, writes, is_due = next_state(
        c, c.value, c.kept_class, c.instant, c.available, c.at, c.count, c.before, c.taken, c.moved, c.lends,
        c.epoch, c.current, c.previous
      )
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
local function charge_one(key, c, field, repeats, cost, ask, at, value)
  if not value then field, value = find_state(key, field, value) end
  local kept_class, instant, mark, major, minor, epoch, current, previous = nil, nil, 0, 0, 0, nil, 0, 0
  if value then kept_class, instant, mark, major, minor, epoch, current, previous = read_state(value) end
  if epoch and kept_class ~= c.class then
    epoch, current, previous = fit_epoch(c, kept_class, epoch, current, previous)
  end
  local available, stands, moved, count, before =
    open[c.algorithm](c, instant, mark, major, minor, epoch, current, previous)
  if epoch then
    local jumped
    epoch, current, previous, jumped = roll_epoch(c, epoch, current, previous)
    moved = moved or jumped
  end
  local taken, want, share = 0, 0, 1
  if c.wants then want, share, at = decode(">I4I4", ask, at) end
  if c.tells then
    local reports
    reports, at = decode("B", ask, at)
    for _ = 1, reports do
      local told, spent, returned, refunded
      told, spent, returned, refunded, at = decode(">I4I4I4I4", ask, at)
      available, taken, current, previous = settle(
        c, available, taken, stands, count, epoch or c.epoch_now, current, previous, told, spent, returned, refunded
      )
    end
    moved = moved or reports > 0
  end
  local passing, lends, unit = nil, 0, c.unit
  if repeats then
    passing = room(c, available, repeats, cost)
    taken, available = taken + passing * cost, available - passing * cost * unit
  end
  if want > 0 and passing == repeats then
    lends = lendable(c, available, want, share)
    taken, available = taken + lends, available - lends * unit
  end
  local writes, due
  value, writes, due = next_state(
    c, value, kept_class, instant, available, stands, count, before, taken, moved, lends, epoch, current, previous
  )
  if writes then call("HSET", key, field, value) end
  if due then look_after_expiry(key, c.ttl) end
  if not repeats then return encode(">c1I4Bc0", "+", lends, #value, value) end
  return encode(">c1I4I4Bc0", "+", passing, lends, #value, value)
end

-- The same for a token bucket in ticks of a microsecond, from which nothing is taken ahead, as a function that has
-- the numbers at hand: what is the same for all clients is not looked up for each. It knows the state that is found
-- nearly always, of which nothing is lent and which has room for all. Any other is left to `charge_one`.
local function quick_bucket(c, field, repeats, cost, ask)
  local capacity, amount, period, grain, class = c.capacity, c.amount, c.period, c.grain, c.class
  local full, span, quarter, need = c.full, c.span, c.ttl * 250, repeats * cost * c.period
  local this_quarter = now - now % quarter
  return function(key)
    local value = call("HGET", key, field)
    if not value then return charge_one(key, c, field, repeats, cost, ask) end
    local format, kept_class, instant, mark, major, minor
    if #value == NARROW_BYTES then
      format, kept_class, instant, mark, major, minor = decode(NARROW_STATE, value)
    elseif #value == WIDE_BYTES then
      format, kept_class, instant, mark, major, minor = decode(WIDE_STATE, value)
      if format ~= WIDE then format = nil end
    end
    if
      not format or format > NARROW or kept_class ~= class or mark ~= grain
      or instant > now or major >= capacity or minor >= period
    then
      return charge_one(key, c, field, repeats, cost, ask, nil, value)
    end
    local elapsed, available = now - instant, full
    if elapsed <= span then
      available = major * period + minor + elapsed * amount
      if available > full then available = full end
    end
    if available < need then return charge_one(key, c, field, repeats, cost, ask, nil, value) end
    available = available - need
    local rest = available % period
    local whole = (available - rest) / period
    if whole < 65536 then
      value = encode(NARROW_STATE, NARROW, class, now, grain, whole, rest)
    else
      value = encode(WIDE_STATE, WIDE, class, now, grain, whole, rest)
    end
    call("HSET", key, field, value)
    if instant - instant % quarter ~= this_quarter then look_after_expiry(key, c.ttl) end
    return "=" .. value
  end
end

local function any_limit(c, field, repeats, cost, ask)
  return function(key) return charge_one(key, c, field, repeats, cost, ask, nil, call("HGET", key, field)) end
end

-- Everything that one client asks for: runs of equal requests, each request whole or not at all.
local function charge_client(key, ask)
  local limits, runs = byte(ask, 1, 2)
  if limits == 1 and runs <= 1 then
    local repeats, cost, at = nil, nil, 3
    if runs == 1 then repeats, cost, at = decode(">I4I4", ask, 3) end
    local algorithm, flags = byte(ask, at, at + 1)
    if algorithm ~= 4 and flags % 2 == 0 then
      local c = find_limit(sub(ask, at, at + LIMIT_BYTES - 1), 1)
      local field
      field, at = decode("Bc0", ask, at + LIMIT_BYTES)
      if flags == 0 then
        local is_quick = algorithm == 0 and c.tick == 1 and repeats and repeats > 0
        local charge = (is_quick and quick_bucket or any_limit)(c, field, repeats, cost, ask)
        known_asks[ask] = charge
        return charge(key)
      end
      return charge_one(key, c, field, repeats, cost, ask, at, call("HGET", key, field))
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
  for index = 1, limits do
    local c, value = charges[index], values[index]
    if c.algorithm == 4 then
      c.list, value = key .. ":" .. c.field, nil
    else
      c.field, value = find_state(key, c.field, value)
    end
    c.value = value
    if value then
      c.kept_class, c.instant, c.mark, c.major, c.minor, c.epoch, c.current, c.previous = read_state(value)
    else
      c.kept_class, c.instant, c.mark, c.major, c.minor, c.epoch, c.current, c.previous = nil, nil, 0, 0, 0, nil, 0, 0
    end
  end
  -- Only now, for here a log may be written, and a state that cannot be read must leave everything as it is.
  for index = 1, limits do
    local c = charges[index]
    c.taken, c.lends = 0, 0
    if c.epoch and c.kept_class ~= c.class then
      c.epoch, c.current, c.previous = fit_epoch(c, c.kept_class, c.epoch, c.current, c.previous)
    end
    c.available, c.at, c.moved, c.count, c.before =
      open[c.algorithm](c, c.instant, c.mark, c.major, c.minor, c.epoch, c.current, c.previous)
    if c.epoch then
      local jumped
      c.epoch, c.current, c.previous, jumped = roll_epoch(c, c.epoch, c.current, c.previous)
      c.moved = c.moved or jumped
    end
    if c.tells then
      for _, report in ipairs(c.reports) do
        local told, spent, returned, refunded = unpack(report)
        if c.algorithm == 4 then
          take_off(c, told, refunded)
        else
          c.available, c.taken, c.current, c.previous = settle(
            c, c.available, c.taken, c.at, c.count, c.epoch or c.epoch_now, c.current, c.previous,
            told, spent, returned, refunded
          )
        end
        c.moved = true
      end
    end
  end

  local answer, all_served = { "+" }, true
  for index = 1, 2 * runs, 2 do
    all_served = serve(charges, costs[index], costs[index + 1], answer) and all_served
  end
  for index = 1, limits do
    local c = charges[index]
    if all_served and c.wants then
      c.lends = lendable(c, c.available, c.want, c.share)
      c.taken, c.available = c.taken + c.lends, c.available - c.lends * c.unit
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
local which = ARGV[2]
local names, before, clients = KEYS, 0, #which
if repeats_names == 1 then names, before = ARGV, #ARGV - clients end
local answers = { encode(">I7", now) }
for index = 1, clients do
  local ask = ARGV[2 + byte(which, index)]
  local done, answer = pcall(known_asks[ask] or charge_client, names[before + index], ask)
  if not done then answer = "-" .. (type(answer) == "table" and answer.err or tostring(answer)) end
  answers[1 + index] = answer
end
return answers
