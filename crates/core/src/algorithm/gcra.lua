-- GCRA, see gcra.rs. What is available is what may still be booked: the capacity less what is owed, which
-- is below nothing when the theoretical arrival time lies further ahead than can be booked.
open[2] = function(c, instant, mark, major, minor, epoch, current, previous)
  local at, full = c.present, c.full
  if not instant then return full, at, false end
  local arrival = tick_after(instant, c.tick)
  if arrival - at > 2 * c.span then return 0, at, true end
  -- From the arrival on nothing is owed, whatever the remainder: the state equals a fresh one.
  local owed = 0
  if arrival >= at then
    owed = (arrival - at) * c.amount
    if minor > 0 then
      local known = mark == c.grain and minor < c.amount
      owed = owed + (known and minor or c.amount)
    end
  end
  local available = full - owed
  if epoch then
    -- The state does not tell when it was written. It need not: what is owed falls steadily, so that the
    -- first instant at which less is lent is early enough to begin with what the lent lets be.
    local from = min(at, (epoch + 1) * (EPOCH / c.tick))
    available = min(available, refill(c, full, from, at, epoch, current, previous))
  end
  return available, at, false
end

close[2] = function(c, available, at)
  local owed = c.full - available
  local rest = owed % c.amount
  return (at + (owed - rest) / c.amount) * c.tick, c.grain, 0, rest
end
