-- GCRA, see gcra.rs. What is available is what may still be booked: the capacity less what is owed, which
-- is below nothing when the theoretical arrival time lies further ahead than can be booked.
open[2] = function(c)
  local at, full = c.present, c.full
  c.at = at
  if not c.known then
    c.available = full
    return
  end
  local arrival = tick_after(c.instant, c.tick)
  if arrival - at > 2 * c.span then
    c.available, c.changed = 0, true
    return
  end
  -- From the arrival on nothing is owed, whatever the remainder: the state equals a fresh one.
  local owed = 0
  if arrival >= at then
    owed = (arrival - at) * c.amount
    if c.minor > 0 then
      local known = c.mark == c.grain and c.minor < c.amount
      owed = owed + (known and c.minor or c.amount)
    end
  end
  c.available = full - owed
  if c.was_lent then
    -- The state does not tell when it was written. It need not: what is owed falls steadily, so that the
    -- first instant at which less is lent is early enough to begin with what the lent lets be.
    local from = min(at, (c.epoch + 1) * (SECOND / c.tick))
    c.available = min(c.available, refill(c, full, from, at))
  end
end

close[2] = function(c)
  local owed = c.full - c.available
  local rest = owed % c.amount
  return (c.at + (owed - rest) / c.amount) * c.tick, c.grain, 0, rest
end
