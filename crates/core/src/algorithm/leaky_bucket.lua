-- Leaky bucket, see leaky_bucket.rs. What is available is the room above the level.
open[1] = function(c)
  if not c.known then
    c.at, c.available = c.present, c.full
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
  c.available = flow(c, c.full - level)
end

close[1] = function(c)
  local level = c.full - c.available
  local minor = level % c.period
  return c.at * c.tick, c.grain, (level - minor) / c.period, minor
end
