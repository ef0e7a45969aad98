-- Token bucket, see token_bucket.rs. What is available is the level.
open[TOKEN_BUCKET] = function(c, instant_us, grain, major, minor, lent_epoch, current, previous)
  if not instant_us then return c.full, c.present, false end
  local level = c.full
  if major < c.capacity then
    local unit = c.unit
    level = major * unit
    if grain == c.grain and minor < unit then level = level + minor end
  end
  return flow(c, level, instant_us, lent_epoch, current, previous)
end

apply_report[TOKEN_BUCKET] = apply_report_to_bucket

close[TOKEN_BUCKET] = function(c, available, at)
  local unit = c.unit
  local minor = available % unit
  return at * c.tick_us, c.grain, (available - minor) / unit, minor
end
