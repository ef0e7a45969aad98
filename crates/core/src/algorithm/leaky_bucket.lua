-- Leaky bucket, see leaky_bucket.rs. What is available is the room above the level.
open[1] = function(c)
  local at = tick_of(now, c.tick)
  c.at = at
  if not c.known then
    c.available = c.full
    return
  end
  local level = c.full
  if c.major < c.capacity then
    level = c.major * c.period
    if c.minor > 0 then
      local known = c.mark == c.grain and c.minor < c.period
      level = level + (known and c.minor or c.period)
    end
  end
  local last = tick_after(c.instant, c.tick)
  c.at, c.jumped = clock(c, last, at)
  c.available = refill(c, c.full - level, last < c.at and last or c.at, c.at)
end

close[1] = function(c)
  local level = c.full - c.available
  local minor = level % c.period
  return c.at * c.tick, c.grain, (level - minor) / c.period, minor
end
