-- Leaky bucket, see leaky_bucket.rs. What is available is the room above the level.
open[1] = function(c, instant, mark, major, minor, epoch, current, previous)
  if not instant then return c.full, c.present, false end
  local level = c.full
  if major < c.capacity then
    level = major * c.period
    if minor > 0 then
      local known = mark == c.grain and minor < c.period
      level = level + (known and minor or c.period)
    end
  end
  return flow(c, c.full - level, instant, epoch, current, previous)
end

close[1] = function(c, available, at)
  local level = c.full - available
  local minor = level % c.period
  return at * c.tick, c.grain, (level - minor) / c.period, minor
end
