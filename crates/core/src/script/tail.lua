local function write(key, charges)
  local fields, due, ttl = {}, false, 0
  for index = 1, #charges do
    local c = charges[index]
    if c.algorithm == 4 then
      close[4](c)
    else
      local writes, is_due
      c.value, writes, is_due = next_state(
        c, c.value, c.kept_class, c.instant, c.available, c.at, c.count, c.before, c.taken, c.moved, c.lends + c.held,
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
  local available, stands, moved, count, before =
    open[c.algorithm](c, instant, mark, major, minor, epoch, current, previous)
  if epoch then
    local jumped
    epoch, current, previous, jumped = roll_epoch(epoch, current, previous)
    moved = moved or jumped
  end
  local taken, want, share, lent_limit = 0, 0, 1, 0
  if c.wants then want, share, lent_limit, at = decode(">I4I4I4", ask, at) end
  if c.tells then
    local reports
    reports, at = decode("B", ask, at)
    for _ = 1, reports do
      local told, spent, returned
      told, spent, returned, at = decode(">I4I4I4", ask, at)
      available, taken, current, previous = settle(
        c, available, taken, stands, count, epoch or epoch_now, current, previous, told, spent, returned
      )
    end
    moved = moved or reports > 0
  end
  local passing, lends, held, unit = nil, 0, 0, c.unit
  if repeats then
    passing = room(c, available, repeats, cost)
    taken, available = taken + passing * cost, available - passing * cost * unit
    if c.holds then held = passing * cost end
  end
  if want > 0 and passing == repeats then
    lends = lendable(c, available, want, share, lent_limit, current + previous + held)
    taken, available = taken + lends, available - lends * unit
  end
  local writes, due
  value, writes, due = next_state(
    c, value, kept_class, instant, available, stands, count, before, taken, moved, lends + held, epoch, current,
    previous
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
    c.taken, c.lends, c.held = 0, 0, 0
    c.available, c.at, c.moved, c.count, c.before =
      open[c.algorithm](c, c.instant, c.mark, c.major, c.minor, c.epoch, c.current, c.previous)
    if c.epoch then
      local jumped
      c.epoch, c.current, c.previous, jumped = roll_epoch(c.epoch, c.current, c.previous)
      c.moved = c.moved or jumped
    end
    if c.tells then
      for _, report in ipairs(c.reports) do
        local told, spent, returned = unpack(report)
        if c.algorithm == 4 then
          take_off(c, told, returned)
        else
          c.available, c.taken, c.current, c.previous = settle(
            c, c.available, c.taken, c.at, c.count, c.epoch or epoch_now, c.current, c.previous,
            told, spent, returned
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
      c.lends = lendable(c, c.available, c.want, c.share, c.lent_limit, c.current + c.previous + c.held)
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

local given, flags, biased = decode(">I7BI7", ARGV[1])
local mode = floor(flags / 2)
if mode == GIVEN then
  now = given
else
  local time = call("TIME")
  now = time[1] * SECOND + time[2]
  if mode == CORRECTED then
    now = now + biased - CORRECTION_BIAS
    -- The clock has stepped, or the call was on its way for too long: nothing is charged by a time like that.
    if given > 0 and (now > given + CLOCK_TOLERANCE or now < given - CLOCK_TOLERANCE) then
      return { encode(">I7", now) }
    end
  end
end
epoch_now = floor(now / EPOCH)
local which = ARGV[2]
local names, before, clients = KEYS, 0, #which
if flags % 2 == 1 then names, before = ARGV, #ARGV - clients end
local answers = { encode(">I7", now) }
for index = 1, clients do
  local ask = ARGV[2 + byte(which, index)]
  local done, answer = pcall(known_asks[ask] or charge_client, names[before + index], ask)
  if not done then answer = "-" .. (type(answer) == "table" and answer.err or tostring(answer)) end
  answers[1 + index] = answer
end
return answers
