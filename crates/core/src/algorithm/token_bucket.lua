-- Token bucket, see token_bucket.rs. What is available is the level.
open[0] = function(c)
  if not c.known then
    c.at, c.available = c.present, c.full
    return
  end
  local level = c.full
  if c.major < c.capacity then
    level = c.major * c.period
    if c.mark == c.grain and c.minor < c.period then level = level + c.minor end
  end
  c.available = flow(c, level)
end

close[0] = function(c)
  local minor = c.available % c.period
  return c.at * c.tick, c.grain, (c.available - minor) / c.period, minor
end
