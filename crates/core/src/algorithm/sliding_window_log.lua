-- Sliding window log, see sliding_window_log.rs. A list beside the client's hash, oldest first. Each entry
-- is its instant, the sum of all costs before it, and its own cost: the costs within the window follow from its two
-- ends, however many entries are between them.
local ENTRY = ">I7I7I4"
local ENTRY_BYTES = 18
-- No instant and no sum is larger: doubles count exactly up to here.
local LARGEST = 2 ^ 53

-- The index, the instant and the sum before of the first entry from `index` on that `matches`. It is nearly always among
-- the first few, which are read together. Otherwise it is found by bisection, because instants and sums only grow: a log
-- of a thousand entries that have all left the window must not block the server.
local function first_entry(c, index, matches)
  local few = redis_call("LRANGE", c.list, index, index + 15)
  for offset, entry in ipairs(few) do
    local instant, before, cost = decode(ENTRY, entry)
    if matches(instant, before + cost) then return index + offset - 1, instant, before end
  end
  if #few < 16 then return nil end
  local low, high, found_instant, found_before = index + 16, redis_call("LLEN", c.list), nil, nil
  while low < high do
    local middle = floor((low + high) / 2)
    local instant, before, cost = decode(ENTRY, redis_call("LINDEX", c.list, middle))
    if matches(instant, before + cost) then
      high, found_instant, found_before = middle, instant, before
    else
      low = middle + 1
    end
  end
  if not found_instant then return nil end
  return high, found_instant, found_before
end

-- The parts of the newest entry. What another program has written is found before anything is written here.
local function read_newest(entry)
  if #entry == ENTRY_BYTES then
    local instant, before, cost = decode(ENTRY, entry)
    if instant <= LARGEST and before <= LARGEST then return instant, before, cost end
  end
  error("a log is damaged", 0)
end

local function move_to_present(c)
  local entries = redis_call("LRANGE", c.list, 0, -1)
  redis_call("DEL", c.list)
  for _, entry in ipairs(entries) do
    local instant, before, cost = decode(ENTRY, entry)
    redis_call("RPUSH", c.list, encode(ENTRY, min(instant, now_us), before, cost))
  end
  redis_call("PEXPIRE", c.list, c.ttl_ms)
end

-- A log keeps its numbers in the table of its limit.
open[SLIDING_WINDOW_LOG] = function(c)
  c.span_us = c.span * c.tick_us
  -- The sum of all costs; that before the window; the index of the first entry in it; the newest instant.
  c.sum, c.base, c.first, c.newest = 0, 0, 0, nil
  local last = redis_call("LINDEX", c.list, -1)
  c.is_new = not last
  if last then
    local newest, before, cost = read_newest(last)
    if newest > now_us + c.span_us then
      move_to_present(c)
      newest = now_us
    end
    c.sum = before + cost
    local first, oldest, base = first_entry(c, 0, function(instant) return instant + c.span_us > now_us end)
    if first then
      if oldest > newest or base > c.sum then error("a log is damaged", 0) end
      c.first, c.base, c.newest = first, base, newest
    else
      c.first, c.base = redis_call("LLEN", c.list), c.sum
    end
  end
  return c.capacity - (c.sum - c.base)
end

-- Takes what is returned off the entry of the instant whose low 32 bits are `epoch`, if it is among the newest and still
-- counts. The sums of the entries behind it follow.
apply_report[SLIDING_WINDOW_LOG] = function(c, available, _, count, _, _, current, previous, epoch, _, returned)
  if returned == 0 or not c.newest then return available, count, current, previous end
  local newest = redis_call("LRANGE", c.list, -RETURN_DEPTH, -1)
  for index = #newest, 1, -1 do
    local instant, before, cost = decode(ENTRY, newest[index])
    if instant % 4294967296 == epoch then
      if instant + c.span_us <= now_us then break end
      local part = min(cost, returned)
      for later = index + 1, #newest do
        local at, sum, own = decode(ENTRY, newest[later])
        redis_call("LSET", c.list, later - #newest - 1, encode(ENTRY, at, sum - part, own))
      end
      if part < cost then
        redis_call("LSET", c.list, index - #newest - 1, encode(ENTRY, instant, before, cost - part))
      else
        redis_call("LREM", c.list, -1, newest[index])
        if index == #newest then c.newest = index > 1 and decode(ENTRY, newest[index - 1]) or nil end
        if c.newest and c.newest + c.span_us <= now_us then c.newest = nil end
      end
      c.sum, available = c.sum - part, available + part
      break
    end
  end
  return available, count, current, previous
end

log_status[SLIDING_WINDOW_LOG] = function(c, cost)
  local used = c.sum - c.base + c.taken
  local newest = c.taken > 0 and max(c.newest or 0, now_us) or c.newest
  local wait = 0
  if used + cost > c.capacity then
    local excess = used + cost - c.capacity
    local found, instant = first_entry(c, c.first, function(_, sum) return sum - c.base >= excess end)
    -- If it is not in the list, it is of this call.
    wait = (found and instant or newest) + c.span_us - now_us
  end
  return max(0, c.capacity - used), wait, newest and newest + c.span_us - now_us or 0
end

close[SLIDING_WINDOW_LOG] = function(c)
  if c.taken == 0 then return end
  if c.first > 0 then redis_call("LTRIM", c.list, c.first, -1) end
  -- After a small step back of the clock the newest entry is ahead of now, and the list stays sorted.
  local at = max(c.newest or 0, now_us)
  if c.newest == at then
    -- Equal instants are one entry.
    local _, before, cost = decode(ENTRY, redis_call("LINDEX", c.list, -1))
    redis_call("LSET", c.list, -1, encode(ENTRY, at, before, cost + c.taken))
  else
    redis_call("RPUSH", c.list, encode(ENTRY, at, c.sum, c.taken))
  end
  set_expiry(c.list, c.ttl_ms, c.is_new)
end
