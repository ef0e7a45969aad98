-- Sliding window counter, see sliding_window_counter.rs. What is available is counted in 1/window of a
-- request: the limit, less the current count, less what has not faded of the previous one.
local function unused_of_counter(c, start, count, before)
  -- If the clock is a little behind the state, it stands still at the start of the state's window.
  local elapsed = max(0, c.present - start)
  -- Under a lowered limit a window was at most full. The counts stay as they are.
  return c.full - min(before, c.capacity) * (c.span - elapsed) - min(count, c.capacity) * c.span
end

open[SLIDING_WINDOW_COUNTER] = function(c, instant_us, _, major, minor)
  local at, span, jumped = c.present, c.span, false
  local start, count, before = at - at % span, 0, 0
  if instant_us then
    -- The start of a window of another span lies within one of these.
    local stored = tick_of(instant_us, c.tick_us)
    stored = stored - stored % span
    if stored >= start then
      count, before = major, minor
      if stored > at then
        if stored - at > span then
          jumped = true
        else
          start = stored
        end
      end
    elseif stored + span >= start then
      before = major
    end
  end
  return unused_of_counter(c, start, count, before), start, jumped, count, before
end

apply_report[SLIDING_WINDOW_COUNTER] = function(c, _, start, count, before, _, current, previous, epoch, _, returned)
  count = count_after_return(c, start, count, epoch, returned)
  return unused_of_counter(c, start, count, before), count, current, previous
end

close[SLIDING_WINDOW_COUNTER] = close[FIXED_WINDOW]
