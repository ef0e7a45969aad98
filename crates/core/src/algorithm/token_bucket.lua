-- Token bucket, see token_bucket.rs. What is available is the level.
open[0] = function(c, instant, mark, major, minor, epoch, current, previous)
  if not instant then return c.full, c.present, false end
  local level = c.full
  if major < c.capacity then
    local period = c.period
    level = major * period
    if mark == c.grain and minor < period then level = level + minor end
  end
  return flow(c, level, instant, epoch, current, previous)
end

close[0] = function(c, available, at)
  local period = c.period
  local minor = available % period
  return at * c.tick, c.grain, (available - minor) / period, minor
end
