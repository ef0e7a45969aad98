-- Sliding window log, see sliding_window_log.rs. A list beside the client's hash, oldest first. Each entry
-- is its instant, the sum of all costs before it, and its own cost: so the two ends of the window tell what
-- it holds, however many entries lie between them.
local ENTRY = ">I7I7I4"

-- The index, the instant and the sum before of the first entry from `index` on for which `holds`. It is nearly
-- always among the first few, which are read together. Otherwise it is found by halving, for instants and sums only
-- grow: a log of a thousand entries that have all left the window must not keep the server from others.
local function first_entry(c, index, holds)
  local few = call("LRANGE", c.list, index, index + 15)
  for offset, entry in ipairs(few) do
    local instant, before, cost = decode(ENTRY, entry)
    if holds(instant, before + cost) then return index + offset - 1, instant, before end
  end
  if #few < 16 then return nil end
  local low, high, found_instant, found_before = index + 16, call("LLEN", c.list), nil, nil
  while low < high do
    local middle = floor((low + high) / 2)
    local instant, before, cost = decode(ENTRY, call("LINDEX", c.list, middle))
    if holds(instant, before + cost) then
      high, found_instant, found_before = middle, instant, before
    else
      low = middle + 1
    end
  end
  if not found_instant then return nil end
  return high, found_instant, found_before
end

local function move_to_present(c)
  local entries = call("LRANGE", c.list, 0, -1)
  call("DEL", c.list)
  for _, entry in ipairs(entries) do
    local instant, before, cost = decode(ENTRY, entry)
    call("RPUSH", c.list, encode(ENTRY, min(instant, now), before, cost))
  end
  call("PEXPIRE", c.list, c.ttl)
end

-- A log is asked for with others or alone, but never the quick way: it keeps what it knows in its table.
open[4] = function(c)
  c.length = c.span * c.tick
  -- The sum of all costs; that before the window; the index of the first entry in it; the newest instant.
  c.sum, c.base, c.first, c.newest = 0, 0, 0, nil
  local last = call("LINDEX", c.list, -1)
  if last then
    local newest, before, cost = decode(ENTRY, last)
    if newest > now + c.length then
      move_to_present(c)
      newest = now
    end
    c.sum = before + cost
    local first, _, base = first_entry(c, 0, function(instant) return instant + c.length > now end)
    if first then
      c.first, c.base, c.newest = first, base, newest
    else
      c.first, c.base = call("LLEN", c.list), c.sum
    end
  end
  return c.capacity - (c.sum - c.base)
end

-- Takes `back` off the entry of the instant whose low 32 bits are `epoch`, if it is among the newest and still counts.
-- The sums of the entries behind it follow.
local RETURN_DEPTH = 64

local function take_off(c, epoch, back)
  if back == 0 or not c.newest then return end
  local newest = call("LRANGE", c.list, -RETURN_DEPTH, -1)
  for index = #newest, 1, -1 do
    local instant, before, cost = decode(ENTRY, newest[index])
    if instant % 4294967296 == epoch then
      if instant + c.length <= now then return end
      local part = min(cost, back)
      for later = index + 1, #newest do
        local at, sum, own = decode(ENTRY, newest[later])
        call("LSET", c.list, later - #newest - 1, encode(ENTRY, at, sum - part, own))
      end
      if part < cost then
        call("LSET", c.list, index - #newest - 1, encode(ENTRY, instant, before, cost - part))
      else
        call("LREM", c.list, -1, newest[index])
        if index == #newest then c.newest = index > 1 and decode(ENTRY, newest[index - 1]) or nil end
        if c.newest and c.newest + c.length <= now then c.newest = nil end
      end
      c.sum, c.available = c.sum - part, c.available + part
      return
    end
  end
end

-- How things stand for one more request of `cost`: what is left, the wait, and until nothing is used.
local function log_standing(c, cost)
  local used = c.sum - c.base + c.taken
  local newest = c.taken > 0 and max(c.newest or 0, now) or c.newest
  local wait = 0
  if used + cost > c.capacity then
    local excess = used + cost - c.capacity
    local found, instant = first_entry(c, c.first, function(_, sum) return sum - c.base >= excess end)
    -- Not among those that stand in the list: then it is one of this very call.
    wait = (found and instant or newest) + c.length - now
  end
  return max(0, c.capacity - used), wait, newest and newest + c.length - now or 0
end

close[4] = function(c)
  if c.taken == 0 then return end
  if c.first > 0 then call("LTRIM", c.list, c.first, -1) end
  -- After a small step back of the clock the newest lies ahead: the list stays sorted.
  local at = max(c.newest or 0, now)
  if c.newest == at then
    -- Equal instants are one entry.
    local _, before, cost = decode(ENTRY, call("LINDEX", c.list, -1))
    call("LSET", c.list, -1, encode(ENTRY, at, before, cost + c.taken))
  else
    call("RPUSH", c.list, encode(ENTRY, at, c.sum, c.taken))
  end
  call("PEXPIRE", c.list, c.ttl)
end
