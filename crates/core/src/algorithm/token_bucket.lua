-- Token bucket, see token_bucket.rs. What is available is the level.
open[0] = function(c)
  local at = tick_of(now, c.tick)
  c.at = at
  if not c.known then
    c.available = c.full
    return
  end
  local level = c.full
  if c.major < c.capacity then
    level = c.major * c.period
    if c.mark == c.grain and c.minor < c.period then level = level + c.minor end
  end
  local last = tick_after(c.instant, c.tick)
  c.at, c.jumped = clock(c, last, at)
  c.available = refill(c, level, last < c.at and last or c.at, c.at)
end

close[0] = function(c)
  local minor = c.available % c.period
  return c.at * c.tick, c.grain, (c.available - minor) / c.period, minor
end
